"""The step that compares base and head in a sandbox that fails, on files in a dict: no review is the worse for it."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session as Database

from orchestrator.measure.records import Bisection, Surroundings
from orchestrator.sandbox.contract import Box, NeedsMissing, Patience, SandboxError
from orchestrator.sandbox.fake import FakeSandbox
from orchestrator.sandbox.stopwatch import Stopwatch, Tolerance
from orchestrator.services import reviews, submitting, working
from orchestrator.services.bisecting import BISECTION
from orchestrator.services.measuring import STEP, wished_for
from orchestrator.services.nights import COMPARISON
from orchestrator.services.submitting import Submission
from orchestrator.services.views import ReviewPage, ReviewState, StepRow
from orchestrator.services.workshop import Measuring, Workshop
from orchestrator.store import comparisons, measurements, steps, transcripts
from orchestrator.store.session import Sessions
from review_agents.ports import RepoProblem, Workspace
from review_agents.probes.prepared import Attempt, Distribution, Prepared
from review_agents.records import (
    Entry,
    EntryKind,
    Message,
    ProbeResult,
    ProbeState,
    Ran,
    Repo,
    Role,
    ToolCall,
    Verdict,
)
from tests.support.measured_repo import ANYTHING
from tests.support.tiny import FIRST, SECOND, TinyCheckout, TinyGit, blob_id, tiny_shop

PACKAGE = "x = 1\n"
MIDDLE = "3" * 40  # between the first commit and the second
FILES = {
    "README.md": "It says hello.\n",
    "pack/__init__.py": PACKAGE,
    ".lamplighter.toml": '[benchmark]\nfirst = "bench first"\n',
}
# What the program that looks at imports would say.
RUNS = {
    "version": "1",
    "packages": {
        "pack": {
            "path": "/venv/test/pack/__init__.py",
            "files": {"__init__.py": blob_id(PACKAGE.encode())},
        }
    },
}


def prepare(workspace: Workspace, repo: Repo) -> tuple[Prepared, ProbeResult]:
    one = Distribution(name="pack", version="1", import_packages=("pack",), files=("pack/__init__.py",))
    prepared = Prepared(python="3.11.0", languages=("python",), distributions=(one,), installed_test=True)
    return prepared, ProbeResult(probe="install", state=ProbeState.PASSED, summary="installed")


def answer(command: str) -> Ran:
    if "canary" in command:
        return Ran(exit=0, seconds=0.2, head="canary: 0.015 s\n")
    return Ran(exit=0, seconds=0.5, user_s=0.5, peak_bytes=50 << 20)


class Slowly:
    """The box, in which the head's sessions, and those of whatever stands in its place, take twice as long."""

    def __init__(self, box: Box):
        self._box = box
        self.name = box.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._box, name)

    def run(self, command: str, **given: Any) -> Ran:
        ran = self._box.run(command, **given)
        slow = "-head." in self.name and "canary" not in command
        return ran.model_copy(update={"seconds": 2 * ran.seconds}) if slow else ran


class LongCheckout(TinyCheckout):
    def since(self, earlier: str) -> tuple[str, ...]:
        return (MIDDLE, self.commit)

    def changed(self, since: str) -> tuple[str, ...]:
        return ("pack/walk.c",)


@dataclass
class LongGit(TinyGit):
    """With a commit between the two; those that are `lost` cannot be read."""

    lost: set[str] = field(default_factory=set)

    def at(self, url: str, commit: str) -> TinyCheckout:
        if commit in self.lost:
            raise RepoProblem(f"git could not look for {commit[:12]}")
        super().at(url, commit)
        return LongCheckout(commit, self.commits[commit], self.folder)


def slowed(shop: Workshop) -> Workshop:
    """As if the second commit were slow, and perhaps the one before it."""

    def stopwatch(box: Box, patience: Patience) -> Stopwatch:
        return Stopwatch(Slowly(box), patience=Patience(0), tolerance=ANYTHING)  # type: ignore[arg-type]

    assert shop.measuring is not None
    commits = {FIRST: FILES, MIDDLE: FILES, SECOND: FILES}
    git = LongGit(shop.git.folder, commits=commits)  # type: ignore[attr-defined]
    return replace(shop, git=git, measuring=replace(shop.measuring, stopwatch=stopwatch))


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path) -> Workshop:
    return measured(sessions, tmp_path)


