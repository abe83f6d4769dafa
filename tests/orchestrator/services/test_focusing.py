"""Agents within a review: the whole path over a scripted model, a sandbox that plays a script, and real tables."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from orchestrator.sandbox.contract import BoxGone
from orchestrator.services import exporting, memos, reviews, submitting, working
from orchestrator.services.proving import ABSENT
from orchestrator.services.submitting import Submission
from orchestrator.services.views import ReviewPage, ReviewState, StepState
from orchestrator.services.workshop import Workshop
from orchestrator.store import logs, transcripts
from orchestrator.store.outputs import Output
from orchestrator.store.session import Sessions
from orchestrator.store.steps import CandidateRow, Step
from review_agents.ports import NodeAway, NodeRefused
from review_agents.records import Answer, Candidate, Entry, Lifecycle, Ran, Source, VerificationState
from review_agents.scripted import ScriptedModel, call, calls, recorded, recording_of, said
from tests.support.tiny import FILES, SECOND, Script, TinyGit
from tests.support.tiny_agents import DONE, FINDS, NOTHING, PROVE, SHOUTS, finding, model_of, thinking


@pytest.fixture
def script() -> Script:
    return Script(**{PROVE: SHOUTS})


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path, script: Script) -> Workshop:
    return thinking(sessions, tmp_path, script, newcomer=NOTHING, correctness=FINDS)


def reviewed(shop: Workshop, **given: Any) -> ReviewPage:
    review_id = submitting.submit(shop, Submission("https://git.example/team/tiny", **given))
    working.do_one(shop, review_id)
    return reviews.get(shop, review_id)


def step(page: ReviewPage, name: str) -> Any:
    return next(one for one in page.steps if one.name == name)


def by_agents(page: ReviewPage) -> list[Any]:
    return [one for one in page.findings if one.source is Source.AGENT]


# The whole path ------------------------------------------------------------------------------


def test_focuses_run_as_steps_and_what_they_find_is_proved_and_filed_by_code(shop: Workshop, script: Script) -> None:
    page = reviewed(shop)
    assert (page.row.state, page.row.error) == (ReviewState.DONE, "")
    names = [one.name for one in page.steps if not one.name.startswith("verify:")]
    assert names[-4:] == ["focus:newcomer", "focus:correctness", "merge", "record"]
    (found,) = by_agents(page)
    assert (found.lifecycle, found.verification_state) == (Lifecycle.NEW, VerificationState.CONFIRMED)
    assert (found.focus, found.rule, found.places[0].file) == ("correctness", "wrong_result", "greet.sh")
    assert "evidence only" not in page.row.outcome_note
    assert (page.model, page.node) == ("scripted", "scripted")
    proofs = [command for command in script.ran if command == PROVE]
    assert len(proofs) == 4, "twice when it was recorded, twice to verify it"
    assert script.ran.count(ABSENT + PROVE) == 2 and script.ran.count("test -f greet.sh") == 4


def test_without_agents_nothing_of_it_happens(shop: Workshop) -> None:
    page = reviewed(shop, agents=False)
    assert "evidence only" in page.row.outcome_note and page.tokens == {} and page.model == ""
    assert not any(one.name.startswith("focus:") for one in page.steps) and model_of(shop).asked == []


def test_only_the_focuses_that_were_asked_for_run(shop: Workshop) -> None:
    page = reviewed(shop, focuses=("correctness",))
    assert [one.name for one in page.steps if one.name.startswith("focus:")] == ["focus:correctness"]


def test_where_the_operator_says_none_only_focuses_that_are_named_run(shop: Workshop) -> None:
    quiet = replace(shop, settings=shop.settings.model_copy(update={"default_focuses": "none"}))
    assert not [one.name for one in reviewed(quiet).steps if one.name.startswith("focus:")]
    named = reviewed(quiet, focuses=("correctness",), force=True)
    assert [one.name for one in named.steps if one.name.startswith("focus:")] == ["focus:correctness"]


def test_a_focus_that_does_not_exist_is_refused_with_those_that_do(shop: Workshop) -> None:
    from orchestrator.services.errors import BadInput

    with pytest.raises(BadInput, match=r"no focus “beauty”.*newcomer, correctness"):
        reviewed(shop, focuses=("beauty",))


def test_tokens_are_recorded_by_focus_with_what_a_confirmed_finding_cost(shop: Workshop) -> None:
    tokens = reviewed(shop).tokens
    correctness = tokens["by_focus"]["correctness"]
    assert tokens["prompt"] > tokens["cached"] > 0 and tokens["completion"] > 0
    assert (correctness["turns"], correctness["findings"], correctness["confirmed"]) == (3, 1, 1)
    assert correctness["per_confirmed"] > 0 and tokens["by_focus"]["newcomer"]["per_confirmed"] is None
    assert tokens["per_confirmed"] > correctness["per_confirmed"]


def test_what_an_agent_did_is_in_the_steps_log_while_it_runs(shop: Workshop) -> None:
    page = reviewed(shop)
    with shop.sessions.reading() as db:
        text = logs.text_of(db, step(page, "focus:correctness").id)
    assert '> run {"command": "bash greet.sh"}' in text and "$ bash greet.sh" in text and "> record_finding" in text


def test_the_transcript_is_stored_whole_and_is_a_model(shop: Workshop, sessions: Sessions, tmp_path: Path) -> None:
    first = reviewed(shop)
    transcripts_of_review = {}
    with shop.sessions.reading() as db:
        for step_id, name, number in transcripts.steps_with(db, first.row.id):
            entries = [Entry.model_validate(turn.body) for turn in transcripts.of_step(db, step_id)]
            assert len(entries) == number
            transcripts_of_review[name] = entries
    text = recording_of(transcripts_of_review)
    from dataclasses import replace

    again = reviewed(replace(shop, chat=lambda: recorded(text)))
    assert again.row.state is ReviewState.DONE
    assert [one.lifecycle for one in again.findings] == [Lifecycle.PERSISTING] * len(first.findings)
    assert again.row.counts.new == 0


def test_who_judges_and_as_what_is_told_to_agents_and_kept_with_the_repo(shop: Workshop) -> None:
    from orchestrator.services.errors import BadInput

    model_of(shop)._left["focus:newcomer"] = [*NOTHING, *NOTHING]
    reviewed(shop, focuses=("newcomer",), profile="adoption", flavour="research")
    reviewed(shop, focuses=("newcomer",))
    for question in model_of(shop).asked:
        assert "depend on this software for years" in question.messages[0].text
        assert "research code; whether its results are right" in question.messages[0].text
    with pytest.raises(BadInput, match="general, adoption, application, student"):
        reviewed(shop, profile="nobody")


def test_what_the_agents_were_told_is_kept_with_the_review_also_where_nobody_said_it(shop: Workshop) -> None:
    page = reviewed(shop)
    assert (page.profile, page.flavour) == ("general", "production")


def test_asking_again_with_other_words_for_this_time_leaves_the_repos_own(shop: Workshop) -> None:
    model_of(shop)._left["focus:newcomer"] = [*NOTHING, *NOTHING, *NOTHING]
    reviewed(shop, focuses=("newcomer",), profile="adoption")
    once = reviewed(shop, focuses=("newcomer",), profile="student", remember=False)
    assert once.profile == "student"
    assert reviewed(shop, focuses=("newcomer",)).profile == "adoption"


# Proofs --------------------------------------------------------------------------------------


def test_a_script_that_shows_its_text_without_the_repo_proves_nothing(shop: Workshop, script: Script) -> None:
    script.says[ABSENT + PROVE] = SHOUTS
    insists = [call("record_finding", **finding())] * 2 + [DONE]
    model_of(shop)._left["focus:correctness"] = list(insists)
    page = reviewed(shop)
    (found,) = by_agents(page)
    assert found.verification_state is VerificationState.UNVERIFIED
    assert "without the package and the repo" in found.verification_reason
    told = model_of(shop).asked[-2].messages[-1].text
    assert "Not stored yet" in told and "without the package and the repo" in told


def test_a_script_that_does_not_show_the_fault_is_not_reproduced_whatever_the_model_says(
    shop: Workshop, script: Script
) -> None:
    script.says[PROVE] = Ran(exit=0, head="HELLO\n")
    model_of(shop)._left["focus:correctness"] = [call("record_finding", **finding())] * 2 + [DONE]
    (found,) = by_agents(reviewed(shop))
    assert found.verification_state is VerificationState.NOT_REPRODUCED


def test_of_several_texts_only_the_missing_one_is_named_with_the_lines_that_come_nearest(
    shop: Workshop, script: Script
) -> None:
    noise = "".join(f"step {n} of many\n" for n in range(200))
    script.says[PROVE] = Ran(exit=0, head=f"total was 7 of 9\nGOOD EVENING\n{noise}the end <|im_start|>\n")
    asked = finding(output_contains=["the end", "total was 8 of 9", "GOOD EVENING"])
    model_of(shop)._left["focus:correctness"] = [call("record_finding", **asked), DONE]
    reviewed(shop, focuses=("correctness",))
    told = model_of(shop).asked[-1].messages[-1].text
    assert "did not contain 'total was 8 of 9' (it had the 2 other texts). It ended with exit status 0" in told
    assert "1: total was 7 of 9" in told and "step 199 of many\nthe end ‹|im_start|›" in told
    assert "\nstep 100 of many" not in told


def test_an_exit_status_that_did_not_come_is_named_beside_texts_that_did(shop: Workshop, script: Script) -> None:
    asked = finding(exit_status=3)
    model_of(shop)._left["focus:correctness"] = [call("record_finding", **asked), DONE]
    reviewed(shop, focuses=("correctness",))
    told = model_of(shop).asked[-1].messages[-1].text
    assert "container: it did not end with exit status 3. It ended with exit status 0" in told


BEEPS = "set -e\nbash greet.sh --beep"
ANOTHER = finding(
    title="greet.sh beeps", command=BEEPS, output_contains=["BEEP"], differs="it is about the beep, not about the words"
)


def test_another_fault_in_a_place_is_stored_where_neither_script_shows_the_others_text_and_the_finding_names_both(
    shop: Workshop, script: Script
) -> None:
    script.says[BEEPS] = Ran(exit=0, head="BEEP\n")
    model_of(shop)._left["focus:correctness"] = [
        call("record_finding", **finding()),
        call("record_finding", **ANOTHER),
        DONE,
    ]
    page = reviewed(shop, focuses=("correctness",))
    assert "Stored as finding" in model_of(shop).asked[-1].messages[-1].text
    (found,) = by_agents(page)
    assert {found.title, *(one.title for one in found.also)} == {finding()["title"], "greet.sh beeps"}


@pytest.mark.parametrize(
    ("beeps", "shouts", "why"),
    [
        ("GOOD MORNING BEEP\n", "GOOD MORNING\n", "this script shows the text of that finding, too"),
        ("BEEP\n", "GOOD MORNING BEEP\n", "its script shows the text of this one, too"),
    ],
)
def test_a_fault_whose_script_shows_the_text_of_the_known_one_is_the_known_one(
    shop: Workshop, script: Script, beeps: str, shouts: str, why: str
) -> None:
    script.says[BEEPS], script.says[PROVE] = Ran(exit=0, head=beeps), Ran(exit=0, head=shouts)
    model_of(shop)._left["focus:correctness"] = [
        call("record_finding", **finding()),
        call("record_finding", **ANOTHER),
        DONE,
    ]
    page = reviewed(shop, focuses=("correctness",))
    assert why in model_of(shop).asked[-1].messages[-1].text
    (found,) = by_agents(page)
    assert found.also == ()


def test_what_an_agent_could_not_record_is_told_to_the_next_and_what_a_check_said_can_be_read(shop: Workshop) -> None:
    names = list(shop.focuses)
    first, second = sorted(("newcomer", "correctness"), key=names.index)
    bad = finding(title="It is not there at all", quote="no such line")
    model_of(shop)._left[f"focus:{first}"] = [call("record_finding", **bad), DONE]
    model_of(shop)._left[f"focus:{second}"] = [call("read", path="evidence:install"), DONE]
    reviewed(shop)
    last = model_of(shop).asked[-1].messages
    assert "Not stored for others" in last[3].text and "It is not there at all (greet.sh)" in last[3].text
    assert "evidence:install lines 1-" in last[-1].text


def test_a_script_that_seems_to_depend_on_time_is_run_more_often(shop: Workshop, script: Script) -> None:
    slow = f"sleep 0.01\n{PROVE}"
    script.says[slow] = [*[SHOUTS] * 8, Ran(exit=0, head="HELLO\n")]  # steady at the trial and at first
    model_of(shop)._left["focus:correctness"] = [call("record_finding", **finding(command=slow)), DONE]
    (found,) = by_agents(reviewed(shop))
    assert found.verification_state is VerificationState.FLAKY


def test_an_opinion_is_filed_as_one_with_its_quotes_and_never_counts_as_proved(shop: Workshop) -> None:
    opinion = finding(opinion=True, command="", output_contains=[], kind="usability", rule="hard_to_use_right")
    model_of(shop)._left["focus:correctness"] = [call("record_finding", **opinion), DONE]
    page = reviewed(shop)
    (found,) = by_agents(page)
    assert found.opinion and found.verification_state is VerificationState.UNVERIFIED
    assert "an opinion" in found.verification_reason and page.row.counts.unproved == 1


def test_the_same_fault_found_by_two_focuses_is_one_finding(sessions: Sessions, tmp_path: Path, script: Script) -> None:
    other = finding(title="It says good morning in the evening, too", rule="wrong_edge_case")
    again = [call("record_finding", **other), call("record_finding", **finding()), DONE]
    shop = thinking(sessions, tmp_path, script, newcomer=FINDS, correctness=again)
    page = reviewed(shop)
    assert len(by_agents(page)) == 1


# Nights --------------------------------------------------------------------------------------


def test_a_fault_that_a_second_mind_sees_first_on_the_same_commit_is_seen_late(shop: Workshop) -> None:
    model_of(shop)._left["focus:correctness"] = [*NOTHING, *FINDS]
    model_of(shop)._left["focus:newcomer"] = [*NOTHING, *NOTHING]
    reviewed(shop)
    (found,) = by_agents(reviewed(shop))
    assert found.lifecycle is Lifecycle.NEW and found.seen_late


def test_a_fault_that_a_focus_does_not_mention_again_persists_until_it_is_proved_fixed(
    shop: Workshop, script: Script
) -> None:
    model_of(shop)._left["focus:correctness"] = [*FINDS, *NOTHING * 3]
    model_of(shop)._left["focus:newcomer"] = NOTHING * 4
    reviewed(shop)
    (found,) = by_agents(reviewed(shop))
    assert found.lifecycle is Lifecycle.PERSISTING
    assert isinstance(shop.git, TinyGit)
    renamed, mended = SECOND, "3" * 40
    shop.git.commits[renamed], shop.git.head = FILES, renamed
    script.says[PROVE] = Ran(exit=1, head="Traceback ...\nImportError: cannot import name 'greet' from 'tiny'\n")
    assert not [one for one in by_agents(reviewed(shop)) if one.lifecycle is Lifecycle.FIXED]
    shop.git.commits[mended], shop.git.head = FILES, mended
    script.says[PROVE] = Ran(exit=0, head="GOOD EVENING\n")
    (found,) = by_agents(reviewed(shop))
    assert found.lifecycle is Lifecycle.FIXED


def test_what_shows_only_now_and_then_is_not_fixed_because_two_runs_did_not_show_it(
    shop: Workshop, script: Script
) -> None:
    slow, quiet = f"sleep 0.01\n{PROVE}", Ran(exit=0, head="GOOD EVENING\n")
    script.says[slow] = SHOUTS
    model_of(shop)._left["focus:correctness"] = [call("record_finding", **finding(command=slow)), DONE, *NOTHING * 2]
    model_of(shop)._left["focus:newcomer"] = NOTHING * 3
    reviewed(shop)
    assert isinstance(shop.git, TinyGit)
    shop.git.commits[SECOND], shop.git.head = FILES, SECOND
    script.says[slow] = [quiet, quiet, SHOUTS, quiet, quiet]
    (found,) = by_agents(reviewed(shop))
    assert (found.lifecycle, found.verification_state) == (Lifecycle.PERSISTING, VerificationState.FLAKY)
    shop.git.commits["3" * 40], shop.git.head = FILES, "3" * 40
    script.says[slow] = quiet
    (found,) = by_agents(reviewed(shop))
    assert found.lifecycle is Lifecycle.FIXED and script.ran.count(slow) >= 6


def test_a_focus_that_died_half_way_marks_nothing(shop: Workshop, script: Script) -> None:
    model_of(shop)._left["focus:correctness"] = [*FINDS, NodeRefused("out of order")]
    model_of(shop)._left["focus:newcomer"] = [*NOTHING, *NOTHING]
    reviewed(shop)
    assert isinstance(shop.git, TinyGit)
    shop.git.commits[SECOND] = {**FILES, "greet.sh": "echo $GREETING\n"}
    shop.git.head = SECOND
    script.says[PROVE] = Ran(exit=127, head="not found\n")  # the proof cannot run either
    page = reviewed(shop)
    assert not [one for one in by_agents(page) if one.lifecycle is Lifecycle.FIXED]
    assert "1 of 2 focuses came to their end (correctness: node failed)" in page.row.outcome_note


# Endings -------------------------------------------------------------------------------------


def test_a_focus_that_produced_nothing_is_a_failed_step_and_the_review_goes_on(shop: Workshop) -> None:
    model_of(shop)._left["focus:newcomer"] = [said("Fine.")] * 9
    page = reviewed(shop)
    assert page.row.state is ReviewState.DONE and len(by_agents(page)) == 1
    failed = step(page, "focus:newcomer")
    assert failed.state is StepState.FAILED and "produced nothing" in failed.reason
    assert "newcomer: produced nothing" in page.row.outcome_note


def test_a_focus_whose_turn_comes_after_the_budget_says_that_it_did_not_run(shop: Workshop) -> None:
    from orchestrator.services import job

    class Late(job.Job):
        def time_left(self) -> float:
            return 10.0

    patch = pytest.MonkeyPatch()
    patch.setattr("orchestrator.services.running.Job", Late)
    try:
        page = reviewed(shop)
    finally:
        patch.undo()
    assert "budget of 60 minutes was used up" in step(page, "focus:newcomer").reason and by_agents(page) == []


def test_a_container_that_dies_under_a_command_is_replaced_and_the_agent_is_told(shop: Workshop) -> None:
    bomb = ":(){ :|:& };:"
    model_of(shop)._left["focus:newcomer"] = [call("run", command=bomb), call("run", command="ls"), DONE]
    died = iter([True])

    def dies() -> Ran:
        if next(died, False):
            raise BoxGone("its processes were all ended")
        return Ran(exit=0)

    shop.sandbox.script.says[bomb] = dies  # type: ignore[union-attr]
    page = reviewed(shop, focuses=("newcomer",))
    assert page.row.state is ReviewState.DONE and page.row.outcome_note == ""
    assert any("a fresh one took its place" in one.text for one in model_of(shop).asked[1].messages)
    assert not shop.sandbox.boxes  # type: ignore[union-attr]


# The node ------------------------------------------------------------------------------------


def test_a_node_that_goes_away_parks_the_review_which_goes_on_where_it_was(shop: Workshop, script: Script) -> None:
    model_of(shop)._left["focus:correctness"] = [*FINDS[:2], NodeAway("connection refused"), DONE]
    page = reviewed(shop)
    assert page.row.state is ReviewState.WAITING_FOR_NODE and "connection refused" in page.row.outcome_note
    assert page.attempt == 0, "waiting costs no attempt"
    waits = step(page, "focus:correctness")
    assert (waits.state, waits.reason) == (StepState.WAITING_FOR_NODE, "connection refused")
    assert not [one for one in page.steps if one.state is StepState.RUNNING]
    assert reviews.progress(shop, page.row.id).current is None
    assert not shop.sandbox.boxes and shop.sandbox.volumes  # type: ignore[union-attr]
    asked_before = len(model_of(shop).asked)
    assert working.work(shop) == 0  # not yet
    shop.clock.forward(minutes=2)  # type: ignore[attr-defined]
    assert working.work(shop) == 1
    page = reviews.get(shop, page.row.id)
    assert page.row.state is ReviewState.DONE and len(by_agents(page)) == 1
    assert len(model_of(shop).asked) == asked_before + 1, "the newcomer was not asked again, nor what was said before"
    messages = model_of(shop).asked[-1].messages
    assert messages[-1].text.endswith("Go on where you were.") and step(page, "focus:correctness").attempt == 2
    with shop.sessions.reading() as db:
        assert len(db.scalars(select(CandidateRow)).all()) == 1


def test_a_node_that_stays_away_ends_the_focuses_and_the_evidence_is_filed(
    sessions: Sessions, tmp_path: Path, script: Script
) -> None:
    shop = thinking(sessions, tmp_path, script, newcomer=[NodeAway("no route")] * 9, correctness=[NodeAway("x")] * 9)
    page = reviewed(shop)
    assert page.row.state is ReviewState.WAITING_FOR_NODE
    shop.clock.forward(hours=13)  # type: ignore[attr-defined]
    working.work(shop)
    page = reviews.get(shop, page.row.id)
    assert page.row.state is ReviewState.DONE and len(page.findings) == 1
    assert "was away 12:00:00 after the start of the review: no route" in step(page, "focus:newcomer").reason


def test_what_was_spent_before_a_node_stayed_away_is_in_the_account(shop: Workshop) -> None:
    model_of(shop)._left["focus:correctness"] = [*FINDS[:2], *[NodeAway("no route")] * 3]
    page = reviewed(shop)
    assert page.row.state is ReviewState.WAITING_FOR_NODE
    shop.clock.forward(hours=13)  # type: ignore[attr-defined]
    working.work(shop)
    page = reviews.get(shop, page.row.id)
    assert page.row.state is ReviewState.DONE
    export = json.loads(exporting.export(shop, page.row.id, "json"))
    with shop.sessions.reading() as db:
        lost = db.scalars(select(Step).where(Step.name == "focus:correctness")).one()
        entries = [Entry.model_validate(turn.body) for turn in transcripts.of_step(db, lost.id)]
    spent = [entry.answer.usage for entry in entries if entry.answer is not None]
    counted = export["tokens"]["by_focus"]["correctness"]
    assert (counted["state"], counted["turns"], counted["findings"]) == ("node_failed", 2, 1)
    assert (counted["prompt"], counted["completion"]) == (
        sum(u.prompt for u in spent),
        sum(u.completion for u in spent),
    )
    assert counted["completion"] > 0 and counted["per_confirmed"]


@pytest.mark.parametrize("number", ["NaN", "1e999", '"nan"'])
def test_a_score_that_is_no_number_costs_a_turn_and_not_the_review(shop: Workshop, number: str) -> None:
    odd = f'{{"summary": "I looked at the one script.", "scores": {{"overall": {number}}}}}'
    model_of(shop)._left["focus:newcomer"] = [calls(("finish", odd)), DONE]
    page = reviewed(shop)
    assert (page.row.state, page.row.error) == (ReviewState.DONE, "") and memos.get(shop, page.row.id).memo.voices


@pytest.mark.parametrize("native", [True, False])
def test_an_output_can_be_read_on_after_the_review_has_waited_for_its_node(
    native: bool, sessions: Sessions, tmp_path: Path
) -> None:
    """The box is another one by then, and the lines of the whole output are nowhere but where the step's state is."""
    script = Script(**{"seq 5000": Ran(exit=0, head="\n".join(f"line {n} \u2603" for n in range(1, 5001)))})
    shop = thinking(sessions, tmp_path, script, correctness=[DONE])
    model = ScriptedModel(
        {
            "focus:newcomer": [
                wrote(native, "run", command="true"),
                wrote(native, "run", command="seq 5000"),
                NodeAway("gone"),
                wrote(native, "read", path="output:2", from_line=2500, lines=3),
                wrote(native, "run", command="echo again"),
                wrote(native, "read", path="output:4"),
                DONE,
            ],
            "focus:correctness": [DONE],
        },
        native_tools=native,
    )
    shop = replace(shop, chat=lambda: model)
    script.says["echo again"] = Ran(exit=0, head="again\n")
    page = reviewed(shop)
    assert page.row.state is ReviewState.WAITING_FOR_NODE and not shop.sandbox.boxes  # type: ignore[union-attr]
    shop.clock.forward(minutes=2)  # type: ignore[attr-defined]
    working.work(shop)
    assert reviews.get(shop, page.row.id).row.state is ReviewState.DONE and script.ran.count("seq 5000") == 1
    told = [question.messages[-1].text for question in model.asked if question.conversation == "focus:newcomer"]
    assert "2500: line 2500 \u2603\n2501: line 2501 \u2603\n2502: line 2502 \u2603" in told[4]
    assert "output:4" in told[5] and "1: again" in told[6], "numbers go on, so that none names two outputs"
    with shop.sessions.reading() as db:
        assert db.scalars(select(Output.number)).all() == [], "nobody reads on in a step that has ended"


