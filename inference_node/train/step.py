"""One training step's arithmetic: from a batch and the target's states to a loss and what was got right."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from inference_node.models.drafter import DFlash
from inference_node.models.rope import Rope
from inference_node.train import attention
from inference_node.train.arm import Arm
from inference_node.train.batch import Batch
from inference_node.train.features import States, packed
from inference_node.train.loss import slot_loss, slot_weight, weighted_mean
from inference_node.train.vocabulary import Vocabulary

CHUNK = 2048
"""Slots whose logits exist at a time, for a vocabulary of 50,000; fewer for a larger one. They are gone before the next
ones are made, so that memory does not grow with blocks times vocabulary."""


def blocks_at_once(ids: int, block: int) -> int:
    """Blocks whose logits exist at a time."""
    return max(1, int(CHUNK * min(1.0, 50_000 / ids)) // block)


def precision(device: torch.device) -> AbstractContextManager[Any]:
    """bf16 over fp32 weights on an accelerator, fp32 elsewhere."""
    return torch.autocast(device.type, torch.bfloat16) if device.type == "cuda" else nullcontext()


@contextmanager
def quick_products(device: torch.device) -> Iterator[None]:
    """On an accelerator fp32 products read 10 bits of each number and write 23 while this lasts: for training alone.

    They are the head's, and as they are they take longer than all the rest of a step. Sums are fp32 either way.
    """
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = before or device.type == "cuda"
    try:
        yield
    finally:
        matmul.allow_tf32 = before


@dataclass(frozen=True, slots=True)
class Hits:
    """What was right in one batch, or in several added up. On the device; shares wait for it, adding does not."""

    right: torch.Tensor  # [B] slots whose best id was the text's
    counted: torch.Tensor  # [B] slots that counted
    prefixes: torch.Tensor  # [B] whole blocks whose first k slots were all right; [0] all whole blocks

    @staticmethod
    def added(several: Sequence[Hits]) -> Hits:
        return Hits(*(torch.stack([getattr(one, name) for one in several]).sum(0) for name in Hits.__slots__))

    @property
    def accuracy(self) -> tuple[float, ...]:
        """By slot, from slot 1 on."""
        return tuple((self.right[1:] / self.counted[1:].clamp(min=1)).tolist())

    @property
    def survival(self) -> tuple[float, ...]:
        """S_k: share of whole blocks with the first k drafts right, k from 1."""
        return tuple((self.prefixes[1:] / self.prefixes[0].clamp(min=1)).tolist())


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one batch."""

    loss: torch.Tensor  # scalar, with gradient
    hits: Hits


