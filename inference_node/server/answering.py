"""Answers of chats and completions, whole and as streams. Both are made of the same pieces, so they cannot differ."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from inference_node.engine.api import (
    AnswerParser,
    Ended,
    Ending,
    NodeError,
    NotReady,
    Piece,
    Reason,
    Request,
    Said,
    Started,
    Template,
    Thinking,
)
from inference_node.server import answers
from inference_node.server.answers import Choice
from inference_node.server.asking import AskedChat, Door
from inference_node.server.errors import Failed, status_and_body
from inference_node.server.returning import Returning, returned
from inference_node.server.running import running
from inference_node.server.wire import ChatRequest, Common, CompletionRequest


async def chat_body(here: Door, body: ChatRequest, asked: AskedChat) -> dict[str, Any]:
    """A whole chat completion."""
    id, created, model, template = answers.new_id("chatcmpl"), answers.now(), here.model, here.node.template
    choices = _choices(asked)
    async with running(here.node, asked.requests) as events:
        async for place, event in events:
            choice = choices[place]
            if isinstance(event, Piece):
                choice.feed(event.text)
                choice.logprobs += answers.chat_logprobs(template, event.tokens)
            elif isinstance(event, Ended):
                _end(here, asked, choice, event.ending)
                choice.finish()
                _remember(here, template, asked, choice)
    listed, infos = [], []
    for choice in choices:
        assert choice.ending is not None, "all have ended"
        info = answers.meta_info(choice.ending, id=id, finish_reason=choice.finish_reason)
        infos.append(info)
        listed.append(
            {
                "index": choice.index,
                "message": choice.message,
                "finish_reason": choice.finish_reason,
                "logprobs": {"content": choice.logprobs} if body.logprobs else None,
                **({"meta_info": info} if body.return_meta_info else {}),
            }
        )
    endings = [choice.ending for choice in choices if choice.ending is not None]
    return {
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": listed,
        **_figures(body, endings, infos),
        "usage": answers.usage(endings),
    }


async def chat_stream(here: Door, body: ChatRequest, asked: AskedChat) -> AsyncIterator[bytes]:
    """The chunks of a chat completion. What fails before the first chunk rises; later it becomes an error chunk."""
    id, template = answers.new_id("chatcmpl"), here.node.template
    base = {"id": id, "object": "chat.completion.chunk", "created": answers.now(), "model": here.model}
    choices = _choices(asked)
    begun: set[int] = set()
    waiting: dict[int, list[dict[str, Any]]] = {choice.index: [] for choice in choices}  # logprobs not shown yet

    def chunk(choice: Choice, delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
        shown, waiting[choice.index] = waiting[choice.index], []
        entry = {"index": choice.index, "delta": delta, "finish_reason": finish_reason}
        entry["logprobs"] = {"content": shown} if body.logprobs and shown else None
        return answers.event({**base, "choices": [{**entry, **more.pop("in_choice", {})}], **more})

    async with running(here.node, asked.requests) as events:
        async for place, event in events:
            choice = choices[place]
            deltas: list[dict[str, Any]] = []
            if isinstance(event, Started):
                yield answers.READING
            elif isinstance(event, Piece):
                waiting[place] += answers.chat_logprobs(template, event.tokens)
                deltas = choice.feed(event.text)
            elif isinstance(event, Ended):
                failure = _failure(event.ending)
                if failure is not None:
                    if not begun:
                        raise failure
                    yield answers.event(status_and_body(failure)[1])
                    break
                choice.ending = event.ending
                deltas = choice.finish()
            if (deltas or isinstance(event, Ended)) and place not in begun:
                begun.add(place)
                yield chunk(choice, {"role": "assistant", "content": ""})
            for delta in deltas:
                yield chunk(choice, delta)
            if isinstance(event, Ended):
                _remember(here, template, asked, choice)
                info = answers.meta_info(event.ending, id=id, finish_reason=choice.finish_reason)
                inside = {"meta_info": info} if body.return_meta_info else {}
                figures = _figures(body, [event.ending], [info])
                yield chunk(choice, {}, choice.finish_reason, in_choice=inside, **figures)
    ended = [choice.ending for choice in choices if choice.ending is not None]
    if body.stream_options and body.stream_options.include_usage and len(ended) == len(choices):
        yield answers.event({**base, "choices": [], "usage": answers.usage(ended)})
    yield answers.DONE


async def completion_body(here: Door, body: CompletionRequest, requests: Sequence[Request]) -> dict[str, Any]:
    """A whole completion."""
    id, model, template = answers.new_id("cmpl"), here.model, here.node.template
    texts = [""] * len(requests)
    tokens: list[list[Said]] = [[] for _ in requests]
    endings: dict[int, Ending] = {}
    async with running(here.node, requests) as events:
        async for place, event in events:
            if isinstance(event, Piece):
                texts[place] += event.text
                tokens[place] += event.tokens
            elif isinstance(event, Ended):
                failure = _failure(event.ending)
                if failure is not None:
                    raise failure
                endings[place] = event.ending
    listed, infos = [], []
    for place in range(len(requests)):
        finish_reason = _finish_reason(endings[place])
        info = answers.meta_info(endings[place], id=id, finish_reason=finish_reason)
        infos.append(info)
        logprobs = answers.completion_logprobs(template, tokens[place], 0)
        listed.append(
            {
                "index": place,
                "text": texts[place],
                "finish_reason": finish_reason,
                "logprobs": logprobs if body.logprobs is not None else None,
                **({"meta_info": info} if body.return_meta_info else {}),
                **({"token_ids": list(endings[place].completion)} if body.return_token_ids else {}),
            }
        )
    ended = [endings[place] for place in range(len(requests))]
    return {
        "id": id,
        "object": "text_completion",
        "created": answers.now(),
        "model": model,
        "choices": listed,
        **_figures(body, ended, infos),
        "usage": _usage(body, ended),
    }


async def completion_stream(here: Door, body: CompletionRequest, requests: Sequence[Request]) -> AsyncIterator[bytes]:
    """The chunks of a completion."""
    id, template = answers.new_id("cmpl"), here.node.template
    base = {"id": id, "object": "text_completion", "created": answers.now(), "model": here.model}
    shown = [0] * len(requests)  # characters so far, for text_offset
    endings: dict[int, Ending] = {}
    begun = False

    def chunk(place: int, text: str, tokens: Sequence[Said] = (), finish_reason: str | None = None) -> dict[str, Any]:
        logprobs = answers.completion_logprobs(template, tokens, shown[place])
        shown[place] += sum(len(token) for token in logprobs["tokens"])
        entry = {"index": place, "text": text, "finish_reason": finish_reason}
        entry["logprobs"] = logprobs if body.logprobs is not None and tokens else None
        return {**base, "choices": [entry]}

    async with running(here.node, requests) as events:
        async for place, event in events:
            if isinstance(event, Started):
                yield answers.READING
            elif isinstance(event, Piece):
                begun = True
                yield answers.event(chunk(place, event.text, event.tokens))
            elif isinstance(event, Ended):
                failure = _failure(event.ending)
                if failure is not None:
                    if not begun:
                        raise failure
                    yield answers.event(status_and_body(failure)[1])
                    break
                begun = True
                endings[place] = event.ending
                last = chunk(place, "", finish_reason=_finish_reason(event.ending))
                info = answers.meta_info(event.ending, id=id, finish_reason=_finish_reason(event.ending))
                if body.return_meta_info:
                    last["choices"][0]["meta_info"] = info
                yield answers.event({**last, **_figures(body, [event.ending], [info])})
    if body.stream_options and body.stream_options.include_usage and len(endings) == len(requests):
        ended = [endings[place] for place in range(len(requests))]
        yield answers.event({**base, "choices": [], "usage": _usage(body, ended)})
    yield answers.DONE


def _choices(asked: AskedChat) -> list[Choice]:
    return [
        Choice(
            place, AnswerParser(form=asked.form, tools=asked.tools, thinking=asked.prompt.thinking is Thinking.INSIDE)
        )
        for place in range(len(asked.requests))
    ]


def _figures(body: Common, endings: Sequence[Ending], infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures at the top level of a body or of a choice's last chunk."""
    figures: dict[str, Any] = {"seed": endings[0].seed, "timings": answers.timings(endings[0])}
    if body.return_meta_info:
        figures["meta_info"] = answers.merged_meta_info(infos)
    return figures


