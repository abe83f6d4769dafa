"""The records that cross borders between the rooms, frozen, as contracts.md names them.

All are pydantic models: they refuse nonsense when made and turn into JSON without help.
Seconds are wall seconds unless a name says otherwise; sizes are bytes.
"""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from review_agents.visible import defanged


class Record(BaseModel):
    """A frozen value. Unknown fields are errors, so a misspelt one never passes in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# What a review is about -----------------------------------------------------------------


class RepoSettings(Record):
    """`.lamplighter.toml` of the reviewed repo: wishes, never trusted beyond what the operator allows."""

    image: str | None = None
    install: tuple[str, ...] = ()  # shell commands that replace the standard installation
    test: tuple[str, ...] = ()  # shell commands that replace the detected test command
    benchmark: dict[str, str] = Field(default_factory=dict)  # name -> shell command
    focuses: tuple[str, ...] = ()
    flavour: str = ""  # production, research, performance or personal; empty: told from the files
    budget_minutes: int | None = None
    ignores: tuple[dict[str, str], ...] = ()  # each may have kind, rule, path, reason


class Repo(Record):
    """The repo as a probe sees it: one commit, its files, and what its own settings ask for."""

    name: str
    url: str  # as submitted; credentials never get this far
    ref: str
    commit: str  # full object id
    commit_date: str  # ISO 8601 with offset
    files: tuple[str, ...]  # tracked paths, relative to the root, sorted
    settings: RepoSettings = RepoSettings()
    today: str = ""  # ISO date, because models and code otherwise guess


# Commands and places ---------------------------------------------------------------------


class Environment(StrEnum):
    """Which virtual environment is first on PATH while a command runs."""

    NONE = "none"  # the bare interpreter
    PLAIN = "plain"  # /venv/plain: `pip install .` and nothing else
    TEST = "test"  # /venv/test: plus what README and tests need


class Network(StrEnum):
    NONE = "none"
    EGRESS = "egress"  # only through the allow-listing proxy; only plain code may ask for it


class Ran(Record):
    """What one command did, measured inside the sandbox by the step runner."""

    exit: int | None  # exit status; None when a signal ended it
    signal: int | None = None
    seconds: float = 0.0
    user_s: float = 0.0
    sys_s: float = 0.0
    peak_bytes: int = 0  # largest resident set of any one process
    group_peak_bytes: int | None = None  # all of the sandbox together, page cache included; None: the kernel hides it
    instructions: int | None = None  # executed in user mode; None where the kernel has no such counter
    runner_s: float = 0.0  # CPU time that our own step runner spent on it
    timed_out: bool = False
    oom: bool = False  # the cgroup's own counter rose
    head: str = ""  # first part of stdout and stderr as they came, interleaved
    tail: str = ""  # last part; empty when head holds everything
    dropped_bytes: int = 0  # output between head and tail that was not kept
    log: str = ""  # key of the whole log, where there is one
    refusals: tuple[str, ...] = ()  # hosts that the egress proxy refused or could not reach meanwhile, and why

    @property
    def ok(self) -> bool:
        return self.exit == 0 and not self.timed_out

    @property
    def output(self) -> str:
        """Head and tail joined, the gap in words."""
        if not self.tail:
            return self.head
        return f"{self.head}\n[... {self.dropped_bytes} bytes not kept ...]\n{self.tail}"

    @property
    def ending(self) -> str:
        """How it ended, in words for a page."""
        if self.timed_out:
            return f"timed out after {self.seconds:.0f} s"
        if self.oom:
            return "ran out of memory"
        if self.signal is not None:
            return f"ended by signal {self.signal}"
        return f"exit status {self.exit}"


class Place(Record):
    """Where something is. `line` helps a reader and is no part of any identity."""

    file: str
    line: int | None = None  # counted from 1
    symbol: str = ""  # qualified name, or the heading path in a text
    quote: str = ""  # must occur in that file at the reviewed commit


class Symptom(Record):
    """What a re-run must show for the fault to be there; judged by plain code.

    `contains` and `lacks` are texts looked for in the output with white space folded, case kept. What an agent copied
    as it was shown to it, control tokens and unseen characters by their names, is found too.
    """

    exit: int | None = None  # this exit status
    nonzero: bool = False  # any failing end: a status other than 0, or a signal
    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    @model_validator(mode="after")
    def says_something(self) -> "Symptom":
        if self.exit is None and not self.nonzero and not self.contains and not self.lacks:
            raise ValueError("a symptom needs an exit status, nonzero, or text that must (not) occur")
        return self

    def shown_by(self, ran: Ran) -> bool:
        if ran.timed_out or ran.oom:
            return False
        if self.exit is not None and ran.exit != self.exit:
            return False
        if self.nonzero and ran.exit == 0:
            return False
        said = [" ".join(text.split()) for text in (ran.output, defanged(ran.output))]

        def occurs(text: str) -> bool:
            return any(" ".join(text.split()) in one for one in said)

        return all(map(occurs, self.contains)) and not any(map(occurs, self.lacks))


class Copied(Record):
    """Text of the repo that a proof repeats or its claim is about (review_agents/copied.py): a passage, or all of the
    file from its top down to a line, white space folded."""

    file: str
    text: str = ""
    top_lines: int = 0  # how many lines that are not empty; 0: it is a passage
    digest: str = ""  # of those


class Reproduction(Record):
    """A bash script that shows the fault in a fresh sandbox, and how to recognise it.

    The command is complete: it creates the files it needs, so a person can paste it in a clone
    with the package installed. `control` must succeed (exit 0) in the same sandbox, which proves
    that the claim does not fail for a reason of its own.
    """

    command: str
    expected: str
    observed: str
    environment: Environment = Environment.PLAIN
    network: Network = Network.NONE
    control: str | None = None
    symptom: Symptom
    timeout_s: float = 120.0
    copied: tuple[Copied, ...] = ()  # once one of them does not stand as it was, the script proves nothing either way


# Findings --------------------------------------------------------------------------------


class Kind(StrEnum):
    CORRECTNESS = "correctness"
    DOCUMENTATION = "documentation"
    PACKAGING = "packaging"
    PERFORMANCE = "performance"
    RELIABILITY = "reliability"
    SECURITY = "security"
    USABILITY = "usability"


class Severity(StrEnum):
    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for critical, rising as it matters less."""
        return list(Severity).index(self)


