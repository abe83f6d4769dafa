"""A few of the reviews of `python -m tests.bench endurance`, and that growth would be noticed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.bench import endurance
from tests.bench.endurance import Reading, Stretch
from tests.bench.figures import ROOT
from tests.support.waiting import wait_for


@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_some_reviews_in_a_row_leave_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    figures = endurance.run(5, kept=kept, keep_figures=False)
    told = json.loads(kept.read_text())["stretches"]
    assert (figures["reviews"], figures["wrong"], figures["leaked"]) == (5, 0, 0), told
    assert endurance.run(5, kept=kept, keep_figures=False) == figures  # goes on from what is there


def test_a_review_that_does_not_end_is_counted_and_ends_its_stretch(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    class StillRunning(Stretch):
        def review(self) -> None:
            self.seconds.append(60.0)
            self.readings.append(Reading(200.0, 80, 9))
            self.hung = len(self.seconds) == 2

        def end(self) -> None:
            pass

    monkeypatch.setattr(endurance, "Stretch", StillRunning)
    monkeypatch.setattr(endurance, "prepared", lambda sandbox: nullcontext())
    figures = endurance.run(5, kept=tmp_path / "kept.json", keep_figures=False)
    assert (figures["reviews"], figures["hung"], figures["stretches"]) == (5, 2, 3)


def test_it_is_done_in_parts_of_so_many_minutes(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    clock = [0.0]

    class OneMinuteEach(Stretch):
        def review(self) -> None:
            clock[0] += 60.0
            self.seconds.append(60.0)
            self.readings.append(Reading(200.0, 80, 9))

        def end(self) -> None:
            pass

    monkeypatch.setattr(endurance, "Stretch", OneMinuteEach)
    monkeypatch.setattr(endurance, "prepared", lambda sandbox: nullcontext())
    monkeypatch.setattr(endurance.time, "monotonic", lambda: clock[0])
    parts = [
        endurance.run(5, minutes=minutes, kept=tmp_path / "kept.json", keep_figures=False) for minutes in (0, 2.5, 9)
    ]
    assert [part["reviews"] for part in parts] == [0, 3, 5]
    assert parts[-1]["stretches"] == 2


@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_is_told_to_end_takes_down_what_it_stands_on() -> None:
    """The stage is mounts, network namespaces and servers; the next run must not meet those of the last."""
    with tempfile.TemporaryDirectory() as made:  # where PostgreSQL's user may enter
        folder = Path(made)
        folder.chmod(0o755)
        kept, log = folder / "kept.json", folder / "log"
        command = [sys.executable, "-m", "tests.bench", "endurance", "--keep", str(kept)]
        with log.open("w") as output:
            run = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, "TMPDIR": made}, stdout=output, stderr=subprocess.STDOUT
            )
        wait_for(lambda: kept.exists() or run.poll() is not None, 120, "no review was done")
        if "Nothing is recorded: " in log.read_text():
            pytest.skip(log.read_text()[-300:])
        run.terminate()
        assert run.wait(60) == 128 + signal.SIGTERM, log.read_text()[-2000:]
        assert json.loads(kept.read_text())["stretches"][0]["reviews"] >= 1
        assert made not in Path("/proc/mounts").read_text()
        assert f"-{run.pid % 100_000}\n" not in "".join(f"{path.name}\n" for path in Path("/run/netns").glob("*"))
        said = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True).stdout
        assert not [line for line in said.splitlines() if f"{made}/lamplighter-stage" in line]


def test_growth_of_memory_or_descriptors_counts_as_a_leak() -> None:
    stretch = Stretch(None)  # type: ignore[arg-type]
    stretch.seconds = [1.0] * 60
    stretch.readings = [Reading(200.0, 80, 9)] * 60
    assert stretch.told()["leaked"] == []
    stretch.readings = [Reading(200.0 + at, 80, 9) for at in range(60)]
    assert "memory grew" in stretch.told()["leaked"][0]
    stretch.readings = [Reading(200.0, 80 + at, 9) for at in range(60)]
    assert "descriptors more" in stretch.told()["leaked"][0]