def measured(sessions: Sessions, tmp_path: Path) -> Workshop:
    """A worker that measures; the next review is held against the one before."""
    sandbox = FakeSandbox(answer, files={"/tmp/lamplighter-what_runs.json": json.dumps(RUNS).encode()})
    measuring = Measuring(
        lambda box, patience: Stopwatch(box, patience=Patience(0), tolerance=ANYTHING),
        lambda: (),
        lambda description: Surroundings("machine", sandbox=description.name),
    )
    git = TinyGit(tmp_path, commits={FIRST: FILES, SECOND: FILES})
    shop = tiny_shop(sessions, tmp_path, git=git, sandbox=sandbox, probes=(), prepare=prepare, measuring=measuring)
    return replace(shop, settings=shop.settings.model_copy(update={"compare_with": "previous"}))


def reviewed(shop: Workshop, commit: str) -> ReviewPage:
    shop.git.head = commit  # type: ignore[attr-defined]
    review_id = submitting.submit(shop, Submission("https://git.example/team/pack", agents=False, force=True))
    working.do_one(shop, review_id)
    page = reviews.get(shop, review_id)
    assert (page.row.state, page.row.error) == (ReviewState.DONE, "")
    assert not shop.sandbox.volumes and not shop.sandbox.boxes  # type: ignore[union-attr]
    return page


def compared(shop: Workshop, commit: str = SECOND) -> StepRow:
    """The step of a second review."""
    reviewed(shop, FIRST)
    return step_of(reviewed(shop, commit))


def step_of(page: ReviewPage) -> StepRow:
    (step,) = [step for step in page.steps if step.name == STEP]
    return step


def test_equal_sessions_are_no_change_and_the_base_is_named(shop: Workshop) -> None:
    step = compared(shop)
    assert step.summary == f"against {FIRST[:12]}: 2 no change"
    assert (step.state, step.reason) == ("done", "")


def test_what_takes_long_to_install_is_not_built_a_second_time(shop: Workshop) -> None:
    slow = Attempt(purpose="wheel", command="pip wheel .", ok=True, ending="exit status 0", seconds=200.0)

    def slowly(workspace: Workspace, repo: Repo) -> tuple[Prepared, ProbeResult]:
        prepared, result = prepare(workspace, repo)
        return prepared.model_copy(update={"commands": (slow,)}), result

    step = compared(replace(shop, prepare=slowly))
    assert "installing takes 200 s" in step.reason


def test_a_base_that_cannot_be_cloned_is_the_step_s_reason(shop: Workshop) -> None:
    reviewed(shop, FIRST)
    shop.sandbox.fail["prepare"] = [None, SandboxError("disk full")]  # type: ignore[union-attr]
    step = step_of(reviewed(shop, SECOND))
    assert step.reason == "the sandbox failed: disk full"


@pytest.mark.parametrize("times", [1, 9])
def test_what_may_work_later_is_tried_again_and_at_last_is_the_step_s_reason(shop: Workshop, times: int) -> None:
    reviewed(shop, FIRST)
    away = SandboxError("the engine is away", retry=True)
    shop.sandbox.fail["prepare"] = [None, *[away] * times]  # type: ignore[union-attr]
    shop.git.head = SECOND  # type: ignore[attr-defined]
    review_id = submitting.submit(shop, Submission("https://git.example/team/pack", agents=False, force=True))
    tries = 0
    while not (page := reviews.get(shop, review_id)).row.state.ended:
        tries += 1
        shop.clock.forward(minutes=30)  # type: ignore[attr-defined]
        working.work(shop)
        assert tries <= shop.settings.max_attempts
    assert (page.row.state, page.row.error) == (ReviewState.DONE, "")
    assert tries == min(times + 1, shop.settings.max_attempts)
    step = step_of(page)
    expected = ("", "2 no change") if times == 1 else ("the sandbox failed: the engine is away", "")
    assert step.reason == expected[0] and step.summary.endswith(expected[1])


