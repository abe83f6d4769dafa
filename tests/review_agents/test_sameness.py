"""What is one fault and what are two, among claims and against earlier findings; seen through what is filed."""

from typing import Any

import pytest

from review_agents.identity import fingerprint_of
from review_agents.lifecycle import Recheck
from review_agents.records import (
    FindingState,
    Kind,
    Lifecycle,
    Place,
    Severity,
    Source,
    Symptom,
    VerificationState,
)
from review_agents.sameness import Claim, Known, one_each
from tests.review_agents.test_lifecycle import (
    CONFIRMED,
    FILES,
    NOT_REPRODUCED,
    UNVERIFIED,
    candidate,
    claim,
    known,
    merged,
    only,
    reproduction,
    verified,
)


def test_one_fault_in_many_places_is_one_finding() -> None:
    twice = [
        claim(places=(Place(file="README.md", symbol="Usage", line=3),)),
        claim(places=(Place(file="README.md", symbol="Usage", line=30),)),
    ]
    assert [place.line for place in only(merged(twice)).candidate.places] == [3, 30]


def test_the_same_failing_command_in_two_files_is_one_finding() -> None:
    same = reproduction("tool --nope")
    filed = only(
        merged(
            [
                claim(places=(Place(file="README.md", symbol="Usage"),), reproduction=same),
                claim(places=(Place(file="docs/index.md", symbol="Start"),), reproduction=same),
            ]
        )
    )
    assert {place.file for place in filed.candidate.places} == {"README.md", "docs/index.md"}


def test_a_fault_known_from_two_places_is_the_same_when_one_is_left() -> None:
    both = known(places=(Place(file="README.md", symbol="Usage"), Place(file="docs/index.md", symbol="Start")))
    left = claim(places=(Place(file="docs/index.md", symbol="Start"),))
    assert only(merged([left], [both])).finding_id == "old"


def test_without_an_exact_match_the_same_kind_path_and_symbol_is_the_same_finding_with_another_place() -> None:
    earlier = known(shape="ValueError: N", places=(Place(file="a.py", symbol="parse"),))
    now = claim(shape="TypeError: N", places=(Place(file="a.py", symbol="parse"),))
    assert only(merged([now], [earlier])).finding_id == "old"


def test_two_rules_of_probes_at_one_place_are_two_findings() -> None:
    two = [claim(rule="readme.output-differs"), claim(rule="readme.unknown-option")]
    assert len(merged(two)) == 2
    filed = merged(two, [known(rule="readme.unknown-option")])
    assert {one.candidate.rule: one.finding_id for one in filed} == {
        "readme.output-differs": None,
        "readme.unknown-option": "old",
    }
    other = merged([claim(rule="readme.output-differs")], [known(rule="readme.unknown-option")])
    assert only(other).finding_id is None


def test_two_faults_with_different_shapes_in_one_function_stay_two() -> None:
    place = (Place(file="a.py", symbol="parse"),)
    two = [claim(shape="ValueError", places=place), claim(shape="TypeError", places=place)]
    assert len(merged(two)) == 2
    filed = merged(two, [known(shape="KeyError", places=place)])
    assert sorted(str(one.finding_id) for one in filed) == ["None", "old"]


def test_what_an_agent_says_about_a_place_with_a_known_fault_of_that_kind_is_that_fault() -> None:
    agent = claim(source=Source.AGENT, rule="wrong_example", step="focus:docs")
    assert only(merged([agent], [known()])).finding_id == "old"
    filed = only(merged([agent, claim()]))
    assert filed.candidate.source is Source.PROBE


def test_places_without_a_symbol_are_the_same_only_by_fingerprint() -> None:
    place = (Place(file="pyproject.toml"),)
    earlier = known(kind=Kind.PACKAGING, rule="wheel.undeclared-dependency", shape="requests", places=place)
    now = claim(kind=Kind.PACKAGING, rule="wheel.undeclared-dependency", shape="numpy", places=place)
    assert only(merged([now], [earlier])).finding_id is None


def in_script(rule: str, quote: str, title: str, source: Source = Source.AGENT) -> dict[str, Any]:
    place = Place(file="add.sh", quote=quote)
    return {"kind": Kind.CORRECTNESS, "rule": rule, "title": title, "places": (place,), "source": source}


def test_what_two_minds_say_about_a_file_without_symbols_is_filed_once() -> None:
    earlier = known(**in_script("wrong_result", "echo $(($1 - $2))", "It takes away"))
    for quote in ("echo $(($1 - $2))", "#!/bin/sh"):
        again = claim(**in_script("wrong_edge_case", quote, "Sums are wrong"))
        assert only(merged([again], [earlier])).finding_id == "old"


def test_two_faults_in_a_file_without_symbols_stay_two_night_after_night() -> None:
    one, two = (
        in_script("wrong_result", "a", "It takes away"),
        in_script("unhandled_input", "b", "No sum of one number"),
    )
    tonight = [
        claim(**in_script("wrong_edge_case", "b", "Words")),
        claim(**in_script("correctness_other", "a", "More")),
    ]
    filed = merged(tonight, [known("one", **one), known("two", **two)])
    assert {first.candidate.title: first.finding_id for first in filed} == {"Words": "two", "More": "one"}
    assert len(merged([claim(**one), claim(**two)])) == 2


