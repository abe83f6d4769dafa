"""What clients read: bodies and chunks, with the figures under the names that each kind of client knows.

llama-server's clients read `timings`, SGLang's (and `dflash benchmark`) read `meta_info`, OpenAI's read `usage`. All
are in every answer. What none of them has a name for stands in `timings`, under our names.
"""

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from inference_node.engine.api import (
    AnswerParser,
    CallOpened,
    CallPart,
    Delta,
    Ending,
    Reason,
    Reuse,
    Said,
    Speculation,
    Template,
    Text,
    Thought,
)


@dataclass
class Choice:
    """One answer of a chat, while it grows: the parts so far, and the pieces that a stream shows."""

    index: int
    parser: AnswerParser
    content: str = ""
    thought: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    ending: Ending | None = None

    def feed(self, text: str) -> list[dict[str, Any]]:
        return self._take(self.parser.feed(text))

    def finish(self) -> list[dict[str, Any]]:
        return self._take(self.parser.finish())

    def _take(self, deltas: Iterable[Delta]) -> list[dict[str, Any]]:
        """OpenAI deltas; put together they are `message`."""
        shown: list[dict[str, Any]] = []
        for delta in deltas:
            match delta:
                case Thought(text):
                    self.thought += text
                    shown.append({"reasoning_content": text})
                case Text(text):
                    self.content += text
                    shown.append({"content": text})
                case CallOpened(index, name):
                    call = {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function"}
                    self.calls.append({**call, "function": {"name": name, "arguments": ""}})
                    first = {"index": index, **call, "function": {"name": name, "arguments": ""}}
                    shown.append({"tool_calls": [first]})
                case CallPart(index, arguments):
                    self.calls[index]["function"]["arguments"] += arguments
                    shown.append({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})
        return shown

    @property
    def message(self) -> dict[str, Any]:
        content: str | None = self.content
        if not content and (self.calls or self.thought):
            content = None if self.calls else ""
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self.thought:
            message["reasoning_content"] = self.thought
        if self.calls:
            message["tool_calls"] = self.calls
        return message

    @property
    def finish_reason(self) -> str:
        assert self.ending is not None, "the answer has ended"
        if self.ending.reason is Reason.LENGTH:
            return "length"
        return "tool_calls" if self.calls else "stop"


def new_id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"


def now() -> int:
    return int(time.time())


def usage(endings: Sequence[Ending]) -> dict[str, Any]:
    """Of one request with one or more answers: its prompt is counted once, as OpenAI does."""
    prompt = endings[0].reuse.prompt_tokens if endings else 0
    completion = sum(len(ending.completion) for ending in endings)
    accepted = sum(ending.speculation.accepted for ending in endings)
    drafted = sum(ending.speculation.drafted for ending in endings)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": endings[0].reuse.restored if endings else 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
    }


def timings(ending: Ending) -> dict[str, Any]:
    """llama-server's names, then ours. Milliseconds; rates in tokens per second."""
    spent, speculation, reuse = ending.spent, ending.speculation, ending.reuse
    prompt_ms, predicted_ms = spent.prefill_s * 1000, spent.decode_s * 1000
    prompt_n, predicted_n = reuse.prefilled, len(ending.completion)
    figures: dict[str, Any] = {
        "cache_n": reuse.restored,
        "prompt_n": prompt_n,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": _rounded(prompt_ms / prompt_n if prompt_n else None),
        "prompt_per_second": _rounded(prompt_n / spent.prefill_s if spent.prefill_s else None),
        "predicted_n": predicted_n,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_token_ms": _rounded(predicted_ms / predicted_n if predicted_n else None),
        "predicted_per_second": _rounded(predicted_n / spent.decode_s if spent.decode_s else None),
    }
    if speculation.drafted:
        figures |= {"draft_n": speculation.drafted, "draft_n_accepted": speculation.accepted}
    cycles = speculation.cycles
    parts_s = spent.draft_s + spent.verify_s + spent.commit_s
    figures |= {
        "queued_ms": round(spent.queued_s * 1000, 3),
        "first_token_ms": _rounded(spent.first_token_s * 1000 if spent.first_token_s is not None else None),
        "cycles": cycles,
        "cycles_cut_by_budget": speculation.cut_by_budget,
        "cycles_cut_by_stop": speculation.cut_by_stop,
        "tau": _rounded(speculation.tau),
        "tau_all": _rounded(speculation.tau_all),
        "offered_at": list(speculation.offered_at),
        "accepted_at": list(speculation.accepted_at),
        "T_d_ms": _rounded(spent.draft_s * 1000 / cycles if cycles else None),
        "T_t_ms": _rounded(spent.verify_s * 1000 / cycles if cycles else None),
        "gap_ms": _rounded(max(0.0, spent.decode_s - parts_s) * 1000 / cycles if cycles and parts_s else None),
        "experts_woken": [round(woken, 2) for woken in ending.experts_woken],
        "prefix": prefix(reuse),
    }
    return figures