def test_a_python_that_only_the_base_needs_is_the_step_s_reason(shop: Workshop) -> None:
    reviewed(shop, FIRST)
    shop.sandbox.fail["open"] = [None, NeedsMissing("needs Python 3.7")]  # type: ignore[union-attr]
    assert step_of(reviewed(shop, SECOND)).reason == "needs Python 3.7"


def test_what_does_not_work_at_the_base_is_not_compared(shop: Workshop) -> None:
    runs: list[str] = []

    def broken_at_second_try(command: str) -> Ran:
        if "bench first" in command:
            runs.append(command)
            return Ran(exit=0 if len(runs) == 1 else 3, seconds=0.5, head="no such option\n")
        return answer(command)

    shop.sandbox.script = broken_at_second_try  # type: ignore[union-attr]
    step = compared(shop)
    assert step.reason == "it does not work at the base (exit status 3): no such option"
    assert len(runs) == 2


def test_other_code_than_the_commit_s_gives_no_number(shop: Workshop) -> None:
    reviewed(shop, FIRST)
    shop.git.commits[SECOND] = {**FILES, "pack/__init__.py": "x = 2\n"}  # type: ignore[attr-defined]
    step = step_of(reviewed(shop, SECOND))
    assert f"what was imported is not what {SECOND[:12]} has: pack/__init__.py" in step.reason


def test_both_sides_get_the_head_s_benchmark_byte_by_byte_whatever_it_holds(shop: Workshop) -> None:
    """Of two files that are no text and differ only there, a text with those bytes replaced would be one."""
    name = "bench/words.bin"
    found: set[bytes] = set()

    def looking(command: str) -> Ran:
        if "bench first" in command:
            found.update(box.files[name] for box in shop.sandbox.boxes.values() if name in box.files)  # type: ignore[union-attr]
        return answer(command)

    shop.sandbox.script = looking  # type: ignore[union-attr]
    texts = {FIRST: "\udcff\udcfe", SECOND: "\udcfe\udcff"}
    shop.git.commits |= {commit: {**FILES, name: text} for commit, text in texts.items()}  # type: ignore[attr-defined]
    keys = []
    for commit in (FIRST, SECOND):
        page = reviewed(shop, commit)
        with shop.sessions.reading() as db:
            keys += [row.machine_key for row in comparisons.of_review(db, page.row.id)]
    assert found == {b"\xfe\xff"}
    page = reviewed(shop, FIRST)
    with shop.sessions.reading() as db:
        assert not {row.machine_key for row in comparisons.of_review(db, page.row.id)} & set(keys)


def test_a_disturbed_machine_gives_the_verdict_contaminated_and_no_number(shop: Workshop) -> None:
    def busy(box: Box, patience: Patience) -> Stopwatch:
        return Stopwatch(box, patience=Patience(0), tolerance=Tolerance(-1.0, -1.0))

    assert shop.measuring is not None
    shop = replace(shop, measuring=replace(shop.measuring, stopwatch=busy))
    reviewed(shop, FIRST)
    page = reviewed(shop, SECOND)
    assert step_of(page).summary.endswith("contaminated") and "before the first session" in step_of(page).reason
    with shop.sessions.reading() as db:
        (row,) = comparisons.of_review(db, page.row.id)
        (night,) = measurements.of_review(db, page.row.id)
    assert (row.verdict, row.ratio, night.median) == (Verdict.CONTAMINATED, None, None)
    assert "before the first session" in night.note


