"""The fault matrix: real processes killed, cut off, filled up and set back at each step of a review; what came of it.

    python -m tests.bench faults            all cases; a run that was interrupted goes on where it stopped
    python -m tests.bench faults --only redis

After each case: the review ended as it should, nothing happened twice, no row of it or of an earlier review is lost,
nothing is left over, and it took at most 40 seconds. Writes docs/figures/faults.json, and with it the table in
docs/benchmarks.md. A case that was not well is done again by the next run, and counted in `again` for ever; one of
another commit is done anew. The stage's lease is 4 s, not 60: being away for 15 s is there what minutes are elsewhere.
"""

import json
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from orchestrator.services.views import ReviewPage, ReviewState, StepState
from orchestrator.store.comparisons import ComparisonRow
from orchestrator.store.findings import FindingRow, Sighting
from orchestrator.store.measurements import MeasurementRow
from orchestrator.store.repos import Repo, RepoKind
from orchestrator.store.reviews import Review
from orchestrator.store.schedules import Schedule, ScheduleKind
from review_agents.records import ProbeState, VerificationState
from tests.bench.fault_cases import ALL, IN_ORDER, MEASURE, Case
from tests.bench.figures import commit, of_this_commit, record
from tests.factories import make_review
from tests.support.stage import Stage, children_of, stage, start_engine
from tests.support.stage_process import TOLD
from tests.support.tiny_agents import finding
from tests.support.waiting import wait_for

MOST_S = 40.0  # that a case of the matrix may take, from its submission to its end
PATIENCE_S = 100.0  # until nothing more is expected; the tests of a busy machine may take so long
KEPT = Path(tempfile.gettempdir()) / "lamplighter-faults.json"
TITLES = {"greet does not say hello", str(finding()["title"])}
COMPARED = ("walk: walk", "walk: peak memory", "import tortoise: import", "import tortoise: peak memory")  # base, head
PROBES = {"install": ProbeState.PASSED, "greets": ProbeState.FAILED, "counts": ProbeState.PASSED}
SET_ASIDE = "Set aside: its worker was lost"


@dataclass
class Result:
    """What came of a case, each list in words."""

    case: str
    seconds: float = 0.0
    wrong_end: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    too_long: list[str] = field(default_factory=list)

    @property
    def well(self) -> bool:
        return not self.complaints

    def judge_time(self) -> None:
        if self.seconds > MOST_S:
            self.too_long.append(f"{self.seconds:.0f} s, at most {MOST_S:.0f}")

    @property
    def complaints(self) -> str:
        return "; ".join(f"{kind}: {text}" for kind in COUNTED for text in getattr(self, kind))


COUNTED = ("wrong_end", "twice", "lost", "leaked", "too_long")


def run(
    cases: Sequence[Case] = ALL, *, kept: Path = KEPT, again: bool = False, keep_figures: bool = True
) -> dict[str, float]:
    """Do the cases that are not done yet, and write the figures once all are."""
    known = [] if again or not kept.exists() else of_this_commit(json.loads(kept.read_text()).values())
    done = {one["case"]: one for one in known}
    for sandbox, group in groupby(cases, key=lambda case: case.sandbox):
        waiting = [case for case in group if not done.get(case.name, {}).get("well")]
        if not waiting:
            continue
        try:
            with prepared(sandbox) as one:
                for case in waiting:
                    result = outcome_of(one, case)
                    result.judge_time()
                    print(f"{result.seconds:5.1f} s  {case.name}  {result.complaints or 'well'}", flush=True)
                    tries = done.get(case.name, {}).get("tries", 0) + 1
                    done[case.name] = {**vars(result), "well": result.well, "commit": commit(), "tries": tries}
                    kept.write_text(json.dumps(done, indent=1))
        except pytest.skip.Exception as skipped:
            print(f"No cases on {sandbox}: {skipped}")
    results = [done[case.name] for case in cases if case.name in done]
    figures: dict[str, float] = {
        "cases": len(results),
        "longest_s": max((round(one["seconds"], 1) for one in results), default=0),
    }
    figures |= {kind: sum(bool(one[kind]) for one in results) for kind in COUNTED}
    figures["again"] = sum(one["tries"] > 1 for one in results)
    missing = len(ALL) - len(results)
    if keep_figures and missing:
        print(f"Nothing is recorded: {missing} of {len(ALL)} cases were not done.")
    elif keep_figures and len(of_this_commit(done.values())) < len(done):
        print("Nothing is recorded: the commit changed on the way. Run it again.")
    elif keep_figures:
        record("faults", figures, libraries=("celery", "redis", "psycopg", "sqlalchemy"), table=table(cases, done))
    return figures


