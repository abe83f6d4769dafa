"""What a block's slots see in training: context before their anchor, and their own block.

    key at context place t     same sample, t < anchor, and inside the layer's window of the query's position
    key of slot o of block j   the same block, and o <= the query's slot where the layer is causal

As in serving, where the drafter's cache holds rows before the anchor alone (models/drafter.py). Three ways: `plain` has
a mask of all pairs, for any device; `by text` has one for each text's places and slots, which is the quickest where
texts are short, and needs no compiler; `flex` skips what is not seen and copies nothing, for long texts on GPUs. All
are checked against the serving code.
Checked by: tests/inference_node/train/test_attention.py
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from inference_node.models.draft_config import DraftLayer
from inference_node.models.drafter import Attend
from inference_node.train.batch import Batch

FORMS = 64
"""Shapes times kinds of layers that one process may compile attention for."""

ROOM = 2 << 30
"""Bytes of masks and copies, a layer, where the target is on the same device: one that has room for it is not short of
memory."""

SHAPELESS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention that is not made anew for each shape. cuDNN's is, in a tenth of a second, and no two steps are alike."""

Keys = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Per layer, keys and values [S, kv_heads, dim] of the context."""


def over(batch: Batch, layers: Sequence[DraftLayer], keys: Keys, *, flex: bool, room: int = 0) -> Attend:
    """The attention to hand to the drafter for this batch's blocks.

    room: bytes that one layer's mask and copies may take text by text; where they take more, flex or plain is used.
    """
    if 0 < _by_text_bytes(batch, keys[0][0]) <= room:
        return _by_text(batch, layers, keys)
    make = _flex if flex else _plain
    ways = {layer: make(batch, layer) for layer in set(layers)}

    def attend(index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [N, B, heads, dim]; k, v [N, B, kv_heads, dim] -> as q."""
        context_k, context_v = keys[index]
        all_v = torch.cat([context_v, v.flatten(0, 1)]).transpose(0, 1)[None]
        all_k = torch.cat([context_k, k.flatten(0, 1)]).transpose(0, 1)[None].to(all_v.dtype)
        read = ways[layers[index]](q.flatten(0, 1).transpose(0, 1)[None].to(all_v.dtype), all_k, all_v)
        return read[0].transpose(0, 1).reshape(q.shape)

    return attend


