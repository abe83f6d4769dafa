"""One review from its claim to its end: checkout, prepare, probes, focuses, verify, merge, record.

Every step is a row. A successor of a killed worker takes the review over, finds the steps that are done, and goes
on with the first that is not. Whatever happens, the row comes to an end or back into the queue.
"""

import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog
from pydantic import TypeAdapter
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from orchestrator.measure.records import Surroundings
from orchestrator.sandbox.contract import Box, Cancelled, Description, NeedsMissing, Role, SandboxError
from orchestrator.services import claiming, filing, focusing, nights, proving, scheduling, sweeping
from orchestrator.services.claiming import Hold, Interrupted
from orchestrator.services.job import UNWANTED, Job, Outcome, StepRun
from orchestrator.services.verifying import Verifier
from orchestrator.services.workshop import Workshop
from orchestrator.store import claims, outputs, steps
from orchestrator.store.claims import LostClaim
from orchestrator.store.reviews import Review, ReviewState
from review_agents import lifecycle, repo_settings
from review_agents.identity import fingerprint_of
from review_agents.lifecycle import Filed, Look, Recheck
from review_agents.ports import Checkout, NodeAway, RepoProblem, Stopped, Workspace
from review_agents.records import (
    Candidate,
    Environment,
    FocusResult,
    FocusState,
    Lifecycle,
    ProbeResult,
    ProbeState,
    Repo,
    Reproduction,
    Source,
    Verification,
    VerificationState,
)
from review_agents.sameness import Claim, Known

if TYPE_CHECKING:
    from review_agents.probes import Prepared, Probe

log = structlog.get_logger(__name__)

CHECKOUT, PREPARE, INSTALL, MERGE, RECORD = "checkout", "prepare", "probe:install", "merge", "record"
FIRST_PROBE, FIRST_VERIFY, LAST = 10, 1000, 1_000_000  # positions
RETRY_AFTER_S = 60.0  # times the attempt, up to
LONGEST_RETRY_S = 600.0  # below claims.LONGEST_PAUSE
DROP_AGAIN_S = (0.5, 1.0, 2.0, 4.0)  # an engine that is killed or restarted answers again after some seconds
NODE_AGAIN_S = 60.0  # a node that is away is asked again so often
# Only the checks of installing and packaging may reach the network, through the egress proxy.
EGRESS_PROBES = ("install", "wheel", "dependencies")
EVIDENCE_ONLY = "evidence only: no model took part"

FILED = TypeAdapter(tuple[Filed, ...])


def execute(shop: Workshop, review_id: UUID) -> bool:
    """Do the review, if it can be claimed. The caller holds the host lock.

    Returns whether it was ours to do; how it ended is in its row. Raises for bugs only, after recording them.
    """
    lease = claiming.take(shop, review_id)
    if lease is None:
        return False
    with structlog.contextvars.bound_contextvars(review=str(review_id)), Hold(shop, lease) as hold:
        log.info("review starts", attempt=lease.attempt)
        keep_volumes = False
        try:
            run(hold)
        except LostClaim as error:
            log.warning("review lost", reason=str(error))
            keep_volumes = may_come_back(shop, review_id)
        except (Cancelled, Stopped):
            finish(hold, ReviewState.CANCELLED)
        except Interrupted as error:
            keep_volumes = True
            park(hold, after_s=0, note=str(error), count_attempt=False)
        except NodeAway as error:
            keep_volumes = True
            park(
                hold,
                after_s=NODE_AGAIN_S,
                note=f"waits for the node: {error}",
                count_attempt=False,
                state=ReviewState.WAITING_FOR_NODE,
            )
        except (RepoProblem, SandboxError) as error:
            keep_volumes = retry_or_fail(hold, error)
        except Exception as error:
            log.exception("review failed by a bug of ours")
            finish(hold, ReviewState.FAILED, error=bug(error))
            raise
        finally:
            if not keep_volumes:
                drop(shop, review_id)
    return True