def table(cases: Sequence[Case], done: dict[str, Any]) -> dict[str, Any]:
    """By fault and sandbox: at which steps, how many cases, how many ended well, the longest."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.fault, case.sandbox), []).append(case)
    rows = []
    for (fault, sandbox), group in groups.items():
        steps = ", ".join(dict.fromkeys(case.step.partition(":")[2] or case.step for case in group if case.step))
        well = sum(done[case.name]["well"] for case in group)
        longest = max(done[case.name]["seconds"] for case in group)
        rows.append([fault, sandbox, steps or "while it waits", len(group), well, f"{longest:.0f}"])
    return {"head": ["what happens", "sandbox", "at the steps", "cases", "ended well", "longest, s"], "rows": rows}


def prepared(sandbox: str) -> Any:
    folder = Path(tempfile.mkdtemp(prefix="lamplighter-stage-"))
    folder.chmod(0o755)  # PostgreSQL runs as another user
    return stage(folder, sandbox=sandbox)


# One case ----------------------------------------------------------------------------------


def outcome_of(one: Stage, case: Case) -> Result:
    """Do it and look. Whatever goes wrong is in the result, and the stage is whole again afterwards."""
    result = Result(case.name)
    one.faked_clock = "clock" in case.fault
    if one.faked_clock or one.set_back:
        restart_clocked(one)
    one.heal()
    before = one.census()
    act = Act(one, case)
    started = time.monotonic()
    try:
        act.begin()
        if case.step:
            wait_for(one.held, PATIENCE_S, f"the review did not come to {case.step}")
        FAULTS[case.fault](act)
        one.release()
        wait_for(act.ended, PATIENCE_S, "a review did not end")
    except (AssertionError, httpx.HTTPError, SQLAlchemyError, OSError) as error:
        result.wrong_end.append(str(error)[:300] or type(error).__name__)
    result.seconds = time.monotonic() - started
    one.release()
    with suppress(AssertionError):
        one.heal()
    for review_id in act.reviews:
        look_at(one, case, review_id, result)
    result.lost += lost_of(before, one.census())
    result.twice += act.twice
    with suppress(AssertionError):
        wait_for(lambda: not one.left_over(), 8, "left over")
    result.leaked += one.left_over()
    if result.wrong_end:
        clear_away(one, act)
    if "other worker" in one.processes:
        one.kill("other worker", signal.SIGTERM)
    return result


def restart_clocked(one: Stage) -> None:
    """Worker and beat begin on the clock that the case wants."""
    one.set_clock(0)
    one.set_back = one.faked_clock
    for name in ("worker", "beat"):
        if name in one.processes:
            one.kill(name)


def clear_away(one: Stage, act: "Act") -> None:
    """What did not end must not stand in the next case's way."""
    for review_id in act.reviews:
        with suppress(httpx.HTTPError):
            httpx.post(f"{one.url}/api/reviews/{review_id}/cancel", json={}, timeout=10)
    with suppress(AssertionError):
        wait_for(act.ended, 10, "")


@dataclass
class Act:
    """A case under way."""

    stage: Stage
    case: Case
    reviews: list[UUID] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    expected: int = 1

    def begin(self) -> None:
        if self.case.step:
            self.stage.hold(self.case.step, self.case.when)
        BEGINNINGS.get(self.case.fault, submit_as_usual)(self)

    def ended(self) -> bool:
        with suppress(SQLAlchemyError):
            pages = [self.stage.page(review_id) for review_id in self.reviews]
            return len(pages) == self.expected and all(page.row.state.ended for page in pages)
        return False

    def pause(self) -> None:
        time.sleep(self.case.seconds)