def wrote(native: bool, name: str, **arguments: Any) -> Answer:
    if native:
        return call(name, **arguments)
    return said(f"```call\n{name}\n{json.dumps(arguments)}\n```")


def test_outputs_of_a_review_that_is_cancelled_as_it_waits_are_gone(shop: Workshop) -> None:
    model_of(shop)._left["focus:newcomer"] = [call("run", command="bash greet.sh"), NodeAway("loading")]
    page = reviewed(shop)
    with shop.sessions.reading() as db:
        assert db.scalars(select(Output.number)).all() == [1]
    reviews.cancel(shop, page.row.id)
    with shop.sessions.reading() as db:
        assert db.scalars(select(Output.number)).all() == []


def test_a_waiting_review_can_be_cancelled(shop: Workshop) -> None:
    model_of(shop)._left["focus:newcomer"] = [NodeAway("loading")]
    page = reviewed(shop)
    reviews.cancel(shop, page.row.id)
    page = reviews.get(shop, page.row.id)
    assert page.row.state is ReviewState.CANCELLED and step(page, "focus:newcomer").state is StepState.FAILED


def test_a_review_that_is_cancelled_while_its_agent_thinks_ends_at_once(shop: Workshop) -> None:
    seen: list[UUID] = []

    def cancels(question: Any) -> Any:
        with shop.sessions.reading() as db:
            seen.append(db.scalars(select(Step.review_id)).first())  # type: ignore[arg-type]
        reviews.cancel(shop, seen[0])
        return call("run", command="ls")

    model_of(shop)._left["focus:newcomer"] = [cancels, *[call("run", command=f"ls {n}") for n in range(30)]]
    page = reviewed(shop)
    assert page.row.state is ReviewState.CANCELLED and len(model_of(shop).asked) < 5
    assert not shop.sandbox.boxes and not shop.sandbox.volumes  # type: ignore[union-attr]