def run(hold: Hold) -> None:
    """All steps in order."""
    from orchestrator.services import measuring  # what it computes with is for workers only

    shop = hold.shop
    if shop.sandbox is None or shop.prepare is None or shop.workspace is None:
        raise SandboxError("This process has no sandbox, and code of repos never runs outside one.")
    description = shop.sandbox.describe()
    hold.write(lambda db: note_sandbox(db, hold.review_id, description))
    job = Job(hold, shop.sandbox)
    job.plan(
        (CHECKOUT, 0),
        (PREPARE, 1),
        (INSTALL, 2),
        *((f"probe:{probe.name}", FIRST_PROBE + at) for at, probe in enumerate(shop.probes)),
        (MERGE, LAST),
        (RECORD, LAST + 1),
    )
    repo, checkout = check_out(job)
    prepared = prepare(job, repo, checkout)
    results = {INSTALL: ProbeResult.model_validate(job.result(INSTALL))}
    for probe in shop.probes:
        results[f"probe:{probe.name}"] = run_probe(job, probe, repo, prepared, description)
    results |= measuring.run(job, repo, checkout, prepared, results, description)
    thoughts = focusing.run_all(job, repo, checkout, prepared, results)
    claimed = verify_all(job, {**results, **thoughts}, repo, checkout)
    rechecks = recheck_all(job, claimed, repo, checkout)
    filed = merge(job, claimed, rechecks, looks_of(results, thoughts), prepared, repo)
    record(job, filed, repo, tuple(thoughts.values()))


# Checkout ----------------------------------------------------------------------------------


def check_out(job: Job) -> tuple[Repo, Checkout]:
    """The repo as probes see it, and its commit in this machine's mirror."""
    git = job.shop.git
    body = job.step(CHECKOUT, lambda run: fetch(job, run))
    repo = Repo.model_validate(body)
    job.lower_budget(repo.settings.budget_minutes)
    try:
        return repo, git.at(job.asked.url, repo.commit)
    except RepoProblem:  # done on another machine, or the mirror was cleared away
        fetched = git.fetch(job.asked.url, repo.commit, cancelled=job.hold.stop_wanted)
        return repo, fetched


def fetch(job: Job, run: StepRun) -> Outcome:
    asked = job.asked
    checkout = job.shop.git.fetch(asked.url, asked.ref, cancelled=job.hold.stop_wanted)
    settings, problems = repo_settings.parsed(checkout.show(repo_settings.FILE))
    repo = Repo(
        name=asked.repo_name,
        url=asked.url,
        ref=asked.ref,
        commit=checkout.commit,
        commit_date=checkout.date(),
        files=checkout.files(),
        settings=settings,
        today=job.shop.clock().date().isoformat(),
    )
    notes = [f"commit {repo.commit[:12]} of {repo.commit_date[:10]}, {len(repo.files)} files", *problems]
    notes += left_out(job, checkout)
    for note in notes:
        run.log.write(f"{note}\n")

    def name_commit(db: Session) -> None:
        row = db.get_one(Review, asked.review_id)
        row.commit, row.commit_date = repo.commit, repo.commit_date

    return Outcome(repo.model_dump(mode="json"), summary="; ".join(notes), also=name_commit)


FILES_NAMED = 5


def left_out(job: Job, checkout: Checkout) -> list[str]:
    """What a reader may expect to have been reviewed, and was not."""
    notes = []
    if submodules := checkout.submodules():
        notes.append(f"submodules are not fetched: {listed(submodules)}")
    if pointers := checkout.lfs_pointers():
        notes.append(f"contents in Git LFS are not fetched: {listed(pointers)}")
    if outside := checkout.links_outside():
        notes.append(f"links that lead out of the repo are not followed: {listed(outside)}")
    if job.asked.is_path:
        try:
            uncommitted = job.shop.git.uncommitted(job.asked.url, checkout.commit)
        except RepoProblem as error:
            notes.append(f"whether there are uncommitted changes could not be told: {error}")
        else:
            if uncommitted:
                notes.append(f"not reviewed, because not committed: {listed(uncommitted)}")
    return notes


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - FILES_NAMED} more" if len(names) > FILES_NAMED else ""
    return ", ".join(name if name.isprintable() else repr(name) for name in names[:FILES_NAMED]) + more


