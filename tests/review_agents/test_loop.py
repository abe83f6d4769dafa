"""The agent's loop over models that misbehave in the ways that weak ones do; each way is a test."""

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from review_agents.focus import builtin
from review_agents.hands import told
from review_agents.loop import size_of
from review_agents.ports import (
    BrokenAnswer,
    CommandFailed,
    ContextOverflow,
    NodeAway,
    NodeRefused,
    Stopped,
    WorkspaceReset,
)
from review_agents.records import (
    Answer,
    AnswerEnd,
    Entry,
    EntryKind,
    FocusState,
    Measurement,
    Question,
    Ran,
    Role,
    Session,
    ToolCall,
    Usage,
)
from review_agents.scripted import ScriptedModel, call, calls, replayed, said
from tests.support.agents import FILES, Hand, Ticks, finding, play, report

DONE = call("finish", **report())
LOOK = call("read", path="sums.py")


def no_broken_call_was_sent(played) -> bool:  # type: ignore[no-untyped-def]
    """Every call in every question has JSON arguments, and every result the id of a call before it."""
    for question in played.model.asked:
        open_ids: set[str] = set()
        for message in question.messages:
            for one in message.calls:
                assert isinstance(json.loads(one.arguments), dict)
                open_ids.add(one.id)
            if message.role is Role.TOOL:
                assert message.call_id in open_ids
                open_ids.remove(message.call_id)
        assert not open_ids, "a call was left without its result"
    return True


def test_a_focus_reads_records_what_it_found_and_finishes() -> None:
    played = play([LOOK, call("record_finding", **finding()), DONE])
    assert played.result.state is FocusState.FINISHED
    (candidate,) = played.result.candidates
    assert candidate == played.kept[0]
    place = candidate.places[0]
    assert (place.file, place.line, place.symbol, place.quote) == ("sums.py", 6, "total", "result = values[0]")
    assert candidate.reproduction is not None and candidate.reproduction.control == "python -c 'import sums'"
    assert played.result.report is not None and played.result.report.scores == {"correctness": 6}
    assert no_broken_call_was_sent(played)


def test_finding_nothing_is_a_normal_end() -> None:
    played = play([LOOK, DONE])
    assert (played.result.state, played.result.candidates) == (FocusState.FINISHED, ())


def test_producing_nothing_is_an_error_and_not_a_clean_bill() -> None:
    played = play([LOOK, LOOK], budget={"turns": 2, "conclude_turns": 1})
    assert played.result.state is FocusState.PRODUCED_NOTHING
    assert "2 of 2 turns" in played.result.reason


def test_the_history_is_only_appended_to() -> None:
    played = play([LOOK, call("run", command="ls"), said("Hm."), call("search", pattern="x"), DONE])
    sent = [question.messages for question in played.model.asked]
    for shorter, longer in pairwise(sent):
        assert longer[: len(shorter)] == shorter


# Malformed ---------------------------------------------------------------------------------


def test_a_call_with_chatter_behind_its_arguments_is_understood() -> None:
    played = play([calls(("read", '{"path": "sums.py"} I will now read it.')), DONE])
    assert played.result.malformed == 0 and "6:     result = values[0]" in played.told
    assert no_broken_call_was_sent(played)


MENDED = (
    "{'path': 'sums.py'}",
    '{"path": "sums.py",}',
    '```json\n{"path": "sums.py"}\n```',
    '"{\\"path\\": \\"sums.py\\"}"',
    '{"path": "sums.py"',
    "{'path': 'sums.py', }",
)


@pytest.mark.parametrize("arguments", MENDED)
def test_what_can_only_mean_one_thing_is_repaired(arguments: str) -> None:
    played = play([calls(("read", arguments)), DONE])
    assert played.result.malformed == 0 and "values[0]" in played.told


def test_a_broken_call_is_answered_with_what_was_wrong_and_never_sent_back() -> None:
    broken = calls(("run", '{"command": "python - <<EOF\nprint("a")\nEOF"}'))
    played = play([broken, LOOK, DONE])
    assert played.result.state is FocusState.FINISHED and played.result.malformed == 1
    assert "arguments of run are no JSON object" in played.told
    assert no_broken_call_was_sent(played)
    assert broken.calls in [entry.answer.calls for entry in played.entries if entry.answer]


