"""The focuses of a review: each a step in which an agent works with a box of its own and the node.

A conversation is stored entry by entry, so a step that was cut off goes on from where it was. A node that is away
parks the whole review; one that stays away ends the focuses, and the review goes on with what plain code found.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from orchestrator.sandbox.contract import BoxGone, NeedsMissing
from orchestrator.services import proving
from orchestrator.services.job import Job, Outcome, StepRun
from orchestrator.services.verifying import Verifier
from orchestrator.store import outputs, transcripts
from orchestrator.store.reviews import Review
from review_agents.focus import Flavour, Focus, Profile, flavour_of
from review_agents.ports import Ability, ChatModel, Checkout, NodeAway, NodeRefused, Stopped, Workspace, WorkspaceReset
from review_agents.records import (
    Candidate,
    Entry,
    EntryKind,
    Environment,
    FocusResult,
    FocusState,
    Measurement,
    Network,
    ProbeResult,
    Ran,
    Repo,
    Role,
    Usage,
)

if TYPE_CHECKING:  # what thinking needs is for workers only
    from review_agents.probes import Prepared

log = structlog.get_logger(__name__)
FIRST_FOCUS = 500  # position
PREFIX = "focus:"
LEAST_S = 30.0  # of the budget; with less no focus begins
FOR_VERIFYING = 0.15  # of the time that is left, kept for proving what was found
MOST_RESETS = 5  # boxes that die under one focus
SAID_CHARS = 600  # of an answer, in the log
MOST_REFUSED = 8  # refused findings of other focuses that one is told


def run_all(
    job: Job, repo: Repo, checkout: Checkout, prepared: "Prepared", results: Mapping[str, ProbeResult]
) -> dict[str, FocusResult]:
    """What each focus brought, by step. Empty where no model takes part. Raises `NodeAway`."""
    focuses = chosen(job, repo)
    job.plan(*((f"{PREFIX}{focus.name}", FIRST_FOCUS + at) for at, focus in enumerate(focuses)))
    found = {
        f"{PREFIX}{name}": FocusResult(focus=name, state=FocusState.NOT_RUN, reason="there is no such focus any more")
        for name in job.asked.focuses
        if job.asked.agents and job.shop.chat is not None and name not in job.shop.focuses
    }
    mind = Mind(job)
    for at, focus in enumerate(focuses):
        round = Round(repo, checkout, prepared, results, tuple(found.values()), len(focuses) - at)
        work = focus_work(job, mind, focus, round)
        found[f"{PREFIX}{focus.name}"] = FocusResult.model_validate(job.step(f"{PREFIX}{focus.name}", work))
    return found


def chosen(job: Job, repo: Repo) -> tuple[Focus, ...]:
    """Those asked for, else those that the repo wishes for, else the operator's default; in their order."""
    known = job.shop.focuses
    if not job.asked.agents or job.shop.chat is None:
        return ()
    wished = [name for name in repo.settings.focuses if name in known]
    default = known if job.shop.settings.default_focuses == "all" else ()
    names = set(job.asked.focuses or wished or default)
    return tuple(focus for name, focus in known.items() if name in names)


@dataclass(frozen=True)
class Round:
    """What a focus comes to."""

    repo: Repo
    checkout: Checkout
    prepared: "Prepared"
    results: Mapping[str, ProbeResult]
    before: tuple[FocusResult, ...]  # what other focuses brought
    left: int  # focuses to go, this one included

    @property
    def probed(self) -> tuple[Candidate, ...]:
        from review_agents.material import probed

        return probed(self.results)

    @property
    def claimed(self) -> tuple[Candidate, ...]:
        return tuple(candidate for result in self.before for candidate in result.candidates)

    @property
    def refused(self) -> tuple[str, ...]:
        """What other focuses could not prove or were told is known, the last ones."""
        return tuple(one for result in self.before for one in result.refused)[-MOST_REFUSED:]


class Mind:
    """The model of one attempt of a review, asked once what it can do."""

    def __init__(self, job: Job):
        self._job = job
        self._model: ChatModel | None = None
        self._ability: Ability | None = None

    def ready(self) -> tuple[ChatModel, Ability]:
        """Raises `NodeAway`, `NodeRefused`, `Stopped`."""
        if self._model is None or self._ability is None:
            assert self._job.shop.chat is not None
            self._model = self._job.shop.chat()
            self._ability = self._model.ability(cancelled=self._job.hold.stop_wanted)
        return self._model, self._ability


