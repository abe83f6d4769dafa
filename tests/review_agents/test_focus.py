"""Focuses as data, the words that models are told, and the numbers that code makes of reports."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from review_agents import focus, material, memo
from review_agents.focus import Flavour, FocusError, Profile, builtin
from review_agents.records import (
    Effort,
    FocusResult,
    FocusState,
    Lifecycle,
    ProbeState,
    Ran,
    Report,
    Severity,
    VerificationState,
)
from review_agents.rules import RULES
from review_agents.scripted import as_text, call
from review_agents.tools import offered
from tests.support.agents import FILES, MARK, Hand, play, repo, report, results

TOLD = Path(__file__).parent / "told"
GOOD = """
name = "tidy"
title = "Tidy"
summary = "Looks for clutter"
mission = "Find clutter."
hands_on = "Count files."
not_yours = "The rest."
kinds = ["usability"]
"""


# Focuses -------------------------------------------------------------------------------------


def test_there_are_seven_focuses_each_with_a_duty_and_a_score_of_its_own() -> None:
    names = ["newcomer", "correctness", "performance", "engineering", "security", "reliability", "taste"]
    assert list(builtin()) == names
    assert len({one.hands_on for one in builtin().values()}) == 7
    assert len({one.score for one in builtin().values()}) == 7


def test_a_person_adds_a_focus_by_a_file_and_replaces_one_by_its_name() -> None:
    found = focus.collected([("/data/focuses/tidy.toml", GOOD), ("taste.toml", GOOD.replace("tidy", "taste"))])
    assert found["tidy"].summary == "Looks for clutter" and found["taste"].title == "Tidy" and len(found) == 8
    assert {"record_finding", "finish"} <= set(found["tidy"].tools)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("mission", "misson"), "misson"),
        (('kinds = ["usability"]', 'kinds = ["beauty"]'), "kinds"),
        (('name = "tidy"', 'name = "other"'), "expected the file's own name"),
        (("hands_on = ", "tools = ['browse']\nhands_on = "), "there is no tool 'browse'"),
        (("hands_on = ", "score = 'charm'\nhands_on = "), "there is no score 'charm'"),
        (('"Find clutter."', '"  "'), "mission"),
        (("title = ", "title "), "no valid TOML"),
        (('kinds = ["usability"]', 'kinds = ["usability"]\n[budget]\nturns = 0'), "budget.turns"),
    ],
)
def test_a_mistake_in_a_focus_is_an_error_that_names_file_and_key(change: tuple[str, str], words: str) -> None:
    with pytest.raises(FocusError, match=r"tidy\.toml") as problem:
        focus.parsed(GOOD.replace(*change), file="tidy.toml")
    assert words in str(problem.value)


WITH = GOOD + 'template = "tidy.j2"\n'


def test_a_focus_may_bring_a_template_of_its_task_which_may_include_ours() -> None:
    own = '{% include "task.j2" %}\n\n{% if refused %}Not stored: {{ refused }}.{% endif %} Sort {{ focus.title }}.'
    found = focus.collected([("tidy.toml", WITH)], {"tidy.j2": own})["tidy"]
    plain = focus.parsed(GOOD, file="tidy.toml")
    told = [material.opening(repo(), results(), FILES.get, focus=one, mark=MARK, native=True, refused=("x",))
            for one in (plain, found)]  # fmt: skip
    assert told[0][:-1] == told[1][:-1], "what all focuses share stays the same"
    assert told[1][-1].text.startswith(told[0][-1].text) and told[1][-1].text.endswith("Sort Tidy.")
    assert "Not stored: <<<" in told[1][-1].text, "what is foreign comes quoted"


@pytest.mark.parametrize(
    ("templates", "words"),
    [
        ({}, r"tidy\.toml: template: found 'tidy\.j2', and there is no such file; expected a file \*\.j2 beside it"),
        ({"tydi.j2": "x"}, r"tidy\.toml: template: found 'tidy\.j2'.*expected one of those beside it: tydi\.j2"),
        ({"tidy.j2": "Look.\n{% if claimed %}"}, r"^tidy\.j2: line 2: Unexpected end of template.*Expected a Jinja"),
        (
            {"tidy.j2": "\n{{ mission }}"},
            r"^tidy\.j2: line 2: 'mission' is undefined.*over the names focus",
        ),
        ({"tidy.j2": "{% if claimed %}\n{{ claimd }}{% endif %}x"}, r"^tidy\.j2: line 2: 'claimd' is undefined"),
        ({"tidy.j2": "{{ focus.mision }}"}, r"^tidy\.j2: line 1: .*has no attribute 'mision'"),
        ({"tidy.j2": '{% include "tusk.j2" %}'}, r"^tidy\.j2: line 1: there is no template 'tusk\.j2'"),
        ({"tidy.j2": "{{ 1 // 0 }}"}, r"^tidy\.j2: line 1: .*by zero"),
        ({"tidy.j2": "{{ ''.__class__.__mro__ }}"}, r"^tidy\.j2: line 1: access to attribute '__class__'.*unsafe"),
        ({"tidy.j2": "{# nothing #}\n"}, r"^tidy\.j2: it tells the agent nothing; expected the words of its task"),
        ({"tidy.j2": "Look.", "other.j2": "x"}, r"^other\.j2: no focus.*expected a TOML file with template = \"other"),
    ],
)
def test_a_template_that_is_missing_or_broken_is_an_error_that_says_what_was_found(
    templates: dict[str, str], words: str
) -> None:
    with pytest.raises(FocusError, match=words):
        focus.collected([("tidy.toml", WITH)], templates)


def test_every_profile_and_flavour_has_words_and_an_unknown_profile_is_no_default() -> None:
    assert set(focus.PROFILE_WORDS) == set(Profile) and set(focus.FLAVOUR_WORDS) == set(Flavour)
    with pytest.raises(ValueError, match="nobody"):
        Profile("nobody")


@pytest.mark.parametrize(
    ("asked", "files", "flavour"),
    [("personal", [], "personal"), ("", ["a.py"], "production"), ("nonsense", ["CITATION.cff"], "research"),
     ("", ["benchmarks/a.py", "benchmarks/b.py", "bench.py"], "performance")],
)  # fmt: skip
def test_the_flavour_is_what_the_repo_says_or_looks_like(asked: str, files: list[str], flavour: str) -> None:
    assert focus.flavour_of(asked, files) == flavour


def test_every_kind_has_rules_for_agents_and_one_for_the_rest() -> None:
    assert all(rules[-1] == f"{kind}_other" for kind, rules in RULES.items())


# What models are told ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rules", "rules_in_text", "material", "task"])
def test_the_words_are_those_that_were_reviewed(name: str) -> None:
    """After a change on purpose: delete the file, run this test twice, and read the difference."""
    found = material.opening(repo(), results(), FILES.get, focus=builtin()["security"], mark=MARK,
                             native=name != "rules_in_text")  # fmt: skip
    text = {"rules": found[0], "rules_in_text": found[0], "material": found[1], "task": found[3]}[name].text + "\n"
    kept = TOLD / f"{name}.txt"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(text, encoding="utf-8")
        pytest.fail(f"{kept.name} was not there; it was written anew")
    assert text == kept.read_text(encoding="utf-8")


def test_no_word_of_a_prompt_can_be_attributed_to_the_repo() -> None:
    told = material.opening(repo(), results(), FILES.get, focus=builtin()["taste"], mark=MARK, native=True)
    assert "for example" not in told[1].text.split("<<<")[0], "examples of ours are not material"


def test_all_focuses_begin_with_the_same_bytes() -> None:
    openings = [
        material.opening(repo(), results(), FILES.get, focus=one, mark=MARK, native=True) for one in builtin().values()
    ]
    assert len({one[:3] for one in openings}) == 1 and len({one[3] for one in openings}) == len(openings)
    assert json.dumps([tool.model_dump() for tool in offered()]) == json.dumps(
        [tool.model_dump() for tool in offered()]
    )


@pytest.mark.parametrize(
    ("native", "name", "before"),
    [(True, "security", 10_651), (True, "performance", 10_612), (False, "security", 10_423), (False, "taste", 10_301)],
)
def test_the_opening_costs_hardly_more_than_when_it_was_first_played_with(native: bool, name: str, before: int) -> None:
    """Characters of the opening and of the tools, over the smallest repo; a longer one hides what the rules cost."""
    told = material.opening(repo(), results(), FILES.get, focus=builtin()[name], mark=MARK, native=native)
    tools = [{"type": "function", "function": tool.model_dump()} for tool in offered()] if native else []
    found = sum(len(message.text) for message in told) + (len(json.dumps(tools)) if native else 0)
    assert found <= 1.03 * before


def test_each_protocol_is_told_how_many_calls_an_answer_may_have() -> None:
    told = {
        native: material.opening(repo(), results(), FILES.get, focus=builtin()["taste"], mark=MARK, native=native)[
            0
        ].text
        for native in (True, False)
    }
    assert "Several calls in one answer are welcome, up to 8" in told[True] and "one call in an answer" in told[False]


def test_over_thirty_turns_nearly_all_of_each_prompt_was_sent_before() -> None:
    hand = Hand(says=lambda command: Ran(exit=0, head=f"{command}\n" * 60))
    steps = [call("run", command=f"python -c 'print({n})'") for n in range(30)] + [call("finish", **report())]
    played = play(steps, hand=hand, budget={"turns": 40})
    assert played.result.turns == 31
    usage = played.result.usage
    first = len(as_text(played.model.asked[0])) // 4
    assert usage.cached / (usage.prompt - first) >= 0.95  # the first prompt is nobody's to know
    texts = [as_text(question) for question in played.model.asked]
    for shorter, longer in pairwise(texts):
        assert longer.startswith(shorter), "nothing that was sent is ever sent differently"


def test_the_material_fits_a_small_context() -> None:
    many = {f"pkg/module_{n}.py": f"def function_{n}(first, second): pass\n" * 30 for n in range(200)}
    many["README.md"] = "words " * 20_000
    for context, most in ((4096, 6000), (32768, 26_000), (None, 26_000)):
        found = material.opening(
            repo(many), results(), many.get, focus=builtin()["taste"], mark=MARK, native=True, context_tokens=context
        )
        assert len(found[1].text) < most, context


def test_times_of_probes_are_left_out_of_the_evidence() -> None:
    slow = {name: one.model_copy(update={"seconds": 99.5}) for name, one in results().items()}
    assert material.evidence_digest(slow) == material.evidence_digest(results())


# Memo ----------------------------------------------------------------------------------------


def thought(name: str, **scores: Any) -> FocusResult:
    return FocusResult(focus=name, state=FocusState.FINISHED, report=Report(summary="x", scores=scores))


def seen(**changed: Any) -> memo.Seen:
    given: dict[str, Any] = {
        "title": "x", "kind": "correctness", "severity": Severity.MEDIUM, "effort": Effort.MEDIUM, "opinion": False,
        "verification": VerificationState.CONFIRMED, "lifecycle": Lifecycle.NEW, "fingerprint": "f", "file": "a.py",
        "line": 1,
    }  # fmt: skip
    return memo.Seen(**{**given, **changed})


def test_the_owner_of_a_score_counts_double_and_plain_means_have_no_owner() -> None:
    found = {one.name: one for one in memo.reconciled(
        [thought("security", security=2, overall=2), thought("taste", security=8, overall=8)], builtin())}  # fmt: skip
    assert (found["security"].value, found["security"].owner) == (4.0, "security")
    assert (found["overall"].value, found["overall"].owner) == (5.0, "")


def test_scores_are_clamped_and_what_is_no_number_is_dropped() -> None:
    found = memo.reconciled([thought("taste", taste=99, honesty=math.nan), thought("newcomer", taste=-3)], builtin())
    assert [(one.name, one.value, one.low, one.high) for one in found] == [("taste", 7.0, 1, 10)]


def test_fixes_are_ordered_by_impact_and_effort_and_the_unproved_are_not_among_them() -> None:
    made = memo.memo_of(
        [],
        [
            seen(title="large", severity=Severity.HIGH, effort=Effort.LARGE),
            seen(title="small", severity=Severity.MEDIUM, effort=Effort.SMALL),
            seen(title="opinion", severity=Severity.HIGH, opinion=True, verification=VerificationState.UNVERIFIED),
            seen(title="unproved", severity=Severity.CRITICAL, verification=VerificationState.NOT_REPRODUCED),
            seen(title="fixed", lifecycle=Lifecycle.FIXED),
            seen(title="open door", severity=Severity.CRITICAL),
        ],
        builtin(),
        [("tests", ProbeState.COULD_NOT_RUN, "needs a compiler")],
    )
    assert [one.title for one in made.fixes] == ["open door", "small", "large", "opinion"]
    assert "tests: needs a compiler" in made.not_looked_at
    assert any(line.startswith("Nobody looked with the focus of Newcomer") for line in made.not_looked_at)
    assert made.more_fixes == made.more_not_looked_at == 0
    assert made.verdict == "3 proved faults, 2 of them serious; no model took part."


def test_a_focus_that_did_not_finish_is_a_limit_of_the_review_and_not_of_the_repo() -> None:
    stuck = FocusResult(focus="taste", state=FocusState.STUCK, reason="it repeated itself")
    made = memo.memo_of([stuck], [], builtin(), [])
    assert any("Taste did not come to its end (stuck: it repeated itself)" in line for line in made.not_looked_at)
    assert made.verdict == "Nothing was proved wrong; 0 of 1 focuses came to their end."


def test_what_two_focuses_could_not_look_at_is_said_once_with_both() -> None:
    results = [
        FocusResult(focus=name, state=FocusState.FINISHED, report=Report(summary="x", not_looked_at=("French names",)))
        for name in ("newcomer", "security")
    ]
    assert "Newcomer, Security: French names" in memo.memo_of(results, [], builtin(), []).not_looked_at


def test_however_much_was_found_the_memo_is_read_in_two_minutes() -> None:
    many = "The second argument of a call is lost when the first one is empty. " * 40
    everything = {name: 1 + at for at, name in enumerate(focus.SCORES)}
    report = Report(summary=many, strengths=(many,) * 12, weaknesses=(many,) * 12, recommendation=many)
    results = [
        FocusResult(
            focus=name,
            state=FocusState.STUCK,
            reason=many,
            report=report.model_copy(
                update={
                    "scores": {score: (value * (at + 3)) % 10 for score, value in everything.items()},
                    "not_looked_at": tuple(f"{name} {number} {many}" for number in range(12)),
                }
            ),
        )
        for at, name in enumerate(builtin())
    ]
    made = memo.memo_of(results, [seen(title=f"{n} {many}") for n in range(100)], builtin(), [])
    assert len(read_at_first(made).split()) <= 500, "at 250 words a minute"
    assert made.more_fixes == 92 and made.more_not_looked_at > 50
    assert len(made.voices[0].weaknesses) == 12, "the rest is there to be unfolded"


def read_at_first(made: memo.Memo) -> str:
    """What stands before the focuses' own words."""
    scores = [f"{one.name} {one.value} {one.low} to {one.high} {' '.join(one.by)}" for one in made.scores]
    fixes = [f"{one.title} {one.kind} {one.severity} {one.effort} effort {one.proof} {one.file}" for one in made.fixes]
    return "\n".join([made.verdict, *scores, *made.agreed, *made.disagreed, *fixes, *made.not_looked_at])


def test_far_apart_scores_are_a_disagreement_and_close_ones_are_agreed() -> None:
    made = memo.memo_of(
        [thought("taste", taste=8, overall=6), thought("security", taste=3, overall=6)], [], builtin(), []
    )
    assert made.disagreed == ("taste: security says 3, taste says 8",)
    assert made.agreed == ("2 focuses agree on overall: 6 of 10",)
