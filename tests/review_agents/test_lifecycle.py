import subprocess
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from review_agents.identity import fingerprint_of
from review_agents.lifecycle import Filed, Look, Recheck, merge, to_recheck
from review_agents.records import (
    Candidate,
    Environment,
    FindingState,
    Kind,
    Lifecycle,
    Place,
    Ran,
    Reproduction,
    Severity,
    Source,
    Symptom,
    Verification,
    VerificationState,
)
from review_agents.sameness import Claim, Known

FILES = ("README.md", "a.py", "b.py")
CONFIRMED, FLAKY = VerificationState.CONFIRMED, VerificationState.FLAKY
NOT_REPRODUCED, UNVERIFIED = VerificationState.NOT_REPRODUCED, VerificationState.UNVERIFIED
LOOKED = (Look(step="probe:readme"),)


def reproduction(command: str, environment: Environment = Environment.PLAIN) -> Reproduction:
    return Reproduction(
        command=command, expected="e", observed="o", environment=environment, symptom=Symptom(nonzero=True)
    )


def candidate(**changed: Any) -> Candidate:
    given: dict[str, Any] = {
        "kind": Kind.DOCUMENTATION,
        "rule": "readme.output-differs",
        "title": "t",
        "description": "d",
        "severity": Severity.MEDIUM,
        "places": (Place(file="README.md", symbol="Usage", quote="q"),),
        **changed,
    }
    if "reproduction" not in given:
        given["reproduction"] = reproduction("run " + repr((given["rule"], given.get("shape"), given["places"])))
    return Candidate(**given)


def claim(state: VerificationState = CONFIRMED, step: str = "probe:readme", **changed: Any) -> Claim:
    return Claim(candidate=candidate(**changed), verification=verified(state), step=step)


def verified(state: VerificationState, *, exit: int | None = 0, **changed: Any) -> Verification:
    runs = () if state is UNVERIFIED else (Ran(exit=exit, **changed),) * 2
    return Verification(state=state, reason="", runs=runs)


def known(
    id: str = "old", state: FindingState = FindingState.OPEN, commit: str = "c1", ignored: str = "", **changed: Any
) -> Known:
    step = changed.pop("step", "probe:readme")
    one = candidate(**changed)
    return Known(
        id=id, fingerprint=fingerprint_of(one), state=state, candidate=one, step=step, commit=commit, ignored=ignored
    )


def merged(claims: Sequence[Claim] = (), earlier: Sequence[Known] = (), **changed: Any) -> tuple[Filed, ...]:
    given: dict[str, Any] = {
        "rechecks": {},
        "looks": LOOKED,
        "commit": "c2",
        "files": FILES,
        "reviewed_before": False,
        **changed,
    }
    return merge(claims, earlier, **given)


def only(filed: tuple[Filed, ...]) -> Filed:
    assert len(filed) == 1, filed
    return filed[0]


# New, persisting, regressed ----------------------------------------------------------------


def test_a_confirmed_fault_that_nobody_knew_is_new_and_open() -> None:
    filed = only(merged([claim()]))
    assert (filed.finding_id, filed.lifecycle, filed.state) == (None, Lifecycle.NEW, FindingState.OPEN)
    assert filed.fingerprint == fingerprint_of(candidate()) and not filed.seen_late


def test_a_fault_that_was_open_persists_whatever_its_line_title_and_quote() -> None:
    moved = claim(title="other words", places=(Place(file="README.md", symbol="Usage", line=99, quote="new"),))
    filed = only(merged([moved], [known()]))
    assert (filed.finding_id, filed.lifecycle) == ("old", Lifecycle.PERSISTING)
    assert filed.candidate.title == "other words"


def test_a_confirmed_fault_that_was_fixed_has_regressed_and_is_open_again() -> None:
    filed = only(merged([claim()], [known(state=FindingState.FIXED)]))
    assert (filed.lifecycle, filed.state) == (Lifecycle.REGRESSED, FindingState.OPEN)


