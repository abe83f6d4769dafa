"""The bench of agents over a repo of one script; what nobody planted is judged by hand, and the recorded figures are
those of the judgements."""

import json
from pathlib import Path

import pytest

from review_agents.scripted import call
from tests.bench import figures, minds, thinking
from tests.bench.test_minds import HELD, conversation
from tests.support.boxes import bubblewrap, here
from tests.support.host_settings import isolated
from tests.support.tiny_agents import DONE, finding

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


def test_the_recorded_figures_are_counted_again_from_the_recorded_reviews() -> None:
    recorded = json.loads((figures.FOLDER / f"{thinking.NAME}.json").read_text(encoding="utf-8"))
    exports, told = thinking.read_kept()
    assert thinking.counted(exports, told) == recorded["figures"]
    assert recorded["figures"]["unplanted_not_judged"] == 0 and len(exports) >= 4
    assert (thinking.focuses_of(exports), thinking.model_of(exports)) == (recorded["focuses"], recorded["model"])


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


# The bench over a repo that is made here: real command, real sandbox, tiny probes ---------------------

MAKES = """import pathlib, subprocess, sys
repo = pathlib.Path(sys.argv[1]) / "scripts"
repo.mkdir(parents=True)
(repo / "README.md").write_text("Run greet. It says hello.\\n\\n    echo 15 lives\\n    -> 15 lives\\n")
(repo / "greet.sh").write_text("echo hello\\n" if "--fixed" in sys.argv else "echo good morning\\n")
(repo / "add.sh").write_text("echo $(($1 - $2))\\n")
(repo / "last.sh").write_text("head -n 1 $1\\n")
for words in ("init -q -b main", "add -A", "-c user.name=a -c user.email=a@example.org commit -q -m scripts"):
    subprocess.run(["git", "-C", repo, *words.split()], check=True)
"""
# Planted are the faults of greet.sh and last.sh; what is said of another file is a false alarm.
SCORES = """import json, sys
PLANTED = {"greet.sh": "greets", "README.md": "greets", "last.sh": "lasts"}
exports = json.load(open(sys.argv[1]))
def scored(name, findings):
    items = [PLANTED.get(one["places"][0]["file"]) for one in findings]
    verdicts = [{"verdict": "fault" if item else "false alarm", "item": item} for item in items]
    return {"repo": name, "false_alarms": items.count(None), "decoy_hits": 0, "verdicts": verdicts}
def all_scored(wanted):
    return [scored(name, [one for one in told["findings"] if wanted(one)]) for name, told in exports.items()]
found = {"repos": all_scored(lambda one: True),
         "verified": all_scored(lambda one: one["verification"]["state"] == "confirmed")}
json.dump(found, open(sys.argv[sys.argv.index("--json") + 1], "w"))
"""
TRUTH = {"faults": [{"id": "greets", "kind": "correctness"}, {"id": "lasts", "kind": "reliability"}]}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_bench_plays_recorded_agents_in_real_reviews_scores_them_and_can_count_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bubblewrap(here())  # skips, loudly, where it does not work
    bench, recordings, docs = tmp_path / "bench", tmp_path / "recordings", tmp_path / "figures"
    (bench / "scripts").mkdir(parents=True)
    (bench / "make_repos.py").write_text(MAKES)
    (bench / "score.py").write_text(SCORES)
    (bench / "scripts" / "truth.json").write_text(json.dumps(TRUTH))
    monkeypatch.setattr(figures, "FOLDER", docs)
    monkeypatch.setattr(thinking, "KEPT", docs / thinking.NAME)
    for name, value in isolated(tmp_path).items():
        monkeypatch.setenv(name, value)
    add = finding(title="add.sh takes away", file="add.sh", quote="echo $(($1 - $2))", control="test -f add.sh",
                  command="echo sum is $(bash add.sh 5 3)", output_contains=["sum is 2"])  # fmt: skip
    untrue = finding(title="last.sh fails", file="last.sh", quote="head -n 1", control="test -f last.sh",
                     command="bash last.sh README.md", output_contains=["Traceback"])  # fmt: skip
    said = [finding(), add, untrue]
    played = conversation(*((call("record_finding", **one), HELD) for one in said), (DONE, ""))
    minds.write({"focus:correctness": played}, recordings / "scripts.json")

    def run() -> dict[str, float]:
        return thinking.run(bench, "", "by-hand", recordings=recordings, keep=tmp_path / "kept",
                            command="tests.support.tiny_pages")  # fmt: skip

    found = run()
    assert (found["repos"], found["confirmed_by_agents"]) == (1, 2), "the third one's proof did not hold"
    assert (found["recall"], found["recall_correctness"], found["recall_reliability"]) == (0.5, 1.0, 0.0)
    assert (found["recall_evidence_only"], found["precision_evidence_only"]) == (0.5, 1.0), "a probe runs greet.sh too"
    assert (found["unplanted"], found["unplanted_not_judged"]) == (1, 1)
    assert found["precision"] == 0.5 and found["tokens_written"] > 0
    recorded = json.loads((docs / f"{thinking.NAME}.json").read_text())
    assert (recorded["figures"], recorded["focuses"]) == (found, "scripts: correctness")
    assert recorded["model"] == "by-hand"
    monkeypatch.setattr(thinking, "thought", None)
    assert run() == thinking.recount(bench) == found, "what was reviewed is not reviewed again"