def focus_work(job: Job, mind: Mind, focus: Focus, round: Round) -> Callable[[StepRun], Outcome]:
    def work(run: StepRun) -> Outcome:
        profile, flavour = judged_as(job, round.repo)
        result = think(job, run, mind, focus, round)
        everything = [*round.before, result]

        def also(db: Session) -> None:
            row = db.get_one(Review, job.review_id)
            row.model, row.node = result.model or row.model, result.node or row.node
            row.profile, row.flavour = profile, flavour
            row.tokens = tokens_of(everything)
            outputs.forget_step(db, run.id)

        finished = result.state is FocusState.FINISHED
        return Outcome(
            result.model_dump(mode="json"),
            summary=in_words(result),
            reason="" if finished else f"{str(result.state).replace('_', ' ')}: {result.reason}".rstrip(": "),
            failed=result.state in (FocusState.PRODUCED_NOTHING, FocusState.NODE_FAILED, FocusState.NOT_RUN),
            also=also,
        )

    return work


def think(job: Job, run: StepRun, mind: Mind, focus: Focus, round: Round) -> FocusResult:
    """Have the agent work, from the beginning or from where it was cut off."""
    from review_agents import loop, material
    from review_agents.hands import KEPT_CHARS
    from review_agents.limits import Meter

    seconds = job.time_left() * (1 - FOR_VERIFYING) / round.left
    if seconds < LEAST_S:
        why = f"the review's budget of {job.asked.budget_minutes} minutes was used up"
        return FocusResult(focus=focus.name, state=FocusState.NOT_RUN, reason=why)
    earlier, recorded = stored(job, run)
    try:
        model, ability = mind.ready()
    except NodeRefused as error:
        return without_node(focus, str(error), earlier, recorded)
    except NodeAway as error:
        return wait_or_give_up(job, run, focus, error)
    except Stopped:
        job.hold.check()
        raise
    run.log.write(f"[{ability.model} on {ability.node}, tools {'native' if ability.native_tools else 'in the text'}]\n")
    mark = mark_of(job)
    profile, flavour = judged_as(job, round.repo)
    opening = (
        ()
        if earlier
        else material.opening(
            round.repo,
            round.results,
            round.checkout.show,
            focus=focus,
            mark=mark,
            native=ability.native_tools,
            claimed=round.claimed,
            refused=round.refused,
            profile=profile,
            flavour=flavour,
            context_tokens=ability.context_tokens,
        )
    )
    try:
        workspace = Reopening(job, run, round.prepared)
    except NeedsMissing as error:
        return FocusResult(focus=focus.name, state=FocusState.NOT_RUN, reason=str(error), candidates=recorded)
    task = loop.Task(
        focus=focus,
        opening=opening,
        ability=ability,
        mark=mark,
        seed=seed_of(job, focus),
        control=control_of(round.prepared),
        earlier=earlier,
        recorded=recorded,
        claimed=(*round.probed, *round.claimed),
        documents=material.whole_evidence(round.results),
    )
    tried = iter(range(1, 10_000))
    world = loop.World(
        model=model,
        workspace=workspace,
        source=round.checkout.show,
        keep=Keeper(job, run, focus, round.before, earlier),
        clock=time.monotonic,
        cancelled=job.hold.stop_wanted,
        trial=lambda candidate: proving.trial(verifier_for(job, run, round, next(tried)), candidate, mark=mark),
        same_outcome=lambda candidate, known: proving.same_outcome(
            verifier_for(job, run, round, next(tried)), candidate, known
        ),
        outputs=Stored(job, run, most_chars=KEPT_CHARS),
    )
    meter = Meter(focus.budget, time.monotonic, seconds=seconds, tokens=tokens_left(job, round.before, round.left))
    try:
        return loop.review(task, world, meter)
    except NodeAway as error:
        return wait_or_give_up(job, run, focus, error)
    except Stopped:
        job.hold.check()
        raise


# Before and after -----------------------------------------------------------------------------


def stored(job: Job, run: StepRun) -> tuple[tuple[Entry, ...], tuple[Candidate, ...]]:
    """The conversation of earlier attempts, and what was claimed in them."""
    with job.shop.sessions.reading() as db:
        entries = tuple(Entry.model_validate(turn.body) for turn in transcripts.of_step(db, run.id))
        claimed = tuple(Candidate.model_validate(body) for body in transcripts.candidates_of(db, run.id))
    return entries, tuple(dict.fromkeys(claimed))


def wait_or_give_up(job: Job, run: StepRun, focus: Focus, error: NodeAway) -> FocusResult:
    """Rises again as long as the review may wait for its node."""
    with job.shop.sessions.reading() as db:
        started = db.get_one(Review, job.review_id).started_at
    patience = timedelta(minutes=job.shop.settings.node_patience_minutes)
    if started is None or job.shop.clock() - started < patience:
        raise error
    why = f"the node was away {patience} after the start of the review: {error}"
    return without_node(focus, why, *stored(job, run))