@pytest.mark.parametrize("state", [NOT_REPRODUCED, UNVERIFIED])
def test_a_claim_without_proof_is_filed_as_that_and_never_opens_or_reopens(state: VerificationState) -> None:
    assert only(merged([claim(state)])).state is FindingState.CLAIMED
    assert only(merged([claim(state)], [known(state=FindingState.FIXED)])).state is FindingState.FIXED
    assert only(merged([claim(state)], [known()])).state is FindingState.OPEN


def test_a_claim_that_is_proved_later_is_new_then() -> None:
    filed = only(merged([claim()], [known(state=FindingState.CLAIMED)]))
    assert (filed.finding_id, filed.lifecycle, filed.state) == ("old", Lifecycle.NEW, FindingState.OPEN)


def test_a_confirmed_fault_first_seen_on_a_commit_reviewed_before_is_new_but_seen_late() -> None:
    assert only(merged([claim()], reviewed_before=True)).seen_late
    assert not only(merged([claim()], [known()], reviewed_before=True)).seen_late
    assert not only(merged([claim(NOT_REPRODUCED)], reviewed_before=True)).seen_late


# Fixed needs proof -------------------------------------------------------------------------


def test_absence_alone_marks_nothing() -> None:
    assert merged([], [known()]) == ()


def test_only_open_findings_with_a_reproduction_that_nobody_repeats_are_run_again() -> None:
    earlier = [
        known("open", shape="a"),
        known("repeated", shape="b"),
        known("fixed", FindingState.FIXED, shape="c"),
        known("claimed", FindingState.CLAIMED, shape="d"),
        known("opinion", shape="e", reproduction=None, opinion=True),
    ]
    assert [one.id for one in to_recheck([claim(shape="b")], earlier, files=FILES)] == ["open"]


def test_a_reproduction_that_no_longer_shows_the_fault_on_another_commit_proves_it_fixed() -> None:
    filed = only(merged([], [known()], rechecks={"old": Recheck(verification=verified(NOT_REPRODUCED))}))
    assert (filed.finding_id, filed.lifecycle, filed.state) == ("old", Lifecycle.FIXED, FindingState.FIXED)


def test_on_the_commit_that_showed_it_a_fault_that_does_not_show_stays_open() -> None:
    filed = only(merged([], [known()], commit="c1", rechecks={"old": Recheck(verification=verified(NOT_REPRODUCED))}))
    assert (filed.lifecycle, filed.state) == (Lifecycle.PERSISTING, FindingState.OPEN)
    assert filed.verification.state is NOT_REPRODUCED


@pytest.mark.parametrize(
    "ended", [{"timed_out": True}, {"oom": True}, {"exit": 127}, {"exit": 126}], ids=lambda ended: next(iter(ended))
)
def test_a_re_run_that_did_not_really_run_marks_nothing(ended: dict[str, Any]) -> None:
    assert merged([], [known()], rechecks={"old": Recheck(verification=verified(NOT_REPRODUCED, **ended))}) == ()


@pytest.mark.parametrize(
    "script",
    [
        "python3 -c 'from json import greet'",
        "python3 -c 'import no_such_module_here'",
        "python3 -m no_such_module_here",
        "python3 no_such_file_here.py",
        "python3 -c 'import json; json.greet()'",
        "python3 -c 'import json; json.JSONDecoder.greet()'",
        "python3 -c 'import json; json.JSONDecoder().greet()'",
        "python3 -c 'print(greet)'",
        "python3 -c 'def greet(name): pass\ngreet(loud=1)'",
        "python3 -c 'def greet(name): pass\ngreet()'",
        "python3 -c 'def greet(name): pass\ngreet(1, 2)'",
        "python3 -c 'class Greeter:\n    def __init__(self, name): pass\nGreeter()'",
        "python3 -c 'print greet'",
        "no_such_program_here --greet; echo done",
        "python3 -c 'import json; json.greet()' || echo 'it does not greet'",
    ],
)
def test_a_re_run_that_meets_another_interface_marks_nothing(script: str) -> None:
    said = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    verification = verified(NOT_REPRODUCED, exit=said.returncode, head=said.stdout)
    assert merged([], [known()], rechecks={"old": Recheck(verification=verification)}) == (), said.stdout
    pytests = verified(NOT_REPRODUCED, exit=1, head="".join(f"E   {line}\n" for line in said.stdout.splitlines()))
    assert merged([], [known()], rechecks={"old": Recheck(verification=pytests)}) == (), said.stdout


