"""What is said about a finding: its command, its control, and the runs that prove it. Hostile texts: test_pages.py."""

from dataclasses import replace
from uuid import uuid4

from orchestrator.services.views import FindingRow
from orchestrator.web.finding_parts import finding_item, finding_proof, verification_runs
from review_agents.records import Environment, Lifecycle, Network, Place, Ran, Severity, Source, Symptom
from tests.factories import make_candidate, make_reproduction
from tests.orchestrator.web.html import read

CANDIDATE = make_candidate(title="It prints `3`", severity=Severity.HIGH)
FINDING = FindingRow(
    id=uuid4(), fingerprint="0123456789abcdef", kind=CANDIDATE.kind, rule=CANDIDATE.rule, title=CANDIDATE.title,
    description=CANDIDATE.description, severity=CANDIDATE.severity, places=CANDIDATE.places, opinion=False,
    reproduction=CANDIDATE.reproduction, verification_state="confirmed", verification_reason="",
    lifecycle=Lifecycle.NEW, seen_late=False, source=Source.PROBE, focus="", ignored_by="",
)  # fmt: skip
PROOF = make_reproduction(symptom=Symptom(contains=("3",)))


def test_a_finding_is_folded_to_its_title_place_and_marks() -> None:
    page = read(finding_item(FINDING, "1"))
    words = " ".join(page.all("summary")[0].text.split()) + page.text
    assert "It prints" in words and "High" in words and "confirmed" in words and "new" in words
    assert page.all("code")[0].text == "3"
    assert "open" not in page.all("details")[0].attributes
    assert "open" in read(finding_item(FINDING, "1", open=True)).all("details")[0].attributes


def test_places_after_the_first_are_counted() -> None:
    three = tuple(Place(file=f"{name}.py", line=7) for name in "abc")
    assert "<code>a.py:7</code> and 2 more" in finding_item(replace(FINDING, places=three), "1")


def test_its_runs_can_be_unfolded_where_a_review_and_a_command_are_known() -> None:
    review = uuid4()
    fold = next(
        one for one in read(finding_item(FINDING, "1", review=review)).all("details") if "data-fill" in one.attributes
    )
    assert fold.attributes["data-fill"] == f"/reviews/{review}/findings/{FINDING.id}/runs"
    assert "data-fill" not in finding_item(FINDING, "1")
    assert "data-fill" not in finding_item(replace(FINDING, reproduction=None), "1", review=review)


def test_what_a_command_needs_is_said_before_it() -> None:
    for environment, network, words in (
        (Environment.NONE, Network.NONE, "in a clone</p>"),
        (Environment.PLAIN, Network.NONE, "with <code>pip install .</code> done</p>"),
        (Environment.TEST, Network.EGRESS, "its test needs installed, with network</p>"),
    ):
        proof = make_reproduction(environment=environment, network=network)
        assert words in finding_proof(replace(FINDING, reproduction=proof), "k")


def test_a_control_is_shown_and_a_missing_one_is_said() -> None:
    assert "<pre>true</pre>" in finding_proof(replace(FINDING, reproduction=make_reproduction(control="true")), "k")
    assert "No control" in finding_proof(replace(FINDING, reproduction=make_reproduction(control=None)), "k")
    assert "backed by the quoted lines" in finding_proof(replace(FINDING, reproduction=None, opinion=True), "k")


def test_each_run_says_whether_it_shows_the_fault_and_how_its_control_ended() -> None:
    runs = (Ran(exit=1, seconds=0.4, head="3\n"), Ran(exit=0, seconds=0.2, head="4\n"))
    controls = (Ran(exit=0, seconds=0.1), Ran(exit=2, seconds=0.1, head="broken\n"))
    said = [element.text for element in read(verification_runs(PROOF, runs, controls)).all("summary")]
    assert said == [
        "Run 1: exit status 1, 400 ms: shows the fault",
        "Control of run 1: exit status 0, 100 ms: as it must",
        "Run 2: exit status 0, 200 ms: does not show it",
        "Control of run 2: exit status 2, 100 ms: failed, too",
    ]


def test_runs_without_output_or_none_at_all_say_so() -> None:
    assert "It printed nothing." in verification_runs(PROOF, (Ran(exit=1),), ())
    assert "No run was kept." in verification_runs(PROOF, (), ())


def test_output_of_a_run_is_escaped_and_made_visible() -> None:
    shown = verification_runs(PROOF, (Ran(exit=1, head="<b>\x1b[2J\u202e"),), ())
    assert "&lt;b&gt;" in shown and "\u202e" not in shown and "\x1b" not in shown
