"""A few of the reviews of `python -m tests.bench endurance`, and that growth would be noticed."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.bench import endurance
from tests.bench.endurance import Reading, Stretch


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


def test_growth_of_memory_or_descriptors_counts_as_a_leak() -> None:
    stretch = Stretch(None)  # type: ignore[arg-type]
    stretch.seconds = [1.0] * 60
    stretch.readings = [Reading(200.0, 80, 9)] * 60
    assert stretch.told()["leaked"] == []
    stretch.readings = [Reading(200.0 + at, 80, 9) for at in range(60)]
    assert "memory grew" in stretch.told()["leaked"][0]
    stretch.readings = [Reading(200.0, 80 + at, 9) for at in range(60)]
    assert "descriptors more" in stretch.told()["leaked"][0]
