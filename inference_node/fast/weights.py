"""A model's weights as the kernels read them, straight from its files.

What has one input is one matrix: a DeltaNet layer's projections of queries, keys, values, gate, beta and decay; an
attention layer's of queries (with their gates), keys and values; an MLP's gate and up. The shared expert is the last of
the experts, its gate the last row of the router. Norms are fp32 factors (1 + w is made here).

Lossless in the files' bf16. `int8` packs linears, experts and head, `mxfp4` the experts: both lose bits. They are made
layer by layer, so that a model larger than the device's memory in bf16 can be packed on it, and kept on disk.

Checked by: tests/inference_node/fast/test_weights.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from inference_node.fast import reading
from inference_node.fast.reading import Stored
from inference_node.fast.sizes import NotForFast, Sizes
from inference_node.kernels.plain.gated_delta_step import TAPS, DeltaWeights
from inference_node.kernels.plain.packed import Weight, pack_int8, pack_mxfp4
from inference_node.models.errors import BadModel
from inference_node.models.files import Told, untold
from inference_node.models.weights import NOT_TEXT

PREFIXES = ("model.language_model.", "model.")


@dataclass(frozen=True, slots=True)
class DeltaPart:
    norm: torch.Tensor
    enter: Weight  # [C + HV * V + 2 * HV, hidden]: conv inputs, output gate, beta, decay
    rule: DeltaWeights
    out_norm: torch.Tensor  # [V]
    out: Weight


@dataclass(frozen=True, slots=True)
class AttentionPart:
    norm: torch.Tensor
    enter: Weight  # [heads * dim (* 2 with gates) + 2 * kv_heads * dim, hidden]
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    out: Weight


@dataclass(frozen=True, slots=True)
class MixturePart:
    norm: torch.Tensor
    router: torch.Tensor  # [experts (+ 1), hidden]
    up: Weight  # [experts (+ 1), 2 * width, hidden]
    down: Weight  # [experts (+ 1), hidden, width]


@dataclass(frozen=True, slots=True)
class DensePart:
    norm: torch.Tensor
    up: Weight  # [2 * intermediate, hidden]
    down: Weight


Mixer = DeltaPart | AttentionPart
Mlp = MixturePart | DensePart
MATRICES = ("enter", "out", "up", "down")


@dataclass
class Weights:
    embedding: torch.Tensor  # [vocab, hidden]
    head: Weight  # [vocab, hidden]
    norm: torch.Tensor
    mixers: list[Mixer]
    mlps: list[Mlp]
    kind: str = "bf16"  # as stored | int8 | mxfp4

    @property
    def bytes(self) -> int:
        parts = [*self.mixers, *self.mlps]
        matrices = [
            getattr(part, name) for part in parts for name in ("enter", "out", "up", "down") if hasattr(part, name)
        ]
        small = [part.router for part in parts if isinstance(part, MixturePart)]
        tied = self.head.data.data_ptr() == self.embedding.data_ptr()
        total = sum(weight.bytes for weight in matrices) + (0 if tied else self.head.bytes)
        return total + sum(tensor.numel() * tensor.element_size() for tensor in (*small, self.embedding))


class Place(NamedTuple):
    """A tensor of the files and where it goes."""

    name: str  # without the prefix of the text part
    into: torch.Tensor


def empty_layer(sizes: Sizes, layer: int, dtype: torch.dtype, device: torch.device) -> tuple[Mixer, Mlp]:
    """Room for one layer."""
    hidden = sizes.hidden

    def factor(length: int) -> torch.Tensor:
        return torch.empty(length, device=device)

    def matrix(*shape: int) -> Weight:
        return Weight(torch.empty(shape, dtype=dtype, device=device))

    mixer: Mixer
    if sizes.recurrent[layer]:
        d = sizes.delta
        assert d is not None
        if d.taps != TAPS:
            raise NotForFast(
                f"The fast engine's DeltaNet layers have {TAPS} convolution taps; this model has {d.taps}."
            )
        rule = DeltaWeights(
            conv=torch.empty(d.channels, TAPS, dtype=dtype, device=device),
            rate=factor(d.value_heads),
            shift=factor(d.value_heads),
        )
        enter = matrix(d.channels + d.values + 2 * d.value_heads, hidden)
        mixer = DeltaPart(factor(hidden), enter, rule, factor(d.value_dim), matrix(hidden, d.values))
    else:
        heads, dim = sizes.heads * (2 if sizes.gated else 1), sizes.head_dim
        enter = matrix((heads + 2 * sizes.kv_heads) * dim, hidden)
        mixer = AttentionPart(factor(hidden), enter, factor(dim), factor(dim), matrix(hidden, sizes.heads * dim))
    m = sizes.mixture
    if m is None:
        return mixer, DensePart(
            factor(hidden), matrix(2 * sizes.intermediate, hidden), matrix(hidden, sizes.intermediate)
        )
    if m.shared not in (0, m.width):
        raise NotForFast(f"The shared expert is {m.shared} wide and the others {m.width}; the fast engine needs equal.")
    count = m.experts + (1 if m.shared else 0)
    router = torch.empty(count, hidden, dtype=dtype, device=device)
    return mixer, MixturePart(
        factor(hidden), router, matrix(count, 2 * m.width, hidden), matrix(count, hidden, m.width)
    )


def layer_places(sizes: Sizes, layer: int, mixer: Mixer, mlp: Mlp, single: bool) -> Iterator[Place]:
    """Where this layer's tensors go. single: the files hold every expert's matrices by themselves."""
    at = f"layers.{layer}."
    yield Place(f"{at}input_layernorm.weight", mixer.norm)
    yield Place(f"{at}post_attention_layernorm.weight", mlp.norm)
    if isinstance(mixer, DeltaPart):
        d = sizes.delta
        assert d is not None
        yield from _rows(
            f"{at}linear_attn.", mixer.enter.data,
            {"in_proj_qkv": d.channels, "in_proj_z": d.values, "in_proj_b": d.value_heads, "in_proj_a": d.value_heads},
        )  # fmt: skip
        yield Place(f"{at}linear_attn.conv1d.weight", mixer.rule.conv.view(d.channels, 1, TAPS))
        yield Place(f"{at}linear_attn.A_log", mixer.rule.rate)
        yield Place(f"{at}linear_attn.dt_bias", mixer.rule.shift)
        yield Place(f"{at}linear_attn.norm.weight", mixer.out_norm)
        yield Place(f"{at}linear_attn.out_proj.weight", mixer.out.data)
    else:
        queries = sizes.heads * sizes.head_dim * (2 if sizes.gated else 1)
        keys = sizes.kv_heads * sizes.head_dim
        yield from _rows(
            f"{at}self_attn.", mixer.enter.data, {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        )  # fmt: skip
        yield Place(f"{at}self_attn.q_norm.weight", mixer.q_norm)
        yield Place(f"{at}self_attn.k_norm.weight", mixer.k_norm)
        yield Place(f"{at}self_attn.o_proj.weight", mixer.out.data)
    if isinstance(mlp, DensePart):
        half = sizes.intermediate
        yield from _rows(f"{at}mlp.", mlp.up.data, {"gate_proj": half, "up_proj": half})
        yield Place(f"{at}mlp.down_proj.weight", mlp.down.data)
        return
    m = sizes.mixture
    assert m is not None
    yield Place(f"{at}mlp.gate.weight", mlp.router[: m.experts])
    if m.shared:
        yield Place(f"{at}mlp.shared_expert_gate.weight", mlp.router[m.experts :])
        yield from _rows(f"{at}mlp.shared_expert.", mlp.up.data[-1], {"gate_proj": m.width, "up_proj": m.width})
        yield Place(f"{at}mlp.shared_expert.down_proj.weight", mlp.down.data[-1])
    if not single:
        yield Place(f"{at}mlp.experts.gate_up_proj", mlp.up.data[: m.experts])
        yield Place(f"{at}mlp.experts.down_proj", mlp.down.data[: m.experts])
        return
    for e in range(m.experts):
        yield from _rows(f"{at}mlp.experts.{e}.", mlp.up.data[e], {"gate_proj": m.width, "up_proj": m.width})
        yield Place(f"{at}mlp.experts.{e}.down_proj.weight", mlp.down.data[e])


def finish_layer(sizes: Sizes, mixer: Mixer, mlp: Mlp) -> None:
    """From what the files hold to what the kernels take, in place."""
    if sizes.plus_one:
        mixer.norm.add_(1.0)
        mlp.norm.add_(1.0)
        if isinstance(mixer, AttentionPart):
            mixer.q_norm.add_(1.0)
            mixer.k_norm.add_(1.0)
    if isinstance(mixer, DeltaPart):
        mixer.rule.rate.exp_()


def packed(part: Any, kind: str) -> Any:
    """A layer's half with its large matrices in fewer bits."""
    if kind == "mxfp4":
        return replace(part, up=_pack(part.up, pack_mxfp4), down=_pack(part.down, pack_mxfp4)) if _mixed(part) else part
    names = [name for name in MATRICES if hasattr(part, name)]
    return replace(part, **{name: _pack(getattr(part, name), pack_int8) for name in names})


