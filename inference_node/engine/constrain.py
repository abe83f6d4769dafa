"""Grammars: output that is valid by construction, also when most of it was drafted.

A grammar is text in llguidance's Lark dialect. Its matcher says, for every row of a verify, which ids may come next
after the committed tokens and the drafts before that row. The target picks among those only, so whatever is committed
follows the grammar, and only a budget can cut it short.

Control tokens are symbols of their own in such a grammar: where the tokenizer has <tool_call> as one token, the grammar
must name the token; where it has not, the same text is spelled out. `specials` says which.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from inference_node.engine.calls import (
    CLOSE,
    OPEN,
    VALUE_END,
    BadTool,
    Kind,
    Parameter,
    Tool,
    ToolForm,
    resolve,
)
from inference_node.speculate.seam import NodeError

MOST_CALLS = 32
"""Tool calls in one answer. A weak model can repeat itself for ever; this ends it."""

# Between JSON tokens: enough for indented output, too little to write white space for ever.
LOOSE = {"whitespace_pattern": r"[ \n]{0,40}"}
# As the templates' tojson writes it, so that a call that comes back in the history is the same text.
TIGHT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_INTEGER = "-?(0|[1-9][0-9]{0,14})"

# Keywords at the top of a tool's parameters that the xml form can keep; the rest would have to be ignored.
XML_KEYWORDS = frozenset(("type", "properties", "required", "additionalProperties", "$defs", "definitions"))
XML_KEYWORDS |= {"title", "description", "$schema", "$id", "$comment", "default", "examples", "strict"}


class BadGrammar(NodeError):
    """A schema or grammar that cannot be followed."""


class GrammarFailed(NodeError):
    """A grammar became too complex while it was being followed."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must look like."""

    lark: str
    about: str  # for messages: "response_format", "tools"


class Thinking(StrEnum):
    """Where an answer begins."""

    INSIDE = "inside"  # in a thought that the prompt has opened; it ends before the rest
    ALLOWED = "allowed"  # before a thought that the model may open
    OVER = "over"  # after a thought, or where there are none


def json_grammar(schema: Mapping[str, Any], *, thinking: Thinking, specials: frozenset[str]) -> Grammar:
    """One JSON value of the schema."""
    return Grammar(_answer(_json(schema), thinking, specials), "response_format")


def tools_grammar(
    tools: Sequence[Tool],
    form: ToolForm,
    *,
    must_call: bool = False,
    many: bool = True,
    otherwise: Mapping[str, Any] | None = None,
    thinking: Thinking = Thinking.ALLOWED,
    specials: frozenset[str] = frozenset(),
) -> Grammar:
    """Text, and then calls of these tools; with must_call nothing but calls; without tools no call at all.

    otherwise: a schema. The answer is then either calls, or one JSON value of it, and no free text.
    """
    rules = _Rules(specials)
    if not tools:
        return Grammar(_answer(rules.text(), thinking, specials, rules.lines), "tools")
    calls = [rules.xml(tool) if form is ToolForm.XML else rules.json(tool) for tool in tools]
    rules.add("one", f"({' | '.join(calls)}) {rules.marker(CLOSE)}")
    more = f'("\\n" {rules.marker(OPEN)} "\\n" one){{0,{MOST_CALLS - 1}}}' if many else ""
    bare = must_call or otherwise is not None
    first = f'{rules.marker(OPEN)} "\\n"' if bare else rules.text_and_open()
    body = f"{first} one {more}"
    if not must_call:
        body = f"{rules.text() if otherwise is None else _json(otherwise)} | {body}"
    return Grammar(_answer(body, thinking, specials, rules.lines), "tools")


class Compiler:
    """Grammars for one tokenizer. Compiled ones are kept, since a conversation uses the same one every turn."""

    def __init__(self, tokenizer: LLTokenizer, vocab: int, *, keep: int = 32) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._keep = keep
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, grammar: Grammar) -> "Matcher":
        """Raises BadGrammar."""
        with self._lock:
            compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = compiled
            self._compiled.move_to_end(grammar)
            while len(self._compiled) > self._keep:
                self._compiled.popitem(last=False)
            return Matcher(compiled.deep_copy(), self._vocab)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        text = LLMatcher.grammar_from_lark(grammar.lark)
        failed, messages = LLMatcher.validate_grammar_with_warnings(text, self._tokenizer)
        if failed:
            raise BadGrammar(f"{grammar.about}: this schema cannot be enforced: {_first_line(messages)}")
        matcher = LLMatcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise BadGrammar(f"{grammar.about}: this schema cannot be enforced: {_first_line([matcher.get_error()])}")
        return matcher


