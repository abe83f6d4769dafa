"""What nobody planted is judged by hand, and the recorded figures are those of the judgements."""

import json

from tests.bench import thinking
from tests.bench.figures import FOLDER

JUDGED = thinking.read_judged()


def test_what_was_judged_was_reported_in_the_recording_of_its_repo() -> None:
    assert len({(one["repo"], one["fingerprint"]) for one in JUDGED}) == len(JUDGED) > 0
    for one in JUDGED:
        recording = (thinking.JUDGED.parent / f"{one['repo']}.json").read_text(encoding="utf-8")
        assert in_json(one["title"]) in recording, one["title"]
        assert one["why"] and (one["right"] or not one.get("trivial"))


def in_json(title: str) -> str:
    """As it stands in a text in JSON."""
    return json.dumps(title, ensure_ascii=False)[1:-1]


def test_the_recorded_figures_count_the_judgements() -> None:
    recorded = json.loads((FOLDER / "review-bench-agents.json").read_text(encoding="utf-8"))["figures"]
    counted = thinking.of_unplanted([(one["repo"], one) for one in JUDGED], JUDGED)
    assert {name: recorded[name] for name in counted} == counted


def test_a_finding_is_judged_by_its_repo_and_fingerprint_alone() -> None:
    judged = [
        {"repo": "a", "fingerprint": "1", "right": True},
        {"repo": "a", "fingerprint": "2", "right": True, "trivial": True},
        {"repo": "b", "fingerprint": "1", "right": False},
    ]
    others = [("a", {"fingerprint": "1"}), ("a", {"fingerprint": "2"}), ("b", {"fingerprint": "1"})]
    assert thinking.of_unplanted([*others, ("b", {"fingerprint": "2"})], judged) == {
        "unplanted": 4,
        "unplanted_right": 2,
        "unplanted_trivial": 1,
        "unplanted_wrong": 1,
        "unplanted_not_judged": 1,
    }