def _mixed(part: Mixer | Mlp) -> bool:
    return isinstance(part, MixturePart)


class Filler:
    """Puts the tensors of a model's files, or of a part of them, where they belong. Raises BadModel."""

    def __init__(self, names: Mapping[str, str], where: Mapping[str, Stored], folder: str, told: Told = untold) -> None:
        """names: of the part, as its places call them -> as the files do."""
        self.names, self.where, self.folder, self.told = names, where, folder, told
        self.used: set[str] = set()
        self.total = sum(where[name].bytes for name in names.values())
        self.done = 0

    @property
    def single(self) -> bool:
        """Whether the files hold every expert's matrices by themselves."""
        return any(".mlp.experts.0." in name for name in self.names)

    def __call__(self, places: list[Place]) -> None:
        wanted = {}
        for place in places:
            shape = tuple(place.into.shape)
            if place.name not in self.names:
                raise BadModel(self.folder, f'tensor "{place.name}"', found="missing", expected=f"shape {list(shape)}")
            real = self.names[place.name]
            if self.where[real].shape != shape:
                raise BadModel(
                    self.folder, f'the shape of tensor "{real}"', found=list(self.where[real].shape),
                    expected=f"{list(shape)} by config",
                )  # fmt: skip
            self.used.add(place.name)
            wanted[real] = place.into
        before = self.done
        size = sum(self.where[name].bytes for name in wanted)
        reading.read(wanted, self.where, lambda what, part: self.told(what, (before + part * size) / self.total))
        self.done += size

    def finish(self, expected: str) -> None:
        """Refuse what has no place."""
        left = sorted(set(self.names) - self.used)
        if left:
            raise BadModel(
                self.folder, f'tensor "{self.names[left[0]]}"',
                found=f"present, and {len(left) - 1} more that have no place", expected=expected,
            )  # fmt: skip