def test_of_several_calls_the_good_ones_are_carried_out_and_the_broken_one_is_explained() -> None:
    played = play([calls(("read", {"path": "sums.py"}), ("run", '{"command": ')), DONE])
    assert "values[0]" in played.told and "call of the same answer could not be carried out" in played.told
    assert no_broken_call_was_sent(played)


def test_five_malformed_answers_in_a_row_end_the_focus() -> None:
    played = play([calls(("run", f"{{{n}")) for n in range(9)])
    assert played.result.state is FocusState.PRODUCED_NOTHING and "5 answers in a row" in played.result.reason
    assert played.result.malformed == 5 and len(played.model.asked) == 5


def test_a_good_call_between_malformed_ones_starts_the_count_again() -> None:
    bad = calls(("run", "{"))
    assert (
        play([bad, bad, LOOK, bad, bad, bad, bad, call("run", command="ls"), DONE]).result.state is FocusState.FINISHED
    )


def test_a_made_up_tool_is_answered_with_the_tools_there_are() -> None:
    played = play([call("browse_web", url="x"), DONE])
    assert "There is no tool browse_web" in played.told and "record_finding" in played.told


def test_made_up_tools_with_different_names_each_time_still_end_the_focus() -> None:
    played = play([call(f"tool_{n}", x=n) for n in range(60)])
    assert played.result.state is FocusState.PRODUCED_NOTHING and len(played.model.asked) == 5


def test_names_that_models_learned_elsewhere_reach_the_right_tool() -> None:
    played = play([call("bash", command="ls"), call("read_file", path="sums.py"), DONE])
    assert played.hand.ran == ["ls"] and played.result.malformed == 0


def test_wrong_arguments_are_named_with_what_the_tool_takes() -> None:
    played = play([call("run", cmd="ls"), call("run", command="ls", timeout_s="soon"), DONE])
    assert "command: field required" in played.told and "It takes: command, timeout_s, environment" in played.told
    assert "timeout_s" in played.told and played.hand.ran == []


def test_numbers_written_as_text_are_taken() -> None:
    assert play([call("run", command="ls", timeout_s="30"), DONE]).hand.ran == ["ls"]


def test_call_ids_are_ours_whatever_the_model_gave() -> None:
    same = Answer(calls=(ToolCall(id="x", name="read", arguments='{"path": "sums.py"}'),) * 2)
    played = play([same, DONE])
    ids = [one.id for message in played.last_question for one in message.calls]
    assert ids == ["call_1", "call_2"] and no_broken_call_was_sent(played)


def test_a_server_that_fails_on_what_the_model_wrote_costs_a_turn_and_nothing_else() -> None:
    played = play([BrokenAnswer("failed to parse tool call"), LOOK, DONE])
    assert played.result.state is FocusState.FINISHED and played.result.malformed == 1
    assert no_broken_call_was_sent(played)


# Truncated, silent, looping ------------------------------------------------------------------


def test_a_truncated_answer_is_told_apart_from_a_malformed_one() -> None:
    cut = Answer(calls=(ToolCall(id="a", name="write", arguments='{"path": "a.py", "text": "x = 1'),),
                 end=AnswerEnd.LENGTH, usage=Usage(prompt=10, completion=4096))  # fmt: skip
    played = play([cut, DONE])
    assert "cut off after 4096 tokens" in played.told and played.result.malformed == 0
    assert no_broken_call_was_sent(played)


def test_a_truncated_call_is_never_completed_by_guessing() -> None:
    cut = Answer(calls=(ToolCall(id="a", name="run", arguments='{"command": "rm -r build", "timeout_s": 6'),),
                 end=AnswerEnd.LENGTH)  # fmt: skip
    assert play([cut, DONE]).hand.ran == []


def test_thinking_that_spends_the_whole_answer_is_an_outcome_of_its_own() -> None:
    played = play([Answer(thought="Hm " * 500, end=AnswerEnd.LENGTH, usage=Usage(completion=4096)), DONE])
    assert "went into\nthinking" in played.told


def test_an_answer_that_calls_nothing_is_asked_to_call_something() -> None:
    played = play([said("I think the code is fine."), DONE])
    assert "called no tool" in played.told and played.result.state is FocusState.FINISHED


def test_an_empty_answer_leaves_no_empty_message_in_the_history() -> None:
    played = play([said(""), said("<think>all of it</think>"), DONE])
    assert all(message.text or message.calls for message in played.last_question)


