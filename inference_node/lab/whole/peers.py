"""The same tensors in transformers: its experts' implementations and its decode step."""

from __future__ import annotations

import statistics
import time
import traceback
from typing import Any

import torch

from inference_node.fast.forward import Model
from inference_node.fast.weights import DeltaPart, MixturePart
from inference_node.lab.whole.live import (
    Bench,
    graphed,
    synchronize,
    timed,
    tokens,
)


def experts(bench: Bench) -> None:
    """A layer's mixture against transformers' implementations, at equal routing: the smallest ratio over 1-16 rows."""
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as theirs

    runner = bench.runner
    model, mixture = runner.model, runner.model.sizes.mixture
    assert mixture is not None
    bench.runner.model.imposed = None
    parts = [part for part in model.weights.mlps if isinstance(part, MixturePart)][:8]
    config = _config_of(bench)
    ratios = []
    for rows in (1, 4, 16):
        valid = torch.tensor([rows], dtype=torch.int32, device=bench.device)
        x = torch.randn(16, model.sizes.hidden, device=bench.device).to(model.dtype)
        out = torch.empty_like(x)

        def ours(x: torch.Tensor = x, valid: torch.Tensor = valid, out: torch.Tensor = out) -> None:
            model.route_marks.zero_()
            for part, plan, mark in zip(parts, model.plans, model.route_marks.split(1), strict=False):
                model.parts.route(x, part.norm, part.router, valid, model.normed, plan, mark=mark)
                model.parts.expert_up(model.normed, part.up, plan, model.expert_hidden)
                model.parts.expert_down(model.expert_hidden, part.down, plan, valid, x, out)

        best = None
        for kind in ("grouped_mm", "batched_mm", "eager"):
            try:
                blocks = [_their_block(theirs, config, part, kind) for part in parts]
                hidden = x[None, :rows]

                def run_them(blocks: Any = blocks, hidden: torch.Tensor = hidden) -> None:
                    for block in blocks:
                        block(hidden)

                seconds = timed(bench, run_them, 10)
                bench.tell(**{f"experts_{kind}_rows_{rows}_ms": 1e3 * seconds / len(parts)})
                best = seconds if best is None else min(best, seconds)
            except Exception as error:
                print(f"  transformers {kind} at {rows} rows: {type(error).__name__}: {str(error)[:200]}", flush=True)
        mine = timed(bench, graphed(bench, ours), bench.repeat)
        bench.tell(**{f"experts_fast_rows_{rows}_ms": 1e3 * mine / len(parts)})
        if best is not None:
            ratios.append(best / mine)
            bench.tell(**{f"experts_ratio_rows_{rows}": best / mine})
    if ratios:
        bench.tell(experts_vs_transformers=min(ratios))


def transformers(bench: Bench) -> None:
    """A decode step of unmodified transformers over the very same tensors, with its fastest experts."""
    from transformers import AutoModelForCausalLM

    best = None
    for kind in ("grouped_mm", "batched_mm"):
        try:
            config = _config_of(bench)
            config._experts_implementation = kind
            with torch.device("meta"):
                module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            lend(bench.runner.model, module)
            ids = torch.tensor([tokens(bench, 1024, 4)], device=bench.device)
            past = module(ids, use_cache=True).past_key_values
            times = []
            for step in range(8):
                synchronize(bench)
                began = time.perf_counter()
                past = module(ids[:, step : step + 1], past_key_values=past, use_cache=True).past_key_values
                synchronize(bench)
                times.append(time.perf_counter() - began)
            seconds = statistics.median(times[2:])
            bench.tell(**{f"transformers_{kind}_decode_ms": 1e3 * seconds})
            best = seconds if best is None else min(best, seconds)
        except Exception:
            print(f"  transformers {kind}: {traceback.format_exc()[-1500:]}", flush=True)
    if best is not None:
        bench.tell(transformers_decode_ms=1e3 * best)


def _config_of(bench: Bench) -> Any:
    from inference_node.lab.fast_model import text_config

    return text_config("qwen3_5_moe", bench.shape)


def _their_block(theirs: Any, config: Any, part: MixturePart, kind: str) -> Any:
    config._experts_implementation = kind
    with torch.device("meta"):
        block = theirs.Qwen3_5MoeSparseMoeBlock(config)
    lend_mixture(block, part)
    return block.eval()


def lend_mixture(block: Any, part: MixturePart) -> None:
    """transformers' module over our tensors, without a copy."""
    count = part.router.shape[0] - 1
    half = part.up.shape[1] // 2
    put(block.gate, "weight", part.router[:count])
    put(block.shared_expert_gate, "weight", part.router[count:])
    put(block.experts, "gate_up_proj", part.up.data[:count])
    put(block.experts, "down_proj", part.down.data[:count])
    put(block.shared_expert.gate_proj, "weight", part.up.data[count, :half])
    put(block.shared_expert.up_proj, "weight", part.up.data[count, half:])
    put(block.shared_expert.down_proj, "weight", part.down.data[count])


def put(module: Any, name: str, value: torch.Tensor) -> None:
    setattr(module, name, torch.nn.Parameter(value, requires_grad=False))


def lend(model: Model, module: Any) -> None:
    """A whole transformers model over our tensors. Norms and rates are small copies in its own form."""
    weights, s, dtype = model.weights, model.sizes, model.dtype
    d = s.delta
    assert d is not None
    body = module.model
    put(body.embed_tokens, "weight", weights.embedding)
    put(module.lm_head, "weight", weights.head.data)
    put(body.norm, "weight", (weights.norm - 1).to(dtype))
    body.rotary_emb = type(body.rotary_emb)(module.config).to(model.device)
    for layer, mixer, mlp in zip(body.layers, weights.mixers, weights.mlps, strict=True):
        put(layer.input_layernorm, "weight", (mixer.norm - 1).to(dtype))
        put(layer.post_attention_layernorm, "weight", (mlp.norm - 1).to(dtype))
        assert isinstance(mlp, MixturePart)
        lend_mixture(layer.mlp, mlp)
        if isinstance(mixer, DeltaPart):
            part = layer.linear_attn
            rows = mixer.enter.data.split([d.channels, d.values, d.value_heads, d.value_heads])
            for name, value in zip(("qkv", "z", "b", "a"), rows, strict=True):
                put(getattr(part, f"in_proj_{name}"), "weight", value)
            put(part.conv1d, "weight", mixer.rule.conv[:, None])
            put(part, "A_log", mixer.rule.rate.log())
            put(part, "dt_bias", mixer.rule.shift.clone())
            put(part.norm, "weight", mixer.out_norm.to(dtype))
            put(part.out_proj, "weight", mixer.out.data)
        else:
            part = layer.self_attn
            keys = s.kv_heads * s.head_dim
            rows = mixer.enter.data.split([2 * s.heads * s.head_dim, keys, keys])
            for name, value in zip("qkv", rows, strict=True):
                put(getattr(part, f"{name}_proj"), "weight", value)
            put(part.q_norm, "weight", (mixer.q_norm - 1).to(dtype))
            put(part.k_norm, "weight", (mixer.k_norm - 1).to(dtype))
            put(part.o_proj, "weight", mixer.out.data)
    module.eval()