def test_what_an_agent_says_of_a_manifest_is_the_probes_finding_only_when_it_quotes_its_line() -> None:
    probe = known(**in_script("wheel.undeclared-dependency", "dependencies = []", "x", Source.PROBE))
    assert only(merged([claim(**in_script("wrong_result", "dependencies = []", "y"))], [probe])).finding_id == "old"
    assert only(merged([claim(**in_script("wrong_result", "name = 1", "y"))], [probe])).finding_id is None


def test_a_fault_in_a_renamed_file_is_the_same_finding() -> None:
    earlier = known(places=(Place(file="old.md", symbol="Usage"),), shape="x")
    now = claim(places=(Place(file="README.md", symbol="Usage"),), shape="x")
    assert only(merged([now], [earlier])).finding_id == "old"
    still_there = merged([now], [earlier], files=(*FILES, "old.md"))
    assert only(still_there).finding_id is None


def two_in_one(state: VerificationState = CONFIRMED, title: str = "A power without bound never ends") -> list[Claim]:
    """Two faults of one kind in one function, as two focuses would claim them."""
    given: dict[str, Any] = {
        "kind": Kind.SECURITY,
        "source": Source.AGENT,
        "places": (Place(file="a.py", symbol="evaluate", quote="eval(text)"),),
    }
    first = claim(rule="code_execution", title="Evaluating a text runs any code", severity=Severity.HIGH, **given)
    second = claim(state, rule="security_other", title=title, reproduction=reproduction("timeout 5 tool 9**9"), **given)
    return [first, second]


def test_two_proved_faults_of_a_kind_in_one_function_are_one_finding_that_names_both() -> None:
    filed = only(merged(two_in_one()))
    assert filed.candidate.title == "Evaluating a text runs any code"
    assert [one.title for one in filed.candidate.also] == ["A power without bound never ends"]
    assert "Also proved at this place: A power without bound never ends." in filed.candidate.description


@pytest.mark.parametrize(
    "claims",
    [two_in_one(UNVERIFIED), two_in_one(title="Evaluating a text runs any code of it")],
    ids=["unproved", "same words"],
)
def test_what_is_not_proved_or_only_said_in_other_words_adds_nothing(claims: list[Claim]) -> None:
    filed = only(merged(claims))
    assert filed.candidate.also == () and filed.candidate.description == "d"


def test_a_proved_fault_that_was_set_against_the_other_is_named_although_their_titles_are_alike() -> None:
    first, second = two_in_one(title="Evaluating a text runs any power of it")
    apart = second.model_copy(update={"candidate": second.candidate.model_copy(update={"differs": "it never ends"})})
    for claims in ([first, apart], [apart, first]):
        filed = only(merged(claims))
        assert [one.title for one in filed.candidate.also] == ["Evaluating a text runs any power of it"]


def failing(error: str, quote: str, **changed: Any) -> Claim:
    """What an agent says of one function, known by the error that its script shows."""
    output = error or "the wrong value"
    proof = reproduction(f"run {output}").model_copy(update={"symptom": Symptom(contains=(output,))})
    given: dict[str, Any] = {"kind": Kind.RELIABILITY, "source": Source.AGENT, "rule": "reliability_other"}
    places = (Place(file="a.py", symbol="read", quote=quote),)
    return claim(**{**given, "shape": error, "places": places, "reproduction": proof, "title": output, **changed})


def as_known(one: Claim) -> Known:
    return known(**one.candidate.model_dump(exclude_unset=True, exclude={"focus", "also"}))


def test_two_proofs_at_one_place_that_show_different_errors_and_blame_different_lines_are_two_faults() -> None:
    deep, huge = failing("RecursionError", "json.loads(raw)"), failing("OverflowError", "if left > 0:")
    for two in ([deep, huge], [huge, deep]):
        filed = merged(two)
        assert len(filed) == 2 and all(one.candidate.also == () for one in filed)
        late = merged([two[1]], [as_known(two[0])], reviewed_before=True)
        assert (only(late).finding_id, only(late).lifecycle, only(late).seen_late) == (None, Lifecycle.NEW, True)
        both = merged(two, [as_known(two[0])])
        assert [one.finding_id for one in both] == ["old", None]


def test_a_finding_that_an_earlier_version_filed_without_a_shape_swallows_no_other_error() -> None:
    deep, huge = failing("RecursionError", "json.loads(raw)", shape=""), failing("OverflowError", "if left > 0:")
    assert only(merged([huge], [as_known(deep)])).finding_id is None
    again = failing("RecursionError", "return json.loads(raw)")
    assert only(merged([again], [as_known(deep)])).finding_id == "old"


