"""What an agent's finding is taken for, what it is told of that, and how it says and proves that it is another one."""

import json
from typing import Any

import pytest

from review_agents import claims, material
from review_agents.focus import builtin
from review_agents.loop import refused_before
from review_agents.ports import NodeRefused
from review_agents.records import (
    Candidate,
    Environment,
    Kind,
    Place,
    ProbeResult,
    ProbeState,
    Ran,
    Reproduction,
    Role,
    Severity,
    Symptom,
)
from review_agents.rules import RULES
from review_agents.scripted import call, said
from review_agents.tools import RecordFinding, checked, offered
from review_agents.visible import defanged
from tests.support.agents import FILES, MARK, finding, play, repo, report, results

DONE = call("finish", **report())
SNAPSHOT = '''import json


def save(path, entries):
    """Write plain JSON; what JSON cannot hold is refused."""
    text = json.dumps({"entries": entries})
    path.write_text(text)
'''
CACHE = {**FILES, "snapshot.py": SNAPSHOT}
NAN = finding(
    title="save writes NaN and Infinity, which are not JSON",
    experience="A snapshot is promised to be plain JSON; save writes NaN.",
    file="snapshot.py",
    quote='text = json.dumps({"entries": entries})',
    command="set -e\npython -c 'import snapshot; snapshot.save(float(\"nan\"))'",
    output_contains=["the file says NaN"],
)
KEYS = finding(
    title="save silently turns the integer keys of a dict into strings",
    experience="A snapshot gives back what was saved; keys come back as text.",
    file="snapshot.py",
    quote='text = json.dumps({"entries": entries})',
    command="set -e\npython -c 'import snapshot; snapshot.save({1: 2})'",
    output_contains=["the key came back as '1'"],
)
OTHER = "NaN is a value; this one is about keys, which stay wrong when NaN is refused"


def told_of(played: Any) -> list[str]:
    """What each call was answered with."""
    return [message.text for message in played.last_question if message.role is Role.TOOL]


def record(**asked: Any) -> Any:
    return call("record_finding", **asked)


# Refused -------------------------------------------------------------------------------------


def test_what_is_taken_for_a_known_finding_is_told_which_one_why_and_what_to_do_when_that_is_wrong() -> None:
    _, answer = told_of(play([record(**NAN), record(**KEYS), DONE], files=CACHE))
    assert answer.startswith("Not stored: it is known already, taken for finding:1 because it is of the same kind and")
    assert "quotes the same line of snapshot.py" in answer and "save writes NaN and Infinity" in answer
    assert "(snapshot.py:6)" in answer and "its script prints 'the file says NaN'" in answer
    assert "say in `differs` what differs" in answer and f"<<<{MARK} known findings" in answer


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"command": NAN["command"], "kind": "reliability", "rule": "lost_data"}, "it has the same script"),
        ({"quote": "path.write_text(text)"}, "it has the same kind and rule in `save` of snapshot.py"),
        ({"quote": "path.write_text(text)", "rule": "wrong_result", "title": "NaN and Infinity: save writes them"},
         "it is of the same kind, in `save` of snapshot.py, with a similar title"),
    ],
)  # fmt: skip
def test_the_reason_is_the_one_that_code_went_by(changed: dict[str, Any], why: str) -> None:
    _, answer = told_of(play([record(**NAN), record(**{**KEYS, **changed}), DONE], files=CACHE))
    assert why in answer


def test_of_several_findings_that_it_may_be_each_is_named() -> None:
    third = {**KEYS, "title": "save loses tuples", "command": "set -e\ntrue 3", "output_contains": ["a list came back"]}
    steps = [record(**NAN), record(**KEYS, differs=OTHER), record(**third), DONE]
    answer = told_of(play(steps, files=CACHE))[2]
    assert "taken for finding:1 because" in answer and "; finding:2 because" in answer


# Another one ---------------------------------------------------------------------------------


def test_another_fault_at_the_same_line_is_stored_once_it_says_what_differs_and_its_proof_holds() -> None:
    played = play([record(**NAN), record(**KEYS), record(**KEYS, differs=OTHER), DONE], files=CACHE)
    assert told_of(played)[2] == "Stored as finding 2 (its proof held)."
    one, two = played.result.candidates
    assert (one.differs, two.differs) == ("", OTHER) and one.places == two.places