# Prepare -----------------------------------------------------------------------------------


def prepare(job: Job, repo: Repo, checkout: Checkout) -> "Prepared":
    """Volumes with the tree and its environments; made again when they are gone."""
    from review_agents.probes import Prepared

    needed = not job.done(MERGE) and not job.sandbox.prepared(str(job.review_id))
    body = job.step(PREPARE, lambda run: install(job, run, repo, checkout), redo=needed)
    return Prepared.model_validate(body)


def install(job: Job, run: StepRun, repo: Repo, checkout: Checkout) -> Outcome:
    from review_agents.probes.prepare import unprepared

    with checkout.bundle() as bundle:
        job.sandbox.prepare(str(job.review_id), bundle, repo.commit)
    assert job.shop.prepare is not None
    try:
        box = run.open(role=Role.INSTALL, egress=True, requires_python=requires_python(repo, checkout))
        prepared, result = job.shop.prepare(workspace(job, box), repo)
    except NeedsMissing as error:
        prepared = unprepared(repo.files, checkout.show, str(error))
        result = ProbeResult(probe="install", state=ProbeState.COULD_NOT_RUN, reason=str(error))
    if run.trouble is not None and not isinstance(run.trouble, NeedsMissing):
        raise run.trouble

    def also(db: Session) -> None:
        now = job.shop.clock()
        row = steps.start(db, job.review_id, INSTALL, now)
        end_probe(db, job, row.id, result, now)

    return Outcome(prepared.model_dump(mode="json"), summary=result.summary, reason=result.reason, also=also)


def requires_python(repo: Repo, checkout: Checkout) -> str:
    from review_agents.probes.manifest import find_projects

    manifests = find_projects(repo.files, checkout.show)
    return manifests[0].requires_python if manifests else ""


def workspace(job: Job, box: Box) -> Workspace:
    assert job.shop.workspace is not None
    return job.shop.workspace(box, job.patience)


# Probes ------------------------------------------------------------------------------------


def run_probe(job: Job, probe: "Probe", repo: Repo, prepared: "Prepared", description: Description) -> ProbeResult:
    def work(run: StepRun) -> Outcome:
        result = one_probe(job, run, probe, repo, prepared)
        around = surroundings(job, prepared, description)

        def also(db: Session) -> None:
            nights.keep_measured(db, job, result.measurements, around, repo.commit, job.shop.clock())

        return Outcome(result.model_dump(mode="json"), summary=result.summary, reason=result.reason, also=also)

    return ProbeResult.model_validate(job.step(f"probe:{probe.name}", work))


def one_probe(job: Job, run: StepRun, probe: "Probe", repo: Repo, prepared: "Prepared") -> ProbeResult:
    """The probe's result; what the sandbox lacks is its reason, what fails in our hands rises."""
    from review_agents.probes import run_probe as run_it

    if job.time_left() <= 0:
        return could_not_run(probe.name, f"the review's budget of {job.asked.budget_minutes} minutes was used up")
    try:
        box = run.open(egress=probe.name in EGRESS_PROBES, requires_python=requires_of(prepared))
    except NeedsMissing as error:
        return could_not_run(probe.name, str(error))
    result = run_it(probe, workspace(job, box), repo, prepared)
    if isinstance(run.trouble, UNWANTED):
        raise run.trouble
    if run.trouble is not None:
        if isinstance(run.trouble, SandboxError) and run.trouble.retry and not job.hold.lease.last:
            raise run.trouble  # an engine that was restarted says nothing about the repo: the step is done again
        return could_not_run(probe.name, f"the sandbox failed: {run.trouble}")
    if result.log:
        run.log.write(result.log)
    return result