def without_node(focus: Focus, reason: str, earlier: Sequence[Entry], recorded: tuple[Candidate, ...]) -> FocusResult:
    """What the focus brought before its node was lost, and what that cost."""
    so_far = under_way(focus, earlier)
    return so_far.model_copy(update={"state": FocusState.NODE_FAILED, "reason": reason, "candidates": recorded})


def under_way(focus: Focus, entries: Sequence[Entry]) -> FocusResult:
    """What a conversation cost up to here."""
    spent = [entry.answer.usage for entry in entries if entry.answer is not None]
    return FocusResult(focus=focus.name, state=FocusState.UNFINISHED, usage=sum(spent, Usage()), turns=len(spent))


def mark_of(job: Job) -> str:
    """What surrounds foreign text in this review; nobody outside the service can know it."""
    return sha256(f"mark {job.review_id}".encode()).hexdigest()[:10]


def seed_of(job: Job, focus: Focus) -> int:
    return int(sha256(f"{job.review_id} {focus.name}".encode()).hexdigest()[:7], 16)


def judged_as(job: Job, repo: Repo) -> tuple[Profile, Flavour]:
    """For whom, and as what: the operator's word, else for the flavour the repo's own or what its files look like."""
    flavour = flavour_of(job.asked.flavour or repo.settings.flavour, repo.files)
    return Profile(job.asked.profile or Profile.GENERAL), flavour


def control_of(prepared: "Prepared") -> str | None:
    """For reproductions without a control of their own: that the package can be imported at all."""
    packages = prepared.import_packages
    return f"python -c 'import {packages[0]}'" if prepared.installed_plain and packages else None


def verifier_for(job: Job, run: StepRun, round: Round, number: int) -> Verifier:
    """For the trial of a finding within the focus's own step."""
    return Verifier(
        boxes=lambda name, *, egress: run.open(part=f"try{number}-{name}", egress=egress),
        checkout=round.checkout,
        files=round.repo.files,
        time_left=job.time_left,
        say=run.log.write,
    )


class Keeper:
    """Stores entries under the fence as they come, with what they cost, and tells the step's log in short what happens.

    The cost each time, because a review may end in the middle of a focus.
    """

    def __init__(self, job: Job, run: StepRun, focus: Focus, before: Sequence[FocusResult], earlier: Sequence[Entry]):
        self._job = job
        self._run = run
        self._focus = focus
        self._before = before
        self._entries = list(earlier)
        self._seq = 0

    def __call__(self, entry: Entry, candidate: Candidate | None = None) -> None:
        self._seq += 1
        seq, body = self._seq, entry.model_dump(mode="json", exclude_defaults=True)
        claimed = candidate.model_dump(mode="json") if candidate is not None else None
        self._entries.append(entry)

        def add(db: Session) -> None:
            if entry.answer is not None:
                so_far = under_way(self._focus, self._entries)
                db.get_one(Review, self._job.review_id).tokens = tokens_of([*self._before, so_far])
            transcripts.add(db, self._run.id, self._run.attempt, seq, self._job.shop.clock(), body, claimed)

        with suppress(IntegrityError):  # written already, and the answer was lost with the connection
            self._job.hold.write(add)
        self._run.log.write(in_the_log(entry))


class Stored:
    """What the step's calls printed, where an attempt that goes on later finds it."""

    def __init__(self, job: Job, run: StepRun, *, most_chars: int):
        self._job = job
        self._step_id = run.id
        self._most_chars = most_chars

    def keep(self, number: int, text: str) -> None:
        self._job.hold.write(lambda db: outputs.keep(db, self._step_id, number, text, most_chars=self._most_chars))

    def kept(self, number: int) -> str | None:
        with self._job.shop.sessions.reading() as db:
            return outputs.text_of(db, self._step_id, number)


def in_the_log(entry: Entry) -> str:
    if entry.kind is EntryKind.NOTED:
        return f"[{entry.note}]\n"
    if entry.kind is EntryKind.CUT:
        return f"[the conversation was cut: {entry.note}]\n"
    if entry.kind is EntryKind.SAID and entry.message is not None and entry.message.role is Role.ASSISTANT:
        said = entry.message.text.strip()[:SAID_CHARS]
        calls = "".join(f"> {call.name} {call.arguments[:SAID_CHARS]}\n" for call in entry.message.calls)
        return f"{said}\n{calls}" if said else calls
    return ""


