"""What services give to pages, API and command line: frozen records, complete, so that a template starts no query.

Times are aware UTC; seconds are wall seconds. Texts come out of repos and models: escape them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from orchestrator.store.repos import RepoKind as RepoKind
from orchestrator.store.reviews import ReviewState as ReviewState
from orchestrator.store.schedules import ScheduleKind as ScheduleKind
from orchestrator.store.steps import StepState as StepState
from review_agents.ports import NodeWork
from review_agents.records import (
    Another,
    Change,
    FindingState,
    Kind,
    Lifecycle,
    Place,
    ProbeState,
    Ran,
    Reproduction,
    Severity,
    Source,
    VerificationState,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """One page of a longer list."""

    items: tuple[T, ...]
    page: int  # counted from 1
    per_page: int
    total: int

    @property
    def pages(self) -> int:
        """How many pages there are; at least 1."""
        return max(1, -(-self.total // self.per_page))


# Reviews -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindingCounts:
    """Of one review or repo: confirmed faults that are there now, neither fixed nor ignored."""

    by_severity: Mapping[Severity, int] = field(default_factory=dict)  # severities without any are left out
    new: int = 0  # of those, first seen in this review (for a repo: in its last)
    unproved: int = 0  # filed but not confirmed: flaky, not reproduced, unverified

    @property
    def confirmed(self) -> int:
        return sum(self.by_severity.values())

    @property
    def worst(self) -> Severity | None:
        return min(self.by_severity, key=lambda severity: severity.rank, default=None)


@dataclass(frozen=True, slots=True)
class Unable:
    """Checks that could not run, all for the same reason."""

    reason: str
    probes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Checks:
    """What the checks of one review came to, agents aside; `services.checks` makes it."""

    ran: tuple[str, ...] = ()  # passed or failed
    idle: tuple[str, ...] = ()  # there was nothing of their kind to check
    unable: tuple[Unable, ...] = ()  # by reason
    barred: str = ""  # why nothing could be checked, a reason outside the repo; empty when something could

    @property
    def could_not(self) -> tuple[str, ...]:
        return tuple(probe for one in self.unable for probe in one.probes)

    @property
    def extent(self) -> str:
        """ "the 9 checks that ran; 3 could not run"."""
        number = len(self.ran)
        ran = f"the {number} {'check' if number == 1 else 'checks'} that ran"
        return f"{ran}; {len(self.could_not)} could not run" if self.unable else ran

    @property
    def tally(self) -> str:
        """ "9 checks ran, 3 could not run"."""
        number = len(self.ran)
        ran = f"{number} {'check' if number == 1 else 'checks'} ran"
        return f"{ran}, {len(self.could_not)} could not run" if self.unable else ran

    @property
    def nothing_found(self) -> str:
        """What to say where no finding is."""
        return f"Nothing could be checked: {self.barred}" if self.barred else f"Nothing found by {self.extent}"


@dataclass(frozen=True, slots=True)
class ReviewRow:
    """A review in a list."""

    id: UUID
    repo_id: UUID
    repo_name: str
    ref: str
    commit: str
    state: ReviewState
    requested_by: str  # web, api, cli or schedule
    agents: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    counts: FindingCounts
    error: str = ""
    outcome_note: str = ""
    slot: datetime | None = None  # planned time, of a scheduled review
    unchecked: str = ""  # in a few words, what its checks could not look at; empty when all could run

    @property
    def seconds(self) -> float | None:
        """From first start to end; None until it has ended."""
        if self.started_at is None or self.finished_at is None:
            return None
        return max(0.0, (self.finished_at - self.started_at).total_seconds())  # the clock may have been set back


@dataclass(frozen=True, slots=True)
class StepRow:
    id: UUID
    name: str  # for example probe:readme
    state: StepState
    attempt: int
    started_at: datetime | None
    ended_at: datetime | None
    summary: str
    reason: str

    @property
    def seconds(self) -> float | None:
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, (self.ended_at - self.started_at).total_seconds())


@dataclass(frozen=True, slots=True)
class StepPage:
    """A step by itself, for the page with its log."""

    step_id: UUID
    review_id: UUID
    name: str
    state: StepState
    attempt: int
    seconds: float | None
    summary: str
    reason: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """One probe's result, without its candidates."""

    probe: str
    state: ProbeState
    reason: str
    seconds: float
    summary: str
    facts: Mapping[str, Any]
    step_id: UUID  # its log: steps.log(shop, step_id)


