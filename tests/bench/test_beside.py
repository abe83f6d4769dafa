"""Other tools on the same samples: what they say of samples whose truth is known, and why they say otherwise."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from review_agents.records import Session
from tests.bench import beside
from tests.bench.beside import EQUAL, SILENT, SLOWER


def written(file: Path, change: float, ratios: tuple[float, ...], *, sd: float = 0.004) -> None:
    """A trial whose blocks, as many as there are ratios, have exactly those between their medians' middles."""
    random = np.random.default_rng(7)
    blocks = {}
    for name, each, ratio in zip(("screen", "confirm"), (6, 10), ratios, strict=False):
        base = 0.3 * np.exp(random.normal(0, sd, each))
        blocks[name] = [list(base), list(base * ratio)]
    with file.open("a") as out:
        out.write(json.dumps({"change": change, "verdict": "", "seconds": 1, "blocks": blocks}) + "\n")


def rows(folder: Path) -> list[list[Any]]:
    trials = [*beside.live(folder / "live.jsonl")]
    return list(beside.rows(trials, [beside.answers(one) for one in trials]))


def test_all_find_a_change_of_ten_per_cent(tmp_path: Path) -> None:
    written(tmp_path / "live.jsonl", 0.1, (1.1, 1.1))
    assert rows(tmp_path) == [["10%", 1, SLOWER, SLOWER, SLOWER, SLOWER, "all agree"]]


def test_a_drift_below_our_floor_is_significant_to_others_and_the_table_says_why(tmp_path: Path) -> None:
    written(tmp_path / "live.jsonl", 0.0, (1.012,), sd=0.006)
    ((*_, ours, pyperf, hyperfine, welch, why),) = rows(tmp_path)
    assert (ours, pyperf, welch) == (EQUAL, SLOWER, SLOWER)
    assert why.startswith("a t-test at 95 % finds +1.2 % significant; we ask for 3.0 % at least, seen twice")
    assert ("hyperfine's ± " in why) == (hyperfine == EQUAL)


def test_disturbed_sessions_give_us_no_number_and_others_a_mean(tmp_path: Path) -> None:
    void = [Session(value=0.3 + at % 5 / 10, void=True, reason="others used 50%") for at in range(24)]
    trials = list(beside.disturbed(void))
    assert [one.disturbed for one in trials] == [True, True] and len(trials[0].base) == 6
    ((name, number, ours, *_, why), *_) = beside.rows(trials, [beside.answers(one) for one in trials])
    assert ours == SILENT and str(name).startswith("0%") and number
    assert why.startswith("our gate voided the sessions (others used 50%)")


def test_a_trial_whose_sessions_were_not_kept_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "live.jsonl").write_text('{"change": 0.1, "verdict": "slower", "seconds": 1}\n')
    assert list(beside.live(tmp_path / "live.jsonl")) == []