class Source(StrEnum):
    PROBE = "probe"
    AGENT = "agent"


class Effort(StrEnum):
    """How much work a repair looks like."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


class Another(Record):
    """A proved claim of the same kind about the same place, filed with the one that was proved best."""

    title: str
    description: str
    reproduction: Reproduction


class Candidate(Record):
    """A claim as a probe or an agent makes it, before code has proved and filed it."""

    kind: Kind
    rule: str  # the probe's rule id, or a value of the kind's closed list for agents
    title: str
    description: str  # what a user experiences and why it is wrong
    severity: Severity
    places: tuple[Place, ...] = Field(min_length=1)
    reproduction: Reproduction | None = None
    opinion: bool = False  # judgement backed by quotes instead of a reproduction
    shape: str = ""  # exception type and message with numbers, paths, quotes, addresses replaced
    focus: str = ""
    source: Source = Source.PROBE
    severity_reason: str = ""  # agents give one
    effort: Effort | None = None
    also: tuple[Another, ...] = ()  # set by code when claims are joined
    differs: str = (
        ""  # the agent's reason why it is not the fault that it was taken for; its proof was set against that one's
    )


class VerificationState(StrEnum):
    CONFIRMED = "confirmed"
    NOT_REPRODUCED = "not_reproduced"
    FLAKY = "flaky"
    UNVERIFIED = "unverified"


class Verification(Record):
    state: VerificationState
    reason: str = ""
    runs: tuple[Ran, ...] = ()
    controls: tuple[Ran, ...] = ()  # of the control, one beside each run that it followed


class Lifecycle(StrEnum):
    NEW = "new"
    PERSISTING = "persisting"
    FIXED = "fixed"
    REGRESSED = "regressed"
    IGNORED = "ignored"


class FindingState(StrEnum):
    """Where a finding stands over all reviews of its repo."""

    CLAIMED = "claimed"  # never yet proved
    OPEN = "open"
    FIXED = "fixed"  # proved; a later proof of the contrary opens it again


class Finding(Record):
    """A filed finding of one review."""

    id: str
    fingerprint: str  # 16 hex digits, see identity.fingerprint
    candidate: Candidate
    verification: Verification
    lifecycle: Lifecycle
    seen_late: bool = False  # confirmed fault of an unchanged commit that nobody saw before
    ignored_by: str = ""  # "", "operator: REASON" or "repo: REASON"


# Measurements ----------------------------------------------------------------------------


class BenchmarkKind(StrEnum):
    """Where a benchmark came from."""

    CONFIGURED = "configured"  # `.lamplighter.toml`
    DOCUMENTED = "documented"  # a command that README or docs show
    SCRIPT = "script"  # a file in benchmarks/
    PYTEST_BENCHMARK = "pytest-benchmark"
    PYPERF = "pyperf"
    ASV = "asv"
    TEST_RUN = "test run"
    SLOW_TEST = "slow test"
    IMPORT = "import"
    PROGRAM = "program"  # an entry point's start
    AGENT = "agent"  # asked for with `measure`


class Benchmark(Record):
    """A command that is timed as a fresh process.

    The same files run against base and head: those that the head has, so that only the measured code differs.
    """

    name: str  # keeps its meaning from night to night
    kind: BenchmarkKind
    command: str  # bash
    environment: Environment = Environment.TEST
    figures_file: str = ""  # the benchmark writes its own figures there; empty: they are read from its output
    files: tuple[str, ...] = ()  # tracked files that are the benchmark and not the code under test
    inside: tuple[str, ...] = ()  # programs of ours that it starts, by name


class Session(Record):
    """A fresh process, or a few of a short command: the unit of all statistics."""

    value: float  # in the measurement's unit
    void: bool = False
    reason: str = ""  # why it is void
    pressure: float | None = None  # share of the session in which some task waited for a CPU, 0 to 1
    foreign: float | None = None  # share of the watched CPUs' time that others used; None: too short to tell
    user_s: float = 0.0
    sys_s: float = 0.0
    peak_bytes: int = 0  # largest resident set of any one process
    group_peak_bytes: int | None = None  # all of the sandbox together, page cache included; None: the kernel hides it
    instructions: int | None = None  # executed in user mode; None where the kernel has no such counter
    figures: dict[str, float] = Field(default_factory=dict)  # the benchmark's own, in seconds


class Verdict(StrEnum):
    SLOWER = "slower"
    FASTER = "faster"
    NO_CHANGE = "no_change"
    INCONCLUSIVE = "inconclusive"
    CONTAMINATED = "contaminated"


class Change(Record):
    ratio: float  # head over base
    low: float
    high: float
    verdict: Verdict


class Measurement(Record):
    """A command timed as fresh processes. Median and spread are over the sessions that are not void."""

    name: str
    command: str = ""
    unit: str = "s"
    sessions: tuple[Session, ...] = ()
    note: str = ""  # for example "node on this machine"
    change: Change | None = None

    @property
    def samples(self) -> tuple[float, ...]:
        return tuple(session.value for session in self.sessions if not session.void)

    @property
    def contaminated(self) -> int:
        return sum(session.void for session in self.sessions)

    @property
    def median(self) -> float | None:
        """None when no session was good."""
        return _median(self.samples) if self.samples else None

    @property
    def spread(self) -> float | None:
        """Median absolute deviation over the median."""
        if not self.samples or not self.median:
            return None
        return _median([abs(value - self.median) for value in self.samples]) / self.median


def _median(values: Any) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


# Probes ----------------------------------------------------------------------------------


class ProbeState(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not_applicable"  # there was nothing to check
    COULD_NOT_RUN = "could_not_run"  # the reason says what was missing; never a fault of the repo


class ProbeResult(Record):
    probe: str
    state: ProbeState
    reason: str = ""
    seconds: float = 0.0
    summary: str = ""  # one line for the page and for agents
    facts: dict[str, Any] = Field(default_factory=dict)  # JSON values only
    log: str = ""
    candidates: tuple[Candidate, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    left_out: tuple[str, ...] = ()  # files that it did not look through to the end: absence there says nothing

    @model_validator(mode="after")
    def has_a_reason(self) -> "ProbeResult":
        if self.state is ProbeState.COULD_NOT_RUN and not self.reason:
            raise ValueError(f"probe {self.probe} could not run and gives no reason")
        return self


# Conversations ---------------------------------------------------------------------------


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(Record):
    id: str
    name: str
    arguments: str  # a JSON object as text; what a model wrote may be anything


class Message(Record):
    """One message of a conversation with a model."""

    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()  # of an assistant
    call_id: str = ""  # of a tool's result: the call that it answers
    name: str = ""  # of a tool's result: the tool


class Tool(Record):
    """A tool on offer, as models are told."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON schema