@dataclass
class Learner:
    """A drafter in training and what it borrows from the target."""

    module: DFlash
    rope: Rope
    arm: Arm
    embedding: torch.Tensor  # [vocab, hidden]
    head: torch.Tensor  # [rows, hidden] of the drafter's vocabulary
    vocabulary: Vocabulary | None = None
    flex: bool = False
    room: int = 0  # bytes that attention may take for a layer's masks and copies
    scale: torch.Tensor | None = None  # [taps * hidden] of the features in training; `served` has it in its weights

    @cached_property
    def ids(self) -> torch.Tensor | None:
        """[rows] the target's id of each row of a smaller vocabulary, beside the head."""
        return None if self.vocabulary is None else self.vocabulary.ids.to(self.head.device)

    @cached_property
    def row_of(self) -> torch.Tensor | None:
        """[vocab] the row of each of the target's ids in a smaller vocabulary, beside the head; -1 for none."""
        return None if self.vocabulary is None else self.vocabulary.row_of.to(self.head.device)

    def hidden(self, batch: Batch, feature: torch.Tensor) -> torch.Tensor:
        """[N, B, hidden] after the drafter's final norm."""
        c = self.module.config
        if feature.device.type == "cpu":  # nothing joins the types there
            feature = feature.to(torch.float32)
        if self.scale is not None:
            feature = feature * self.scale.to(feature.dtype)
        keys = self.module.context(feature, batch.position, self.rope)
        slots = torch.where(batch.masked, c.mask_id, batch.labels)
        x = self.embedding[slots].to(torch.float32) * c.input_scale
        attend = attention.over(batch, c.layers, keys, flex=self.flex, room=self.room)
        return self.module(x, batch.slot_position, self.rope, attend)

    def served(self) -> DFlash:
        """The drafter as it is served, on its own: it reads the target's states as they are."""
        module = copy.deepcopy(self.module).eval().requires_grad_(False)
        if self.scale is not None:
            module.fc.weight.mul_(self.scale)  # exact: powers of two
        return module

    def step(self, batch: Batch, states: Sequence[States]) -> Outcome:
        """Loss and counts of one batch."""
        feature, last = packed(states, len(batch.tokens))
        return self.judged(batch, self.hidden(batch, feature), last)

    @torch.no_grad()
    def drafts(self, batch: Batch, feature: torch.Tensor) -> list[list[int]]:
        """The ids that each block's masks are filled with, greedy, as in serving."""
        hidden = self.hidden(batch, feature)[:, 1:]
        with torch.autocast(hidden.device.type, enabled=False):  # in fp32 as in serving: rounded logits tie at the top
            logits = self.module.logits(hidden, self.head)
        ids = self.ids
        selector = self.module.candidate_selector
        if selector is None:
            best = logits.argmax(-1)
            found: list[list[int]] = (best if ids is None else ids[best]).tolist()
            return found
        if ids is not None:
            spread = logits.new_full((*logits.shape[:2], self.embedding.shape[0]), -torch.inf)
            spread[..., ids] = logits
            logits = spread
        anchors = batch.labels[:, 0].tolist()
        return [
            selector(hidden[row], logits[row], anchor, lambda _, scores: int(scores.argmax()))
            for row, anchor in enumerate(anchors)
        ]

    def judged(self, batch: Batch, hidden: torch.Tensor, last: torch.Tensor | None) -> Outcome:
        labels = batch.labels if self.row_of is None else self.row_of[batch.labels]
        sayable = labels >= 0
        before = (batch.place - 1).clamp(min=0)  # the target's state there says what comes at the slot's place
        teacher = None if last is None or self.arm.loss == "data" else last[before]
        loss, ce, best = self._slots(hidden, labels, teacher, batch)
        weight = slot_weight(self.arm, batch.wanted, batch.masked, ce.detach(), sayable)
        right = (best == labels) & batch.wanted  # a best row is never -1
        # What the drafter cannot say counts as wrong here, not as absent.
        whole = batch.whole
        prefix = (right[:, 1:] & whole[:, None]).long().cumprod(-1).sum(0)
        hits = Hits(right.sum(0), batch.wanted.sum(0), torch.cat([whole.sum()[None], prefix]))
        return Outcome(weighted_mean(loss, weight), hits)

    def _slots(
        self, hidden: torch.Tensor, labels: torch.Tensor, teacher: torch.Tensor | None, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Loss, CE and best row of every slot, [N, B] each, in chunks of blocks."""
        blocks, width = labels.shape
        each = blocks_at_once(self.head.shape[0], width)
        previous = torch.cat([batch.labels[:, :1], batch.labels[:, :-1]], dim=1)
        parts = []
        for start in range(0, blocks, each):
            cut = slice(start, start + each)
            given = (hidden[cut], labels[cut], None if teacher is None else teacher[cut], previous[cut])
            if not hidden.requires_grad:
                parts.append(self._chunk(*given))
            elif self.module.candidate_selector is None:
                parts.append(_AtOnce.apply(given[0], lambda rows, rest=given[1:]: self._chunk(rows, *rest)))
            else:  # it has weights of its own in the logits, which are made again for the backward pass
                parts.append(checkpoint(self._chunk, *given, use_reentrant=False))
        loss, ce, best = (torch.cat(column).view(blocks, width) for column in zip(*parts, strict=True))
        return loss, ce, best

    def _chunk(
        self, hidden: torch.Tensor, labels: torch.Tensor, teacher: torch.Tensor | None, previous: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows = hidden.flatten(0, 1).to(torch.float32)
        # Logits that went through bf16 tie at the top, and give KL gradients that are a tenth wrong near the end.
        with torch.autocast(rows.device.type, enabled=False):
            logits = self.module.logits(rows, self.head)
            if self.module.candidate_selector is not None:
                logits = logits + self._pull(rows, previous.flatten())
            wanted = None if teacher is None else teacher.flatten(0, 1).to(torch.float32) @ self.head.t()
            loss, ce = slot_loss(self.arm.loss, logits, labels.flatten(), wanted)
        return loss, ce, logits.detach().argmax(-1)

    def _pull(self, rows: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """DFlash 2: what the token before adds to each id's logit. In training it is the text's own."""
        selector = self.module.candidate_selector
        successor = selector.successor_codebook  # type: ignore[union-attr]
        if self.ids is not None:
            successor = successor[self.ids]
        pull: torch.Tensor = selector.predecessor_codebook[previous] * selector.hidden_projection(rows)  # type: ignore[union-attr, operator, index]
        return pull.to(torch.float32) @ successor.to(torch.float32).t()


class _AtOnce(torch.autograd.Function):
    """A chunk whose gradient is taken while its logits exist. Each slot's loss depends on that slot's hidden row alone,
    so what comes from behind only multiplies it. The CE beside the loss has no gradient."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, chunk: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            rows = hidden.detach().requires_grad_()
            loss, ce, best = chunk(rows)
            (slope,) = torch.autograd.grad(loss.sum(), rows)
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(best)
        return loss.detach(), ce.detach(), best

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, None]:
        (slope,) = ctx.saved_tensors
        return slope * given[0].view(slope.shape[:-1])[..., None].to(slope.dtype), None