def look_at(one: Stage, case: Case, review_id: UUID, result: Result) -> None:
    page = one.page(review_id)
    if case.ends == "failed":
        if page.row.state is not ReviewState.FAILED or SET_ASIDE not in page.row.error:
            result.wrong_end.append(f"{page.row.state}: {page.row.error[:200]}")
        return
    result.wrong_end += wrong_in(page)
    repeated = [step.name for step in page.steps if step.attempt > 1 and not may_repeat(case, step.name)]
    if repeated:
        result.twice.append(f"done again: {', '.join(repeated)}")
    with one.shop.sessions.reading() as db:
        compared = COMPARED if case.measured else ()
        for model, names in ((MeasurementRow, ("count", *compared)), (ComparisonRow, compared)):
            rows = Counter(db.scalars(select(model.name).where(model.review_id == review_id)))
            for name in {*rows, *names}:
                compare(f"{rows[name]} {model.__tablename__} of {name!r}", rows[name], int(name in names), result)
        found = db.scalar(select(func.count()).where(Sighting.review_id == review_id)) or 0
        compare(f"{found} sightings", found, len(TITLES), result)
        found = db.scalar(select(func.count()).where(FindingRow.first_review_id == review_id)) or 0
        compare(f"{found} findings", found, len(TITLES), result)
    if httpx.get(f"{one.url}/reviews/{review_id}", timeout=20).status_code != 200:
        result.wrong_end.append("its page does not open")


def compare(what: str, found: int, expected: int, result: Result) -> None:
    if found > expected:
        result.twice.append(f"{what} instead of {expected}")
    if found < expected:
        result.lost.append(f"{what} instead of {expected}")


def wrong_in(page: ReviewPage) -> list[str]:
    """What is not as in a review that nobody disturbed."""
    wrong = []
    if page.row.state is not ReviewState.DONE or page.row.error:
        wrong.append(f"{page.row.state} {page.row.error[:200]}".strip())
    unfinished = [f"{step.name} {step.state}" for step in page.steps if step.state is not StepState.DONE]
    if unfinished:
        wrong.append(f"steps: {', '.join(unfinished)}")
    if {one.probe: one.state for one in page.evidence} != PROBES:
        wrong.append("evidence: " + "; ".join(f"{one.probe} {one.state} {one.reason[:100]}" for one in page.evidence))
    titles = Counter(one.title for one in page.findings)
    if titles != Counter(TITLES):
        wrong.append(f"findings: {dict(titles)}")
    unproved = [one for one in page.findings if one.verification_state is not VerificationState.CONFIRMED]
    wrong += [f"{one.title}: {one.verification_state} {one.verification_reason[:120]}" for one in unproved]
    return wrong


def may_repeat(case: Case, step: str) -> bool:
    """The step in which it happened; the next one, where it may have begun by the time it happened or while it lasted.

    A case that is not held up begins before the review does: nothing of it may be done twice.
    """
    if not case.step:
        return False
    if "node" in case.fault and step.startswith("focus:"):
        return True  # a node that is still starting is waited for
    if case.step == "prepare" and step == "probe:install":
        return True  # its result is the prepare step's
    lasts = case.when == "ended" or case.seconds > 0.5
    steps = [one for one in IN_ORDER if case.measured or one != MEASURE]
    at = steps.index(case.step)
    return any(step.startswith(one) for one in steps[at : at + (2 if lasts else 1)])


def lost_of(before: dict[UUID, tuple[Any, ...]], after: dict[UUID, tuple[Any, ...]]) -> list[str]:
    """Rows of earlier reviews that are fewer now."""
    return [
        f"of review {review_id}: {rows} became {after.get(review_id)}"
        for review_id, rows in before.items()
        if after.get(review_id) != rows
    ]


# Faults ------------------------------------------------------------------------------------


def kill(name: str) -> Callable[[Act], None]:
    def fault(act: Act) -> None:
        act.stage.kill(name)
        act.pause()
        act.stage.start(name)

    return fault


def kill_redis(act: Act) -> None:
    act.stage.redis.stop()
    act.pause()
    act.stage.redis.start()


def kill_postgres(act: Act) -> None:
    act.stage.postgres.kill()
    act.pause()
    act.stage.postgres.start()


def kill_engine(act: Act) -> None:
    engine = act.stage.engine
    assert engine is not None
    engine.process.kill()
    engine.process.wait()
    act.pause()
    act.stage.release()  # what the worker does now meets an engine that is away or starts
    start_engine(engine)