def requires_of(prepared: "Prepared") -> str:
    """Where the wanted Python is lacking, probes that only read still run, on any other."""
    if prepared.lacking:
        return ""
    return prepared.manifests[0].requires_python if prepared.manifests else ""


def could_not_run(probe: str, reason: str) -> ProbeResult:
    return ProbeResult(probe=probe, state=ProbeState.COULD_NOT_RUN, reason=reason)


def end_probe(db: Session, job: Job, step_id: UUID, result: ProbeResult, now: Any) -> None:
    steps.end(
        db,
        step_id,
        now,
        state=steps.StepState.DONE,
        summary=result.summary,
        reason=result.reason,
        result=result.model_dump(mode="json"),
    )


def surroundings(job: Job, prepared: "Prepared", description: Description) -> Surroundings:
    """What must be equal for measurements to be compared, and the versions that stood beside them."""
    here = Surroundings(job.shop.machine, sandbox=description.name, image=description.image, python=description.python)
    if job.shop.measuring is not None:
        here = replace(job.shop.measuring.surroundings(description), pinned=job.shop.settings.sandbox_cpus)
    return replace(here, dependencies=prepared.resolved_test or prepared.resolved)


# Verify ------------------------------------------------------------------------------------


def verify_all(
    job: Job, results: Mapping[str, ProbeResult | FocusResult], repo: Repo, checkout: Checkout
) -> list[Claim]:
    """Every candidate with what our own re-run made of it; a step per fingerprint."""
    by_fingerprint: dict[str, list[tuple[str, Candidate]]] = {}
    for step, result in results.items():
        for candidate in result.candidates:
            by_fingerprint.setdefault(fingerprint_of(candidate), []).append((step, candidate))
    job.plan(*((f"verify:{one}", FIRST_VERIFY + at) for at, one in enumerate(by_fingerprint)))
    known: dict[Reproduction, Verification] = {}  # one failing command may stand behind many claims
    claimed = []
    for one, group in by_fingerprint.items():
        body = job.step(f"verify:{one}", verify_work(job, repo, checkout, group, known))
        claimed += [Claim.model_validate(claim) for claim in body["claims"]]
    return claimed


def verify_work(
    job: Job,
    repo: Repo,
    checkout: Checkout,
    group: Sequence[tuple[str, Candidate]],
    known: dict[Reproduction, Verification],
) -> Callable[[StepRun], Outcome]:
    def work(run: StepRun) -> Outcome:
        verifier = verifier_in(job, run, repo, checkout)
        claimed = [
            Claim(candidate=candidate, verification=proved(verifier, candidate, known), step=step)
            for step, candidate in group
        ]
        titles = dict.fromkeys(f"{claim.verification.state}: {claim.candidate.title}" for claim in claimed)
        reasons = dict.fromkeys(claim.verification.reason for claim in claimed if claim.verification.reason)
        return Outcome(
            {"claims": [claim.model_dump(mode="json") for claim in claimed]},
            summary="; ".join(titles),
            reason="; ".join(reasons),
        )

    return work


def proved(verifier: Verifier, candidate: Candidate, known: dict[Reproduction, Verification]) -> Verification:
    """Verify it, without running again what was just run for another place of the same fault."""
    reproduction = candidate.reproduction
    if reproduction is None or verifier.quote_problem(candidate) or candidate.source is not Source.PROBE:
        return proving.verify(verifier, candidate)
    key = reproduction.model_copy(update={"expected": "", "observed": "", "copied": ()})
    if key not in known:
        known[key] = verifier.verify(candidate)
    return known[key]