def test_a_text_that_repeats_itself_was_ended_and_is_not_put_back_whole() -> None:
    played = play([said("no no no " * 3000, end=AnswerEnd.LOOP), DONE])
    assert "repeated the same words" in played.told and size_of(played.last_question) < 60_000


def test_the_same_call_with_the_same_result_is_nudged_at_three_and_stopped_at_five() -> None:
    played = play([LOOK] * 9)
    assert len(played.model.asked) == 5 and "made this call 3 times" in played.told
    assert "it repeated itself: read, 5 times" in played.result.reason


def test_the_same_call_with_another_result_is_no_loop() -> None:
    outputs = iter(range(100))
    hand = Hand(says=lambda command: Ran(exit=1, head=f"{next(outputs)} failed"))
    played = play([call("run", command="pytest")] * 8 + [DONE], hand=hand)
    assert played.result.state is FocusState.FINISHED


def test_a_duration_does_not_make_an_equal_result_a_new_one() -> None:
    times = iter(range(100))
    hand = Hand(says=lambda command: Ran(exit=1, seconds=next(times) / 7, head="3 failed in 0.12s"))
    assert "repeated itself" in play([call("run", command="pytest")] * 8, hand=hand).result.reason


@pytest.mark.parametrize("period", [2, 3, 6])
def test_a_cycle_is_noticed_whatever_its_length(period: int) -> None:
    steps = [call("run", command=f"echo {n % period}") for n in range(60)]
    hand = Hand(says=lambda command: Ran(exit=0, head=command))
    played = play(steps, hand=hand, budget={"turns": 60})
    assert "repeated itself" in played.result.reason and len(played.model.asked) <= 5 * period


def test_calls_that_show_nothing_new_are_pointed_out_and_then_ended() -> None:
    hand = Hand(says=lambda command: Ran(exit=0, head="ok"))
    played = play([call("run", command=f"true {n}") for n in range(60)], hand=hand, budget={"turns": 60})
    assert "showed nothing that you had not seen" in played.told and "showed nothing new" in played.result.reason


# Budgets -----------------------------------------------------------------------------------


def test_turns_are_kept_for_concluding_and_used_for_nothing_else() -> None:
    steps = [call("run", command=f"ls {n}") for n in range(4)] + [call("record_finding", **finding()), DONE]
    played = play(steps, budget={"turns": 6, "conclude_turns": 3}, hand=Hand(says=lambda c: Ran(exit=0, head=c)))
    assert played.hand.ran == ["ls 0", "ls 1", "ls 2"]  # the fourth came too late
    assert "not one of your tools any more" in played.told and len(played.result.candidates) == 1
    assert played.result.state is FocusState.OUT_OF_BUDGET and played.result.report is not None


def test_findings_stay_when_the_budget_ends_without_a_report() -> None:
    played = play([call("record_finding", **finding()), LOOK], budget={"turns": 2, "conclude_turns": 1})
    assert played.result.state is FocusState.OUT_OF_BUDGET and len(played.result.candidates) == 1


def test_the_turns_that_are_left_are_told_with_a_result_every_ten_and_when_few_are_left() -> None:
    hand = Hand(says=lambda c: Ran(exit=0, head=c))
    steps = [calls(("run", {"command": f"ls {n}"}), ("run", {"command": f"pwd {n}"})) for n in range(24)]
    played = play([*steps, DONE], budget={"turns": 25, "conclude_turns": 3}, hand=hand)
    told = [message.text.splitlines() for message in played.last_question if message.role is Role.TOOL]
    assert {at: line for at, lines in enumerate(told) for line in lines if line.startswith("(")} == {
        19: "(15 of 25 turns are left, the last 3 only for recording.)",
        37: "(6 of 25 turns are left, the last 3 only for recording.)",
        39: "(5 of 25 turns are left, the last 3 only for recording.)",
    }
    sent = [question.messages for question in played.model.asked]
    assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(sent))


def test_most_of_the_budget_spent_is_said_once() -> None:
    steps = [call("run", command=f"ls {n}") for n in range(9)] + [DONE]
    played = play(steps, budget={"turns": 12, "conclude_turns": 1}, hand=Hand(says=lambda c: Ran(exit=0, head=c)))
    assert played.told.count("Most of your budget is spent (10 of 12 turns)") == 0  # it finished before
    played = play([call("run", command=f"ls {n}") for n in range(12)], budget={"turns": 12, "conclude_turns": 1},
                  hand=Hand(says=lambda c: Ran(exit=0, head=c)))  # fmt: skip
    assert played.told.count("Most of your budget is spent (10 of 12 turns)") == 1


