"""Grammars: what they let through, what they refuse, and that any walk through one ends in a valid answer."""

import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from inference_node.engine.answer import AnswerParser, CallOpened, CallPart, Text
from inference_node.engine.calls import BadTool, Tool, ToolForm, tool_from
from inference_node.engine.constrain import (
    BadGrammar,
    Compiler,
    Grammar,
    Matcher,
    Thinking,
    json_grammar,
    tools_grammar,
)
from tests.inference_node.engine.toy import END, THINKING_TEMPLATE, VOCAB, ids, toy

TOKENS = toy(THINKING_TEMPLATE)
COMPILER = Compiler(TOKENS.grammar_tokenizer, VOCAB)

TOOL = tool_from(
    "edit",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "pattern": "^[a-z/]{1,12}$"},
            "text": {"type": "string"},
            "line": {"type": "integer", "minimum": 1, "maximum": 99},
            "mode": {"enum": ["insert", "replace", None]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2},
            "note": {"anyOf": [{"type": "string", "maxLength": 6}, {"type": "null"}]},
            "free": {"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 10}]},
            "flag": {"type": "boolean"},
        },
        "required": ["path", "text", "mode"],
        "additionalProperties": False,
    },
)
PING = Tool("ping")


def matcher(grammar: Grammar) -> Matcher:
    return COMPILER.matcher(grammar)