def kill_child(act: Act) -> None:
    for pid in children_of(act.stage.processes["worker"].pid):
        subprocess.run(["kill", "-9", str(pid)], capture_output=True)


def kill_each_time(act: Act) -> None:
    """A review that takes its worker with it, as often as it is tried."""
    for attempt in range(act.stage.settings.max_attempts):
        if attempt:
            act.stage.hold(act.case.step, act.case.when)
            act.stage.start("worker")
            wait_for(act.stage.held, 20, f"attempt {attempt + 1} did not come to {act.case.step}")
        act.stage.kill("worker")
    act.stage.start("worker")


def kill_box(act: Act) -> None:
    if act.stage.engine is not None:
        act.stage.engine.command("kill", *act.stage.engine.command("ps", "-q").split())
        return
    instance = (act.stage.settings.data / "instance").read_text().strip()
    said = subprocess.run(["ps", "-eww", "-o", "pid,args"], capture_output=True, text=True).stdout
    inside = [line.split()[0] for line in said.splitlines() if f" lamplighter.{instance}." in line and "-I -S" in line]
    subprocess.run(["kill", "-9", *inside], check=True)


def end_politely(act: Act) -> None:
    worker = act.stage.processes.pop("worker")
    worker.terminate()
    wait_for((act.stage.control / TOLD).exists, 20, "the worker did not tell its child to end")
    act.stage.release()
    assert worker.wait(20) == 0, f"the worker ended with {worker.returncode}"
    act.stage.start("worker")


def kill_everything(act: Act) -> None:
    """As when the power fails; but for the disk, whose writes are not lost here."""
    one = act.stage
    for name in ("worker", "beat", "web", "node"):
        one.kill(name)
    one.redis.stop()
    one.postgres.kill()
    if one.engine is not None:
        one.engine.process.kill()
        one.engine.process.wait()
    act.pause()
    if one.engine is not None:
        start_engine(one.engine)
    one.postgres.start()
    one.redis.start()
    for name in ("web", "beat", "worker", "node"):
        one.start(name)


def redis_loses_everything(act: Act) -> None:
    act.stage.redis.lose_everything()
    act.pause()
    act.stage.redis.start()


def submit_while_redis_is_lost(act: Act) -> None:
    """The message is gone before anybody reads it."""
    act.stage.kill("worker")
    act.reviews.append(act.stage.submit(act.stage.new_repo()))
    act.stage.redis.lose_everything()
    act.stage.redis.start()
    act.stage.start("worker")


def cut(name: str) -> Callable[[Act], None]:
    def fault(act: Act) -> None:
        act.stage.network.cut(name)
        act.stage.release()
        act.pause()
        act.stage.network.mend()

    return fault


def fill_disk(act: Act) -> None:
    act.stage.fill_disk()
    act.stage.release()
    act.pause()
    (act.stage.settings.data / "filler").unlink()


def submit_on_a_full_disk(act: Act) -> None:
    """It waits, and says why."""
    repo = act.stage.new_repo()
    act.stage.fill_disk()
    act.reviews.append(act.stage.submit(repo))
    wait_for(lambda: "MiB are free" in act.stage.page(act.reviews[0]).row.outcome_note, 15, "nothing says why it waits")
    assert act.stage.page(act.reviews[0]).row.state is ReviewState.QUEUED
    (act.stage.settings.data / "filler").unlink()


def set_clock(seconds: int, *, and_kill: bool = False) -> Callable[[Act], None]:
    def fault(act: Act) -> None:
        act.stage.set_clock(seconds)
        act.pause()
        if and_kill:
            kill("worker")(act)

    return fault


def two_workers(act: Act) -> None:
    """Two machines and three reviews at once: each is done by one of them, once."""
    if "other worker" not in act.stage.processes:
        act.stage.start("other worker")
    act.expected = 3
    while len(act.reviews) < act.expected:
        act.reviews.append(act.stage.submit(act.stage.new_repo()))
    for review_id in act.reviews * 2:
        act.stage.shop.nudge(review_id)
    act.stage.release()
    wait_for(act.ended, PATIENCE_S, "a review did not end")
    act.twice += [f"{one} was claimed {n} times" for one in act.reviews if (n := act.stage.page(one).attempt) != 1]