def verifier_in(job: Job, run: StepRun, repo: Repo, checkout: Checkout) -> Verifier:
    return Verifier(
        boxes=lambda name, *, egress: run.open(part=name, egress=egress),
        checkout=checkout,
        files=repo.files,
        time_left=job.time_left,
        say=run.log.write,
        again_later=not job.hold.lease.last,
    )


def recheck_all(job: Job, claimed: Sequence[Claim], repo: Repo, checkout: Checkout) -> dict[str, Recheck]:
    """Open findings that nothing reported this time: their old reproductions, run on this commit."""
    with job.shop.sessions.reading() as db:
        known = filing.known(db, job.asked.repo_id, job.shop.clock())
    again = lifecycle.to_recheck(claimed, known, files=repo.files)
    job.plan(*((f"verify:{one.fingerprint}", FIRST_VERIFY + 10_000 + at) for at, one in enumerate(again)))
    rechecks = {}
    for one in again:
        body = job.step(f"verify:{one.fingerprint}", recheck_work(job, repo, checkout, one))
        if "recheck" in body:
            rechecks[one.id] = Recheck.model_validate(body["recheck"])
    return rechecks


def recheck_work(job: Job, repo: Repo, checkout: Checkout, one: Known) -> Callable[[StepRun], Outcome]:
    def work(run: StepRun) -> Outcome:
        verifier = verifier_in(job, run, repo, checkout)
        recheck = proving.recheck(verifier, one)
        return Outcome(
            {"recheck": recheck.model_dump(mode="json")},
            summary=f"{recheck.verification.state} again: {(recheck.still or one.candidate).title}",
            reason=recheck.verification.reason,
        )

    return work


# Merge and record --------------------------------------------------------------------------


def looks_of(results: Mapping[str, ProbeResult], thoughts: Mapping[str, FocusResult]) -> list[Look]:
    """Which steps looked: absence of a finding says something only where its step came to its end."""
    return [
        *(
            Look(step=step, left_out=frozenset(result.left_out))
            for step, result in results.items()
            if result.state is not ProbeState.COULD_NOT_RUN
        ),
        *(Look(step=step) for step, result in thoughts.items() if result.state is FocusState.FINISHED),
    ]


def merge(
    job: Job,
    claimed: Sequence[Claim],
    rechecks: dict[str, Recheck],
    looked: Sequence[Look],
    prepared: "Prepared",
    repo: Repo,
) -> tuple[Filed, ...]:
    environments = [Environment.NONE]
    environments += [Environment.PLAIN] if prepared.installed_plain else []
    environments += [Environment.TEST] if prepared.installed_test else []

    def work(run: StepRun) -> Outcome:
        with job.shop.sessions.reading() as db:
            known = filing.known(db, job.asked.repo_id, job.shop.clock())
            before = filing.reviewed_before(db, db.get_one(Review, job.review_id))
        filed = lifecycle.merge(
            claimed,
            known,
            rechecks=rechecks,
            looks=looked,
            commit=repo.commit,
            files=repo.files,
            reviewed_before=before,
            environments=environments,
            repo_ignores=repo.settings.ignores,
        )
        return Outcome(FILED.dump_python(filed, mode="json"), summary=filing.in_words(filed))

    return FILED.validate_python(job.step(MERGE, work))


def record(job: Job, filed: tuple[Filed, ...], repo: Repo, thoughts: Sequence[FocusResult]) -> None:
    """File everything, end the review and set the next slot of its schedule, all in one transaction."""

    def finish_all(db: Session) -> None:
        now = job.shop.clock()
        row = db.get_one(Review, job.review_id)
        filing.file(db, row, filed)
        scheduling.after(db, row, now, state=ReviewState.DONE)
        if thoughts:
            row.tokens = focusing.tokens_of(thoughts, confirmed_by_focus(filed))
        note = focusing.note_of(thoughts) if thoughts else EVIDENCE_ONLY
        claims.end(db, job.hold.lease, state=ReviewState.DONE, now=now, note=note)

    def work(run: StepRun) -> Outcome:
        drop(job.shop, job.review_id)  # so that a review that is done has nothing left
        spent = {"wall_s": time.monotonic() - job.started, "waited_s": job.patience.waited_s, **asdict(job.spent)}
        return Outcome(spent, summary=f"{len(filed)} findings filed", also=finish_all)

    job.step(RECORD, work)


