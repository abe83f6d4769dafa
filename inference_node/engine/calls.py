"""How models write tool calls, and what a parameter's text means.

Two forms are in use by this family:

    xml    <tool_call>\\n<function=NAME>\\n<parameter=KEY>\\nVALUE\\n</parameter>\\n</function>\\n</tool_call>
    json   <tool_call>\\n{"name": NAME, "arguments": {...}}\\n</tool_call>

In the xml form a value is raw text: the tool's schema says whether it is a string or JSON. The grammar
(`engine.constrain`) and the parser (`engine.answer`) must agree on that, so both ask `Parameter` here.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from inference_node.speculate.seam import NodeError

OPEN, CLOSE = "<tool_call>", "</tool_call>"
VALUE_END = "\n</parameter>"

Schema = Mapping[str, Any] | bool


class ToolForm(StrEnum):
    XML = "xml"
    JSON = "json"


class BadTool(NodeError):
    """A tool's schema cannot be enforced in this model's form of tool calls."""


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    @cached_property
    def fields(self) -> "dict[str, Parameter]":
        defs = definitions(self.parameters)
        return {
            key: Parameter(key, schema, defs, key in self.parameters.get("required", ()))
            for key, schema in (self.parameters.get("properties") or {}).items()
        }

    @cached_property
    def other(self) -> "Parameter | None":
        """What parameters without a schema of their own may hold; None when there may be none."""
        extra = self.parameters.get("additionalProperties", False)
        return Parameter("", extra, definitions(self.parameters), False) if extra else None

    def parameter(self, key: str) -> "Parameter":
        return self.fields.get(key) or self.other or Parameter(key, True, {}, False)


class Kind(StrEnum):
    """How a parameter's raw text becomes a value."""

    TEXT = "text"  # a string, as it stands
    JSON = "json"  # parsed
    EITHER = "either"  # parsed where that gives a value that the schema allows and that is no string, else a string


ALL_TYPES = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))


@dataclass(frozen=True)
class Parameter:
    """One parameter of a tool."""

    key: str
    schema: Schema
    defs: Mapping[str, Any]  # $defs and definitions of the whole tool
    required: bool

    @cached_property
    def types(self) -> frozenset[str]:
        return types_of(self.schema, self.defs)

    @property
    def kind(self) -> Kind:
        if "string" not in self.types:
            return Kind.JSON
        return Kind.TEXT if self.types == {"string"} else Kind.EITHER

    @property
    def whole(self) -> dict[str, Any]:
        """The schema with the definitions that it may refer to."""
        return {**({} if self.schema is True else dict(self.schema)), **self.defs} if self.schema else {"not": {}}

    def value(self, text: str) -> Any:
        """What the raw text of this parameter means."""
        if self.kind is Kind.TEXT:
            return text
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return text
        if self.kind is Kind.EITHER and (isinstance(value, str) or not self._valid(value)):
            return text
        return value

    def _valid(self, value: Any) -> bool:
        try:
            return bool(Draft202012Validator(self.whole).is_valid(value))
        except Exception:  # a schema that jsonschema cannot follow: the text is then taken as it stands
            return False


def tool_from(name: str, parameters: Mapping[str, Any] | None) -> Tool:
    """A tool, its schema checked as far as every form needs. Raises BadTool."""
    if parameters is None or parameters == {}:
        return Tool(name)
    foreign = next((ref for ref in _refs(parameters) if not ref.startswith("#")), None)
    if foreign is not None:
        raise BadTool(f'Tool "{name}": $ref "{foreign}" leads outside the schema; only "#/..." can be followed.')
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as error:
        path = "/".join(str(part) for part in error.absolute_path) or "the top level"
        raise BadTool(f'Tool "{name}": parameters are no JSON schema: {error.message} (at {path}).') from None
    tool = Tool(name, parameters)
    if parameters.get("type", "object") != "object":
        raise BadTool(f'Tool "{name}": parameters have type {parameters["type"]!r}, expected "object".')
    return tool


def definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: schema[name] for name in ("$defs", "definitions") if name in schema}


def resolve(schema: Schema, defs: Mapping[str, Any]) -> Schema:
    """The schema that a chain of local references leads to."""
    seen: set[str] = set()
    while isinstance(schema, Mapping) and "$ref" in schema:
        ref = schema["$ref"]
        if ref in seen:
            return True
        seen.add(ref)
        found: Any = defs
        for part in ref.removeprefix("#/").split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or key not in found:
                return True
            found = found[key]
        schema = found
    return schema


def types_of(schema: Schema, defs: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Types that a value may have; all of them where the schema does not say."""
    schema = resolve(schema, defs)
    if depth > 20 or schema is True:
        return ALL_TYPES
    if schema is False:
        return frozenset()
    types = ALL_TYPES
    if "type" in schema:
        named = schema["type"]
        types = frozenset([named] if isinstance(named, str) else named)
    if "const" in schema:
        types &= {json_type(schema["const"])}
    if "enum" in schema:
        types &= {json_type(value) for value in schema["enum"]}
    for word in ("anyOf", "oneOf"):
        if word in schema:
            types &= frozenset().union(*(types_of(part, defs, depth + 1) for part in schema[word]))
    for part in schema.get("allOf", ()):
        types &= types_of(part, defs, depth + 1)
    return types


def json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _refs(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            else:
                yield from _refs(value)
    elif isinstance(schema, Sequence) and not isinstance(schema, str):
        for value in schema:
            yield from _refs(value)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