def two_beats(act: Act) -> None:
    """A nightly schedule that is due, and two that tick: one review."""
    one = act.stage
    repo = one.new_repo()
    with one.shop.sessions.begin() as db:
        row = Repo(name=repo.name, url=str(repo), kind=RepoKind.PATH, created_at=one.shop.clock())
        db.add(row)
        db.flush()
        due = one.shop.clock() - timedelta(seconds=1)
        schedule = Schedule(
            repo_id=row.id, kind=ScheduleKind.NIGHTLY, at="02:00", zone="UTC", ref="main", focuses=["correctness"],
            next_at=due, created_at=due,
        )  # fmt: skip
        db.add(schedule)
        db.flush()
        schedule_id = schedule.id
    one.start("second beat")
    time.sleep(4)  # several ticks of both

    def queued() -> list[UUID]:
        with one.shop.sessions.reading() as db:
            return list(db.scalars(select(Review.id).where(Review.schedule_id == schedule_id)))

    wait_for(lambda: bool(queued()), 15, "no beat queued it")
    act.reviews += queued()[:1]
    wait_for(act.ended, PATIENCE_S, "the scheduled review did not end")
    one.kill("second beat")
    if (number := len(queued())) != 1:
        act.twice.append(f"{number} reviews for one slot")


def five_messages(act: Act) -> None:
    for _ in range(5):
        act.stage.shop.nudge(act.reviews[0])
    wait_for(act.ended, PATIENCE_S, "the review did not end")
    claimed_once(act)


def message_at_the_end(act: Act) -> None:
    act.stage.release()
    wait_for(act.ended, PATIENCE_S, "the review did not end")
    of_the_dead = act.stage.redis.in_hands()  # of other workers, in the cases before
    for _ in range(3):
        act.stage.shop.nudge(act.reviews[0])
    wait_for(lambda: act.stage.redis.is_read(of_the_dead), 20, "messages that nobody reads")
    claimed_once(act)


def claimed_once(act: Act) -> None:
    if (attempt := act.stage.page(act.reviews[0]).attempt) != 1:
        act.twice.append(f"it was claimed {attempt} times")


def row_without_message(act: Act) -> None:
    one = act.stage
    repo = one.new_repo()
    with one.shop.sessions.begin() as db:
        row = Repo(name=repo.name, url=str(repo), kind=RepoKind.PATH, created_at=one.shop.clock())
        db.add(row)
        db.flush()
        now = one.shop.clock()
        review = make_review(db, row, id=uuid4(), commit="", ref="main", focuses=["correctness"], created_at=now)
        act.reviews.append(review.id)


def nothing(act: Act) -> None:
    """What happens has happened in the beginning."""


FAULTS: dict[str, Callable[[Act], None]] = {
    **{f"kill {name}": kill(name) for name in ("worker", "web", "beat", "node")},
    "kill redis": kill_redis,
    "kill postgres": kill_postgres,
    "kill engine": kill_engine,
    "kill the worker's child": kill_child,
    "kill the worker each time": kill_each_time,
    "kill the box": kill_box,
    "end the worker politely": end_politely,
    "kill everything": kill_everything,
    "redis loses everything": lambda act: redis_loses_everything(act) if act.case.step else None,
    "cut the worker off": cut("worker"),
    "cut the node off": cut("node"),
    "fill the disk": lambda act: fill_disk(act) if act.case.step else None,
    "set the clock back": set_clock(-7200),
    "set the clock back, then kill the worker": set_clock(-7200, and_kill=True),
    "put the clock forward": set_clock(7200),
    "two workers": two_workers,
    "two beats and a due schedule": nothing,
    "the message comes five times": five_messages,
    "the message comes again at the end": message_at_the_end,
    "the message never comes": nothing,
}


def submit_as_usual(act: Act) -> None:
    act.reviews.append(act.stage.submit(act.stage.new_repo(measured=act.case.measured)))


def unless_held(otherwise: Callable[[Act], None]) -> Callable[[Act], None]:
    """As usual where the review is held up in a step."""
    return lambda act: (submit_as_usual if act.case.step else otherwise)(act)


BEGINNINGS: dict[str, Callable[[Act], None]] = {
    "two beats and a due schedule": two_beats,
    "the message never comes": row_without_message,
    "redis loses everything": unless_held(submit_while_redis_is_lost),
    "fill the disk": unless_held(submit_on_a_full_disk),
}