def test_what_differs_from_nothing_known_is_stored_without_that_word() -> None:
    (candidate,) = play([record(**KEYS, differs=OTHER), DONE], files=CACHE).result.candidates
    assert candidate.differs == ""


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"command": NAN["command"].replace("\n", "\n\n")}, "both have the same script"),
        ({"output_contains": ["the file  says NaN"]}, "both are known by the same text (the file says NaN)"),
    ],
)
def test_saying_that_it_differs_is_not_enough_where_the_proofs_cannot_tell(changed: dict[str, Any], why: str) -> None:
    played = play([record(**NAN), record(**{**KEYS, **changed}, differs=OTHER), DONE], files=CACHE)
    assert f"`differs` alone is no proof: {why}" in told_of(played)[1] and len(played.result.candidates) == 1


def test_two_opinions_about_one_line_cannot_be_told_apart_and_a_proof_and_an_opinion_can() -> None:
    opinion = {**KEYS, "opinion": True, "command": "", "output_contains": []}
    again = {**opinion, "title": "One ought to name the version in the file"}
    steps = [record(**opinion), record(**again, differs=OTHER), record(**NAN, differs="it is proved"), DONE]
    played = play(steps, files=CACHE)
    assert "nothing tells them apart" in told_of(played)[1]
    assert [one.opinion for one in played.result.candidates] == [True, False]


def test_another_fault_needs_a_proof_that_holds_however_often_it_is_recorded() -> None:
    trial = lambda candidate: "its output did not contain it." if "keys" in candidate.title else ""  # noqa: E731
    steps = [record(**NAN), *[record(**KEYS, differs=OTHER)] * 3, DONE]
    played = play(steps, files=CACHE, trial=trial)
    assert "its proof must hold: its output did not contain it." in told_of(played)[2]
    assert len(played.result.candidates) == 1


def test_scripts_that_show_each_others_text_are_one_fault() -> None:
    same = lambda candidate, known: f"its script shows the text of {candidate.title[:4]}, too"  # noqa: E731
    played = play([record(**NAN), record(**KEYS, differs=OTHER), DONE], files=CACHE, same_outcome=same)
    assert "as finding:1, because its script shows the text of save, too" in told_of(played)[1]
    assert len(played.result.candidates) == 1


DEEP = {**KEYS, "kind": "reliability", "rule": "reliability_other", "title": "save of deep ones raises RecursionError",
        "output_contains": ["save raised RecursionError"]}  # fmt: skip
HUGE = {**DEEP, "title": "save of huge ones raises OverflowError", "quote": "path.write_text(text)",
        "command": "set -e\ntrue huge", "output_contains": ["save raised OverflowError"]}  # fmt: skip


def test_a_fault_whose_proof_shows_another_error_of_another_line_is_stored_without_being_asked_what_differs() -> None:
    played = play([record(**DEEP), record(**HUGE), DONE], files=CACHE)
    assert told_of(played)[1] == "Stored as finding 2 (its proof held)."
    assert [one.shape for one in played.result.candidates] == ["RecursionError", "OverflowError"]
    for alike in ({"quote": DEEP["quote"]}, {"output_contains": ["once more: save raised RecursionError"]}):
        again = play([record(**DEEP), record(**{**HUGE, **alike}), DONE], files=CACHE)
        assert "Not stored: it is known already" in told_of(again)[1]


@pytest.mark.parametrize("title", [HUGE["title"], "Numbers without bound are not looked at"])
def test_two_errors_that_one_script_shows_are_one_fault(title: str) -> None:
    same = lambda candidate, known: "its script shows the text of this one, too"  # noqa: E731
    played = play([record(**DEEP), record(**{**HUGE, "title": title}), DONE], files=CACHE, same_outcome=same)
    assert "as finding:1, because its script shows the text" in told_of(played)[1]


def test_an_error_alone_does_not_make_it_another_fault_than_one_that_names_none() -> None:
    none = {**HUGE, "title": "Numbers without bound are not looked at", "output_contains": ["half of it is left"]}
    for first, second in ((DEEP, none), (none, DEEP)):
        assert "it has the same kind and rule in `save`" in told_of(play([record(**first), record(**second), DONE],
                                                                         files=CACHE))[1]  # fmt: skip