def confirmed_by_focus(filed: Sequence[Filed]) -> Counter[str]:
    """Proved findings that are there now, by who found them."""
    return Counter(
        one.candidate.focus
        for one in filed
        if one.candidate.source is Source.AGENT
        and one.verification.state is VerificationState.CONFIRMED
        and one.lifecycle in (Lifecycle.NEW, Lifecycle.PERSISTING, Lifecycle.REGRESSED)
    )


# Endings -----------------------------------------------------------------------------------


def retry_or_fail(hold: Hold, error: RepoProblem | SandboxError) -> bool:
    """Whether the review goes on later (then its volumes stay)."""
    if error.retry and not hold.lease.last:
        pause_s = min(RETRY_AFTER_S * hold.lease.attempt, LONGEST_RETRY_S)
        park(hold, after_s=pause_s, note=f"tried again later: {error}", count_attempt=True)
        return True
    finish(hold, ReviewState.FAILED, error=str(error))
    return False


def park(
    hold: Hold, *, after_s: float, note: str, count_attempt: bool, state: ReviewState = ReviewState.QUEUED
) -> None:
    later = hold.shop.clock() + timedelta(seconds=after_s) if after_s else None
    try:
        hold.write(
            lambda db: claims.park(
                db,
                hold.lease,
                state=state,
                not_before=later,
                note=note,
                count_attempt=count_attempt,
            )
        )
    except LostClaim as error:
        log.warning("review lost", reason=str(error))


def finish(hold: Hold, state: ReviewState, *, error: str = "") -> None:
    """End it without a result."""

    def end(db: Session) -> None:
        now = hold.shop.clock()
        row = db.get_one(Review, hold.review_id)
        steps.skip_unfinished(db, hold.review_id, now, reason=error[:500] or "the review was cancelled")
        outputs.forget(db, hold.review_id)
        scheduling.after(db, row, now, state=state)
        claims.end(db, hold.lease, state=state, now=now, error=error)

    log.info("review ends", state=str(state), error=error.partition("\n")[0])
    try:
        hold.write(end)
    except LostClaim as lost:
        log.warning("review lost", reason=str(lost))


def bug(error: Exception) -> str:
    """For the page: what a report to us needs."""
    return "A bug of Lamplighter ended this review. " + "".join(traceback.format_exception(error))[-4000:]


def may_come_back(shop: Workshop, review_id: UUID) -> bool:
    """Whether a review that was lost goes on: here, perhaps, where its volumes are; if not, the sweep takes them."""
    try:
        with shop.sessions.reading() as db:
            return db.scalar(select(Review.id).where(Review.id == review_id, sweeping.may_go_on())) is not None
    except DBAPIError as error:
        log.warning("nobody can say whether a lost review goes on", review=str(review_id), error=str(error))
        return True


def drop(shop: Workshop, review_id: UUID) -> None:
    """Remove all that the sandbox holds for the review; what resists for some seconds is left to the sweep."""
    if shop.sandbox is None:
        return
    for pause_s in (*DROP_AGAIN_S, None):
        try:
            return shop.sandbox.drop(str(review_id))
        except SandboxError as error:
            if pause_s is None or shop.stopping():
                log.warning("the review's sandbox could not be removed yet", review=str(review_id), error=str(error))
                return
        time.sleep(pause_s)


def note_sandbox(db: Session, review_id: UUID, description: Description) -> None:
    db.get_one(Review, review_id).sandbox = asdict(description)
