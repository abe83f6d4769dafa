"""What was sent stays the beginning of what is sent later, also as the templates of thinking models write it."""

import json
from itertools import pairwise
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from review_agents.conversation import for_wire
from review_agents.ports import BrokenAnswer, NodeAway
from review_agents.records import Answer, AnswerEnd, Message, Question, Ran, Role, ToolCall, Usage
from review_agents.scripted import ScriptedModel, Step, call, calls, said
from tests.support.agents import Hand, Played, finding, play, report
from tests.support.chat_templates import THINKING_TEMPLATE

TEMPLATE = jinja2.Environment().from_string(THINKING_TEMPLATE)
DONE = call("finish", **report())
LOOK = call("read", path="sums.py")
CUT_OFF = Answer(text="First I", end=AnswerEnd.LENGTH, usage=Usage(prompt=900, completion=4096))
# By what each turn can bring about: an answer with a call, one without, and a server that gives none.
WITH_A_CALL: dict[str, Step] = {
    "the same again": LOOK,  # nudged at three times
    "a command": call("run", command="pytest"),
    "two calls": calls(("run", {"command": "ls"}), ("read", {"path": "README.md"})),
    "one good, one broken": calls(("read", {"path": "README.md"}), ("run", '{"command": ')),
    "no such tool": call("browse", url="x"),
    "wrong arguments": call("run", cmd="ls"),
    "a finding": call("record_finding", **finding()),
}
WITHOUT_A_CALL: dict[str, Step] = {
    "silent": said("I think that it is fine."),
    "malformed": calls(("run", "{")),
    "cut off": CUT_OFF,
    "looping": said("no no no " * 300, end=AnswerEnd.LOOP),
}
UNREAD = {"no answer": BrokenAnswer("failed to parse tool call")}


def as_written(question: Question) -> str:
    """By a thinking model's template, up to where the answer begins."""
    messages = [
        {
            "role": str(message.role),
            "content": message.text,
            "tool_calls": [
                {"function": {"name": one.name, "arguments": json.loads(one.arguments)}} for one in message.calls
            ],
        }
        for message in question.messages
    ]
    tools = [tool.model_dump() for tool in question.tools]
    return TEMPLATE.render(messages=messages, tools=tools, add_generation_prompt=False)


def played(names: list[str], **budget: int) -> Played:
    """Turns of those kinds; the output of each command is new, but for that of `true`."""
    numbers = iter(range(10_000))
    hand = Hand(says=lambda command: Ran(exit=0, head="ok\n" if "true" in command else f"{next(numbers)}\n"))
    steps = {**WITH_A_CALL, **WITHOUT_A_CALL, **UNREAD}
    script = [steps.get(name) or call("run", command=name) for name in names]
    return play([*script, DONE], hand=hand, budget={"conclude_turns": 3, **budget})


@given(
    st.lists(st.sampled_from(sorted(WITH_A_CALL)), min_size=4, max_size=24),
    st.integers(min_value=5, max_value=30),
    st.integers(min_value=1200, max_value=60_000),
)
def test_each_prompt_is_the_beginning_of_the_next_whatever_is_said_to_the_model(
    names: list[str], turns: int, tokens: int
) -> None:
    asked = played(names, turns=turns, tokens=tokens).model.asked
    for earlier, later in pairwise(map(as_written, asked)):
        assert later.startswith(earlier)


def test_what_is_said_of_budgets_and_circles_was_among_it() -> None:
    names = [
        *["the same again"] * 3,
        *["a command", "two calls"] * 4,
        *(f"true {at}" for at in range(13)),
        *["a command"] * 3,
    ]
    asked = played(names, turns=28).model.asked
    written = list(map(as_written, asked))
    for words in (
        "made this call 3 times",
        "Most of your budget",
        "Your budget ends",
        "turns are left",
        "nothing that",
    ):
        assert words in written[-1], words
    assert all(later.startswith(earlier) for earlier, later in pairwise(written))
    assert [message.role for message in asked[-1].messages].count(Role.USER) == 2, "those of the opening"


@given(
    st.lists(st.sampled_from(sorted({**WITH_A_CALL, **WITHOUT_A_CALL, **UNREAD})), min_size=4, max_size=24),
    st.integers(min_value=5, max_value=30),
)
def test_only_an_answer_without_a_call_makes_a_template_write_earlier_ones_anew(names: list[str], turns: int) -> None:
    asked = played(names, turns=turns).model.asked
    for earlier, later in pairwise(asked):
        if later.messages[-1].role is Role.USER and len(later.messages) > len(earlier.messages):
            assert later.messages[: len(earlier.messages)] == earlier.messages  # without a call
        elif len(later.messages) > len(earlier.messages):
            assert as_written(later).startswith(as_written(earlier))
        else:  # no answer: what stood last has grown
            end = max(map(len, ("</tool_response><|im_end|>\n", "<|im_end|>\n"))) + 1
            assert as_written(later).startswith(as_written(earlier)[:-end])


def test_where_the_server_gave_no_answer_none_is_made_up_for_it() -> None:
    asked = played(["a command", "no answer", "a command"], turns=30).model.asked
    before, after = asked[1].messages, asked[2].messages
    assert before[:-1] == after[:-1] and after[-1].role is Role.TOOL
    assert after[-1].text.startswith(before[-1].text) and "could not read" in after[-1].text


def test_a_focus_that_goes_on_after_its_node_was_away_sends_what_it_had_sent() -> None:
    first = ScriptedModel([LOOK, call("run", command="ls"), NodeAway("gone")])
    entries: list[Any] = []
    with pytest.raises(NodeAway):
        play(first, entries=entries)
    second = play([DONE], earlier=entries)
    before, after = first.asked[-1].messages, second.model.asked[0].messages
    assert before[:-1] == after[:-1] and after[-1].role is Role.TOOL
    assert after[-1].text.startswith(before[-1].text) and "container was reset" in after[-1].text


def test_words_of_ours_go_with_the_last_of_several_results_and_follow_on_an_answer_alone() -> None:
    asked = Message(role=Role.ASSISTANT, calls=(ToolCall(id="a", name="run", arguments="{}"),) * 2)
    one, two = (Message(role=Role.TOOL, text=text, call_id="a", name="run") for text in ("1", "2"))
    ours = Message(role=Role.USER, text="Hurry.")
    words = Message(role=Role.ASSISTANT, text="Well.")
    sent = for_wire([asked, one, two, ours, words, ours, ours])
    assert [message.text for message in sent] == ["", "1", "2\n\nHurry.", "Well.", "Hurry.\n\nHurry."]
    assert (sent[2].role, sent[2].call_id) == (Role.TOOL, "a")