class Question(Record):
    """One request to a model."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()  # empty: the request names no tools at all
    max_tokens: int = Field(ge=1)
    seed: int = 0
    conversation: str = ""  # whose turn it is, for example focus:security; for recordings and logs


class Usage(Record):
    """Tokens and seconds as the server counted them; seconds that it did not say are ours."""

    prompt: int = 0  # cached ones included
    cached: int = 0
    completion: int = 0
    seconds: float = 0.0  # wall, as the client saw it
    waited_s: float = 0.0  # of these, in the node's queue while it worked for others
    prompt_s: float = 0.0  # reading what was new
    completion_s: float = 0.0
    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields})


class AnswerEnd(StrEnum):
    STOP = "stop"
    CALLS = "tool_calls"
    LENGTH = "length"  # max_tokens were spent
    LOOP = "loop"  # the client ended a text that repeated itself


class Answer(Record):
    """What a model gave, as it gave it."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""  # reasoning that the server set apart; never sent back
    end: AnswerEnd = AnswerEnd.STOP
    usage: Usage = Usage()


class EntryKind(StrEnum):
    OPENED = "opened"  # `history` is what the conversation begins with, `note` the protocol
    ASKED = "asked"  # `answer` is what came back; says nothing about the history
    SAID = "said"  # `message` was appended to the history
    CUT = "cut"  # `history` took the place of the whole history
    NOTED = "noted"  # `note` is for readers: a call that was refused, why it ended


