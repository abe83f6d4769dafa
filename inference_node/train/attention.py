"""What a block's slots see in training: context before their anchor, and their own block.

    key at context place t     same sample, t < anchor, and inside the layer's window of the query's position
    key of slot o of block j   the same block, and o <= the query's slot where the layer is causal

As in serving, where the drafter's cache holds rows before the anchor alone (models/drafter.py). Three ways: `plain` has
a mask of all pairs, for any device; `gathered` hands each block a copy of its own sample's rows, which is the quickest
where texts are short, and needs no compiler; `flex` skips what is not seen and copies nothing, for long texts on GPUs.
All are checked against the serving code.
Checked by: tests/inference_node/train/test_attention.py
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from inference_node.models.draft_config import DraftLayer
from inference_node.models.drafter import Attend
from inference_node.train.batch import Batch

FORMS = 64
"""Shapes times kinds of layers that one process may compile attention for."""

GATHERED = 2 << 30
"""Bytes of copies, a layer, where the target is on the same device: one that has room for it is not short of memory."""

Keys = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Per layer, keys and values [S, kv_heads, dim] of the context."""


def over(batch: Batch, layers: Sequence[DraftLayer], keys: Keys, *, flex: bool, gather: int = 0) -> Attend:
    """The attention to hand to the drafter for this batch's blocks.

    gather: bytes that the copied rows of one layer may take; where they take more, flex or plain is used.
    """
    k = keys[0][0]
    if 0 < 2 * len(batch.masked) * _longest(batch) * k[0].numel() * k.element_size() <= gather:
        return _gathered(batch, layers, keys)
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


def _gathered(batch: Batch, layers: Sequence[DraftLayer], keys: Keys) -> Attend:
    longest, block = _longest(batch), batch.masked.shape[1]
    device = batch.tokens.device
    away = longest - torch.arange(longest, device=device)  # of the anchor
    place = (batch.anchor[:, None] - away).clamp(min=0)  # [N, L]
    same = away <= batch.position[batch.anchor][:, None]  # the sample begins no earlier
    slots = torch.arange(block, device=device)
    query, own = slots[:, None], slots[None, :]

    def mask(layer: DraftLayer) -> torch.Tensor:
        before = same[:, None, :].expand(-1, block, -1)
        inside = torch.ones(block, block, dtype=torch.bool, device=device)
        if layer.window is not None:
            before = before & (query + away < layer.window)
            inside = inside & ((query - own).abs() < layer.window)
        if layer.causal:
            inside = inside & (own <= query)
        return torch.cat([before, inside.expand(len(place), -1, -1)], dim=-1)[:, None]

    masks = {layer: mask(layer) for layer in set(layers)}

    def attend(index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        context_k, context_v = keys[index]
        all_v = torch.cat([context_v[place], v], dim=1).transpose(1, 2)
        all_k = torch.cat([context_k.to(all_v.dtype)[place], k.to(all_v.dtype)], dim=1).transpose(1, 2)
        q = q.to(all_v.dtype).transpose(1, 2)
        read = F.scaled_dot_product_attention(q, all_k, all_v, attn_mask=masks[layers[index]], enable_gqa=True)
        return read.transpose(1, 2)

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
