"""What callers may know of the engine: requests in, events out. The server imports nothing else of it.

A caller hands `submit` a request and a function that takes events. The function is called in this order and never after
the last: `Started` at most once, `Piece` any number of times, `Ended` exactly once, whatever happens. It is called on
the engine's thread, which it must not block: put the event on a queue.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import torch

from inference_node.engine.answer import AnswerParser, CallOpened, CallPart, Delta, Text, Thought
from inference_node.engine.calls import Tool, ToolForm, tool_from
from inference_node.engine.constrain import Grammar, Thinking, json_grammar, tools_grammar
from inference_node.engine.prefix import Kept, Why
from inference_node.models import states as states_form
from inference_node.speculate.seam import ContextFull, Cut, NodeError, OutOfMemory, Sampling, TargetFacts

__all__ = [
    "AnswerParser",
    "CallOpened",
    "CallPart",
    "ContextFull",
    "Cut",
    "Delta",
    "EmptyPrompt",
    "Ended",
    "Ending",
    "Event",
    "Grammar",
    "Health",
    "Kept",
    "Node",
    "NodeError",
    "NotReady",
    "OutOfMemory",
    "Piece",
    "PromptTooLong",
    "QueueFull",
    "Reason",
    "Request",
    "Reuse",
    "Said",
    "Sampling",
    "Speculation",
    "Spent",
    "Started",
    "State",
    "StatesRead",
    "StatesRequest",
    "Stats",
    "TargetFacts",
    "Text",
    "Thinking",
    "Thought",
    "Ticket",
    "Tool",
    "ToolForm",
    "UnknownLayer",
    "UnknownToken",
    "Why",
    "draw_seed",
    "json_grammar",
    "states_form",
    "tool_from",
    "tools_grammar",
]


class EmptyPrompt(NodeError):
    """There is no token to continue from."""

    def __init__(self) -> None:
        super().__init__("The prompt has no tokens. Send at least one character, or one token id.")


class PromptTooLong(NodeError):
    """The prompt alone fills the context."""

    def __init__(self, *, prompt_tokens: int, context: int) -> None:
        super().__init__(
            f"The prompt has {prompt_tokens} tokens, the context holds {context} with at least one token of the answer "
            "in it. Shorten the prompt, or serve with a larger --ctx."
        )
        self.prompt_tokens = prompt_tokens
        self.context = context


class UnknownToken(NodeError):
    """A prompt given as ids holds one that the model does not have."""

    def __init__(self, token: int, *, known: int) -> None:
        super().__init__(f"The prompt holds token id {token}; the model's ids are 0 to {known - 1}.")


class UnknownLayer(NodeError):
    """States were asked of a layer that the model does not have, or of none."""

    def __init__(self, layer: int | None, *, layers: int) -> None:
        found = "No layer was named" if layer is None else f"Layer {layer} was named"
        super().__init__(f"{found}; the model's layers are 0 to {layers - 1}. Name those whose outputs you want.")


class QueueFull(NodeError):
    """As many requests wait as may."""

    def __init__(self, *, waiting: int, retry_after_s: int) -> None:
        super().__init__(f"{waiting} requests wait already, which is the limit. Try again in {retry_after_s} seconds.")
        self.retry_after_s = retry_after_s


class NotReady(NodeError):
    """The engine cannot take requests now: it loads, has failed, or is being closed."""


def draw_seed() -> int:
    """A seed for a request that came without one. Below 2**53, so that every JSON reader keeps it exactly."""
    return secrets.randbits(53)


@dataclass(frozen=True, slots=True)
class Request:
    """One text to generate."""

    prompt: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None  # None: as many as the context has room for
    stop: tuple[str, ...] = ()  # the text ends before the first of these
    ignore_stop_ids: bool = False  # go on after an end-of-turn token
    logprobs: int | None = None  # alternatives per token; 0: the token's own only; None: none
    grammar: Grammar | None = None
    boundaries: tuple[int, ...] = ()  # indices into prompt where a message begins; places worth a checkpoint
    client: str = ""  # waiting requests of different clients take turns
    draft: bool = True  # False: plain decoding


class Reason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # an end-of-turn token, a stop string, or the end of a grammar
    LENGTH = "length"  # max_tokens or the context
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Reuse:
    """What the prefix store spared a request, and why not more."""

    prompt_tokens: int
    restored: int  # leading prompt tokens whose rows came from the store
    known: int  # leading prompt tokens that some earlier request on this store had in common
    why: Why
    parted_at: int | None = None  # index of the first token that differs from what was stored
    stored: int | None = None  # the token that the store has there
    found: int | None = None  # the token that the prompt has there
    exact: bool = True  # everything restored came from prefill, so the bits are those of a cold start

    @property
    def prefilled(self) -> int:
        """Prompt tokens that were computed, the last one included: its row is the first cycle's."""
        return self.prompt_tokens - self.restored

    @property
    def new(self) -> int:
        """Prompt tokens that no earlier request had at this place after the same tokens."""
        return self.prompt_tokens - self.known

    @property
    def share(self) -> float | None:
        """prefilled / new; None when the whole prompt was known."""
        return self.prefilled / self.new if self.new else None


