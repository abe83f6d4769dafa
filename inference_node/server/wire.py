"""What clients send. Every field is honoured, or refused by name; none is taken and forgotten.

Some fields cannot change the answer of a server like this one (`user`, `metadata`, hints for a cache that is always
on). Real clients send them, so they are taken: `NO_EFFECT` lists them with the reason. A field that is known to other
servers but not done here is refused with what to do instead: `REFUSED`. Any other name is a mistake, and refused too.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

NO_EFFECT = {
    "user": "names the end user, for the operator's records; requests of different users take turns",
    "safety_identifier": "names the end user, for the operator's records",
    "metadata": "the client's own notes",
    "prompt_cache_key": "a hint for a cache; here the prefix store finds every shared prefix by itself",
    "cache_prompt": "llama-server's switch for what is always on here; false is refused",
    "id_slot": "llama-server's choice of a slot; there is one",
    "service_tier": "auto and default are what is served",
    "store": "false: nothing is stored",
    "return_meta_info": "the figures are in every answer; false leaves them out",
    "timings_per_token": "llama-server's; the timings come with the last chunk",
    "return_progress": "llama-server's; comments show that a long prompt is being read",
    "skip_special_tokens": "true: control tokens have no text here",
    "spaces_between_special_tokens": "control tokens have no text here",
    "reasoning_format": "llama-server's; auto and deepseek are what is done here",
}

REFUSED = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "this node writes text",
    "web_search_options": "this node searches nothing",
    "prediction": "drafts come from the node's own drafter",
    "verbosity": "say it in the prompt",
    "best_of": "send n and choose yourself",
    "echo": "the prompt is not repeated; put it before the answer yourself",
    "suffix": "put the model's own fill-in-the-middle tokens into the prompt",
    "use_beam_search": "beams are not searched here",
    "min_tokens": "use logit_bias against the end-of-turn token",
    "guided_json": "use response_format with json_schema",
    "guided_regex": "use response_format with json_schema",
    "guided_choice": "use response_format with a json_schema that has an enum",
    "guided_grammar": "use response_format with json_schema",
    "grammar": "use response_format with json_schema",
    "json_schema": "use response_format",
    "structured_outputs": "use response_format",
    "regex": "use response_format with json_schema",
    "ebnf": "use response_format with json_schema",
    "typical_p": "use top_p or min_p",
    "mirostat": "use top_p or min_p",
    "top_a": "use top_p or min_p",
    "dry_multiplier": "use repetition_penalty",
    "xtc_probability": "use top_p or min_p",
    "dynatemp_range": "use temperature",
    "continue_final_message": "use /v1/completions with a prompt that you rendered",
    "add_generation_prompt": "use /v1/completions with a prompt that you rendered",
    "prompt_logprobs": "only tokens of the answer have logprobs",
    "stop_token_ids": "use stop",
    "bad_words": "use logit_bias",
    "lora": "one model is served",
    "input_audio": "this node reads text",
}

Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class Wire(BaseModel):
    """Numbers are numbers and strings are strings: nothing is converted. A null is a field that was left out."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def leave_out_nulls(cls, value: Any) -> Any:
        return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


class StreamOptions(Wire):
    include_usage: bool = False
    continuous_usage_stats: Literal[False] = False
    include_obfuscation: bool = False  # padding against eavesdroppers; nothing is padded here, which changes no text


class JsonSchema(Wire):
    name: str = ""
    description: str = ""
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool = True  # it always is