def test_tokens_count_by_how_the_conversation_grows_also_when_the_server_hides_its_cache() -> None:
    def turn(prompt: int) -> Answer:
        return call("run", command=f"ls {prompt}").model_copy(update={"usage": Usage(prompt=prompt, completion=100)})

    hand = Hand(says=lambda c: Ran(exit=0, head=c))
    played = play([turn(5000), turn(5300), turn(5600), DONE], budget={"tokens": 7000}, hand=hand)
    assert played.result.state is FocusState.FINISHED  # 5000 + 100, then 300 a turn
    played = play([turn(5000 + 300 * n) for n in range(40)], budget={"tokens": 7000}, hand=hand)
    assert 6 <= played.result.turns <= 10 and "tokens" in played.result.reason


def test_seconds_end_a_focus_too() -> None:
    hand = Hand(says=lambda c: Ran(exit=0, head=c))
    played = play([call("run", command=f"ls {n}") for n in range(40)], seconds=60, clock=Ticks(1.5), hand=hand)
    assert "seconds" in played.result.reason and played.result.turns < 20


def test_an_answer_that_never_ends_is_given_up_when_the_time_is_over() -> None:
    ticks = Ticks(1.0)

    def slow(question: Question) -> Answer:
        ticks.now += 1000  # meanwhile the budget ends
        raise Stopped  # as a client does that is told to give up

    played = play([call("record_finding", **finding()), slow], seconds=60, clock=ticks)
    assert played.result.state is FocusState.OUT_OF_BUDGET and "in the middle of an answer" in played.result.reason
    assert len(played.result.candidates) == 1


# Room --------------------------------------------------------------------------------------


def long_talk(turns: int = 8) -> list[Answer | Exception]:
    return [call("run", command=f"ls {n}") for n in range(turns)]


def test_an_overflow_is_cut_once_and_asked_again_once() -> None:
    hand = Hand(says=lambda c: Ran(exit=0, head=f"{c}\n" * 400))
    played = play([*long_talk(), ContextOverflow("too long", prompt_tokens=9000, context_tokens=8192), DONE], hand=hand)
    assert played.result.state is FocusState.FINISHED
    before, after = played.model.asked[-2].messages, played.model.asked[-1].messages
    assert size_of(after) < 0.9 * size_of(before)
    assert after[:3] == before[:3], "the material stays, byte for byte"
    assert "earlier turns were taken out" in after[3].text and "run ls 0 -> Exit status 0" in after[3].text
    assert no_broken_call_was_sent(played)
    assert [entry.kind for entry in played.entries].count(EntryKind.CUT) == 1


def test_an_overflow_that_stays_ends_the_focus_instead_of_cutting_for_ever() -> None:
    hand = Hand(says=lambda c: Ran(exit=0, head=f"{c}\n" * 400))
    played = play([*long_talk(), *[ContextOverflow("too long")] * 9], hand=hand)
    assert "does not fit" in played.result.reason and len(played.model.asked) == 10


def test_findings_are_named_in_what_a_cut_leaves() -> None:
    hand = Hand(says=lambda c: Ran(exit=0, head=f"{c}\n" * 400))
    steps = [call("record_finding", **finding()), *long_talk(), ContextOverflow("too long"), DONE]
    assert "total fails for an empty list" in play(steps, hand=hand).last_question[3].text


# Output ------------------------------------------------------------------------------------


def test_long_output_is_cut_in_the_middle_at_line_ends_and_says_where_the_rest_begins() -> None:
    lines = "\n".join(f"line {n} of the log" for n in range(5000))
    steps = [call("run", command="cat log"), call("read", path="output:1", from_line=256, lines=3), DONE]
    played = play(steps, hand=Hand(says=lambda command: Ran(exit=0, head=lines)))
    results = [message.text for message in played.last_question if message.role is Role.TOOL]
    assert len(results[0]) < 10_500 and "line 0 of" in results[0] and "line 4999 of" in results[0]
    head, _, tail = results[0].partition("\n[... ")
    assert "characters left out here; read output:1 from_line 256 shows them ...]\nline 4" in tail
    assert head.endswith("line 254 of the log")
    assert "256: line 255 of the log" in results[1] and "More from line 259 on." in results[1]