@dataclass(frozen=True, slots=True)
class Said:
    """One generated token."""

    id: int
    bytes: bytes
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # (id, logprob), best first


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt is being read."""

    reuse: Reuse


@dataclass(frozen=True, slots=True)
class Piece:
    """More text. `tokens` are those whose text is complete with this piece; they may be none, or have no text."""

    text: str
    tokens: tuple[Said, ...]


@dataclass(frozen=True, slots=True)
class Speculation:
    """What drafting did, over one request or over all of them."""

    cycles: int = 0  # verifies
    full_cycles: int = 0  # not cut by a budget or a stop
    full_gain: int = 0  # accepted + 1 summed over full cycles
    cut_by_budget: int = 0
    cut_by_stop: int = 0
    tokens: int = 0  # completion tokens
    drafted_cycles: int = 0  # cycles with at least one draft
    drafted: int = 0  # drafts sent to verify
    accepted: int = 0
    offered_at: tuple[int, ...] = ()  # cycles that offered a draft at position 1, 2, ...
    accepted_at: tuple[int, ...] = ()  # cycles that accepted the draft at position 1, 2, ...

    @property
    def tau(self) -> float | None:
        """Tokens per verify over cycles that nothing cut."""
        return self.full_gain / self.full_cycles if self.full_cycles else None

    @property
    def tau_all(self) -> float | None:
        """(completion - 1) / verifies: comparable with engines whose prefill gives the first token."""
        return (self.tokens - 1) / self.cycles if self.cycles and self.tokens else None

    @property
    def accept_length(self) -> float | None:
        """SGLang's figure: completion tokens per verify, cut cycles included."""
        return self.tokens / self.cycles if self.cycles else None


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds by part. Parts of cycles are as far as the target can tell them apart."""

    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0  # from the first cycle's start to the last one's end
    draft_s: float = 0.0
    verify_s: float = 0.0
    commit_s: float = 0.0
    first_token_s: float | None = None  # from the request's arrival


@dataclass(frozen=True, slots=True)
class Ending:
    """How one request went."""

    reason: Reason
    reuse: Reuse
    completion: tuple[int, ...] = ()  # all tokens generated, up to and with the one that ended it
    kept: tuple[int, ...] = ()  # those that are part of the answer: without what a stop string cut
    stopped_by: str | int | None = None  # the stop string or the stop id
    speculation: Speculation = Speculation()
    spent: Spent = Spent()
    seed: int = 0
    experts_woken: tuple[float, ...] = ()  # mean over cycles of distinct experts, per MoE layer
    error: Exception | None = None  # a NodeError can be told to the client, anything else is a bug of ours


@dataclass(frozen=True, slots=True)
class Ended:
    ending: Ending


Event = Started | Piece | Ended


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that was taken. Cancelling twice, or after the end, is harmless."""

    id: int
    cancel: Callable[[], None]


@dataclass(frozen=True, slots=True)
class StatesRequest:
    """Outputs of some layers over a text: what a drafter is trained on."""

    tokens: tuple[int, ...]
    taps: tuple[int, ...]  # zero-based layers
    client: str = ""


@dataclass(frozen=True, slots=True)
class StatesRead:
    """The answer to a StatesRequest: one of both."""

    rows: torch.Tensor | None = None  # [tokens, taps, hidden] bf16, in host memory
    error: Exception | None = None


class State(StrEnum):
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Health:
    """Whether requests can be taken, and if not, why."""

    state: State
    why: str = ""  # what is being loaded, or what failed
    progress: float = 0.0  # of loading, 0 to 1
    running: int = 0
    waiting: int = 0
    stalled_s: float = 0.0  # how long the running request has shown no progress, once that is suspicious


@dataclass(frozen=True, slots=True)
class Past:
    """One line of the timeline: a request that ended. Times are seconds since the engine's start."""

    id: int
    arrived_s: float
    began_s: float
    first_token_s: float | None
    ended_s: float
    ending: Ending


@dataclass(frozen=True, slots=True)
class Stats:
    """Totals since the start."""

    endings: Mapping[Reason, int] = field(default_factory=dict)
    refused_full: int = 0
    prompt_tokens: int = 0
    restored_tokens: int = 0
    known_tokens: int = 0
    speculation: Speculation = Speculation()
    spent: Spent = Spent()
    reuse_why: Mapping[Why, int] = field(default_factory=dict)
    out_of_memory: int = 0
    experts_woken: tuple[float, ...] = ()
    store: Kept = field(default_factory=Kept)
    past: tuple[Past, ...] = ()  # newest last
    up_s: float = 0.0


class Node(Protocol):
    """An engine as its callers see it. All methods may be called from any thread."""

    @property
    def facts(self) -> TargetFacts:
        """Raises NotReady until the model is loaded."""
        ...

    @property
    def template(self) -> "Template":
        """Raises NotReady until the model is loaded."""
        ...

    def submit(self, request: Request, deliver: Callable[[Event], None]) -> Ticket:
        """Take a request. Raises NotReady, QueueFull, EmptyPrompt, PromptTooLong, UnknownToken, BadGrammar."""
        ...

    def read_states(self, request: StatesRequest, deliver: Callable[[StatesRead], None]) -> Ticket:
        """Compute states. `deliver` is called once, on the engine's thread; a cancelled request's answer is an error.

        Takes turns with requests that generate. Raises NotReady, QueueFull, EmptyPrompt, ContextFull, UnknownToken,
        UnknownLayer.
        """
        ...

    def check(self, grammar: Grammar) -> None:
        """Raises BadGrammar when the grammar cannot be followed."""
        ...

    def health(self) -> Health: ...

    def stats(self) -> Stats: ...

    def close(self) -> None:
        """End the running request, refuse the waiting ones, give the memory back."""
        ...


class Template(Protocol):
    """A model's tokenizer and chat template."""

    controls: tuple[str, ...]  # texts that become a single added token
    template_text: str  # the template itself, to see which options it knows
    tool_form: ToolForm | None  # how this model writes tool calls; None: its template knows no tools
    specials: frozenset[str]  # controls that a grammar must name instead of spelling out

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str: ...

    def encode(self, text: str, *, begin: bool = False) -> list[int]:
        """Token ids; controls in the text become control tokens. begin: with the tokens that start a sequence."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def bytes_of(self, token: int) -> bytes: ...

    def id_of(self, control: str) -> int | None: ...