class ResponseFormat(Wire):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def has_a_schema(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError('"json_schema" belongs to type "json_schema", and to no other type')
        return self


class Function(Wire):
    name: str = Field(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = True  # arguments always follow the schema


class ToolWire(Wire):
    type: Literal["function"]
    function: Function


class NamedFunction(Wire):
    name: str


class NamedTool(Wire):
    type: Literal["function"]
    function: NamedFunction


class TextPart(Wire):
    model_config = ConfigDict(strict=True, extra="ignore")  # cache_control and other marks of other servers

    type: Literal["text"]
    text: str


class CallFunction(Wire):
    name: str
    arguments: str | dict[str, Any] = ""  # OpenAI's is a string of JSON; some clients send the object


class Call(Wire):
    model_config = ConfigDict(strict=True, extra="ignore")

    id: str = ""
    type: Literal["function"] = "function"
    function: CallFunction


class Message(Wire):
    """One message. What answers of other servers carry beside these fields comes back in histories and says nothing."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # vLLM's name of it
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def fits_its_role(self) -> "Message":
        if self.role != "assistant" and self.content is None:
            raise ValueError(f'a message of role "{self.role}" needs content')
        if self.role != "assistant" and self.tool_calls:
            raise ValueError('only messages of role "assistant" have tool_calls')
        return self

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @property
    def thought(self) -> str | None:
        return self.reasoning_content if self.reasoning_content is not None else self.reasoning


class Common(Wire):
    """What chat and plain completions have in common."""

    model: str = ""
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    repeat_penalty: float | None = Field(None, gt=0, le=100)  # llama-server's name of it
    presence_penalty: float | None = Field(None, ge=-100, le=100)
    frequency_penalty: float | None = Field(None, ge=-100, le=100)
    logit_bias: dict[str, Bias] = Field(default_factory=dict)
    seed: Seed | None = None
    stop: str | list[str] = Field(default_factory=list)
    n: int = Field(1, ge=1, le=16)
    ignore_eos: bool = False

    user: str = ""
    safety_identifier: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict)
    prompt_cache_key: str = ""
    cache_prompt: Literal[True] = True
    id_slot: int = -1
    service_tier: Literal["auto", "default"] = "auto"
    store: Literal[False] = False
    return_meta_info: bool = True
    timings_per_token: bool = False
    return_progress: bool = False
    skip_special_tokens: Literal[True] = True
    spaces_between_special_tokens: bool = True

    @model_validator(mode="before")
    @classmethod
    def is_text_throughout(cls, value: Any) -> Any:
        """JSON can spell half a character ("\\ud83d"); no tokenizer can read it."""
        check_values(value)
        return value

    @model_validator(mode="before")
    @classmethod
    def refuses_by_name(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for name in value:
                if name in REFUSED and value[name] not in (None, False):
                    raise ValueError(f'"{name}" is not done here: {REFUSED[name]}')
            return {name: item for name, item in value.items() if name not in REFUSED}
        return value

    @field_validator("stop")
    @classmethod
    def stops_are_texts(cls, value: str | list[str]) -> str | list[str]:
        stops = [value] if isinstance(value, str) else value
        if len(stops) > 16:
            raise ValueError(f"{len(stops)} stop strings; at most 16 are looked for")
        if any(not stop or len(stop) > 1024 for stop in stops):
            raise ValueError("a stop string has 1 to 1024 characters")
        return value

    @field_validator("logit_bias")
    @classmethod
    def biases_are_of_tokens(cls, value: dict[str, float]) -> dict[str, float]:
        wrong = next((key for key in value if not key.isascii() or not key.isdigit() or len(key) > 9), None)
        if wrong is not None:
            raise ValueError(f"{wrong!r} is not a token id")
        return value

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ChatRequest(Common):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[ToolWire] = Field(default_factory=list, max_length=256)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    reasoning_effort: str | None = None
    modalities: list[Literal["text"]] = Field(default_factory=list)
    reasoning_format: Literal["auto", "deepseek"] = "auto"

    @model_validator(mode="after")
    def fits_together(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.max_tokens and self.max_completion_tokens and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens say different things; send one of them")
        names = [tool.function.name for tool in self.tools]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f'two tools are called "{twice}"')
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise ValueError(f'tool_choice names "{self.tool_choice.function.name}", which is not among the tools')
        if self.tool_choice == "required" and not names:
            raise ValueError('tool_choice "required" needs tools')
        if self.ignore_eos and (self.tools or self.response_format):
            raise ValueError("ignore_eos cannot be joined with tools or response_format: their grammar has an end")
        return self


class CompletionRequest(Common):
    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    return_token_ids: bool = False  # vLLM's

    @model_validator(mode="after")
    def fits_together(self) -> "CompletionRequest":
        if self.return_token_ids and self.stream:
            raise ValueError("return_token_ids: a stream has none; ask without stream")
        if isinstance(self.prompt, list) and len(self.prompt) == 0:
            raise ValueError("prompt: the list is empty")
        if len(self.prompts) > 16:
            raise ValueError(f"prompt: {len(self.prompts)} prompts; at most 16 are taken at once")
        if self.ignore_eos and self.response_format:
            raise ValueError("ignore_eos cannot be joined with response_format: its grammar has an end")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if all(isinstance(token, int) for token in self.prompt):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)  # type: ignore[arg-type]


class TokenizeRequest(Wire):
    """vLLM's and llama-server's shapes: prompt or content, or messages."""

    model: str = ""
    prompt: str | None = None
    content: str | None = None
    messages: list[Message] | None = None
    tools: list[ToolWire] = Field(default_factory=list)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_special_tokens: bool | None = None
    add_special: bool | None = None  # llama-server's name of it
    add_generation_prompt: bool = True

    @model_validator(mode="before")
    @classmethod
    def is_text_throughout(cls, value: Any) -> Any:
        check_values(value)
        return value

    @model_validator(mode="after")
    def has_one_source(self) -> "TokenizeRequest":
        given = [name for name in ("prompt", "content", "messages") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected one of prompt, content and messages; found {' and '.join(given) or 'none'}")
        if self.messages is not None and not self.messages:
            raise ValueError("messages: the list is empty")
        return self


class DetokenizeRequest(Wire):
    model: str = ""
    tokens: list[int]


DEEPEST = 100


def check_values(value: Any) -> None:
    """Raise ValueError where a text cannot be written as UTF-8, or values nest too deeply to be walked by recursion."""
    waiting = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if depth > DEEPEST:
            raise ValueError(f"values nest more than {DEEPEST} deep")
        if isinstance(item, str) and not item.isascii() and any("\ud800" <= char <= "\udfff" for char in item):
            raise ValueError("the request holds half of a surrogate pair, which is no character")
        if isinstance(item, dict):
            waiting.extend((part, depth + 1) for pair in item.items() for part in pair)
        elif isinstance(item, list):
            waiting.extend((part, depth + 1) for part in item)
