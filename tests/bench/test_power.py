"""The experiment of `python -m tests.bench power` on sessions that are made up, where the answer is known."""

import json
from pathlib import Path

import numpy as np
import pytest

from review_agents.records import Session
from tests.bench import power


def written(file: Path, values: list[float], void: list[bool]) -> None:
    with file.open("w") as out:
        for value, bad in zip(values, void, strict=True):
            session = Session(value=value, void=bad, reason="others used 40% of the processor time" if bad else "")
            out.write(json.dumps(session.model_dump(mode="json")) + "\n")


def test_quiet_sessions_of_one_per_cent_find_what_they_should_and_cry_no_wolf(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    quiet = list(0.3 * np.exp(random.normal(0, 0.01, 300)))
    written(tmp_path / "quiet.jsonl", quiet, [at % 10 == 3 for at in range(300)])
    result, table = power.judged(tmp_path, trials=150)
    assert result["sessions_quiet"] == 270
    assert result["sd"] == pytest.approx(0.01, rel=0.2)
    assert result["found_10"] >= 0.98 and result["found_5"] >= 0.8 and result["found_30"] == 1
    assert result["false_alarms"] == 0 and result["wrong_10"] == 0
    by_rule = {row["change"]: row for row in table}
    assert by_rule[0.0]["pyperf"] > by_rule[0.0]["ours"]  # a t-test at 95 % is wrong once in twenty
    assert 0.01 < by_rule[0.0]["hyperfine"] < 0.12


def test_disturbed_sessions_give_no_verdict_rather_than_a_wrong_one(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    values = list(0.3 * np.exp(random.normal(0, 0.3, 300)))
    written(tmp_path / "disturbed.jsonl", values, [at % 7 != 0 for at in range(300)])
    result, _ = power.judged(tmp_path, trials=60)
    assert result["void_share_disturbed"] == pytest.approx(6 / 7, abs=0.01)
    assert result["disturbed_contaminated_0"] == result["disturbed_contaminated_10"] == 1
    assert result["disturbed_wrong_0"] == result["disturbed_wrong_10"] == 0


def test_an_unfinished_record_is_judged_as_far_as_it_goes_and_says_so(tmp_path: Path) -> None:
    written(tmp_path / "quiet.jsonl", [0.3] * 5, [False] * 5)
    (tmp_path / "live.jsonl").write_text('{"change": 0.1, "verdict": "slower", "seconds": 1}\n' * 2)
    result, table = power.judged(tmp_path, trials=10)
    assert result == {
        "sessions_quiet": 5,
        "sessions_disturbed": 0,
        "live_trials": 2,
        "live_found_10": 1,
        "live_wrong_10": 0,
    }
    assert table == []
    assert list(power.bars(result)) == [("live_wrong_10 0, at most 0", True)]


def test_each_bar_is_held_against_what_was_measured_and_small_changes_only_where_sessions_are_steady() -> None:
    result = {"sd": 0.008, "found_10": 0.985, "found_5": 0.79, "wrong_5": 0.0, "false_alarms": 0.003}
    assert list(power.bars(result)) == [
        ("found_10 0.985, at least 0.98", True),
        ("found_5 0.79, at least 0.8", False),
        ("wrong_5 0, at most 0", True),
        ("false_alarms 0.003, at most 0.002", False),
    ]
    assert not any(words.startswith("found") for words, _ in power.bars({**result, "sd": 0.011}))