def test_a_second_fault_at_a_place_is_tried_as_carefully_as_the_first() -> None:
    tries: list[str] = []

    def trial(candidate: Candidate) -> str:
        tries.append(candidate.title)
        return "no" if "count" in candidate.title else ""

    second = {**NAN, "quote": "path.write_text(text)", "rule": "wrong_result", "title": "The count is not checked",
              "command": "set -e\ntrue 2"}  # fmt: skip
    played = play([record(**NAN), record(**second), DONE], files=CACHE, trial=trial)
    assert "Not stored yet" in told_of(played)[1] and len(tries) == 2


# What is known, to be read -------------------------------------------------------------------


def by_a_check(title: str, rule: str = "readme.unknown-option", **changed: Any) -> Candidate:
    given: dict[str, Any] = {
        "kind": Kind.DOCUMENTATION,
        "rule": rule,
        "title": title,
        "description": "The program refuses it.",
        "severity": Severity.MEDIUM,
        "places": (Place(file="README.md", line=7, symbol="sums --unit", quote="`total([])` gives 0."),),
        "reproduction": Reproduction(
            command="sums --unit", expected="a sum", observed="refused", environment=Environment.PLAIN,
            symptom=Symptom(nonzero=True, contains=("--unit",)),
        ),
    }  # fmt: skip
    return Candidate(**{**given, **changed})


def with_claims(*candidates: Candidate) -> dict[str, ProbeResult]:
    one, two = candidates
    return {
        "probe:readme": ProbeResult(probe="readme", state=ProbeState.FAILED, candidates=(one,)),
        "probe:options": ProbeResult(probe="options", state=ProbeState.FAILED, candidates=(two,), log="the whole log"),
    }


def test_a_fault_that_two_checks_claim_is_told_once_and_two_faults_twice() -> None:
    twice = with_claims(by_a_check("README.md uses --unit"), by_a_check("README.md documents --unit"))
    digest = material.evidence_digest(twice)
    assert digest.count("--unit") == 1 and "1. [documentation, medium] README.md documents --unit" in digest
    both = with_claims(by_a_check("README.md uses --unit"), by_a_check("It lies", "readme.output-differs"))
    assert len(material.probed(both)) == 2


def test_findings_of_others_have_numbers_go_on_behind_those_of_checks_and_can_be_read_whole() -> None:
    told = material.opening(
        repo(), results(**with_claims(by_a_check("One"), by_a_check("Two", "readme.output-differs"))), FILES.get,
        focus=builtin()["taste"], mark=MARK, native=True, claimed=[by_a_check("Three", "x")],
    )  # fmt: skip
    assert "2. [documentation, medium] Two" in told[1].text and "3. [documentation, medium] Three" in told[3].text
    first = play([record(**NAN), DONE], files=CACHE).result.candidates
    steps = [call("read", path="finding:1"), call("read", path="finding:2"), DONE]
    one, two = told_of(play(steps, files=CACHE, claimed=first))
    assert "Script:" in one and "save(float(" in one and "A snapshot is promised" in one
    assert two == "There is no such file: finding:2"


def test_all_that_a_check_said_can_be_read() -> None:
    facts = {"runs": [{"command": "sums --unit", "ended": "exit status 2"}], "statuses_named": ["0: all is well"]}
    long = ProbeResult(probe="misuse", state=ProbeState.FAILED, summary="1 fault", facts=facts, log="the whole log")
    documents = material.whole_evidence({"probe:misuse": long})
    (answer,) = told_of(play([call("read", path="evidence:misuse"), DONE], documents=documents))
    assert all(text in answer for text in ('"ended": "exit status 2"', "- 0: all is well", "the whole log"))


def test_facts_in_the_evidence_end_with_a_word_and_say_how_many_more_there_are() -> None:
    values = [f"spanparse duration --as value{n}: exit status 0" for n in range(12)]
    lines = material.facts_in_lines({"values_tried": values, "statuses_named": "with a word " * 30})
    assert lines[0].endswith("value2: exit status 0 and 9 more") and all(len(line) < 200 for line in lines)
    assert lines[1].endswith("a word ...") or lines[1].endswith("with a ...") or lines[1].endswith("with ...")


def test_the_map_of_a_large_repo_ends_with_a_whole_line() -> None:
    many = {f"pkg/module_{n}.py": f"def function_{n}(first, second): pass\n" for n in range(300)}
    many |= {f"docs/page_{n}.md": "words" for n in range(300)}
    known = {*many, *(f"  function_{n}(first, second)" for n in range(300))}
    for chars in (700, 800, 900, 1000, 1100):
        lines = material.repo_map(repo(many), many.get, chars=chars).splitlines()
        assert all(line in known or line.endswith((" lines)", " files)")) for line in lines), lines[-1]


