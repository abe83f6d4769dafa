"""A few of the reviews of `python -m tests.bench endurance`, and that growth would be noticed."""

from pathlib import Path

import pytest

from tests.bench import endurance
from tests.bench.endurance import Reading, Stretch


@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.slow
def test_a_dozen_reviews_leave_nothing_and_the_processes_do_not_grow(tmp_path: Path) -> None:
    figures = endurance.run(12, kept=tmp_path / "kept.json", keep_figures=False)
    assert (figures["reviews"], figures["wrong"], figures["leaked"]) == (12, 0, 0)
    assert endurance.run(12, kept=tmp_path / "kept.json", keep_figures=False) == figures  # goes on from what is there


def test_growth_of_memory_or_descriptors_counts_as_a_leak() -> None:
    stretch = Stretch(None)  # type: ignore[arg-type]
    stretch.seconds = [1.0] * 60
    stretch.readings = [Reading(200.0, 80, 9)] * 60
    assert stretch.told()["leaked"] == []
    stretch.readings = [Reading(200.0 + at, 80, 9) for at in range(60)]
    assert "memory grew" in stretch.told()["leaked"][0]
    stretch.readings = [Reading(200.0, 80 + at, 9) for at in range(60)]
    assert "descriptors more" in stretch.told()["leaked"][0]