def load(
    sizes: Sizes,
    where: Mapping[str, Stored],
    folder: str,
    dtype: torch.dtype,
    device: torch.device,
    kind: str = "bf16",
    told: Told = untold,
) -> Weights:
    """All weights of a model directory. Raises BadModel for what is missing, misshapen or left over."""
    fill = Filler(_text_names(where), where, folder, told)
    embedding = torch.empty(sizes.vocab, sizes.hidden, dtype=dtype, device=device)
    norm = torch.empty(sizes.hidden, device=device)
    head = embedding if sizes.tied else torch.empty_like(embedding)
    fill([
        Place("embed_tokens.weight", embedding), Place("norm.weight", norm),
        *([] if sizes.tied else [Place("lm_head.weight", head)]),
    ])  # fmt: skip
    fill.used.add("lm_head.weight")
    if sizes.plus_one:
        norm.add_(1.0)
    mixers: list[Mixer] = []
    mlps: list[Mlp] = []
    for layer in range(sizes.layers):
        mixer, mlp = empty_layer(sizes, layer, dtype, device)
        fill(list(layer_places(sizes, layer, mixer, mlp, fill.single)))
        finish_layer(sizes, mixer, mlp)
        if kind != "bf16":
            mixer, mlp = packed(mixer, kind), packed(mlp, kind)
        mixers.append(mixer)
        mlps.append(mlp)
    fill.finish(f"only the tensors of a {sizes.family}")
    top = Weight(head) if kind != "int8" else _pack(Weight(head), pack_int8)
    return Weights(embedding, top, norm, mixers, mlps, kind)


def load_embedding(sizes: Sizes, where: Mapping[str, Stored], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The embedding alone: it is never packed."""
    embedding = torch.empty(sizes.vocab, sizes.hidden, dtype=dtype, device=device)
    reading.read({_text_names(where)["embed_tokens.weight"]: embedding}, where)
    return embedding


def _pack(weight: Weight, pack: Callable[[torch.Tensor], Weight]) -> Weight:
    """Stacks go one matrix at a time, because the fp32 copy on the way is twice the size."""
    if weight.data.dim() == 2:
        return pack(weight.data)
    pieces = [pack(matrix) for matrix in weight.data]
    scales = [piece.scale for piece in pieces if piece.scale is not None]
    return Weight(torch.stack([piece.data for piece in pieces]), torch.stack(scales))


def _rows(at: str, matrix: torch.Tensor, parts: Mapping[str, int]) -> Iterator[Place]:
    """Matrices of one input, one below the other."""
    first = 0
    for name, count in parts.items():
        yield Place(f"{at}{name}.weight", matrix[first : first + count])
        first += count


def _text_names(where: Mapping[str, Stored]) -> dict[str, str]:
    """Name without its prefix -> name in the files, of the text part."""
    found = {}
    for name in where:
        if NOT_TEXT.match(name) or name.startswith("mtp."):
            continue
        prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
        found[name.removeprefix(prefix)] = name
    return found