class Reopening:
    """The focus's workspace. When its box dies under a command, a fresh one takes its place and the agent is told."""

    def __init__(self, job: Job, run: StepRun, prepared: "Prepared"):
        self._job = job
        self._run = run
        self._requires = prepared.manifests[0].requires_python if prepared.manifests else ""
        self._resets = 0
        self._inner = self._open()

    def _open(self) -> Workspace:
        assert self._job.shop.workspace is not None
        part = f"box{self._resets}" if self._resets else ""
        box = self._run.open(part=part, requires_python=self._requires)
        return self._job.shop.workspace(box, self._job.patience)

    def _through(self, do: Callable[[Workspace], Any]) -> Any:
        try:
            return do(self._inner)
        except BoxGone as error:
            if self._resets >= MOST_RESETS:
                raise
            self._resets += 1
            self._inner = self._open()
            raise WorkspaceReset(f"The container died ({error}), and a fresh one took its place") from None

    def run(
        self,
        command: str,
        *,
        environment: Environment = Environment.PLAIN,
        network: Network = Network.NONE,
        timeout_s: float = 120.0,
        stdin: str = "",
    ) -> Ran:
        ran: Ran = self._through(
            lambda inner: inner.run(
                command, environment=environment, network=Network.NONE, timeout_s=timeout_s, stdin=stdin
            )
        )
        return ran

    def measure(self, name: str, command: str, **given: Any) -> Measurement:
        measured: Measurement = self._through(lambda inner: inner.measure(name, command, **given))
        return measured

    def read(self, path: str, *, limit_bytes: int = 1_000_000) -> str:
        return str(self._through(lambda inner: inner.read(path, limit_bytes=limit_bytes)))

    def list(self, folder: str = ".") -> tuple[str, ...]:
        return tuple(self._through(lambda inner: inner.list(folder)))

    def search(self, pattern: str, *, folder: str = ".", limit: int = 200) -> tuple[Any, ...]:
        return tuple(self._through(lambda inner: inner.search(pattern, folder=folder, limit=limit)))

    def write(self, path: str, text: str) -> None:
        self._through(lambda inner: inner.write(path, text))


# Accounts -------------------------------------------------------------------------------------


def tokens_left(job: Job, before: Sequence[FocusResult], left: int) -> int | None:
    """This focus's share of the review's budget of tokens; None without one."""
    if job.asked.budget_tokens is None:
        return None
    spent = sum(result.usage.prompt - result.usage.cached + result.usage.completion for result in before)
    return max(0, job.asked.budget_tokens - spent) // left


def tokens_of(results: Sequence[FocusResult], confirmed: Mapping[str, int] | None = None) -> dict[str, Any]:
    """For the review's row: all tokens, and by focus what they went into and what they brought."""
    total = sum((result.usage for result in results), Usage())
    by_focus = {}
    for result in results:
        usage = result.usage
        by_focus[result.focus] = {
            "state": str(result.state),
            "prompt": usage.prompt,
            "cached": usage.cached,
            "completion": usage.completion,
            "turns": result.turns,
            "malformed": result.malformed,
            "seconds": round(usage.seconds, 2),
            "waited_s": round(usage.waited_s, 2),
            "prompt_s": round(usage.prompt_s, 2),
            "completion_s": round(usage.completion_s, 2),
            "drafted": usage.drafted,
            "accepted": usage.accepted,
            "findings": len(result.candidates),
        }
        if confirmed is not None:
            number = confirmed.get(result.focus, 0)
            by_focus[result.focus] |= {"confirmed": number, "per_confirmed": each(usage, number)}
    whole: dict[str, Any] = {"prompt": total.prompt, "cached": total.cached, "completion": total.completion}
    if confirmed is not None:
        whole["per_confirmed"] = each(total, sum(confirmed.values()))
    return {**whole, "by_focus": by_focus}


def each(usage: Usage, number: int) -> int | None:
    """Tokens that a confirmed finding cost: what had to be read anew, and what was written."""
    return math.ceil((usage.prompt - usage.cached + usage.completion) / number) if number else None


def in_words(result: FocusResult) -> str:
    number = len(result.candidates)
    found = f"{number} {'finding' if number == 1 else 'findings'} recorded" if number else "nothing found"
    if result.state in (FocusState.NOT_RUN, FocusState.NODE_FAILED, FocusState.PRODUCED_NOTHING) and not number:
        return ""
    return f"{found} in {result.turns} turns, {result.usage.prompt + result.usage.completion} tokens"


def note_of(results: Sequence[FocusResult]) -> str:
    """What a reader of the review must know of its focuses; "" when all came to their end."""
    unfinished = [result for result in results if result.state is not FocusState.FINISHED]
    if not unfinished:
        return ""
    named = "; ".join(f"{result.focus}: {str(result.state).replace('_', ' ')}" for result in unfinished)
    return f"{len(results) - len(unfinished)} of {len(results)} focuses came to their end ({named})"