def _usage(body: CompletionRequest, endings: Sequence[Ending]) -> dict[str, Any]:
    """Each prompt is counted once, however many answers it got."""
    figures = answers.usage(endings)
    prompts = endings[:: body.n]
    figures["prompt_tokens"] = sum(ending.reuse.prompt_tokens for ending in prompts)
    figures["total_tokens"] = figures["prompt_tokens"] + figures["completion_tokens"]
    figures["prompt_tokens_details"] = {"cached_tokens": sum(ending.reuse.restored for ending in prompts)}
    return figures


def _end(here: Door, asked: AskedChat, choice: Choice, ending: Ending) -> None:
    failure = _failure(ending)
    if failure is not None:
        raise failure
    choice.ending = ending


def _failure(ending: Ending) -> Exception | None:
    """Why there is no answer; None where there is one."""
    if ending.reason is Reason.CANCELLED:
        return NotReady("The node is being closed.")  # a client that left is not told anything
    if ending.reason is not Reason.FAILED:
        return None
    if isinstance(ending.error, NodeError):
        return ending.error
    return Failed()


def _finish_reason(ending: Ending) -> str:
    return "length" if ending.reason is Reason.LENGTH else "stop"


def _remember(here: Door, template: Template, asked: AskedChat, choice: Choice) -> None:
    """Be able to use the same tokens when this answer comes back as a message."""
    ending = choice.ending
    assert ending is not None, "the answer has ended"
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in choice.calls]
    key = Returning.key(asked.prompt.history[-1], "assistant", choice.content, calls)
    answer = returned(template, ending.kept, thought=choice.thought, stopped_by=ending.stopped_by)
    here.returning.remember(key, answer)