def allowed(mask: Any) -> list[int]:
    words = [int(word) & 0xFFFFFFFF for word in mask.tolist()]
    return [32 * w + bit for w, word in enumerate(words) for bit in range(32) if word >> bit & 1]


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether the whole text can be said, token by token, and then the turn be ended."""
    follower = matcher(grammar)
    for token in [*ids(text), END]:
        if token not in allowed(follower.masks(())[0]):
            return False
        follower.advance((token,))
    return True


def tools(form: ToolForm = ToolForm.XML, **options: Any) -> Grammar:
    return tools_grammar((TOOL, PING), form, specials=TOKENS.specials, **options)


CALL = (
    "<tool_call>\n<function=edit>\n<parameter=path>\na/b\n</parameter>\n<parameter=text>\nx\n\ny\n</parameter>\n"
    "<parameter=mode>\ninsert\n</parameter>\n</function>\n</tool_call>"
)
PINGED = "<tool_call>\n<function=ping>\n</function>\n</tool_call>"


@pytest.mark.parametrize("text", ["", "Hello.", "2 < 3 and <tool", CALL, f"First.\n\n{CALL}", f"{CALL}\n{PINGED}"])
def test_text_and_calls_are_let_through(text: str) -> None:
    assert accepts(tools(), text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (CALL.replace("edit", "exit"), "no such tool"),
        (CALL.replace("a/b", "A"), "against the pattern"),
        (CALL.replace("insert", "delete"), "not in the enum"),
        (CALL.replace("<parameter=mode>\ninsert\n</parameter>\n", ""), "a required parameter is missing"),
        (CALL + " and more", "text after a call"),
        ("<tool_call>", "a call that is not finished"),
    ],
)
def test_what_is_no_call_of_these_tools_is_refused(text: str, why: str) -> None:
    assert not accepts(tools(), text), why


def test_a_must_call_lets_no_text_through() -> None:
    assert accepts(tools(must_call=True), CALL)
    assert not accepts(tools(must_call=True), "Hello.")
    assert not accepts(tools(must_call=True), "")


def test_one_call_only_when_parallel_calls_are_off() -> None:
    assert accepts(tools(many=False), PINGED)
    assert not accepts(tools(many=False), f"{PINGED}\n{PINGED}")


def test_no_call_begins_when_no_tool_is_on_offer() -> None:
    grammar = tools_grammar((), ToolForm.XML, specials=TOKENS.specials)
    assert accepts(grammar, "plain")
    assert not accepts(grammar, PINGED)


def test_a_thought_comes_before_the_constrained_part() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    grammar = json_grammar(schema, thinking=Thinking.INSIDE, specials=TOKENS.specials)
    assert accepts(grammar, 'so {"b": 2}\n</think>\n\n{"a": 1}')
    assert not accepts(grammar, '{"a": 1}')
    assert accepts(tools(thinking=Thinking.INSIDE), f"hm</think>\n\n{PINGED}")
    assert accepts(tools(), f"<think>hm</think>\n\n{PINGED}")
    assert not accepts(tools(thinking=Thinking.OVER), f"<think>hm</think>\n\n{PINGED}")


def test_a_tokenizer_without_the_markers_spells_them_out() -> None:
    """The same texts are let through where <tool_call> is no token of its own."""
    from transformers import PreTrainedTokenizerFast

    from inference_node.engine.tokens import Tokens
    from tests.inference_node.engine import toy as toys

    backend = toys.toy_tokenizer().backend_tokenizer.to_str()
    plain = json.loads(backend)
    plain["added_tokens"] = [token for token in plain["added_tokens"] if token["special"]]
    import tokenizers

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(plain)), eos_token="<|im_end|>"
    )
    bare = Tokens(tokenizer, VOCAB)
    assert "<tool_call>" not in bare.specials
    for form, call in (
        (ToolForm.XML, PINGED),
        (ToolForm.JSON, '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'),
    ):
        grammar = tools_grammar((TOOL, PING), form, specials=bare.specials)
        follower = Compiler(bare.grammar_tokenizer, VOCAB).matcher(grammar)
        for token in [*bare.encode(f"a <too {call}\n{call}"), END]:
            assert token in allowed(follower.masks(())[0])
            follower.advance((token,))


def test_masks_stop_at_the_first_draft_that_is_refused_and_move_nothing() -> None:
    follower = matcher(tools(must_call=True))
    good, bad = ids("<tool_call>\n<func"), ids("x")
    assert follower.masks([*good, *bad, *good]).shape[0] == len(good) + 1
    assert follower.masks(good).shape[0] == len(good) + 1
    follower.advance(good)
    assert allowed(follower.masks(())[0]) == ids("t")


def test_each_row_allows_what_stepping_there_would() -> None:
    drafts = ids(CALL)[:60]
    rows = matcher(tools()).masks(drafts)
    assert rows.shape[0] == len(drafts) + 1
    stepping = matcher(tools())
    for row, draft in zip(rows, drafts, strict=False):
        assert allowed(row) == allowed(stepping.masks(())[0])
        stepping.advance((draft,))


def test_every_row_allows_something_also_at_the_end() -> None:
    follower = matcher(tools(must_call=True, many=False))
    follower.advance(ids(PINGED))
    assert allowed(follower.masks(())[0]) == [END]
    follower.advance((END,))
    assert follower.complete


@pytest.mark.parametrize("form", list(ToolForm))
@pytest.mark.parametrize("seed", range(12))
def test_any_walk_through_the_grammar_is_a_valid_call(form: ToolForm, seed: int) -> None:
    """Random ids among those allowed, with wrong drafts in between, as a bad model under speculation would choose."""
    rng = random.Random(seed)
    follower = matcher(tools(form, must_call=True))
    closing = ids('</think>"}]')
    said: list[int] = []
    while True:
        drafts = [rng.randrange(VOCAB) for _ in range(rng.randrange(4))]
        mask = follower.masks(drafts)[0]
        choices = allowed(mask)
        # Lean towards closing things, or a random walk writes for ever.
        ending = [token for token in [*_next_of("\n</parameter>\n", said), *closing] if token in choices]
        token = END if END in choices else rng.choice(ending if ending and rng.random() < 0.9 else choices)
        if token == END:
            break
        said.append(token)
        follower.advance((token,))
        assert len(said) < 5000, TOKENS.decode(said)[-300:]
    parser = AnswerParser(form=form, tools=(TOOL, PING))
    deltas = [*parser.feed(TOKENS.decode(said)), *parser.finish()]
    assert not [delta for delta in deltas if isinstance(delta, Text)]
    names = [delta.name for delta in deltas if isinstance(delta, CallOpened)]
    assert names
    for index, name in enumerate(names):
        text = "".join(d.arguments for d in deltas if isinstance(d, CallPart) and d.index == index)
        schema = {"edit": TOOL, "ping": PING}[name].parameters
        Draft202012Validator(schema).validate(json.loads(text))


def _next_of(tag: str, said: list[int]) -> list[int]:
    """The next id of a tag that the end of what was said has begun, else its first."""
    tokens = ids(tag)
    begun = max(n for n in range(len(tokens)) if n == 0 or said[-n:] == tokens[:n])
    return [tokens[begun]] * 20  # weighs more than the others


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ({"type": "object", "properties": {"a": {"not": {"type": "integer"}}, "b": {"type": "nope"}}}, "nope"),
        ({"type": "object", "properties": {"a": {"$ref": "https://example.org/x"}}}, "example.org"),
        ({"type": "array"}, "array"),
        ({"type": "object", "anyOf": [{"required": ["a"]}], "properties": {"a": {"type": "string"}}}, "anyOf"),
        ({"type": "object", "properties": {"a>b": {"type": "string"}}}, "a>b"),
        ({"type": "object", "properties": {}, "required": ["ghost"]}, "ghost"),
        (
            {
                "type": "object",
                "properties": {"a": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "object"}]}},
            },
            '"a"',
        ),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_by_name(parameters: dict[str, Any], named: str) -> None:
    """A schema that is accepted and not enforced would be a wrong answer."""
    with pytest.raises((BadTool, BadGrammar)) as refused:
        matcher(tools_grammar((tool_from("f", parameters),), ToolForm.XML, specials=TOKENS.specials))
    assert named in str(refused.value)


def test_a_bad_response_schema_is_refused_by_name() -> None:
    with pytest.raises(BadGrammar, match="uniqueItems"):
        matcher(json_grammar({"type": "array", "uniqueItems": True}, thinking=Thinking.OVER, specials=TOKENS.specials))


def test_definitions_of_the_tool_serve_its_parameters() -> None:
    tool = tool_from(
        "f",
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/point"}, "s": {"$ref": "#/$defs/name"}},
            "required": ["a", "s"],
            "$defs": {
                "point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
                "name": {"type": "string"},
            },
        },
    )
    grammar = tools_grammar((tool,), ToolForm.XML, specials=TOKENS.specials)
    text = (
        "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n"
        '<parameter=s>\nraw "text"\n</parameter>\n</function>\n</tool_call>'
    )
    assert accepts(grammar, text.replace("{}", '{"x": 1}'))
    assert not accepts(grammar, text)


def test_parameters_of_any_name_are_let_through_where_the_schema_allows_them() -> None:
    tool = tool_from("f", {"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}})
    grammar = tools_grammar((tool,), ToolForm.XML, specials=TOKENS.specials)
    text = "<tool_call>\n<function=f>\n<parameter=any thing>\n{}\n</parameter>\n</function>\n</tool_call>"
    assert accepts(grammar, text.format(5))
    assert not accepts(grammar, text.format("five"))


def test_a_grammar_is_compiled_once() -> None:
    compiler = Compiler(TOKENS.grammar_tokenizer, VOCAB, keep=1)
    compiler.matcher(tools()).advance(ids("Hello"))
    assert END not in allowed(compiler.matcher(tools(must_call=True)).masks(())[0])
    assert END in allowed(compiler.matcher(tools()).masks(())[0])