class Entry(Record):
    """One thing that happened in a conversation. All in order are the transcript, whole and replayable."""

    kind: EntryKind
    message: Message | None = None
    answer: Answer | None = None
    history: tuple[Message, ...] = ()
    note: str = ""


class FocusState(StrEnum):
    """How an agent's step ended. Only FINISHED looked everywhere it meant to."""

    FINISHED = "finished"  # it said so itself
    OUT_OF_BUDGET = "out_of_budget"
    STUCK = "stuck"  # repeated itself, or gave nothing that could be carried out
    PRODUCED_NOTHING = "produced_nothing"  # ended without a finding and without a report: an error, not a clean bill
    NODE_FAILED = "node_failed"  # the node refused it, or stayed away too long
    NOT_RUN = "not_run"  # there was no budget left to begin
    UNFINISHED = "unfinished"  # it is at work, or its review ended before it did


class Report(Record):
    """What an agent says at its end, beside its findings."""

    summary: str = ""
    strengths: tuple[str, ...] = ()
    weaknesses: tuple[str, ...] = ()
    scores: dict[str, float] = Field(default_factory=dict)  # 1 to 10
    not_looked_at: tuple[str, ...] = ()
    recommendation: str = ""


class FocusResult(Record):
    """What one focus brought."""

    focus: str
    state: FocusState
    reason: str = ""
    report: Report | None = None
    candidates: tuple[Candidate, ...] = ()
    usage: Usage = Usage()
    turns: int = 0
    malformed: int = 0  # answers that could not be carried out as they were
    model: str = ""
    node: str = ""
    protocol: str = ""  # native or text
    refused: tuple[str, ...] = ()  # findings that were not stored, a line each with the reason