def test_a_machine_that_is_never_quiet_costs_a_review_its_patience_once_and_each_benchmark_says_so(
    shop: Workshop,
) -> None:
    waits: list[float] = []

    def busy(box: Box, patience: Patience) -> Stopwatch:
        never = Tolerance(-1.0, -1.0)
        return Stopwatch(box, patience=patience, tolerance=never, wait=waits.append, clock=lambda: sum(waits))

    assert shop.measuring is not None
    names = [f"number {at}" for at in range(20)]
    settings = "[benchmark]\n" + "".join(f'"{name}" = "bench {name}"\n' for name in names)
    files = {**FILES, ".lamplighter.toml": settings}
    shop.git.commits |= {FIRST: files, SECOND: files}  # type: ignore[attr-defined]
    shop = replace(
        shop,
        measuring=replace(shop.measuring, stopwatch=busy),
        settings=shop.settings.model_copy(update={"measure_patience_s": 8.0}),
    )
    reviewed(shop, FIRST)
    page = reviewed(shop, SECOND)
    assert 4 < sum(waits) <= 8
    assert step_of(page).summary == f"against {FIRST[:12]}: 20 contaminated"
    with shop.sessions.reading() as db:
        rows = comparisons.of_review(db, page.row.id)
        notes = {night.note.partition(": ")[0] for night in measurements.of_review(db, page.row.id)}
    assert {(row.verdict, row.ratio) for row in rows} == {(Verdict.CONTAMINATED, None)}
    assert notes == {"before the first session"}
    calls = shop.sandbox.calls  # type: ignore[union-attr]
    sessions = [about for method, about in calls if method == "run" and "bench number" in about]
    assert len(sessions) == 2 * len(names)  # each side once, to see that it works: no number was tried for in vain


@pytest.mark.parametrize("output", ["", "canary: broken\n"])
def test_a_canary_that_gives_no_time_is_the_reason_for_no_number(shop: Workshop, output: str) -> None:
    def dead_canary(command: str) -> Ran:
        return Ran(exit=0 if output else 127, head=output) if "canary" in command else answer(command)

    shop.sandbox.script = dead_canary  # type: ignore[union-attr]
    step = compared(shop)
    assert step.summary.endswith("contaminated") and "before the first session: the canary" in step.reason


def test_git_that_fails_before_anything_is_built_is_the_step_s_reason(shop: Workshop, monkeypatch: pytest.MonkeyPatch):
    def failing(self: TinyCheckout, since: str) -> tuple[str, ...]:
        raise RepoProblem("git could not compare commits")

    monkeypatch.setattr(TinyCheckout, "changed", failing)
    assert compared(shop).reason == "git could not compare commits"


@dataclass
class ComparedStep:
    row: StepRow
    bisections: tuple[Bisection, ...]


def confirmed(page: ReviewPage, shop: Workshop) -> ComparedStep:
    """What the step of a slowed review says, and the steps of series that it keeps."""
    with shop.sessions.reading() as db:
        rows = comparisons.change_points(db, page.row.repo_id)
        return ComparedStep(step_of(page), tuple(BISECTION.validate_python(row.bisection) for row in rows))


def test_a_slowdown_is_confirmed_and_its_commit_named(shop: Workshop) -> None:
    shop = slowed(shop)
    reviewed(shop, FIRST)
    page = reviewed(shop, SECOND)
    found = confirmed(page, shop)
    assert found.row.summary == f"against {FIRST[:12]}: 1 slower, 1 no change"
    (bisection,) = found.bisections
    assert (bisection.culprit, bisection.problem) == (MIDDLE, "")


class Watched(Sessions):
    """Knows whether this thread holds the database for writing."""

    here = threading.local()

    @contextmanager
    def begin(self) -> Iterator[Database]:
        with super().begin() as db:
            self.here.writes = True
            try:
                yield db
            finally:
                self.here.writes = False


def test_git_is_never_asked_while_the_database_is_held_for_writing(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool]] = []

    def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*given: Any) -> Any:
            asked.append((name, getattr(Watched.here, "writes", False)))
            return method(*given)

        return ask

    for kind in (TinyCheckout, LongCheckout):
        for name, method in [*vars(kind).items()]:
            if not name.startswith("_"):
                monkeypatch.setattr(kind, name, watched(name, method))
    shop = replace(slowed(shop), sessions=Watched(shop.sessions.engine))
    shop.git.commits |= {one: {**FILES, "bench/words.txt": "hare"} for one in (FIRST, SECOND)}  # type: ignore[attr-defined]
    reviewed(shop, FIRST)
    assert confirmed(reviewed(shop, SECOND), shop).bisections
    assert {"blobs", "since", "subject"} <= {name for name, _ in asked}
    assert [name for name, writes in asked if writes] == []


