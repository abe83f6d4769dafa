"""Sessions over a fake box: what counts as one, and what voids it."""

import pytest

from orchestrator.sandbox import pressure
from orchestrator.sandbox.contract import BoxOrder
from orchestrator.sandbox.fake import FakeSandbox
from orchestrator.sandbox.pressure import Reading
from orchestrator.sandbox.stopwatch import STRICT, Stopwatch, Tolerance
from review_agents.ports import CommandFailed
from review_agents.records import Environment, Ran


def stopwatch(script, **given) -> Stopwatch:
    sandbox = FakeSandbox(script)
    sandbox.volumes.add("r")
    return Stopwatch(sandbox.open(BoxOrder("r", "s", 1)), wait=lambda seconds: None, **given)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Reading]:
    """What the host's files say, one after another."""
    found: list[Reading] = []
    monkeypatch.setattr(pressure, "read", lambda cpus=(): found.pop(0))
    return found


def test_a_session_of_several_processes_has_their_medians_and_largest_memory(readings: list[Reading]):
    readings += [Reading(0, 0.0, 0.0), Reading(1, 0.0, 0.0)]
    runs = iter(
        Ran(exit=0, seconds=seconds, user_s=seconds / 2, peak_bytes=peak, group_peak_bytes=peak * 2, instructions=peak)
        for seconds, peak in ((0.1, 50), (0.5, 70), (0.2, 60))
    )
    session = stopwatch(lambda command: next(runs)).session("x", Environment.TEST, 5, processes=3)
    assert (session.value, session.user_s, session.void) == (0.2, 0.1, False)
    assert (session.peak_bytes, session.group_peak_bytes, session.instructions) == (70, 140, 60)


def test_what_one_process_does_not_tell_is_not_told_of_the_session(readings: list[Reading]):
    readings += [Reading(0, 0.0, 0.0), Reading(1, 0.0, 0.0)]
    runs = iter([Ran(exit=0, seconds=0.1, group_peak_bytes=5, head="a b"), Ran(exit=0, seconds=0.1, head="a")])
    session = stopwatch(lambda command: next(runs)).session(
        "x", Environment.TEST, 5, processes=2, figures=lambda ran: {word: 1.0 for word in ran.output.split()}
    )
    assert session.group_peak_bytes is None and session.instructions is None
    assert session.figures == {"a": 1.0}


def test_own_processor_time_is_not_foreign_however_many_processes_a_session_has(readings: list[Reading]):
    readings += [Reading(0, 0.0, 0.0), Reading(1, 0.0, 0.9)]
    session = stopwatch(lambda command: Ran(exit=0, seconds=0.3, user_s=0.3), tolerance=STRICT).session(
        "x", Environment.TEST, 5, processes=3
    )
    assert session.foreign == 0 and not session.void


def test_the_step_runner_s_own_work_is_no_neighbour_s(readings: list[Reading]):
    readings += [Reading(0, 0.0, 0.0), Reading(0.3, 0.0, 0.29)]
    session = stopwatch(
        lambda command: Ran(exit=0, seconds=0.03, user_s=0.03, runner_s=0.006), tolerance=STRICT
    ).session("x", Environment.TEST, 5, processes=8)
    assert session.foreign == 0 and not session.void


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (Reading(1, 0.0, 0.5, steal_s=0.5), "hypervisor gave"),
        (Reading(1, 0.0, 0.0, swapped_in=7), "7 pages came back from swap"),
        (Reading(1, 0.0, 0.0, throttled=1), "throttled"),
        (Reading(1, 0.0, 0.0, top_khz=1_000_000), "highest frequency was changed"),
        (Reading(1, 0.03, 0.0), "waited for a processor during 3%"),
    ],
)
def test_whatever_made_the_machine_another_one_voids_the_session(after: Reading, said: str, readings: list[Reading]):
    readings += [Reading(0, 0.0, 0.0, swapped_in=0, throttled=0, top_khz=2_000_000), after]
    session = stopwatch(lambda command: Ran(exit=0, seconds=1.0), tolerance=STRICT).session("x", Environment.NONE, 5)
    assert session.void and said in session.reason


def test_tolerance_decides_how_much_is_too_much(readings: list[Reading]):
    readings += [Reading(0, 0.0, 0.0), Reading(1, 0.5, 0.9, steal_s=0.3)]
    session = stopwatch(lambda command: Ran(exit=0, seconds=1.0), tolerance=Tolerance(1.0, 1.0, 1.0)).session(
        "x", Environment.NONE, 5
    )
    assert not session.void and session.pressure == 0.5


def test_a_command_that_fails_gives_no_session(readings: list[Reading]):
    readings += [Reading(0, 0.0, 0.0)]
    with pytest.raises(CommandFailed, match="exit status 2"):
        stopwatch(lambda command: Ran(exit=2)).session("x", Environment.NONE, 5)
