"""Reading a target's states over given tokens: a job of the engine's thread beside the requests that generate."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from inference_node.engine.api import (
    ContextFull,
    EmptyPrompt,
    NodeError,
    StatesRead,
    StatesRequest,
    UnknownLayer,
    UnknownToken,
)
from inference_node.speculate.seam import Target, TargetFacts

log = logging.getLogger("lamplighter.node.engine")


@dataclass(eq=False)
class Reading:
    """A request for states from its arrival to its answer."""

    id: int
    request: StatesRequest
    deliver: Callable[[StatesRead], None]
    cancelled: threading.Event = field(default_factory=threading.Event)
    ended: bool = False

    def tell(self, read: StatesRead) -> None:
        """Deliver the answer; the first one counts."""
        if self.ended:
            return
        self.ended = True
        try:
            self.deliver(read)
        except Exception:  # whatever a caller's function raises must not end the engine
            log.exception("the states of request %d could not be delivered", self.id)

    def run(self, target: Target, rows: int, alive: Callable[[], Any]) -> StatesRead:
        """Rows are computed in slices; between two of them a caller that has gone ends the work."""
        target.reset()
        tokens, taps = self.request.tokens, self.request.taps
        parts = []
        for start in range(0, len(tokens), rows):
            if self.cancelled.is_set():
                return StatesRead(error=NodeError("The request was cancelled."))
            found = target.prefill(tokens[start : start + rows], tap_layers=taps).taps
            assert found is not None, "layers were asked for"
            parts.append(found.to(device="cpu", dtype=torch.bfloat16))
            alive()
        return StatesRead(torch.cat(parts))


def check(request: StatesRequest, facts: TargetFacts) -> None:
    """Raises what `Node.read_states` says."""
    if not request.tokens:
        raise EmptyPrompt()
    wrong = next((token for token in request.tokens if not 0 <= token < facts.vocab), None)
    if wrong is not None:
        raise UnknownToken(wrong, known=facts.vocab)
    if len(request.tokens) > facts.context:
        raise ContextFull(asked=len(request.tokens), context=facts.context)
    layer = next((tap for tap in request.taps if not 0 <= tap < facts.layers), None)
    if layer is not None or not request.taps:
        raise UnknownLayer(layer, layers=facts.layers)
    twice = next((tap for tap in request.taps if request.taps.count(tap) > 1), None)
    if twice is not None:
        raise NodeError(f"Layer {twice} was named more than once. Name each layer once.")