def test_what_is_read_of_a_long_file_loses_nothing_in_its_middle() -> None:
    text = "\n".join(f"value_{n} = {'x' * 90}" for n in range(300))
    hand = Hand(files={"long.py": text})
    steps: list[Answer | Exception] = []
    for start in (1, 91, 181, 271):
        steps.append(call("read", path="long.py", from_line=start, lines=400))
    results = [one.text for one in play([*steps, DONE], hand=hand).last_question if one.role is Role.TOOL]
    assert all(len(one) < 10_500 and "left out" not in one for one in results)
    seen = {line.partition(":")[0] for one in results for line in one.splitlines() if line[:1].isdigit()}
    assert len(seen) == 300 and "More from line " in results[0]


def test_a_search_with_many_long_matches_says_where_all_of_them_are() -> None:
    found = [FoundLine("a.py", n, f"{n} " + "x" * 500) for n in range(1, 101)]
    hand = Searched(found)
    played = play([call("search", pattern="x"), call("read", path="output:1", from_line=199, lines=9), DONE], hand=hand)
    results = [message.text for message in played.last_question if message.role is Role.TOOL]
    assert "more lines match; read output:1 has all of them, whole." in results[0] and len(results[0]) < 10_500
    assert "199: a.py:100: 100 xxx" in results[1]


def test_after_a_time_out_it_is_said_that_unflushed_output_is_lost() -> None:
    hand = Hand(says=lambda command: Ran(exit=None, signal=9, timed_out=True, seconds=60))
    assert "use python -u" in play([call("run", command="python slow.py"), DONE], hand=hand).told
    assert "python -u" not in play([call("run", command="python slow.py"), DONE]).told


def test_a_measurement_that_others_disturbed_gives_its_number_for_an_estimate() -> None:
    sessions = tuple(Session(value=value, void=True, reason="busy", user_s=0.25) for value in (0.5, 0.7, 0.6))
    measured = Measurement(name="sum", sessions=sessions)
    assert told(measured).startswith("Median 0.6 s over 3 fresh processes; CPU time 0.25 s. Every session")
    assert "good for an estimate, not for a finding" in told(measured)
    mixed = measured.model_copy(update={"sessions": (*sessions, Session(value=0.4))})
    assert told(mixed) == "Median 0.4 s over 1 fresh processes, spread 0.0%, 3 disturbed sessions left out."


def test_why_a_command_could_not_be_timed_is_readable_whole() -> None:
    class Fails(Hand):
        def measure(self, name: str, command: str, **given: Any) -> Measurement:
            raise CommandFailed(command, Ran(exit=1, head="\n".join(f"line {n}" for n in range(3000))))

    timed = calls(("measure", {"name": "x", "command": "false"}))
    steps = [timed, call("read", path="output:1", from_line=1500, lines=1), DONE]
    told = play(steps, hand=Fails(), focus=builtin()["performance"]).told
    assert "did not succeed: Exit status 1" in told and "1500: line 1499" in told


@dataclass
class FoundLine:
    file: str
    line: int
    text: str


class Searched(Hand):
    """A workspace in which any search finds these lines."""

    def __init__(self, found: list[FoundLine]):
        super().__init__()
        self.found = found

    def search(self, pattern: str, *, folder: str = ".", limit: int = 200) -> tuple[Any, ...]:
        return tuple(self.found)


def test_an_output_of_one_long_line_is_readable_whole_and_a_long_line_of_a_file_says_that_it_goes_on() -> None:
    words = " ".join(f"word{n}" for n in range(6000))
    hand = Hand(says=lambda command: Ran(exit=0, head=words), files={"min.json": "a" * 1000})
    reads = [call("read", path="output:1", from_line=at, lines=20) for at in range(1, len(words) // 400 + 1, 20)]
    played = play([call("run", command="cat log"), *reads, call("read", path="min.json"), DONE], hand=hand)
    results = [message.text for message in played.last_question if message.role is Role.TOOL]
    pieces = [line.partition(": ")[2] for text in results[1:-1] for line in text.splitlines() if line[:1].isdigit()]
    assert "".join(pieces) == words
    assert "[... 600 more characters in this line]" in results[-1]


def test_files_that_are_not_there_and_containers_that_die_are_said_in_words() -> None:
    def dies(command: str) -> Ran:
        raise WorkspaceReset("The container died under that command, and a fresh one took its place")

    played = play([call("read", path="nope.py"), call("run", command=":(){ :|:& };:"), DONE], hand=Hand(says=dies))
    assert "There is no such file: nope.py" in played.told and "Files that you wrote are gone" in played.told
    assert played.result.state is FocusState.FINISHED


# Findings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"quote": "result = values[1]"}, "the quote is not in sums.py"),
        ({"file": "made_up.py"}, "there is no file 'made_up.py'"),
        ({"rule": "race"}, "rule race is not one of kind correctness"),
        ({"command": ""}, "no command that shows it"),
        ({"output_contains": []}, "output_contains is empty"),
        ({"severity": "dire"}, "severity"),
    ],
)
def test_a_finding_that_cannot_be_true_or_checked_is_refused_with_the_reason(changed: dict, words: str) -> None:  # type: ignore[type-arg]
    played = play([call("record_finding", **finding(**changed)), DONE])
    assert words in played.told and played.result.candidates == ()