def prefix(reuse: Reuse) -> dict[str, Any]:
    """What the prefix store spared this request, and why not more."""
    return {
        "restored_tokens": reuse.restored,
        "prefilled_tokens": reuse.prefilled,
        "known_tokens": reuse.known,
        "new_tokens": reuse.new,
        "prefilled_share": _rounded(reuse.share),
        "why": reuse.why.value,
        "parted_at": reuse.parted_at,
        "stored_token": reuse.stored,
        "prompt_token": reuse.found,
        "exact": reuse.exact,
    }


def meta_info(ending: Ending, *, id: str, finish_reason: str) -> dict[str, Any]:
    """SGLang's names; `dflash benchmark openai` reads spec_verify_ct and spec_accept_length."""
    figures = ending.speculation
    return {
        "id": id,
        "finish_reason": finish_reason,
        "prompt_tokens": ending.reuse.prompt_tokens,
        "completion_tokens": len(ending.completion),
        "cached_tokens": ending.reuse.restored,
        "spec_verify_ct": figures.cycles,
        "spec_accept_length": _rounded(figures.accept_length) or 0.0,
        "spec_accept_rate": _rounded(figures.accepted / figures.drafted if figures.drafted else 0.0),
        "spec_accept_histogram": _histogram(figures),
        "tau": _rounded(figures.tau),
        "tau_all": _rounded(figures.tau_all),
        "seed": ending.seed,
    }


def merged_meta_info(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One for the whole response: the only choice's, else sums and the mean length."""
    if len(infos) == 1:
        return dict(infos[0])
    verifies = sum(info["spec_verify_ct"] for info in infos)
    tokens = sum(info["completion_tokens"] for info in infos)
    return {
        **infos[0],
        "completion_tokens": tokens,
        "spec_verify_ct": verifies,
        "spec_accept_length": _rounded(tokens / verifies if verifies else 0.0),
    }


def chat_logprobs(template: Template, tokens: Sequence[Said]) -> list[dict[str, Any]]:
    return [
        {
            **_shown(token.bytes, token.logprob),
            "top_logprobs": [_shown(template.bytes_of(id), logprob) for id, logprob in token.top],
        }
        for token in tokens
        if token.logprob is not None
    ]


def completion_logprobs(template: Template, tokens: Sequence[Said], offset: int) -> dict[str, Any]:
    """The old shape: parallel lists, and where each token's text begins."""
    texts = [token.bytes.decode("utf-8", "replace") for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [
            {template.bytes_of(id).decode("utf-8", "replace"): logprob for id, logprob in token.top} for token in tokens
        ],
        "text_offset": offsets,
    }


def event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
# Comments of a stream. A client that looks elsewhere when others are served tells by them whether it is served itself.
WAITING = b": waiting for other requests to end\n\n"
READING = b": reading the prompt\n\n"


def _shown(text: bytes, logprob: float | None) -> dict[str, Any]:
    # JSON has no infinity; a token that a mask forbids has probability zero.
    value = -9999.0 if logprob is None or logprob < -9999.0 else logprob
    return {"token": text.decode("utf-8", "replace"), "logprob": value, "bytes": list(text)}


def _histogram(figures: Speculation) -> list[int]:
    """Cycles that accepted exactly 0, 1, 2, ... drafts."""
    at_least = [figures.cycles, *figures.accepted_at, 0]
    return [here - further for here, further in pairwise(at_least)]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