@pytest.mark.parametrize(
    "again",
    [
        failing("RecursionError", "raw = file.read()"),
        failing("OverflowError", "json.loads(raw)"),
        failing("", "raw = file.read()"),
        failing("", "raw = file.read()", rule="swallowed_error"),
    ],
    ids=["the same error elsewhere", "the same line", "no error", "no error and another rule"],
)
def test_what_shares_the_error_or_the_line_or_names_no_error_is_the_fault_that_is_known_there(again: Claim) -> None:
    deep = failing("RecursionError", "json.loads(raw)")
    assert only(merged([again], [as_known(deep)])).finding_id == "old"
    assert only(merged([deep], [as_known(again)])).finding_id == "old"
    assert len(merged([deep, again])) == 1


def test_a_claim_that_names_no_error_does_not_bring_two_faults_together() -> None:
    three = [failing("", "x"), failing("RecursionError", "json.loads(raw)"), failing("OverflowError", "if left > 0:")]
    assert len(merged(three)) == 2


def test_what_an_agent_proves_beside_a_probes_traceback_is_another_fault_when_its_error_is_another() -> None:
    probe = failing("KeyError", "row[column]", source=Source.PROBE, rule="cli.traceback", step="probe:misuse")
    assert only(merged([failing("OverflowError", "int(left)")], [as_known(probe)])).finding_id is None
    assert only(merged([failing("KeyError", "int(left)")], [as_known(probe)])).finding_id == "old"


def test_of_candidates_that_will_be_one_finding_one_speaks_and_the_order_stays() -> None:
    there = Place(file="a.py", line=3, symbol="Usage")
    other = candidate(title="other", places=(Place(file="b.py", symbol="x"),), rule="other")
    twice = [candidate(title="one"), other, candidate(title="another")]
    twice[0] = twice[0].model_copy(update={"places": (*twice[0].places, there)})
    assert [one.title for one in one_each(twice)] == ["other", "another"]
    assert one_each(twice)[1].places == (*twice[2].places, there) and one_each([]) == ()


def test_of_two_faults_in_one_finding_the_one_that_is_left_speaks_from_then_on() -> None:
    both = only(merged(two_in_one())).candidate
    old = Known(
        id="old", fingerprint=fingerprint_of(both), state=FindingState.OPEN, candidate=both, step="s", commit="c1"
    )
    left = Recheck(verification=verified(CONFIRMED), still=both.also[0])
    filed = only(merged([], [old], rechecks={"old": left}))
    assert (filed.lifecycle, filed.candidate.title) == (Lifecycle.PERSISTING, "A power without bound never ends")
    assert filed.candidate.reproduction == both.also[0].reproduction and filed.candidate.also == ()
    assert filed.fingerprint == old.fingerprint
    gone = Recheck(verification=verified(NOT_REPRODUCED))
    assert only(merged([], [old], rechecks={"old": gone})).lifecycle is Lifecycle.FIXED


def test_a_proof_of_an_earlier_night_stays_with_the_finding_that_somebody_now_puts_otherwise() -> None:
    first, second = two_in_one()
    old = known(**first.candidate.model_dump(exclude={"focus", "also"}, exclude_unset=True))
    filed = only(merged([second], [old]))
    assert (filed.finding_id, filed.candidate.title) == ("old", "A power without bound never ends")
    assert [one.reproduction for one in filed.candidate.also] == [first.candidate.reproduction]
    again = only(merged([first], [old]))
    assert again.candidate.also == (), "the same words are the same proof"
    many = old
    for night in range(9):
        told = claim(title=f"Wholly{night} other{night} words{night}", **{
            name: getattr(second.candidate, name) for name in ("kind", "rule", "source", "places", "reproduction")
        })  # fmt: skip
        many = many.model_copy(update={"candidate": only(merged([told], [many])).candidate})
    assert len(many.candidate.also) == 3


def test_the_best_proof_speaks_for_a_finding() -> None:
    filed = only(merged([claim(NOT_REPRODUCED, title="bad"), claim(CONFIRMED, title="good")]))
    assert (filed.candidate.title, filed.verification.state) == ("good", CONFIRMED)


def test_open_findings_are_taken_before_fixed_ones() -> None:
    place = (Place(file="a.py", symbol="parse"),)
    earlier = [
        known("fixed", FindingState.FIXED, shape="A", places=place),
        known("open", FindingState.OPEN, shape="B", places=place),
    ]
    assert only(merged([claim(shape="C", places=place)], earlier)).finding_id == "open"


@pytest.mark.timeout(60)
def test_thousands_of_claims_about_one_place_take_no_time_squared() -> None:
    place = (Place(file="a.py", symbol="f"),)
    many = [claim(places=place, shape=f"shape {number}") for number in range(3000)]
    earlier = [known(str(number), places=place, shape=f"other {number}") for number in range(3000)]
    filed = merged(many, earlier)
    assert len({one.finding_id for one in filed}) == 3000


@pytest.mark.timeout(20)
def test_a_thousand_claims_of_agents_about_one_place_with_an_error_each_are_told_apart_in_a_moment() -> None:
    many = [failing(f"E{number}Error", f"line {number}") for number in range(1000)]
    assert len(merged(many)) == 1000
