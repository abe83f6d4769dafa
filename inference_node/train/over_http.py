"""Answers from a node over HTTP: any server with OpenAI's completions that takes token ids and gives them back.

The prompt is encoded here, with the target's own tokenizer, and sent as ids, so that a sample's tokens are those the
node has read. The answer must come back as ids too, which `return_token_ids` asks for (ours and vLLM's servers know
it); text would have to be encoded again, and what that gives is not always what was generated.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx

from inference_node.models.errors import NodeError
from inference_node.train import node
from inference_node.train.collect import Answers, Wanted
from inference_node.train.prompts import Prompt

PATIENCE_S = 900.0
LONGEST_PAUSE_S = 30.0


def from_node(
    url: str, tokenizer: Any, wanted: Wanted, *, model: str = "", key: str = "", at_once: int = 8,
    patience_s: float = PATIENCE_S, silence_s: float = 600.0,
) -> Answers:  # fmt: skip
    """Answers from the node at `url`, several requests at a time, in the prompts' order. Raises NodeError.

    A node that is busy or away is asked again; samples that came before are kept whatever happens (collect.py).
    """

    def answers(prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, Sequence[int], Sequence[int]]]:
        with node.client(url, key, silence_s) as http, ThreadPoolExecutor(at_once) as pool:
            name = model or _only_model(http)
            waiting: deque[tuple[Prompt, list[int], Future[list[int]]]] = deque()
            try:
                for prompt in prompts:
                    given = prompt.tokens(tokenizer)
                    if not given:
                        raise NodeError(f'Prompt "{prompt.id}" has no tokens.')
                    body = _body(name, given, wanted, wanted.seed_of(prompt))
                    waiting.append((prompt, given, pool.submit(_answer, http, body, prompt.id, patience_s)))
                    if len(waiting) >= 2 * at_once:
                        first, tokens, coming = waiting.popleft()
                        yield first, tokens, coming.result()
                while waiting:
                    first, tokens, coming = waiting.popleft()
                    yield first, tokens, coming.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    return answers


def _body(model: str, given: list[int], wanted: Wanted, seed: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model, "prompt": given, "max_tokens": wanted.most, "temperature": wanted.temperature,
        "return_token_ids": True,
    }  # fmt: skip
    if wanted.temperature > 0:
        body |= {"top_p": wanted.top_p, "seed": seed}
        if wanted.top_k:
            body["top_k"] = wanted.top_k
    return body


def _answer(http: httpx.Client, body: dict[str, Any], name: str, patience_s: float) -> list[int]:
    since, pause = time.monotonic(), 1.0
    while True:
        try:
            reply = http.post("/v1/completions", json=body)
            if reply.status_code not in (429, 502, 503, 504):
                return _ids(reply, name)
            pause, why = node.retry_after(reply, pause, LONGEST_PAUSE_S), node.refusal(reply)
        except httpx.TransportError as error:
            pause, why = min(2 * pause, LONGEST_PAUSE_S), str(error) or type(error).__name__
        if time.monotonic() - since > patience_s:
            raise NodeError(f"The node at {http.base_url} has not answered for {patience_s:.0f} s ({why}).")
        time.sleep(pause)


def _ids(reply: httpx.Response, name: str) -> list[int]:
    if reply.status_code != 200:
        raise NodeError(f'{reply.request.url} refused prompt "{name}": {node.refusal(reply)}')
    choice = reply.json()["choices"][0]
    ids = choice.get("token_ids")
    if not ids:
        raise NodeError(
            f'{reply.request.url} answered prompt "{name}" without token ids. A drafter needs the very tokens; servers '
            "that know `return_token_ids` are this project's and vLLM's."
        )
    return [int(token) for token in ids]


def _only_model(http: httpx.Client) -> str:
    try:
        listed = http.get("/v1/models").json()["data"]
        return str(listed[0]["id"])
    except (httpx.TransportError, ValueError, KeyError, IndexError, TypeError) as error:
        raise NodeError(
            f"{http.base_url} does not list its models ({error!r}). Is it an OpenAI-compatible node?"
        ) from None
