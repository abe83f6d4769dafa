"""The workspace over a fake box: measuring, searching, and what is handed on."""

import pytest

from orchestrator.sandbox import pressure
from orchestrator.sandbox.contract import BoxOrder, Cancelled, Patience
from orchestrator.sandbox.fake import FakeSandbox
from orchestrator.sandbox.pressure import Reading
from orchestrator.sandbox.workspace import IMPATIENT, REPEATS, WAIT_S, BoxWorkspace
from review_agents.ports import CommandFailed, NoSuchFile
from review_agents.records import Ran


def workspace(script=lambda command: Ran(exit=0, seconds=0.5), files=None, **given) -> BoxWorkspace:
    sandbox = FakeSandbox(script, files=files)
    sandbox.volumes.add("r")
    return BoxWorkspace(sandbox.open(BoxOrder("r", "s", 1)), wait=lambda seconds: None, **given)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A machine whose pressure the test sets: seconds waited in each coming session of one second."""
    waits: list[float] = []
    clock = [0.0, 0.0]
    before = [True]

    def read(cpus: tuple[int, ...] = ()) -> Reading:
        if not before[0]:
            clock[0] += 1.0
            clock[1] += waits.pop(0) if waits else 0.0
        before[0] = not before[0]
        return Reading(clock[0], clock[1], 0.0)

    monkeypatch.setattr(pressure, "read", read)
    return waits


def test_each_session_is_a_fresh_run_after_the_warm_up(quiet: list[float]):
    times = iter([9.0, 1.0, 2.0, 3.0])
    measured = workspace(lambda command: Ran(exit=0, seconds=next(times), peak_bytes=5), note="here").measure(
        "import", "python -c 'import x'", sessions=3
    )
    assert measured.samples == (1.0, 2.0, 3.0) and measured.median == 2.0
    assert (measured.name, measured.unit, measured.note, measured.contaminated) == ("import", "s", "here", 0)
    assert measured.sessions[0].peak_bytes == 5


def test_disturbed_session_is_void_and_repeated(quiet: list[float]):
    quiet += [0.0, 0.5, 0.0]  # warm-up, then one disturbed
    measured = workspace().measure("x", "true", sessions=2)
    assert [session.void for session in measured.sessions] == [True, False, False]
    assert "waited for a processor during 50%" in measured.sessions[0].reason
    assert len(measured.samples) == 2


def test_repeats_end_and_the_measurement_shows_it(quiet: list[float]):
    quiet += [0.0, *[0.9] * 50]
    measured = workspace().measure("x", "true", sessions=2)
    assert measured.samples == () and measured.median is None
    assert measured.contaminated == len(measured.sessions) == 2 * (REPEATS + 1)


class Watch:
    """A clock that only waiting and running move."""

    def __init__(self, run_s: float):
        self.now = 0.0
        self.run_s = run_s
        self.waited: list[float] = []

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds

    def run(self, command: str) -> Ran:
        self.now += self.run_s
        return Ran(exit=0, seconds=self.run_s)

    def workspace(self, patience: Patience, **given) -> BoxWorkspace:
        sandbox = FakeSandbox(self.run)
        sandbox.volumes.add("r")
        box = sandbox.open(BoxOrder("r", "s", 1))
        return BoxWorkspace(box, patience=patience, wait=self.wait, clock=lambda: self.now, **given)


def test_waiting_and_repeating_spend_the_patience(quiet: list[float]):
    quiet += [0.9, 0.9, 0.0]  # two disturbed, then quiet
    watch, patience = Watch(run_s=2.0), Patience(100)
    watch.workspace(patience).measure("x", "true", sessions=2, warmup=0)
    assert watch.waited == [WAIT_S, 2 * WAIT_S]
    assert patience.waited_s == pytest.approx(3 * WAIT_S)
    assert patience.left_s == pytest.approx(100 - 3 * WAIT_S - 2 * 2.0)


def test_a_quiet_machine_spends_no_patience(quiet: list[float]):
    patience = Patience(100)
    measured = Watch(run_s=2.0).workspace(patience).measure("x", "true", sessions=4)
    assert (patience.left_s, patience.waited_s, measured.note) == (100, 0, "")


def test_all_boxes_of_a_review_share_its_patience_and_then_measure_once(quiet: list[float]):
    quiet += [0.9] * 100
    watch, patience = Watch(run_s=2.0), Patience(5)  # covers two repeats
    first = watch.workspace(patience).measure("x", "true", sessions=3, warmup=0)
    assert len(first.sessions) == 3 + 2 and first.note == IMPATIENT
    watch.waited.clear()
    second = watch.workspace(patience, note="node on this machine").measure("y", "true", sessions=6, warmup=0)
    assert len(second.sessions) == second.contaminated == 6
    assert second.median is None and second.note == f"node on this machine; {IMPATIENT}"
    assert watch.waited == []


def test_good_sessions_count_also_when_patience_is_spent(quiet: list[float]):
    quiet += [0.9, 0.0, 0.9, 0.0]
    measured = Watch(run_s=2.0).workspace(Patience(0)).measure("x", "true", sessions=4, warmup=0)
    assert [session.void for session in measured.sessions] == [True, False, True, False]
    assert measured.median == 2.0 and measured.contaminated == 2 and measured.note == IMPATIENT


def test_command_that_fails_cannot_be_measured(quiet: list[float]):
    with pytest.raises(CommandFailed, match="exit status 3"):
        workspace(lambda command: Ran(exit=3)).measure("x", "false")


def test_search_finds_places_and_sorts_them():
    output = "./b.py\x0012:import os\n./a.py\x007:import: sys\nBinary file x matches\n"
    found = workspace(lambda command: Ran(exit=0, head=output)).search("import")
    assert [(match.file, match.line, match.text) for match in found] == [
        ("a.py", 7, "import: sys"),
        ("b.py", 12, "import os"),
    ]


def test_search_quotes_what_it_is_given():
    sandbox_calls = []
    place = workspace(lambda command: sandbox_calls.append(command) or Ran(exit=0))
    place.search("a'b; rm -rf /", folder="-x y")
    assert "'a'\"'\"'b; rm -rf /'" in sandbox_calls[0] and "-- '-x y'" in sandbox_calls[0]


def test_bad_pattern_is_the_callers_fault():
    with pytest.raises(ValueError, match="no extended regular expression"):
        workspace(lambda command: Ran(exit=2, head="grep: Unmatched (\n")).search("(")


def test_text_is_read_and_written_with_bytes_that_are_none_replaced():
    place = workspace(files={"x.txt": b"a\xffb"})
    assert place.read("x.txt") == "a\ufffdb"
    place.write("new/y.txt", "\u00fc")
    assert place.read("/job/repo/new/y.txt") == "\u00fc"
    assert place.list() == ("new/y.txt", "x.txt") and place.list("new") == ("new/y.txt",)
    with pytest.raises(NoSuchFile):
        place.read("z.txt")


def test_cancelling_reaches_the_command():
    with pytest.raises(Cancelled):
        workspace(cancelled=lambda: True).run("sleep 60")


def test_output_reaches_the_listener():
    heard: list[str] = []
    workspace(lambda command: Ran(exit=0, head="said"), on_output=heard.append).run("x")
    assert heard == ["said"]