@dataclass(frozen=True, slots=True)
class FindingRow:
    """A finding as one review saw it."""

    id: UUID  # of the finding; stays the same over reviews
    fingerprint: str
    kind: Kind
    rule: str
    title: str
    description: str
    severity: Severity
    places: tuple[Place, ...]
    opinion: bool
    reproduction: Reproduction | None
    verification_state: VerificationState
    verification_reason: str
    lifecycle: Lifecycle
    seen_late: bool
    source: Source
    focus: str
    ignored_by: str  # "", "operator: REASON" or "repo: REASON"
    also: tuple[Another, ...] = ()  # what was proved about the same place and is filed with it


@dataclass(frozen=True, slots=True)
class MeasurementRow:
    name: str
    command: str
    unit: str
    samples: tuple[float, ...]  # one value per good session
    median: float | None
    spread: float | None  # median absolute deviation over the median
    contaminated: int  # void sessions
    note: str
    change: Change | None


@dataclass(frozen=True, slots=True)
class ReviewPage:
    row: ReviewRow
    repo_url: str
    commit_date: str
    focuses: tuple[str, ...]
    profile: str  # for whom agents judge; empty as long as nobody said and none has thought
    flavour: str  # what they take the repo for; likewise
    budget_minutes: int
    budget_tokens: int | None
    force: bool
    attempt: int
    cancel_requested: bool
    machine: str  # empty until it was claimed
    sandbox: Mapping[str, Any]  # sandbox.contract.Description as a mapping; empty until it ran
    model: str
    node: str
    tokens: Mapping[str, Any]
    schedule_id: UUID | None
    steps: tuple[StepRow, ...]
    evidence: tuple[Evidence, ...]  # in the order of the steps
    checks: Checks  # what of it ran, and what could not
    findings: tuple[FindingRow, ...]  # worst first; fixed and ignored ones last
    measurements: tuple[MeasurementRow, ...]

    def fact(self, probe: str) -> Mapping[str, Any]:
        """The facts of that probe; empty when it did not run."""
        return next((one.facts for one in self.evidence if one.probe == probe), {})


@dataclass(frozen=True, slots=True)
class LogLine:
    """A piece of output as it came; may hold several lines or a part of one."""

    seq: int  # rises within a review; pass the last one to `progress`
    step: str
    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    review_id: UUID
    state: ReviewState
    steps: tuple[StepRow, ...]
    current: StepRow | None  # the step that runs now
    elapsed_s: float  # since the first start; 0 while it waits
    ahead: int  # reviews that go before it, while it waits
    lines: tuple[LogLine, ...]
    last_seq: int
    error: str = ""

    @property
    def ended(self) -> bool:
        return self.state.ended


# Repos -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RepoRow:
    id: UUID
    name: str
    url: str
    kind: RepoKind
    reviews: int
    last: ReviewRow | None  # newest review, whatever its state
    counts: FindingCounts  # of what is open now
    next_at: datetime | None  # its next scheduled review


@dataclass(frozen=True, slots=True)
class RepoName:
    """For lists to choose from."""

    id: UUID
    name: str
    url: str


@dataclass(frozen=True, slots=True)
class Point:
    at: datetime
    commit: str
    review_id: UUID
    median: float | None  # None when every session was void
    spread: float | None
    contaminated: bool


@dataclass(frozen=True, slots=True)
class Series:
    """One measurement's history on one machine key, oldest first."""

    name: str
    unit: str
    machine_key: str
    points: tuple[Point, ...]
    note: str
    change: Change | None  # of the last point

    @property
    def latest(self) -> Point:
        return self.points[-1]


@dataclass(frozen=True, slots=True)
class OpenFinding:
    """What is wrong with a repo now, in a list."""

    id: UUID
    kind: Kind
    rule: str
    title: str
    path: str
    symbol: str
    severity: Severity
    state: FindingState
    first_review_id: UUID
    first_seen: datetime
    last_review_id: UUID
    ignored_reason: str  # the operator's
    ignored_until: datetime | None
    ignored_by: str  # in force now: "", "operator: REASON" or "repo: REASON"


@dataclass(frozen=True, slots=True)
class IgnoredRow:
    """A finding that does not count, in the list of all."""

    finding: OpenFinding
    repo_id: UUID
    repo_name: str

    @property
    def by_operator(self) -> bool:
        """Else by the repo's own settings."""
        return self.finding.ignored_by.startswith("operator: ")


