"""From a request's fields to the engine's: sampling, seeds, grammar, template options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inference_node.engine import api
from inference_node.engine.api import Node, Sampling
from inference_node.server.chat import Prompt, prepare
from inference_node.server.errors import Refused
from inference_node.server.returning import Returning
from inference_node.server.wire import ChatRequest, Common, CompletionRequest, NamedTool, ResponseFormat


@dataclass(frozen=True, slots=True)
class Door:
    """What the endpoints work with."""

    node: Node
    options: Any  # app.Options, which imports this module's users
    returning: Returning

    @property
    def model(self) -> str:
        return str(self.options.name or self.node.facts.name)

    def check_model(self, asked: str) -> None:
        if asked and asked != self.model:
            raise Refused(
                f'This node serves "{self.model}", not "{asked}".', status=404, param="model", code="model_not_found"
            )


@dataclass(frozen=True, slots=True)
class AskedChat:
    """A chat request, ready for the engine."""

    prompt: Prompt
    requests: tuple[api.Request, ...]
    tools: tuple[api.Tool, ...]
    form: api.ToolForm | None


def chat(here: Door, body: ChatRequest, client: str) -> AskedChat:
    """Raises Refused and NodeErrors. Long prompts take a while; call it off the event loop."""
    template = here.node.template
    form = template.tool_form or api.ToolForm.JSON
    prompt = prepare(
        template,
        body.messages,
        tools=body.tools,
        options=_template_options(body, template),
        returning=here.returning,
    )
    tools = tuple(api.tool_from(tool.function.name, tool.function.parameters) for tool in body.tools)
    request = api.Request(
        prompt=prompt.tokens,
        sampling=_sampling(here, body),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stop=body.stops,
        ignore_stop_ids=body.ignore_eos,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        grammar=_grammar(body, tools, form, prompt.thinking, template),
        boundaries=prompt.boundaries,
        client=client,
    )
    return AskedChat(prompt, _answers(request, body.n), tools, form if body.tools else None)


def completion(here: Door, body: CompletionRequest, client: str) -> tuple[api.Request, ...]:
    """One request per prompt and answer, in the order of their indices. Call it off the event loop."""
    template = here.node.template
    schema = _schema(body.response_format)
    grammar = (
        None if schema is None else api.json_grammar(schema, thinking=api.Thinking.OVER, specials=template.specials)
    )
    requests: list[api.Request] = []
    for prompt in body.prompts:
        tokens = template.encode(prompt, begin=True) if isinstance(prompt, str) else prompt
        request = api.Request(
            prompt=tuple(tokens),
            sampling=_sampling(here, body),
            max_tokens=body.max_tokens,
            stop=body.stops,
            ignore_stop_ids=body.ignore_eos,
            logprobs=body.logprobs,
            grammar=grammar,
            client=client,
        )
        requests += _answers(request, body.n)
    return tuple(requests)


def _sampling(here: Door, body: Common) -> Sampling:
    """The request's parameters; where it has none the model's own recommendation, else OpenAI's default."""
    given = {
        "temperature": body.temperature,
        "top_k": None if body.top_k is None else max(0, body.top_k),
        "top_p": body.top_p,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty if body.repetition_penalty is not None else body.repeat_penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
    }
    chosen = {
        "temperature": 1.0,
        **here.options.defaults,
        **{name: value for name, value in given.items() if value is not None},
    }
    known = here.node.facts.known_ids
    biases = {int(key): bias for key, bias in body.logit_bias.items()}
    wrong = next((token for token in biases if token >= known), None)
    if wrong is not None:
        raise Refused(f"logit_bias: token id {wrong}; the model's ids are 0 to {known - 1}.", param="logit_bias")
    seed = api.draw_seed() if body.seed is None else body.seed % 2**64
    try:
        return Sampling(**chosen, logit_bias=biases, seed=seed)
    except ValueError as error:
        raise Refused(f"{error}.") from error


def _answers(request: api.Request, n: int) -> tuple[api.Request, ...]:
    """One request per answer. An answer's noise comes from its seed alone, so each has its own."""
    seeds = [(request.sampling.seed + place) % 2**64 for place in range(n)]
    return tuple(replace(request, sampling=replace(request.sampling, seed=seed)) for seed in seeds)


def _template_options(body: ChatRequest, template: api.Template) -> dict[str, Any]:
    options = dict(body.chat_template_kwargs)
    if body.reasoning_effort is None:
        return options
    if "reasoning_effort" in template.template_text:
        options.setdefault("reasoning_effort", body.reasoning_effort)
    elif "enable_thinking" in template.template_text:
        options.setdefault("enable_thinking", body.reasoning_effort != "none")
    else:
        raise Refused("This model's template knows no reasoning effort.", param="reasoning_effort")
    return options


def _grammar(
    body: ChatRequest, tools: Sequence[api.Tool], form: api.ToolForm, thinking: api.Thinking, template: api.Template
) -> api.Grammar | None:
    """What the answer must look like, where the request says so."""
    schema = _schema(body.response_format)
    choice = body.tool_choice or "auto"
    if schema is not None and (not tools or choice == "none"):
        return api.json_grammar(schema, thinking=thinking, specials=template.specials)
    if not tools:
        return None
    named = choice.function.name if isinstance(choice, NamedTool) else None
    return api.tools_grammar(
        () if choice == "none" else [tool for tool in tools if named in (None, tool.name)],
        form,
        must_call=choice == "required" or named is not None,
        many=body.parallel_tool_calls and named is None,
        otherwise=schema,
        thinking=thinking,
        specials=template.specials,
    )


def _schema(wanted: ResponseFormat | None) -> Mapping[str, Any] | None:
    if wanted is None or wanted.type == "text":
        return None
    return {"type": "object"} if wanted.json_schema is None else wanted.json_schema.schema_