@pytest.mark.parametrize(
    "raised",
    [
        "ValueError('no name was given')",
        "TypeError('name must be text, not int')",
        "ImportError('greeting in colour needs rich: pip install greet[colour]')",
        "AttributeError('a greeting cannot be changed')",
        "LookupError('name is not defined in this language')",
    ],
)
def test_what_a_mended_program_says_by_itself_is_a_proof(raised: str) -> None:
    script = ["python3", "-c", f"raise {raised}"]
    said = subprocess.run(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    verification = verified(NOT_REPRODUCED, exit=said.returncode, head=said.stdout)
    filed = only(merged([], [known()], rechecks={"old": Recheck(verification=verification)}))
    assert filed.lifecycle is Lifecycle.FIXED


def test_a_re_run_in_an_environment_that_could_not_be_made_marks_nothing() -> None:
    recheck = {"old": Recheck(verification=verified(NOT_REPRODUCED))}
    assert merged([], [known()], rechecks=recheck, environments=[Environment.NONE]) == ()


def test_a_dead_verifier_marks_nothing() -> None:
    assert merged([], [known()], rechecks={"old": Recheck(verification=verified(UNVERIFIED))}) == ()


def test_a_fault_that_only_the_re_run_still_shows_persists() -> None:
    filed = only(merged([], [known()], rechecks={"old": Recheck(verification=verified(CONFIRMED))}))
    assert (filed.lifecycle, filed.verification.state) == (Lifecycle.PERSISTING, CONFIRMED)


def test_a_documented_claim_that_was_taken_out_of_the_text_is_fixed_once_the_same_step_looked_again() -> None:
    recheck = {"old": Recheck(verification=verified(CONFIRMED), quotes_gone=True)}
    filed = only(merged([], [known()], rechecks=recheck))
    assert (filed.lifecycle, filed.state) == (Lifecycle.FIXED, FindingState.FIXED)
    assert filed.verification.reason == "the quoted text is no longer in README.md"


@pytest.mark.parametrize(
    "looks", [(), (Look(step="probe:other"),), (Look(step="probe:readme", files=frozenset({"x"})),)]
)
def test_a_text_that_is_gone_proves_nothing_unless_the_same_step_completed_and_looked_there(looks: Any) -> None:
    recheck = {"old": Recheck(verification=verified(CONFIRMED), quotes_gone=True)}
    assert merged([], [known()], rechecks=recheck, looks=looks) == ()


def test_a_bug_whose_code_was_reworded_persists_while_its_reproduction_shows_it() -> None:
    bug = known(kind=Kind.CORRECTNESS, source=Source.AGENT, rule="wrong_result", step="focus:logic")
    recheck = {"old": Recheck(verification=verified(CONFIRMED), quotes_gone=True)}
    filed = only(merged([], [bug], rechecks=recheck, looks=[Look(step="focus:logic")]))
    assert filed.lifecycle is Lifecycle.PERSISTING


OF_A_PAGE: dict[str, Any] = {"kind": Kind.CORRECTNESS, "rule": "readme.output-differs"}


@pytest.mark.parametrize("showed", [CONFIRMED, NOT_REPRODUCED, FLAKY, UNVERIFIED])
def test_what_the_script_of_a_page_shows_decides_nothing_once_the_page_is_another(showed: VerificationState) -> None:
    recheck = {"old": Recheck(verification=verified(showed), outdated=("README.md",))}
    filed = only(merged([], [known(**OF_A_PAGE)], rechecks=recheck))
    assert (filed.lifecycle, filed.verification.state) == (Lifecycle.FIXED, NOT_REPRODUCED)
    assert "another text now; probe:readme looked there again and found nothing" in filed.verification.reason
    for blind in ((), (Look(step="probe:other"),), (Look(step="probe:readme", left_out=frozenset({"README.md"})),)):
        assert merged([], [known(**OF_A_PAGE)], rechecks=recheck, looks=blind) == ()


def test_a_fault_that_the_probe_finds_again_on_the_page_of_today_persists() -> None:
    filed = only(merged([claim(shape="another", **OF_A_PAGE)], [known(**OF_A_PAGE)]))
    assert (filed.finding_id, filed.lifecycle) == ("old", Lifecycle.PERSISTING)


def test_a_probe_that_did_not_come_to_the_end_of_the_page_with_the_script_marks_nothing() -> None:
    elsewhere = known(places=(Place(file="a.py", symbol="f", quote="q"),), **OF_A_PAGE)
    recheck = {"old": Recheck(verification=verified(CONFIRMED), outdated=("README.md",))}
    looks = (Look(step="probe:readme", left_out=frozenset({"README.md"})),)
    assert merged([], [elsewhere], rechecks=recheck, looks=looks) == ()
    assert only(merged([], [elsewhere], rechecks=recheck)).lifecycle is Lifecycle.FIXED


def test_on_the_commit_that_showed_it_no_text_can_be_another() -> None:
    recheck = {"old": Recheck(verification=verified(CONFIRMED), outdated=("README.md",))}
    assert only(merged([], [known(**OF_A_PAGE)], commit="c1", rechecks=recheck)).lifecycle is Lifecycle.PERSISTING


# Ignores -----------------------------------------------------------------------------------


def test_what_the_operator_ignores_is_listed_as_ignored_while_that_lasts() -> None:
    filed = only(merged([claim()], [known(ignored="known, planned for 2.0")]))
    assert (filed.lifecycle, filed.ignored_by) == (Lifecycle.IGNORED, "operator: known, planned for 2.0")
    assert only(merged([claim()], [known()])).lifecycle is Lifecycle.PERSISTING


def test_an_ignored_finding_that_was_proved_fixed_is_fixed() -> None:
    recheck = {"old": Recheck(verification=verified(NOT_REPRODUCED))}
    assert only(merged([], [known(ignored="r")], rechecks=recheck)).lifecycle is Lifecycle.FIXED


@pytest.mark.parametrize(
    "ignore",
    [
        {"rule": "readme.output-differs"},
        {"kind": "documentation", "path": "README*"},
        {"path": "*.md", "reason": "generated"},
    ],
)
def test_a_repos_own_ignores_are_listed_as_such(ignore: dict[str, str]) -> None:
    filed = only(merged([claim()], repo_ignores=[ignore]))
    assert filed.lifecycle is Lifecycle.IGNORED
    assert filed.ignored_by == f"repo: {ignore.get('reason', 'no reason given')}"
    assert filed.state is FindingState.OPEN


@pytest.mark.parametrize(
    "ignore", [{}, {"reason": "everything"}, {"rule": "other"}, {"kind": "security"}, {"path": "x"}]
)
def test_an_ignore_that_does_not_fit_or_names_nothing_ignores_nothing(ignore: dict[str, str]) -> None:
    assert only(merged([claim()], repo_ignores=[ignore])).lifecycle is Lifecycle.NEW


@pytest.mark.parametrize(
    "changed", [{"kind": Kind.SECURITY}, {"rule": "reviewer-text.instruction"}, {"rule": "reviewer_text.x"}]
)
def test_a_repo_cannot_ignore_security_or_text_that_addresses_reviewers(changed: dict[str, Any]) -> None:
    assert only(merged([claim(**changed)], repo_ignores=[{"path": "*"}])).lifecycle is Lifecycle.NEW


def test_a_repos_ignore_fits_only_where_all_places_fit() -> None:
    places = (Place(file="README.md", symbol="Usage"), Place(file="a.py", symbol="f"))
    assert only(merged([claim(places=places)], repo_ignores=[{"path": "*.md"}])).lifecycle is Lifecycle.NEW


# What holds for all ------------------------------------------------------------------------

places = st.builds(
    Place,
    file=st.sampled_from(FILES),
    symbol=st.sampled_from(["", "f", "g"]),
    line=st.integers(1, 9),
    quote=st.sampled_from(["", "q", "r"]),
)


ERRORS = ("KeyError", "ValueError", "ValueError and KeyError")
PROOFS = (
    *map(reproduction, ("x", "y")),
    *(reproduction(one).model_copy(update={"symptom": Symptom(contains=(one,))}) for one in ERRORS),
)


@st.composite
def candidates(draw: st.DrawFn) -> Candidate:
    return candidate(
        kind=draw(st.sampled_from([Kind.DOCUMENTATION, Kind.CORRECTNESS, Kind.SECURITY])),
        rule=draw(st.sampled_from(["r.one", "r.two"])),
        severity=draw(st.sampled_from(list(Severity))),
        places=tuple(draw(st.lists(places, min_size=1, max_size=3))),
        shape=draw(st.sampled_from(["", "ValueError: N", "KeyError: '…'"])),
        source=draw(st.sampled_from(list(Source))),
        reproduction=draw(st.sampled_from([None, *PROOFS])),
    )


claims = st.lists(
    st.builds(
        lambda one, state: Claim(candidate=one, verification=verified(state), step="probe:readme"),
        candidates(),
        st.sampled_from(list(VerificationState)),
    ),
    max_size=8,
)


def remembered(filed: Sequence[Filed], commit: str) -> list[Known]:
    """What the next review would load, had this one been the first."""
    return [
        Known(
            id=one.finding_id or f"id-{one.fingerprint}",
            fingerprint=one.fingerprint,
            state=one.state,
            candidate=one.candidate,
            step=one.step,
            commit=commit,
        )
        for one in filed
    ]


@given(claims)
def test_a_second_review_of_the_same_commit_says_nothing_new(found: list[Claim]) -> None:
    first = merged(found, commit="c1")
    second = merged(found, remembered(first, "c1"), commit="c1", reviewed_before=True)
    assert {one.finding_id for one in second} == {f"id-{one.fingerprint}" for one in first}
    assert {one.lifecycle for one in second} <= {Lifecycle.PERSISTING}


@given(claims)
def test_no_two_findings_of_a_repo_ever_share_a_fingerprint(found: list[Claim]) -> None:
    first = merged(found)
    assert len({one.fingerprint for one in first}) == len(first)


@given(claims, claims, st.randoms())
def test_fingerprints_stay_unique_over_two_reviews_in_any_order(
    first: list[Claim], second: list[Claim], random: Any
) -> None:
    earlier = remembered(merged(first, commit="c1"), "c1")
    filed = merged(second, earlier)
    taken = [one.id for one in earlier] + [str(one.finding_id) for one in filed if one.finding_id]
    new = [one.fingerprint for one in filed if one.finding_id is None]
    assert len(set(new)) == len(new)
    assert not set(new) & {one.fingerprint for one in earlier}
    matched = [one.finding_id for one in filed if one.finding_id]
    assert len(set(matched)) == len(matched) and set(matched) <= set(taken)

    random.shuffle(second)
    random.shuffle(earlier)
    assert merged(second, earlier) == filed


@given(claims)
def test_every_place_of_every_claim_is_in_some_finding(found: list[Claim]) -> None:
    wanted = {(place.file, place.symbol) for one in found for place in one.candidate.places}
    kept = {(place.file, place.symbol) for one in merged(found) for place in one.candidate.places}
    assert wanted == kept


@given(claims)
def test_nothing_is_ever_fixed_without_a_re_run(found: list[Claim]) -> None:
    earlier = remembered(merged(found, commit="c1"), "c1")
    assert merged([], earlier) == ()


@given(claims, claims)
def test_every_open_finding_is_repeated_asked_for_again_or_cannot_be_run(
    first: list[Claim], second: list[Claim]
) -> None:
    earlier = remembered(merged(first, commit="c1"), "c1")
    repeated = {one.finding_id for one in merged(second, earlier)}
    asked = {one.id for one in to_recheck(second, earlier, files=FILES)}
    assert not repeated & asked
    for one in earlier:
        if one.state is FindingState.OPEN and one.candidate.reproduction:
            assert one.id in repeated | asked


def test_texts_that_are_no_unicode_are_merged_like_others() -> None:
    one = claim(title="\ud800", places=(Place(file="a\udcff.py", symbol="\x00"),))
    filed = merged([one, one])
    assert len(filed) == 1
    assert only(merged([one], remembered(filed, "c1"))).lifecycle is Lifecycle.PERSISTING