@dataclass(frozen=True, slots=True)
class RepoPage:
    row: RepoRow
    default_ref: str
    created_at: datetime
    reviews: tuple[ReviewRow, ...]  # newest first
    findings: tuple[OpenFinding, ...]  # worst first; ignored and never confirmed ones last
    series: tuple[Series, ...]
    schedules: tuple["ScheduleRow", ...]


# Findings ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SightingRow:
    review_id: UUID
    commit: str
    ref: str
    at: datetime  # when that review was asked for
    lifecycle: Lifecycle
    seen_late: bool
    severity: Severity
    verification_state: VerificationState
    verification_reason: str


@dataclass(frozen=True, slots=True)
class FindingRuns:
    """How one review proved a finding, or failed to."""

    finding: FindingRow  # as that review saw it
    repo_id: UUID
    repo_name: str
    review_id: UUID
    runs: tuple[Ran, ...]
    controls: tuple[Ran, ...]


@dataclass(frozen=True, slots=True)
class FindingPage:
    finding: FindingRow  # as last seen
    repo_id: UUID
    repo_name: str
    commit: str  # of the review that saw it last
    state: FindingState
    runs: tuple[Ran, ...]  # the verification's runs, of the last sighting
    controls: tuple[Ran, ...]  # and those of the control
    history: tuple[SightingRow, ...]  # newest first
    ignored: bool
    ignored_reason: str
    ignored_until: datetime | None


# Schedules ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    id: UUID
    repo_id: UUID
    repo_name: str
    ref: str
    kind: ScheduleKind
    at: str  # HH:MM in `zone`, of a nightly one
    zone: str
    pause_minutes: int
    enabled: bool
    skip_unchanged: bool
    focuses: tuple[str, ...]
    profile: str  # empty: as the repo is
    flavour: str
    budget_minutes: int | None
    next_at: datetime | None
    last_slot: datetime | None
    last_note: str
    next_local: str  # next_at on the schedule's own clock, "2026-11-30 02:00 CET"; empty when there is none


@dataclass(frozen=True, slots=True)
class Coming:
    """One planned pass."""

    schedule: ScheduleRow
    at: datetime
    local: str  # on the schedule's own clock


@dataclass(frozen=True, slots=True)
class Tonight:
    now: datetime
    coming: tuple[Coming, ...]  # the next 24 hours, earliest first
    waiting: tuple[ReviewRow, ...]  # queued, running or waiting for the node now, in the order they will go
    last_night: tuple[ReviewRow, ...]  # scheduled reviews of the last 24 hours, in order of their slots


# Comparing, nodes --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ComparedMeasurement:
    name: str
    unit: str
    one: MeasurementRow | None
    other: MeasurementRow | None
    ratio: float | None  # other over one, of medians; None unless both were measured on one machine key
    same_machine: bool


@dataclass(frozen=True, slots=True)
class ComparedProbe:
    probe: str
    one: Evidence | None
    other: Evidence | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two reviews of one repo; `one` is the earlier."""

    one: ReviewRow
    other: ReviewRow
    # Each finding in exactly one group, as the other saw it where it did.
    appeared: tuple[FindingRow, ...]  # in the other only, and never before
    seen_late: tuple[FindingRow, ...]  # likewise, on a commit that was reviewed before without anybody seeing it
    regressed: tuple[FindingRow, ...]  # in the other, and fixed at some time before
    stayed: tuple[FindingRow, ...]  # in both, or in the other and known before without having been fixed
    fixed: tuple[FindingRow, ...]  # proved fixed by the other
    ignored: tuple[FindingRow, ...]  # in the other, and not to be counted
    not_seen: tuple[FindingRow, ...]  # in one only, without proof that they were fixed
    probes: tuple[ComparedProbe, ...]  # those whose state differs
    measurements: tuple[ComparedMeasurement, ...]


@dataclass(frozen=True, slots=True)
class MachineRow:
    id: str
    alive: bool  # reported within the last three leases
    heartbeat: datetime | None
    version: str
    sandbox: Mapping[str, Any]
    current_review: UUID | None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    configured: bool
    url: str
    model: str
    reachable: bool
    problem: str
    models: tuple[str, ...]
    seconds: float
    work: NodeWork | None
    machines: tuple[MachineRow, ...]  # the workers
