"""What the host says of itself, for measuring."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.sandbox import quiet
from orchestrator.sandbox.stopwatch import Tolerance

ANY = Tolerance(pressure=1.1, foreign=1.1, steal=1.1)


def test_a_run_of_the_workload_is_timed_on_the_cpus_it_is_pinned_to(tmp_path: Path) -> None:
    cpu = sorted(os.sched_getaffinity(0))[-1]
    seen = tmp_path / "seen"
    source = f"import os, time; time.sleep(0.2); open({str(seen)!r}, 'w').write(str(os.sched_getaffinity(0)))"
    taken = quiet.timed(source, (cpu,), ANY)
    assert seen.read_text() == str({cpu})
    assert taken.wall_s >= 0.2


def test_a_workload_that_fails_is_no_measurement() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        quiet.timed("raise SystemExit(1)", (), ANY)


def test_what_others_do_meanwhile_disturbs_it() -> None:
    nothing = Tolerance(pressure=1.1, foreign=-1.0, steal=1.1)
    assert quiet.timed("import time; time.sleep(0.3)", (), nothing).disturbed.startswith("others used")


def cpus(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_governor_that_follows_the_load_and_turbo_come_with_what_to_do(tmp_path: Path) -> None:
    root = cpus(tmp_path, cpu1__cpufreq__scaling_governor="powersave\n", intel_pstate__no_turbo="0\n")
    found = {one.name: one for one in quiet.machine_settings((1,), root)}
    assert found["governor"].value == "powersave" and "performance" in found["governor"].advice
    assert found["turbo"].value == "on" and f"echo 1 > {root}/intel_pstate/no_turbo" in found["turbo"].advice


@pytest.mark.parametrize("name", ["intel_pstate__no_turbo", "cpufreq__boost"])
def test_a_machine_that_is_set_well_gets_no_advice(tmp_path: Path, name: str) -> None:
    off = "1" if "no_turbo" in name else "0"
    root = cpus(tmp_path, cpu1__cpufreq__scaling_governor="performance\n", **{name: off})
    found = {one.name: one for one in quiet.machine_settings((1,), root)}
    assert (found["governor"].advice, found["turbo"].value, found["turbo"].advice) == ("", "off", "")


def test_what_the_kernel_does_not_tell_is_left_out(tmp_path: Path) -> None:
    assert {one.name for one in quiet.machine_settings((), tmp_path)} <= {"pressure"}


def test_a_hypervisor_is_seen_in_the_processors_flags() -> None:
    assert quiet.is_virtual("model name : x\nflags\t\t: fpu vme hypervisor lahf_lm\n")
    assert not quiet.is_virtual("model name : hypervisor\nflags\t\t: fpu vme\n")


def test_a_busy_neighbour_is_seen_and_we_are_not() -> None:
    script = f"{sys.executable} -c 'while True: pass' & echo $!; wait"  # a child of ours would be left out
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as shell:
        try:
            assert shell.stdout is not None
            busy = int(shell.stdout.readline())
            before, began = quiet.processor_times(), time.monotonic()
            while (grown := quiet.processor_times()[busy][1] - before[busy][1]) < 0.2:
                assert time.monotonic() - began < 60
            after = quiet.processor_times()
            found = dict(quiet.neighbours(before, after, time.monotonic() - began))
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    assert grown >= 0.2 and found[after[busy][0]] > 0  # before, it may still have had the shell's name
    assert not {os.getpid(), shell.pid} & before.keys()


def test_shares_are_of_the_time_between_and_a_number_used_again_is_another_process() -> None:
    before = {1: ("a", 5.0), 2: ("b", 9.0)}
    after = {1: ("a", 6.0), 2: ("c", 1.0), 3: ("a", 2.0)}
    assert quiet.neighbours(before, after, 2.0) == [("a", 1.5), ("c", 0.5)]
