"""One request while it lives: what was said so far, what it cost, and whether it has ended."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from inference_node.engine.api import Ended, Ending, Event, Piece, Reason, Request, Reuse, Said, Speculation, Spent
from inference_node.engine.constrain import Matcher
from inference_node.engine.prefix import Why
from inference_node.engine.text import TextStream
from inference_node.speculate.seam import Cut, CycleResult


@dataclass
class Tally:
    """Speculation of one request, cycle by cycle."""

    cycles: int = 0
    full_cycles: int = 0
    full_gain: int = 0
    cut_by_budget: int = 0
    cut_by_stop: int = 0
    drafted_cycles: int = 0
    drafted: int = 0
    accepted: int = 0
    offered_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    draft_s: float = 0.0
    verify_s: float = 0.0
    commit_s: float = 0.0
    experts: list[int] = field(default_factory=list)  # summed over cycles, per MoE layer

    def add(self, result: CycleResult, cut: Cut) -> None:
        """cut may be more than the target knew: a stop string inside the cycle's tokens."""
        if result.cut is Cut.IDLE:
            return
        self.cycles += 1
        if cut is Cut.NONE:
            self.full_cycles += 1
            self.full_gain += result.accepted + 1
        elif cut is Cut.BUDGET:
            self.cut_by_budget += 1
        else:
            self.cut_by_stop += 1
        self.drafted_cycles += result.offered > 0
        self.drafted += result.offered
        self.accepted += result.accepted
        _count_up_to(self.offered_at, result.offered)
        _count_up_to(self.accepted_at, result.accepted)
        self.draft_s += result.timings.draft_s
        self.verify_s += result.timings.verify_s
        self.commit_s += result.timings.commit_s
        self.experts = _summed(self.experts, result.experts_woken)

    def speculation(self, tokens: int) -> Speculation:
        return Speculation(
            cycles=self.cycles,
            full_cycles=self.full_cycles,
            full_gain=self.full_gain,
            cut_by_budget=self.cut_by_budget,
            cut_by_stop=self.cut_by_stop,
            tokens=tokens,
            drafted_cycles=self.drafted_cycles,
            drafted=self.drafted,
            accepted=self.accepted,
            offered_at=tuple(self.offered_at),
            accepted_at=tuple(self.accepted_at),
        )