@pytest.mark.parametrize("broken", ["since", "middle", "subject"])
def test_git_that_fails_in_a_bisection_leaves_the_slowdown_confirmed(
    shop: Workshop, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: TinyCheckout, *given: str) -> Any:
        raise RepoProblem("git could not do it")

    shop = slowed(shop)
    reviewed(shop, FIRST)
    if broken == "middle":
        shop.git.lost.add(MIDDLE)  # type: ignore[attr-defined]
    else:
        monkeypatch.setattr(LongCheckout, broken, failing)
    page = reviewed(shop, SECOND)
    found = confirmed(page, shop)
    assert found.row.summary == f"against {FIRST[:12]}: 1 slower, 1 no change"
    (finding,) = page.findings
    (bisection,) = found.bisections
    if broken == "subject":
        assert f"It came with commit {MIDDLE[:12]}, found by" in finding.description
    else:
        assert bisection.culprit == "" and bisection.problem
        assert f"It came after {FIRST[:12]}, with {SECOND[:12]} at the latest" in finding.description


@pytest.mark.parametrize("where", ["prepare", "open", "run"])
def test_a_box_that_dies_in_a_bisection_leaves_the_slowdown_confirmed(shop: Workshop, where: str) -> None:
    shop = slowed(shop)
    reviewed(shop, FIRST)
    sandbox = shop.sandbox
    assert isinstance(sandbox, FakeSandbox)
    plain = sandbox.called

    def dying(method: str, about: str) -> None:
        bisecting = any("bisect" in box or "install-middle" in box for box in sandbox.boxes) or "middle" in about
        if method == where and bisecting:
            raise SandboxError("the engine is away")
        plain(method, about)

    sandbox.called = dying  # type: ignore[method-assign]
    page = reviewed(shop, SECOND)
    found = confirmed(page, shop)
    assert found.row.summary == f"against {FIRST[:12]}: 1 slower, 1 no change"
    (bisection,) = found.bisections
    assert bisection.culprit == "" and bisection.problem
    assert [one.title for one in page.findings] == [f"first is slower by 100% since {FIRST[:12]}"]


def test_the_same_commit_is_built_once_and_marked_as_equal_code(shop: Workshop) -> None:
    reviewed(shop, FIRST)
    page = reviewed(shop, FIRST)
    prepared = [about for method, about in shop.sandbox.calls if method == "prepare"]  # type: ignore[union-attr]
    assert len(prepared) == 2  # one a review
    with shop.sessions.reading() as db:
        found = [COMPARISON.validate_python(row.body) for row in comparisons.of_review(db, page.row.id)]
    assert found and all(one.same_code for one in found)


def test_each_of_many_figures_is_kept_without_the_others(shop: Workshop) -> None:
    names = [f"figure_{number}" for number in range(20)]
    shop.sandbox.script = lambda command: (  # type: ignore[union-attr]
        Ran(exit=0, seconds=0.5, head="\n".join(f"{name}: 0.1 s" for name in names))
        if "bench first" in command
        else answer(command)
    )
    reviewed(shop, FIRST)
    page = reviewed(shop, FIRST)
    with shop.sessions.reading() as db:
        compared = {row.name: COMPARISON.validate_python(row.body) for row in comparisons.of_review(db, page.row.id)}
        nights = {row.name: row for row in measurements.of_review(db, page.row.id)}
    for name in names:
        assert all(taken.session.figures == {name: 0.1} for taken in compared[f"first: {name}"].taken)
        (value,) = {session["value"] for session in nights[f"first: {name}"].sessions}
        assert value == 0.1 and not any(session["figures"] for session in nights[f"first: {name}"].sessions)


