"""Answers taken apart: thought, text, calls; the same in pieces and as a whole."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_node.engine.answer import AnswerParser, CallOpened, CallPart, Text, Thought
from inference_node.engine.calls import Tool, ToolForm, tool_from

WEATHER = tool_from(
    "weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "parts": {"type": "array", "items": {"type": "string"}},
            "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["city"],
    },
)
PING = Tool("ping")


def parse(
    text: str,
    *,
    form: ToolForm | None = ToolForm.XML,
    thinking: bool = False,
    sizes: tuple[int, ...] = (10_000,),
) -> tuple[str, str, list[tuple[str, str]]]:
    """(thought, text, [(name, arguments)]) from pieces of the given sizes."""
    parser = AnswerParser(form=form, tools=(WEATHER, PING), thinking=thinking)
    deltas, turn = [], 0
    while text:
        size = sizes[turn % len(sizes)]
        deltas += parser.feed(text[:size])
        text, turn = text[size:], turn + 1
    deltas += parser.finish()
    thought = "".join(delta.text for delta in deltas if isinstance(delta, Thought))
    said = "".join(delta.text for delta in deltas if isinstance(delta, Text))
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        if isinstance(delta, CallOpened):
            assert delta.index == len(calls)
            calls.append((delta.name, ""))
        elif isinstance(delta, CallPart):
            calls[delta.index] = (calls[delta.index][0], calls[delta.index][1] + delta.arguments)
    return thought, said, calls


CALL = (
    '<tool_call>\n<function=weather>\n<parameter=city>\nSão "Paulo"\n\n</parameter>\n'
    "<parameter=days>\n3\n</parameter>\n"
    '<parameter=parts>\n["am", "pm"]\n</parameter>\n</function>\n</tool_call>'
)
JSON_CALL = '<tool_call>\n{"name": "ping", "arguments": {"a": "x"}}\n</tool_call>'
ARGUMENTS = {"city": 'São "Paulo"\n', "days": 3, "parts": ["am", "pm"]}


def test_plain_text_is_text() -> None:
    assert parse("Hello there.\n") == ("", "Hello there.\n", [])


def test_a_thought_opened_by_the_prompt_is_kept_apart() -> None:
    assert parse("Hmm.\nWell.\n</think>\n\nYes.", thinking=True) == ("Hmm.\nWell.", "Yes.", [])


def test_a_thought_opened_by_the_model_is_kept_apart() -> None:
    assert parse("<think>\nHmm.\n</think>\n\nYes.") == ("Hmm.", "Yes.", [])


def test_a_thought_that_the_budget_cut_is_all_thought() -> None:
    assert parse("Hmm, let me", thinking=True) == ("Hmm, let me", "", [])


def test_a_call_keeps_strings_as_they_stand_and_parses_the_rest() -> None:
    """engines.md 6.4: strings verbatim with white space and newlines, others as JSON."""
    _, said, calls = parse("I look.\n\n" + CALL)
    assert said == "I look."
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [("weather", ARGUMENTS)]


def test_several_calls_have_their_own_indices() -> None:
    _, said, calls = parse(CALL + "\n<tool_call>\n<function=ping>\n</function>\n</tool_call>")
    assert said == ""
    assert [name for name, _ in calls] == ["weather", "ping"]
    assert json.loads(calls[1][1]) == {}


def test_the_json_form_is_read_too() -> None:
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "a}\\"{", "x": {"y": [1]}}}\n</tool_call>'
    _, said, calls = parse("ok\n" + text, form=ToolForm.JSON)
    assert said == "ok"
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [
        ("weather", {"city": 'a}"{', "x": {"y": [1]}})
    ]


def test_a_call_inside_a_thought_is_thought() -> None:
    thought, said, calls = parse(f"I could {CALL}\n</think>\n\nNo.", thinking=True)
    assert CALL in thought
    assert (said, calls) == ("No.", [])


def test_without_tools_the_text_of_a_call_is_text() -> None:
    assert parse(CALL, form=None) == ("", CALL, [])


def test_a_value_that_may_be_a_string_or_null_is_read_by_its_schema() -> None:
    head, tail = "<tool_call>\n<function=weather>\n<parameter=unit>\n", "\n</parameter>\n</function>\n</tool_call>"
    values = [json.loads(parse(head + raw + tail)[2][0][1])["unit"] for raw in ("null", "12", '"C"', "[1]", "C")]
    assert values == [None, "12", '"C"', "[1]", "C"]


def test_a_call_cut_by_the_budget_shows_what_there_was() -> None:
    _, _, calls = parse(CALL[:70])
    assert calls[0][0] == "weather"
    assert calls[0][1].startswith('{"city": "São')


def test_what_only_began_like_a_call_is_text() -> None:
    assert parse("use <tool_call> like so")[1] == "use <tool_call> like so"
    assert parse("a <tool")[1] == "a <tool"


def test_white_space_around_a_thought_and_a_call_is_not_shown() -> None:
    thought, said, calls = parse("\nHm.\n\n</think>\n\nText.\n\n" + CALL, thinking=True)
    assert (thought, said, len(calls)) == ("Hm.", "Text.", 1)


@pytest.mark.parametrize("form", [ToolForm.XML, ToolForm.JSON, None])
@given(
    parts=st.lists(
        st.sampled_from(
            [CALL, JSON_CALL, "<think>", "</think>", "<tool_call>", "text ", "\n\n", "</tool_call>", "<", "é🙂"]
        ),
        max_size=7,
    ),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    thinking=st.booleans(),
)
@settings(max_examples=200)
def test_pieces_put_together_are_the_whole(
    form: ToolForm | None, parts: list[str], sizes: list[int], thinking: bool
) -> None:
    text = "".join(parts)
    whole = parse(text, form=form, thinking=thinking)
    assert parse(text, form=form, thinking=thinking, sizes=tuple(sizes)) == whole


@given(city=st.text(max_size=20), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
@settings(max_examples=200)
def test_any_string_comes_through_a_call_unchanged(city: str, sizes: list[int]) -> None:
    if "\n</parameter>" in city or any("\ud800" <= char <= "\udfff" for char in city):
        return
    text = f"<tool_call>\n<function=weather>\n<parameter=city>\n{city}\n</parameter>\n</function>\n</tool_call>"
    _, _, calls = parse(text, sizes=tuple(sizes))
    assert json.loads(calls[0][1]) == {"city": city}