@dataclass(eq=False)
class Live:
    """A request from its arrival to its ending. The engine thread writes; `cancelled` may be set by anybody."""

    id: int
    request: Request
    deliver: Callable[[Event], None]
    text: TextStream
    stop_ids: frozenset[int]
    matcher: Matcher | None
    budget: int
    arrived: float = field(default_factory=time.monotonic)
    cancelled: threading.Event = field(default_factory=threading.Event)
    began: float = 0.0
    prefilled: float = 0.0  # when the last row of the prompt was in
    decoding: float = 0.0  # when the first cycle was started
    first_token: float | None = None
    reuse: Reuse | None = None
    completion: list[int] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)  # not delivered yet, if a caller wants tokens
    delivered: int = 0  # tokens delivered
    tally: Tally = field(default_factory=Tally)
    reason: Reason | None = None
    stopped_by: str | int | None = None
    ended: bool = False

    @property
    def kept(self) -> list[int]:
        """Tokens that are part of the answer: all but what a stop string cut off."""
        return self.completion if self.text.stopped is None else self.completion[: self.text.stopped.kept]

    def tell(self, event: Event) -> None:
        """Deliver an event. A caller that cannot take it any more is a caller that has gone."""
        if self.ended:
            return
        self.ended = isinstance(event, Ended)
        try:
            self.deliver(event)
        except Exception:  # whatever a caller's function raises must not end the engine
            self.cancelled.set()

    def take(self, result: CycleResult, bytes_of: Callable[[int], bytes]) -> None:
        """Take the tokens of a cycle, up to the one that ends the answer."""
        if result.tokens and self.first_token is None:
            self.first_token = time.monotonic()
        cut = result.cut
        for place, token in enumerate(result.tokens):
            self.completion.append(token)
            if token in self.stop_ids:
                self.reason, self.stopped_by = Reason.STOP, token
                break
            logprobs = result.logprobs[place] if result.logprobs else None
            self.said.append(
                Said(
                    token,
                    bytes_of(token),
                    logprobs.logprob if logprobs else None,
                    logprobs.top if logprobs else (),
                )
            )
            stop = self.text.feed(token)
            if stop is not None:
                self.reason, self.stopped_by, cut = Reason.STOP, stop.stop, Cut.STOP
                break
        if self.reason is None and (len(self.completion) >= self.budget or result.cut is Cut.IDLE):
            self.reason = Reason.LENGTH
        self.tally.add(result, cut)
        self.show()

    def show(self) -> None:
        """Deliver what is certain by now; when the answer has ended, all of it."""
        text = self.text.take()
        if self.reason is None:
            ready = self.text.complete_tokens() - self.delivered
        else:
            text += self.text.finish()
            stopped = self.text.stopped
            ready = (stopped.kept - self.delivered) if stopped is not None else len(self.said)
        tokens, self.said = tuple(self.said[:ready]), self.said[ready:]
        self.delivered += len(tokens)
        if text or tokens:
            self.tell(Piece(text, tokens))

    def ending(self, reason: Reason, error: Exception | None = None) -> Ending:
        now = time.monotonic()
        tally = self.tally
        decode_s = now - self.decoding if self.decoding else 0.0
        return Ending(
            reason=reason,
            reuse=self.reuse or Reuse(len(self.request.prompt), 0, 0, Why.NEVER_KEPT),
            completion=tuple(self.completion),
            kept=tuple(self.kept),
            stopped_by=self.stopped_by,
            speculation=tally.speculation(len(self.completion)),
            spent=Spent(
                queued_s=(self.began or now) - self.arrived,
                prefill_s=max(0.0, (self.prefilled or now) - self.began) if self.began else 0.0,
                decode_s=decode_s,
                draft_s=tally.draft_s,
                verify_s=tally.verify_s,
                commit_s=tally.commit_s,
                first_token_s=self.first_token - self.arrived if self.first_token is not None else None,
            ),
            seed=self.request.sampling.seed,
            experts_woken=tuple(total / tally.cycles for total in tally.experts) if tally.cycles else (),
            error=error,
        )


def add_speculation(one: Speculation, other: Speculation) -> Speculation:
    """Both together, for totals."""
    sums = {
        name: getattr(one, name) + getattr(other, name)
        for name in Speculation.__dataclass_fields__
        if name not in ("offered_at", "accepted_at")
    }
    return Speculation(
        **sums,
        offered_at=tuple(_summed(one.offered_at, other.offered_at)),
        accepted_at=tuple(_summed(one.accepted_at, other.accepted_at)),
    )


def add_spent(one: Spent, other: Spent) -> Spent:
    """Both together, for totals; a sum of first-token times."""
    first = (one.first_token_s or 0.0) + (other.first_token_s or 0.0)
    return replace(
        one,
        queued_s=one.queued_s + other.queued_s,
        prefill_s=one.prefill_s + other.prefill_s,
        decode_s=one.decode_s + other.decode_s,
        draft_s=one.draft_s + other.draft_s,
        verify_s=one.verify_s + other.verify_s,
        commit_s=one.commit_s + other.commit_s,
        first_token_s=first,
    )


def _count_up_to(counts: list[int], last: int) -> None:
    """Count one more at positions 1 to last."""
    counts.extend([0] * (last - len(counts)))
    for place in range(last):
        counts[place] += 1


def _summed(one: Sequence[int], other: Sequence[int]) -> list[int]:
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    return [value + (shorter[place] if place < len(shorter) else 0) for place, value in enumerate(longer)]