@pytest.mark.parametrize("figures", [1, 2])
def test_where_a_benchmark_has_several_figures_its_profile_is_of_all_of_them(shop: Workshop, figures: int) -> None:
    lines = "\n".join(f"figure_{number}: 0.1 s" for number in range(figures))
    stacks = {"stacks": {"/venv/test/pack/__init__.py:1:walk": 1.0}}
    shop.sandbox.files["/tmp/lamplighter-stacks.json"] = json.dumps(stacks).encode()  # type: ignore[union-attr]
    shop.sandbox.script = lambda command: (  # type: ignore[union-attr]
        Ran(exit=0, seconds=0.5, head=lines) if "bench first" in command else answer(command)
    )

    class Slower(Slowly):
        def run(self, command: str, **given: Any) -> Ran:
            ran = self._box.run(command, **given)
            return ran.model_copy(update={"head": ran.head.replace("0.1", "0.2")}) if "-head." in self.name else ran

    def stopwatch(box: Box, patience: Patience) -> Stopwatch:
        return Stopwatch(Slower(box), patience=Patience(0), tolerance=ANYTHING)  # type: ignore[arg-type]

    assert shop.measuring is not None
    shop = replace(shop, measuring=replace(shop.measuring, stopwatch=stopwatch))
    shop.git.commits[SECOND] = {**FILES, "pack/__init__.py": PACKAGE}  # type: ignore[attr-defined]
    reviewed(shop, FIRST)
    page = reviewed(shop, SECOND)
    with shop.sessions.reading() as db:
        compared = {row.name: COMPARISON.validate_python(row.body) for row in comparisons.of_review(db, page.row.id)}
    whys = [compared[f"first: figure_{number}"].why for number in range(figures)]
    assert [why is not None and (why.shares, bool(why.head_stacks)) for why in whys] == [(figures > 1, True)] * figures


@pytest.mark.parametrize("why", [{"compare_with": "none"}, {"compare_minutes": 0.0}])
def test_an_operator_who_wants_no_comparison_gets_no_step(shop: Workshop, why: dict[str, object]) -> None:
    shop = replace(shop, settings=shop.settings.model_copy(update=why))
    reviewed(shop, FIRST)
    assert STEP not in [step.name for step in reviewed(shop, SECOND).steps]


def test_a_node_on_the_same_machine_means_no_verdicts(shop: Workshop) -> None:
    assert shop.measuring is not None
    shop = replace(shop, measuring=replace(shop.measuring, no_verdicts="node on this machine"))
    reviewed(shop, FIRST)
    assert STEP not in [step.name for step in reviewed(shop, SECOND).steps]


def test_the_parent_can_be_the_base_of_a_first_review(shop: Workshop) -> None:
    shop = replace(shop, settings=shop.settings.model_copy(update={"compare_with": "parent"}))
    assert STEP not in [step.name for step in reviewed(shop, FIRST).steps]
    assert step_of(reviewed(shop, SECOND)).summary.startswith(f"against {FIRST[:12]}")


def test_what_agents_timed_is_a_benchmark_of_the_next_review_and_nonsense_is_none() -> None:
    one = wished_for('{"name": "loop", "command": "python loop.py", "environment": "test"}')
    assert one is not None and (one.name, one.command, one.environment) == ("agent: loop", "python loop.py", "test")
    for nonsense in ("", "{", '{"name": "x"}', '{"name": "x", "command": "y", "sessions": 10000}', "[1, 2]"):
        assert wished_for(nonsense) is None


def test_agents_wishes_come_out_of_the_transcripts_of_the_review_before(shop: Workshop) -> None:
    before = reviewed(shop, FIRST)
    call = ToolCall(id="1", name="measure", arguments='{"name": "loop", "command": "bench wished"}')
    entry = Entry(kind=EntryKind.SAID, message=Message(role=Role.ASSISTANT, calls=(call, call)))
    with shop.sessions.begin() as db:
        step = steps.named(db, before.row.id, "merge")
        assert step is not None
        transcripts.add(db, step.id, 1, 1, shop.clock(), entry.model_dump(mode="json"))
    page = reviewed(shop, SECOND)
    calls = shop.sandbox.calls  # type: ignore[union-attr]
    assert not any("bench wished" in about for _, about in calls)  # nothing is installed for users
    shop = replace(shop, prepare=prepare_for_users)
    with shop.sessions.begin() as db:
        step = steps.named(db, page.row.id, "merge")
        assert step is not None
        transcripts.add(db, step.id, 1, 1, shop.clock(), entry.model_dump(mode="json"))
    reviewed(shop, FIRST)
    assert any("bench wished" in about for _, about in calls)


def prepare_for_users(workspace: Workspace, repo: Repo) -> tuple[Prepared, ProbeResult]:
    prepared, result = prepare(workspace, repo)
    return prepared.model_copy(update={"installed_plain": True}), result
