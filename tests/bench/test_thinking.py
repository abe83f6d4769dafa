"""What nobody planted is judged by hand, and the recorded figures are those of the judgements."""

import json
from pathlib import Path

import pytest

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
    known = [one for one in JUDGED if "mistaken_for" not in one and "since" not in one]
    counted = thinking.of_unplanted([(one["repo"], one) for one in known], JUDGED)
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


def test_all_that_was_judged_can_be_shown_again() -> None:
    assert not [one["title"] for one in JUDGED if not (one.get("shows", "").strip() and one.get("says", "").strip())]


def test_a_judged_finding_stands_for_no_planted_fault_whose_words_it_has_and_for_any_other() -> None:
    judged = [{"repo": "a", "fingerprint": "1", "also": ["2"], "title": "Glue", "mistaken_for": "a-table"}]

    def item(
        fingerprint: str, verdict: str = "fault", item: str = "a-table", repo: str = "a", title: str = "t"
    ) -> str | None:
        said = {"verdict": verdict, "item": item}
        return thinking.stands_for(repo, {"fingerprint": fingerprint, "title": title}, said, judged)

    assert item("1") is item("1", "duplicate") is item("2") is item("3", "false alarm") is None
    assert item("3") == item("3", "duplicate") == item("1", repo="b") == "a-table"
    assert item("1", item="a-key") == "a-key"
    assert item("3", title="Glue") is None, "the words of a finding of two faults say which of them is left"


def test_a_judgement_holds_only_where_its_code_says_the_same_in_every_tree(tmp_path: Path) -> None:
    for tree, value in (("faulty", 3), ("mended", 3), ("other", 4)):
        (tmp_path / tree / "a" / "src").mkdir(parents=True)
        (tmp_path / tree / "a" / "src" / "values.py").write_text(f"value = {value}\n")
    judged = [{"repo": "a", "title": "It is 3", "shows": "import values\nprint('is', values.value)", "says": "is 3"}]
    thinking.check([*judged, {"repo": "b", "title": "elsewhere"}], [tmp_path / "faulty", tmp_path / "mended"])
    with pytest.raises(SystemExit, match="other/a does not show “It is 3”: is 4"):
        thinking.check(judged, [tmp_path / "faulty", tmp_path / "other"])


def test_recall_counts_no_planted_fault_that_only_a_mistaken_finding_has() -> None:
    one, other = ({"fingerprint": key, "title": key, "verification": {"state": "confirmed"}} for key in "12")
    verdicts = [{"verdict": "fault", "item": "a-x"}, {"verdict": "duplicate", "item": "a-x"}]
    scored = {"repo": "a", "verdicts": verdicts}
    judged = [{"repo": "a", "fingerprint": "1", "title": "t", "mistaken_for": "a-x"}]
    assert thinking.planted(scored, [one, other], judged) == {"a-x"}
    assert thinking.planted({**scored, "verdicts": verdicts[:1]}, [one], judged) == set()