def test_what_a_focus_spent_before_its_review_was_cancelled_is_in_the_account(shop: Workshop) -> None:
    model_of(shop)._left["focus:newcomer"] = [*NOTHING]
    runs = [call("run", command=f"ls {n}") for n in range(3)]
    model_of(shop)._left["focus:correctness"] = [*runs, NodeAway("loading")]
    page = reviewed(shop)
    reviews.cancel(shop, page.row.id)
    export = json.loads(exporting.export(shop, page.row.id, "json"))
    account = export["tokens"]["by_focus"]
    with shop.sessions.reading() as db:
        told = {
            one.name.removeprefix("focus:"): [
                entry.answer.usage
                for turn in transcripts.of_step(db, one.id)
                if (entry := Entry.model_validate(turn.body)).answer is not None
            ]
            for one in page.steps
            if one.name in ("focus:correctness", "focus:newcomer")
        }
    assert (account["correctness"]["state"], account["correctness"]["turns"]) == ("unfinished", 3)
    assert {name: (one["prompt"], one["completion"]) for name, one in account.items()} == {
        name: (sum(one.prompt for one in usages), sum(one.completion for one in usages))
        for name, usages in told.items()
    }
    assert export["tokens"]["prompt"] == sum(one["prompt"] for one in account.values()) > 0


# What is shown -------------------------------------------------------------------------------


def test_the_export_names_model_tokens_and_who_found_what(shop: Workshop) -> None:
    page = reviewed(shop)
    export = json.loads(exporting.export(shop, page.row.id, "json"))
    assert export["model"] == "scripted" and export["tokens"]["by_focus"]["correctness"]["confirmed"] == 1
    (found,) = [one for one in export["findings"] if one["source"] == "agent"]
    assert found["focus"] == "correctness" and found["verification"]["state"] == "confirmed"


def test_candidates_are_stored_as_they_come(shop: Workshop) -> None:
    model_of(shop)._left["focus:newcomer"] = [call("record_finding", **finding()), NodeAway("gone")]
    page = reviewed(shop)
    assert page.row.state is ReviewState.WAITING_FOR_NODE
    with shop.sessions.reading() as db:
        (row,) = db.scalars(select(CandidateRow)).all()
    assert Candidate.model_validate(row.body).title.startswith("greet.sh greets")