def _seen(batch: Batch, layer: DraftLayer) -> Callable[[Any, Any], Any]:
    """(query, key) -> bool, over flat slots and over context followed by flat slots."""
    places, block = len(batch.tokens), batch.masked.shape[1]
    anchor, document, position = batch.anchor, batch.document, batch.position

    def seen(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        of, slot = query // block, query % block
        at = anchor[of]
        place = key.clamp(max=places - 1)
        before = (key < places) & (place < at) & (document[place] == document[at])
        other = (key - places).clamp(min=0)
        own = (key >= places) & (other // block == of)
        if layer.window is not None:
            before = before & (position[at] + slot - position[place] < layer.window)
            own = own & ((slot - other % block).abs() < layer.window)
        if layer.causal:
            own = own & (other % block <= slot)
        return before | own

    return seen


def _longest(batch: Batch) -> int:
    """Rows of context that a block can see at most, without asking the device."""
    return max((len(sample.tokens) for sample in batch.samples), default=0)


def _by_text_bytes(batch: Batch, k: torch.Tensor) -> int:
    """Mask, and its copy as numbers, of one layer, and keys and values; k [S, kv_heads, dim]."""
    slots = batch.fullest * batch.masked.shape[1]
    places = _longest(batch) + slots
    return len(batch.samples) * places * (slots * (1 + k.element_size()) + 2 * k[0].numel() * k.element_size())


def _by_text(batch: Batch, layers: Sequence[DraftLayer], keys: Keys) -> Attend:
    """One row a text: its places, then the slots of its blocks, padded to the longest and the fullest."""
    device, (blocks, block) = batch.tokens.device, batch.masked.shape
    texts, longest, slots = len(batch.samples), _longest(batch), batch.fullest * block
    lengths = torch.tensor([len(sample.tokens) for sample in batch.samples])
    starts = (lengths.cumsum(0) - lengths).to(device)
    place = torch.arange(longest, device=device)
    at = (starts[:, None] + place).clamp(max=len(batch.tokens) - 1)  # [texts, longest]; what pads is never seen
    text = torch.where(batch.real, batch.document[batch.anchor], texts)  # ascending, as anchors are
    among = torch.arange(blocks, device=device) - torch.searchsorted(text, text)  # the how manieth of its text
    cell = torch.where(batch.real, text * batch.fullest + among, texts * batch.fullest)  # fillers: one behind the last
    position = torch.zeros(texts * batch.fullest + 1, dtype=torch.int64, device=device)
    position = position.index_copy(0, cell, batch.position[batch.anchor])[:-1].view(texts, -1)  # of anchors
    own = torch.arange(slots, device=device)

    def mask(layer: DraftLayer) -> torch.Tensor:
        """[texts, 1, slots, longest + slots]"""
        anchor = position.repeat_interleave(block, dim=1)[..., None]  # [texts, slots, 1]
        before = place < anchor
        inside = own[:, None] // block == own // block
        if layer.window is not None:
            before = before & (anchor + (own % block)[:, None] - place < layer.window)
            inside = inside & ((own[:, None] - own).abs() < layer.window)
        if layer.causal:
            inside = inside & (own <= own[:, None])
        return torch.cat([before, inside.expand(texts, -1, -1)], dim=-1)[:, None]

    masks = {layer: mask(layer) for layer in set(layers)}

    def laid_out(x: torch.Tensor) -> torch.Tensor:
        """[N, B, heads, dim] -> [texts, slots, heads, dim]"""
        cells = x.new_zeros(texts * batch.fullest + 1, *x.shape[1:]).index_copy(0, cell, x)
        return cells[:-1].view(texts, slots, *x.shape[2:])

    def attend(index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        context_k, context_v = keys[index]
        groups = q.shape[2] // k.shape[2]

        def all_of(context: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
            # As many heads as queries have: the quick attention with a mask knows no groups.
            both = torch.cat([context.to(v.dtype)[at], laid_out(own.to(v.dtype))], dim=1)
            return both.repeat_interleave(groups, dim=2).transpose(1, 2)

        with sdpa_kernel(SHAPELESS) if v.is_cuda else nullcontext():
            read = F.scaled_dot_product_attention(
                laid_out(q.to(v.dtype)).transpose(1, 2), all_of(context_k, k), all_of(context_v, v),
                attn_mask=masks[layers[index]],
            )  # fmt: skip
        cells = read.transpose(1, 2).reshape(texts * batch.fullest, block, *q.shape[2:])
        return cells.index_select(0, cell.clamp(max=len(cells) - 1))

    return attend


def _plain(batch: Batch, layer: DraftLayer) -> Callable[..., torch.Tensor]:
    queries, keys = batch.masked.numel(), len(batch.tokens) + batch.masked.numel()
    device = batch.tokens.device
    mask = _seen(batch, layer)(torch.arange(queries, device=device)[:, None], torch.arange(keys, device=device))

    def read(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    return read


def _flex(batch: Batch, layer: DraftLayer) -> Callable[..., torch.Tensor]:
    seen = _seen(batch, layer)
    attention, make_mask = _flex_parts(batch.tokens.device.type != "cpu")
    queries, keys = batch.masked.numel(), len(batch.tokens) + batch.masked.numel()
    device = str(batch.tokens.device)
    mask = make_mask(lambda b, h, query, key: seen(query, key), None, None, queries, keys, device)

    def read(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = attention(q, k, v, block_mask=mask, enable_gqa=True)
        return result

    return read


@functools.cache
def _flex_parts(compiled: bool) -> tuple[Any, Any]:
    """The attention and the maker of its mask; on a CPU as they are, which is slow and needs no compiler.

    They are compiled once for each shape and kind of layer: for all steps of a run, again for judging, again for an arm
    with other blocks. Torch gives up after eight in a process and goes on without compiling, with all scores in memory:
    a grid of arms would come to that. From here on it gives up later, and says so.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if not compiled:
        return flex_attention, create_block_mask
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, FORMS)
    limits.fail_on_recompile_limit_hit = True
    return torch.compile(flex_attention, dynamic=False), torch.compile(create_block_mask, dynamic=False)