class Matcher:
    """Where one answer stands in its grammar: the Constraint that a target asks."""

    def __init__(self, matcher: LLMatcher, vocab: int) -> None:
        self._matcher = matcher
        self._vocab = vocab

    def masks(self, drafts: Sequence[int]) -> torch.Tensor:
        rows = allocate_token_bitmask(len(drafts) + 1, self._vocab)
        walked = 0
        for draft in (*drafts, None):
            fill_next_token_bitmask(self._matcher, rows, walked)
            self._check()
            if draft is None or not _allows(rows[walked], draft) or self._matcher.try_consume_tokens([draft]) == 0:
                break
            walked += 1
        self._matcher.rollback(walked)
        return torch.from_numpy(rows[: walked + 1])

    def advance(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not self._matcher.is_stopped():  # after the end only end-of-turn tokens follow
                self._matcher.consume_token(token)
        self._check()

    @property
    def complete(self) -> bool:
        """Whether the answer so far is a whole one."""
        return bool(self._matcher.is_accepting())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarFailed(
                f"The grammar could not be followed further: {_first_line([self._matcher.get_error()])}"
            )


class _Rules:
    """Lark rules under construction."""

    def __init__(self, specials: frozenset[str]) -> None:
        self._specials = specials
        self.lines: list[str] = []
        self._count = 0

    def add(self, name: str, body: str) -> str:
        self.lines.append(f"{name}: {body}")
        return name

    def fresh(self, prefix: str, body: str) -> str:
        self._count += 1
        return self.add(f"{prefix}{self._count}", body)

    def marker(self, text: str) -> str:
        return marker(text, self._specials)

    def text(self) -> str:
        """Text in which no call begins."""
        return self.fresh("TEXT_", without(OPEN))

    def text_and_open(self) -> str:
        """Such text and then the beginning of a call."""
        if OPEN in self._specials:
            return f'{self.text()} {self.marker(OPEN)} "\\n"'
        return self.fresh("TEXT_", f"({without(OPEN)}) {literal(OPEN)} {literal(chr(10))}")

    def json(self, tool: Tool) -> str:
        head = literal(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
        schema = json.dumps({**tool.parameters, "type": "object", "x-guidance": TIGHT})
        return self.fresh("call_", f'{head} %json {schema} "}}\\n"')

    def xml(self, tool: Tool) -> str:
        unknown = sorted(key for key in tool.parameters if key not in XML_KEYWORDS and not key.startswith("x-"))
        if unknown:
            raise BadTool(
                f'Tool "{tool.name}": "{unknown[0]}" at the top of its parameters cannot be enforced in this model\'s '
                "form of tool calls. Move it into a property, or leave it out."
            )
        missing = sorted(set(tool.parameters.get("required", ())) - set(tool.fields))
        if missing:
            raise BadTool(f'Tool "{tool.name}": "{missing[0]}" is required but is not among its properties.')
        parts = [literal(f"<function={tool.name}>\n")]
        for parameter in tool.fields.values():
            rule = self._parameter(tool, parameter)
            parts.append(rule if parameter.required else f"({rule})?")
        if tool.other is not None:
            parts.append(f"({self._other(tool, tool.other)})*")
        return self.fresh("call_", " ".join([*parts, literal("</function>\n")]))

    def _parameter(self, tool: Tool, parameter: Parameter) -> str:
        if any(bad in parameter.key for bad in "<>\n") or not parameter.key:
            raise BadTool(f'Tool "{tool.name}": the parameter name {parameter.key!r} cannot be written as a tag.')
        return f"{literal(f'<parameter={parameter.key}>{chr(10)}')} {self._value(tool, parameter)}"

    def _other(self, tool: Tool, other: Parameter) -> str:
        """A parameter of any name that is not one of the named ones."""
        named = "".join(f" & ~/{escaped(key)}/" for key in tool.fields)
        name = self.fresh("NAME_", f'"<parameter=" (/[^<>\\n]+/{named}) ">\\n"')
        return f"{name} {self._value(tool, other)}"

    def _value(self, tool: Tool, parameter: Parameter) -> str:
        """The value's text and its closing tag: one lexeme where it is raw, so that it ends at the first such tag."""
        if parameter.kind is Kind.JSON:
            return f"%json {json.dumps({**parameter.whole, 'x-guidance': TIGHT})} {literal(VALUE_END + chr(10))}"
        text = raw_text(tool, parameter)
        return self.fresh("VALUE_", f"(({text}) & {without(VALUE_END)}) {literal(VALUE_END + chr(10))}")


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': LOOSE})}"


def marker(text: str, specials: frozenset[str]) -> str:
    return text if text in specials else literal(text)


def literal(text: str) -> str:
    """Exactly this text, as a regex: Lark strings know fewer escapes."""
    return f"/{escaped(text)}/"


def escaped(text: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


def without(text: str) -> str:
    """Any text, control tokens aside, that does not contain this one."""
    return f"/(?s:.*)/ & ~/(?s:.*{escaped(text)}.*)/"


def raw_text(tool: Tool, parameter: Parameter) -> str:
    """A regex of the raw text that a parameter with strings among its values may have. Raises BadTool."""
    whole: list[str] = []
    others: set[str] = set()
    for schema in _alternatives(parameter.schema, parameter.defs):
        if schema is True:
            return "/(?s:.*)/"
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None:
            whole += [literal(value if isinstance(value, str) else json.dumps(value)) for value in values]
            continue
        named = schema.get("type")
        types = {named} if isinstance(named, str) else set(named or ("string",))
        if "string" in types:
            whole.append(_string(tool, parameter, schema))
        others |= types - {"string"}
        if types - {"string"} and set(schema) & {"properties", "items", "minimum", "maximum", "multipleOf"}:
            others.add("constrained")
    if "/(?s:.*)/" in whole:
        return "/(?s:.*)/"  # any text: what it means is decided by the schema when it is read
    simple = {"null": "/null/", "boolean": "/true|false/", "integer": f"/{_INTEGER}/"}
    simple["number"] = f"/{_INTEGER}(\\.[0-9]{{1,15}})?/"
    if not others <= set(simple):
        raise BadTool(
            f'Tool "{tool.name}": parameter "{parameter.key}" allows some strings and also {sorted(others)}; that '
            "cannot be told apart in this model's form of tool calls. Allow any string, or only one of the types."
        )
    return " | ".join([*whole, *(simple[name] for name in sorted(others))])


def _string(tool: Tool, parameter: Parameter, schema: Mapping[str, Any]) -> str:
    parts = []
    if "pattern" in schema:
        parts.append(f"/{_searched(schema['pattern'])}/")
    if "minLength" in schema or "maxLength" in schema:
        parts.append(f"/(?s:.{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}})/")
    return " & ".join(f"({part})" for part in parts) or "/(?s:.*)/"


def _searched(pattern: str) -> str:
    """A pattern that is to be found somewhere, as one that matches the whole text. Lark needs / escaped."""
    head = "" if pattern.startswith("^") else "(?s:.*)"
    ends = pattern.endswith("$") and not pattern.endswith("\\$")
    body = pattern.removeprefix("^").removesuffix("$") if ends else pattern.removeprefix("^")
    return f"{head}({body})".replace("\\/", "/").replace("/", "\\/") + ("" if ends else "(?s:.*)")


def _alternatives(schema: Any, defs: Mapping[str, Any], depth: int = 0) -> list[Any]:
    schema = resolve(schema, defs)
    if not isinstance(schema, Mapping) or depth > 20:
        return [schema]
    for word in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(word)
        if parts and (word != "allOf" or len(parts) == 1):
            return [found for part in parts for found in _alternatives(part, defs, depth + 1)]
    if not set(schema) & {"type", "enum", "const", "pattern", "minLength", "maxLength"}:
        return [True]
    return [schema]


def _answer(body: str, thinking: Thinking, specials: frozenset[str], rules: Sequence[str] = ()) -> str:
    """The whole grammar: the thought first, where there is one."""
    end = "</think>"
    if thinking is Thinking.OVER or (thinking is Thinking.ALLOWED and end not in specials):
        return "\n".join([f"start: {body}", *rules])
    space = "/\\n{0,2}/"
    thought = f"THOUGHT {end} {space}" if end in specials else f"THOUGHT_END {space}"
    opened = thought if thinking is Thinking.INSIDE else f"(<think> {thought})?"
    lines = [f"start: {opened} body", f"body: {body}", *rules]
    if end in specials:
        lines.append("THOUGHT: /(?s:.*)/")
    else:
        lines.append(f"THOUGHT_END: ({without(end)}) {literal(end)}")
    return "\n".join(lines)


def _allows(row: Any, token: int) -> bool:
    return bool(int(row[token // 32]) >> (token % 32) & 1)


def _first_line(messages: Sequence[str]) -> str:
    text = messages[0] if messages else "no reason was given"
    return text.strip().splitlines()[0][:500] if text.strip() else "no reason was given"
