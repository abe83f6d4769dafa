"""`lamplighter doctor --only quiet`: whether numbers of this machine can be trusted."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.quietness import PAIR, pairs, so_far, told, waited
from orchestrator.sandbox.pressure import Contention
from orchestrator.sandbox.quiet import Timed
from tests.orchestrator.cli.conftest import Command
from tests.support.host_settings import isolated
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]


def steady(number: int, scatter: float, disturbed: str = "") -> list[Timed]:
    return [Timed(0.2 * (1 + scatter * (at % 5 - 2)), disturbed) for at in range(number)]


def said(taken: list[Timed]) -> dict[str, tuple[bool | None, str]]:
    return {one.thing: (one.ok, one.said) for one in told(taken, 300.0)}


def test_a_quiet_machine_is_told_what_it_finds() -> None:
    found = said(steady(48, 0.001))
    assert found["disturbance"] == (True, "0 of 48 sessions in 5.0 min were disturbed")
    ok, words = found["steadiness"]
    assert ok and words.startswith("sessions of 200 ms scatter by 0.2%; 4 pairs of equal code came out at most 0.")
    assert words.endswith("Steady enough to look for slowdowns of 5 %.")


@pytest.mark.parametrize(
    ("scatter", "ok", "words"), [(0.012, True, "may be inconclusive"), (0.05, False, "Only large")]
)
def test_a_restless_machine_is_told_what_it_cannot_find(scatter: float, ok: bool, words: str) -> None:
    found = said(steady(48, scatter))["steadiness"]
    assert found[0] is ok and words in found[1]


def test_a_disturbed_machine_is_told_by_what() -> None:
    taken = [
        *steady(20, 0.001),
        *steady(6, 0.001, "others used 31% of the processor time"),
        *steady(2, 0.001, "3 pages came back from swap"),
    ]
    ok, words = said(taken)["disturbance"]
    assert not ok
    assert "8 of 28 sessions" in words
    assert "(6 times: others used the processors, 2 times: pages came back from swap)" in words


@pytest.mark.parametrize(
    ("disturbed", "advice"),
    [
        ("others used 31% of the processor time", "Have what runs beside reviews run at another time, or give"),
        ("the hypervisor gave 9.0% of the processor time to others", "that the hypervisor gives to nobody else."),
        ("3 pages came back from swap", "Give this machine more memory, or stop what fills it."),
        ("the processor was throttled", "Cool it better, or lower its highest frequency"),
        (
            "the processor's highest frequency was changed",
            "Keep what changes it (power profiles, tuned) from doing so.",
        ),
    ],
)
def test_what_disturbs_most_comes_with_what_to_do(disturbed: str, advice: str) -> None:
    ok, words = said([*steady(20, 0.001), *steady(9, 0.001, disturbed)])["disturbance"]
    assert ok is False and advice in words
    assert advice not in said([*steady(99, 0.001), *steady(1, 0.001, disturbed)])["disturbance"][1]


def test_all_that_others_did_is_said_though_every_session_was_good() -> None:
    assert waited(Contention(0.004, 0.0031)) == (
        "some task waited for a processor during 0.4% of the time, others used 0.3% of the CPUs that are measured on"
    )
    assert waited(Contention(None, 0.5, steal=0.02)).endswith("measured on, the hypervisor took 2.0% of them")


def test_where_hardly_a_session_is_good_nothing_is_said_about_spread() -> None:
    found = said([*steady(11, 0.001), *steady(40, 0.001, "the hypervisor gave 9.0% of the processor time to others")])
    assert (
        found["steadiness"][0] is False
        and "only 11 sessions were good, too few to tell; all of them scatter by 0.2%" in found["steadiness"][1]
    )


def test_pairs_of_equal_code_are_laid_out_as_base_and_head_are() -> None:
    assert pairs([1.0] * (len(PAIR) - 1)) == []
    drifting = [1.0 + at / 1000 for at in range(2 * len(PAIR))]
    assert pairs(drifting) == pytest.approx([1.0, 1.0], abs=0.001)  # A B B A: drift touches both sides alike
    apart = [1.0 if side == "A" else 1.1 for side in PAIR]
    assert pairs(apart) == pytest.approx([1.1])


def test_doctor_measures_for_as_long_as_it_was_asked_to(lamplighter: Command) -> None:
    done = lamplighter("doctor", "--only", "quiet", "--minutes", "0.01", "--format", "json")
    found = {one["thing"]: one for one in json.loads(done.out)}
    assert {"pressure", "disturbance", "steadiness"} <= set(found)
    assert "sessions in 0." in found["disturbance"]["said"]
    assert done.status == (3 if any(one["ok"] is False for one in found.values()) else 0)


def test_doctor_that_is_stopped_says_what_it_has_seen_until_then(tmp_path: Path) -> None:
    """As from a terminal: the signal goes to all processes of the group."""
    command = [sys.executable, "-m", "orchestrator", "doctor", "--only", "quiet", "--minutes", "30"]
    environment = {**os.environ, **isolated(tmp_path)}
    doctor = subprocess.Popen(
        command, cwd=ROOT, env=environment, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore it
    )  # fmt: skip
    assert doctor.stderr is not None
    begun = doctor.stderr.readline()
    assert begun == "quiet: measuring for 30 min; leave the machine alone. Ctrl-C says what there is until then.\n"
    wait_for(lambda: children(doctor.pid), 30, "no session has begun", every_s=0.02)
    first = children(doctor.pid)
    wait_for(lambda: set(children(doctor.pid)) - set(first), 60, "no second one has begun", every_s=0.02)
    os.killpg(doctor.pid, signal.SIGINT)
    out, errors = doctor.communicate(timeout=30)
    assert doctor.returncode == 3, (out, errors)  # too few sessions to call the machine quiet
    assert "quiet: stopped after 0." in out and " of 30 min" in out
    assert "sessions in 0." in out and "BAD  steadiness: only" in out
    assert "Traceback" not in errors


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_progress_says_how_far_it_is_and_how_many_were_disturbed() -> None:
    taken = [*steady(80, 0.001), *steady(4, 0.001, "others used 31% of the processor time")]
    assert so_far(taken, 72.0, 5.0) == "1.2 of 5 min, 84 sessions, 4 of them disturbed"


def test_while_a_review_runs_doctor_does_not_disturb_it(
    lamplighter: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lock = tmp_path / "held.lock"
    monkeypatch.setenv("LAMPLIGHTER_HOST_LOCK", str(lock))
    with lock.open("w") as file:
        file.write("a worker")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        done = lamplighter("doctor", "--only", "quiet")
    assert done.status == 3 and "a review runs (a worker)" in done.out


def test_doctor_says_at_once_where_it_measures(lamplighter: Command) -> None:
    done = lamplighter("doctor", "--only", "measuring")
    assert done.status == 0 and "`lamplighter doctor --only quiet`" in done.out