def test_a_wrong_quote_is_answered_with_the_nearest_lines() -> None:
    played = play([call("record_finding", **finding(quote="result = value[0]")), DONE])
    assert "6: result = values[0]" in played.told


def test_an_opinion_needs_quotes_and_no_script() -> None:
    played = play([call("record_finding", **finding(opinion=True, command="", output_contains=[])), DONE])
    (candidate,) = played.result.candidates
    assert candidate.opinion and candidate.reproduction is None and candidate.places[0].line == 6


def test_a_finding_that_is_known_already_is_not_stored_twice() -> None:
    again = finding(title="An empty list makes total fail with IndexError", rule="wrong_result")
    played = play([call("record_finding", **finding()), call("record_finding", **again), DONE])
    assert len(played.result.candidates) == 1 and "it is known already" in played.told


def test_what_another_focus_claimed_is_not_claimed_again() -> None:
    first = play([call("record_finding", **finding()), DONE]).result.candidates
    played = play([call("record_finding", **finding()), DONE], claimed=first)
    assert played.result.candidates == () and "total fails for an empty list" in played.last_question[3].text


def test_a_proof_that_does_not_hold_is_told_at_once_and_stored_only_when_insisted_on() -> None:
    steps = [call("record_finding", **finding()), call("record_finding", **finding()), DONE]
    played = play(steps, trial=lambda candidate: "its output does not contain 'IndexError'")
    assert "Not stored yet" in played.told and "its proof did not hold" in played.told
    assert len(played.result.candidates) == 1


def test_a_finding_in_more_places_is_one_finding() -> None:
    files = {**FILES, "more.py": "def other(values):\n    result = values[0]\n    return result\n"}
    more = [{"file": "more.py", "quote": "result = values[0]"}]
    (candidate,) = play([call("record_finding", **finding(more_places=more)), DONE], files=files).result.candidates
    assert [(place.file, place.symbol) for place in candidate.places] == [("sums.py", "total"), ("more.py", "other")]


def test_a_broken_promise_is_quoted_and_is_no_place_so_that_two_faults_under_one_heading_stay_two() -> None:
    promise = {"more_places": [{"file": "README.md", "quote": "`total([])` gives 0."}]}
    files = {**FILES, "more.py": "def count(values):\n    return len(values) + 1\n"}
    other = finding(
        title="count is one too many", file="more.py", quote="return len(values) + 1", command="true", **promise
    )
    steps = [call("record_finding", **finding(**promise)), call("record_finding", **other), DONE]
    one, two = play(steps, files=files).result.candidates
    assert [place.file for place in one.places] == ["sums.py"] and [place.file for place in two.places] == ["more.py"]
    assert "written otherwise in `README.md`, line 7: ` total([])  gives 0.`" in one.description
    played = play([call("record_finding", **finding(more_places=[{"file": "README.md", "quote": "made up"}])), DONE])
    assert "the quote is not in README.md" in played.told and played.result.candidates == ()


# Node and resuming ---------------------------------------------------------------------------


def test_a_node_that_refuses_ends_the_focus_with_its_words() -> None:
    played = play([LOOK, NodeRefused("no model of that name")])
    assert (played.result.state, played.result.reason) == (FocusState.NODE_FAILED, "no model of that name")