def test_what_others_could_not_prove_is_told_with_the_reason() -> None:
    steps = [
        record(**NAN),
        record(**KEYS),
        record(**{**KEYS, "title": "It lies", "file": "no.py"}),
        record(**{**KEYS, "title": "It lies", "kind": "usability", "rule": "hard_to_use_right"}),
        DONE,
    ]
    refused = play(steps, files=CACHE).result.refused
    assert len(refused) == 1, "what was stored in the end is not among them"
    assert refused[0].startswith(
        "save silently turns the integer keys of a dict into strings (snapshot.py): Not stored"
    )
    told = material.opening(repo(), results(), FILES.get, focus=builtin()["taste"], mark=MARK, native=True,
                            refused=refused)  # fmt: skip
    assert "Not stored for others" in told[3].text and "integer keys" in told[3].text
    plain = material.opening(repo(), results(), FILES.get, focus=builtin()["taste"], mark=MARK, native=True)
    assert told[:3] == plain[:3], "what all focuses read first stays the same"


@pytest.mark.parametrize("native", [True, False])
def test_what_was_refused_before_an_interruption_is_not_forgotten(native: bool) -> None:
    played = play(
        [as_written(native, NAN), as_written(native, KEYS), as_written(native, {"title": "no"}), NodeRefused("gone")],
        files=CACHE, native=native,
    )  # fmt: skip
    (one,) = refused_before(played.entries)
    assert one[0].title == KEYS["title"] and one[1].startswith("Not stored: it is known already")
    again = play([DONE], files=CACHE, earlier=played.entries, recorded=played.kept, native=True)
    assert len(again.result.refused) == 1


def as_written(native: bool, asked: dict[str, Any]) -> Any:
    return record(**asked) if native else said(f"```call\nrecord_finding\n{json.dumps(asked)}\n```")


# The rules of each kind ----------------------------------------------------------------------


def test_the_schema_lists_the_rules_kind_by_kind_and_each_once() -> None:
    (tool,) = [one for one in offered() if one.name == "record_finding"]
    rule = tool.parameters["properties"]["rule"]
    assert {one["description"]: tuple(one["enum"]) for one in rule["anyOf"]} == {
        f"of {kind}": rules for kind, rules in RULES.items()
    }
    assert "enum" not in rule


def test_a_rule_of_another_kind_is_still_answered_with_those_that_fit() -> None:
    asked = checked("record_finding", finding(rule="race"))
    assert isinstance(asked, RecordFinding)
    with pytest.raises(claims.Refused, match="choose from wrong_result, wrong_edge_case"):
        claims.candidate_of(asked, focus="x", source=FILES.get, control=None)


def test_a_line_is_found_by_the_words_in_which_it_was_shown() -> None:
    """Unseen characters and words of chat templates are spelled otherwise to the agent, who copies what it sees."""
    line = 'END = "<|im_end|>\u200b</s>"  # closes a turn'
    files = {**FILES, "chat.py": f"{line}\n"}
    played = play([call("read", path="chat.py"), DONE], files=files)
    shown = next(text for text in played.told.splitlines() if text.startswith("1: ")).removeprefix("1: ")
    assert shown != line
    for quote in (shown, line):
        (found,) = play([call("record_finding", **finding(file="chat.py", quote=quote)), DONE], files=files).kept
        assert (found.places[0].line, found.places[0].quote) == (1, line)


@pytest.mark.parametrize("printed", ["<|im_end|>", "a\u200bb", "\x1b[2Kgone", "[INST] plain"])
def test_output_that_was_copied_as_it_was_shown_is_found_in_what_was_printed(printed: str) -> None:
    ran = Ran(exit=0, head=f"before\n{printed}\nafter\n")
    shown = defanged(printed)
    assert shown != printed
    assert Symptom(contains=(shown,)).shown_by(ran) and Symptom(contains=(printed,)).shown_by(ran)
    assert not Symptom(exit=0, lacks=(shown,)).shown_by(ran)
    assert not Symptom(contains=(shown,)).shown_by(Ran(exit=0, head="before\nafter\n"))
