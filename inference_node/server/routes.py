"""The endpoints that clients of OpenAI, llama-server, vLLM and SGLang know. Each reads, asks the engine, answers."""

from collections.abc import Awaitable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from inference_node.server import answering, answers, asking
from inference_node.server.asking import Door
from inference_node.server.chat import prepare
from inference_node.server.errors import ERROR_SHAPE, JsonReply, Refused
from inference_node.server.running import ClientGone, unless_gone
from inference_node.server.stream import EventStream
from inference_node.server.wire import ChatRequest, Common, CompletionRequest, DetokenizeRequest, TokenizeRequest

router = APIRouter()

STATUSES = {
    400: "The request cannot be served as it is; the message says what to change",
    401: "The API key is missing or wrong",
    404: "This model is not served here",
    409: "Another model is served than the trainer expects",
    413: "The request is too large",
    421: "The node does not answer to this host name",
    429: "The queue is full; Retry-After says when to come back",
    503: "The node is loading, closing, or out of memory",
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Declares statuses with the one error shape."""
    content = {"application/json": {"schema": ERROR_SHAPE}}
    return {status: {"description": STATUSES[status], "content": content} for status in (*statuses, 401, 421, 503)}


def door(request: Request) -> Door:
    state = request.app.state
    return Door(state.node, state.options, state.returning)


Here = Annotated[Door, Depends(door)]


@router.post("/v1/chat/completions", response_class=JsonReply, responses=refusals(400, 404, 413, 429))
async def chat(body: ChatRequest, http: Request, here: Here) -> Response:
    """Answer a conversation: a body, or with `stream` server-sent events."""
    here.check_model(body.model)
    asked = await run_in_threadpool(asking.chat, here, body, _client(http, body))
    if body.stream:
        return _stream(here, answering.chat_stream(here, body, asked))
    return await _whole(http, answering.chat_body(here, body, asked))


@router.post("/v1/completions", response_class=JsonReply, responses=refusals(400, 404, 413, 429))
async def completion(body: CompletionRequest, http: Request, here: Here) -> Response:
    """Continue a prompt. Control tokens spelled in it are control tokens: the prompt is the caller's own."""
    here.check_model(body.model)
    requests = await run_in_threadpool(asking.completion, here, body, _client(http, body))
    if body.stream:
        return _stream(here, answering.completion_stream(here, body, requests))
    return await _whole(http, answering.completion_body(here, body, requests))


@router.get("/v1/models", response_class=JsonReply, responses=refusals())
async def models(here: Here) -> Response:
    """The one model that is served."""
    return JsonReply({"object": "list", "data": [_model(here)]})


@router.get("/v1/models/{name:path}", response_class=JsonReply, responses=refusals(404))
async def model(name: str, here: Here) -> Response:
    """The model, by its name."""
    here.check_model(name)
    return JsonReply(_model(here))


@router.post("/tokenize", response_class=JsonReply, responses=refusals(400, 404, 413))
async def tokenize(body: TokenizeRequest, here: Here) -> Response:
    """The token ids of a text, or of a conversation as the template writes it."""
    here.check_model(body.model)
    tokens = await run_in_threadpool(_tokens, here, body)
    return JsonReply({"count": len(tokens), "max_model_len": here.node.facts.context, "tokens": tokens})


@router.post("/detokenize", response_class=JsonReply, responses=refusals(400, 404, 413))
async def detokenize(body: DetokenizeRequest, here: Here) -> Response:
    """The text of token ids. Control tokens have none."""
    here.check_model(body.model)
    known = here.node.facts.known_ids
    wrong = next((token for token in body.tokens if not 0 <= token < known), None)
    if wrong is not None:
        raise Refused(f"tokens: id {wrong}; the model's ids are 0 to {known - 1}.", param="tokens")
    text = here.node.template.decode(body.tokens)
    return JsonReply({"prompt": text, "content": text})


def _tokens(here: Door, body: TokenizeRequest) -> list[int]:
    template = here.node.template
    if body.messages is not None:
        prompt = prepare(
            template,
            body.messages,
            tools=body.tools,
            options=body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt,
            returning=here.returning,
        )
        return list(prompt.tokens)
    # vLLM adds the tokens that begin a sequence unless told otherwise, llama-server only when told to.
    begin = body.add_special_tokens if body.prompt is not None else body.add_special
    return template.encode(body.prompt or body.content or "", begin=body.prompt is not None if begin is None else begin)


def _model(here: Door) -> dict[str, Any]:
    facts = here.node.facts
    return {
        "id": here.model,
        "object": "model",
        "created": answers.now(),
        "owned_by": "lamplighter",
        "max_model_len": facts.context,
        "meta": {
            "n_ctx_train": facts.context,
            "n_vocab": facts.vocab,
            "family": facts.family,
            "engine": facts.engine,
            "weights": facts.weights,
            "drafter": facts.drafter,
            "block": facts.block,
            "size": facts.weight_bytes,
        },
    }


def _client(http: Request, body: Common) -> str:
    """Whose turn it is: requests from different machines or of different users take turns."""
    host = http.client.host if http.client else ""
    return f"{host} {body.user or body.safety_identifier}"


def _stream(here: Door, chunks: Any) -> EventStream:
    options = here.options
    return EventStream(chunks, patience_s=options.patience_s, send_timeout_s=options.send_timeout_s)


async def _whole(http: Request, answer: Awaitable[dict[str, Any]]) -> Response:
    try:
        return JsonReply(await unless_gone(http, answer))
    except ClientGone:
        return Response(status_code=499)  # nobody reads it