def test_a_node_that_goes_away_leaves_a_conversation_that_goes_on_where_it_was() -> None:
    model = ScriptedModel([LOOK, call("record_finding", **finding()), NodeAway("connection refused")])
    entries: list[Entry] = []
    with pytest.raises(NodeAway):
        play(model, entries=entries)
    kept = [entry for entry in entries if entry.kind is not EntryKind.NOTED]
    candidates = play([call("record_finding", **finding()), DONE]).result.candidates
    again = play([call("record_finding", **finding()), DONE], earlier=kept, recorded=candidates)
    assert again.result.state is FocusState.FINISHED and len(again.result.candidates) == 1
    last = again.model.asked[0].messages[-1].text
    assert last.startswith("Stored as finding 1") and last.endswith("Go on where you were.")
    assert again.result.turns == 4, "turns before the interruption count"
    assert no_broken_call_was_sent(again)


def test_a_crash_between_a_call_and_its_result_leaves_no_call_unanswered() -> None:
    entries = play([calls(("read", {"path": "sums.py"}), ("run", {"command": "ls"})), DONE]).entries
    calls_at = next(at for at, entry in enumerate(entries) if entry.message and entry.message.calls)
    again = play([DONE], earlier=entries[: calls_at + 2])  # the first result came, the second did not
    assert "reset before this call came to its end" in again.told and no_broken_call_was_sent(again)


# The plain-text protocol ---------------------------------------------------------------------


def in_text(name: str, arguments: str) -> Answer:
    return said(f"I look.\n\n```call\n{name}\n{arguments}\n```")


def test_without_native_tools_calls_are_written_in_the_text() -> None:
    steps = [in_text("read", '{"path": "sums.py"}'), in_text("record_finding", json.dumps(finding())),
             in_text("finish", json.dumps(report()))]  # fmt: skip
    played = play(steps, native=False)
    assert played.result.state is FocusState.FINISHED and len(played.result.candidates) == 1
    assert all(not question.tools for question in played.model.asked)
    assert "How to call a tool" in played.last_question[0].text
    roles = [message.role for message in played.last_question]
    assert roles[0] is Role.SYSTEM
    assert all(one is not other for one, other in pairwise(roles[1:])), "they alternate strictly"


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "read", "arguments": {"path": "sums.py"}}\n</tool_call>',
        "<tool_call>\n<function=read>\n<parameter=path>\nsums.py\n</parameter>\n</function>\n</tool_call>",
        '```json\n{"tool": "read", "path": "sums.py"}\n```',
        '{"name": "read", "arguments": "{\\"path\\": \\"sums.py\\"}"}',
        '```call\nread {"path": "sums.py"}\n```',
        '```call\n{"tool": "read", "path": "sums.py"}\n```',
        '```call\nread\n{"path": "sums.py"}',
    ],
)
@pytest.mark.parametrize("native", [True, False])
def test_calls_in_forms_that_models_learned_elsewhere_are_understood(text: str, native: bool) -> None:
    end = DONE if native else in_text("finish", json.dumps(report()))
    played = play([said(text), end], native=native)
    assert "values[0]" in played.told and played.result.malformed == 0


def test_a_single_shell_block_is_a_command() -> None:
    assert play([said("```bash\nls -l\n```"), DONE], native=False).hand.ran == ["ls -l"]


def test_a_replayed_recording_does_exactly_what_was_done() -> None:
    first = play([LOOK, said("Hm."), calls(("run", "{")), call("record_finding", **finding()), DONE])
    again = play(replayed({"focus:correctness": first.entries}))
    assert again.result.candidates == first.result.candidates
    assert [entry.message for entry in again.entries] == [entry.message for entry in first.entries]


def test_what_was_read_again_after_a_cut_counts_also_where_the_review_waited_since() -> None:
    def reads(number: int, prompt: int) -> Answer:
        usage = Usage(prompt=prompt, completion=10)
        return call("run", command=f"ls {number}").model_copy(update={"usage": usage})

    before = [*(reads(number, 1000 * number) for number in range(1, 9)), ContextOverflow("too long"), reads(9, 5000)]
    after = [reads(10, 6000), call("finish", **report())]
    hand = Hand(says=lambda command: Ran(exit=0, head=command * 300))
    budget = {"tokens": 16_600}
    whole = play([*before, *after], hand=hand, budget=budget)
    entries: list[Entry] = []
    with pytest.raises(NodeAway):
        play([*before, NodeAway("gone")], hand=hand, budget=budget, entries=entries)
    resumed = play(after, hand=hand, budget=budget, earlier=entries)
    assert any(entry.kind is EntryKind.CUT for entry in entries)
    assert all("Most of your budget is spent" in played.told for played in (whole, resumed))
