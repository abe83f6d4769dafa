"""A target's states on their way to a trainer: the bytes, and what tells that they are the right ones.

    tensors    states [n, taps, hidden] in bf16; or in fp8 (e4m3) with scale [n, taps] in fp32
    metadata   form, taps, tokens (a hash of the ids), model (a fingerprint of its files)

Tokens and model travel inside the body, under the checksum of the whole, so that neither can go with other states.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from inference_node.models.errors import NodeError
from inference_node.models.files import ModelFiles

FORMS = ("bf16", "fp8")
CHECKSUM = "X-States-SHA256"
FP8_MOST = 448.0  # of e4m3
PIECE = 512  # bytes of each tensor that the fingerprint reads, at its beginning and in its middle


class BrokenBody(NodeError):
    """The bytes are not those that were sent; asking again may help."""


class OtherStates(NodeError):
    """They arrived whole and are another model's or another text's: asking again gives the same."""


def encode(states: torch.Tensor, *, form: str, model: str, tokens: Sequence[int], taps: Sequence[int]) -> bytes:
    """states [n, taps, hidden] of a sample. Raises ValueError for an unknown form."""
    told = {"form": form, "model": model, "tokens": tokens_hash(tokens), "taps": ",".join(map(str, taps))}
    if form == "bf16":
        return save({"states": states.to(torch.bfloat16).contiguous()}, told)
    if form != "fp8":
        raise ValueError(f'form "{form}"; known are {", ".join(FORMS)}')
    wide = states.to(torch.float32)
    scale = (wide.abs().amax(-1) / FP8_MOST).clamp(min=1e-12)
    small = (wide / scale[..., None]).to(torch.float8_e4m3fn)
    return save({"states": small.contiguous(), "scale": scale.contiguous()}, told)


def decode(body: bytes, checksum: str, *, model: str, tokens: Sequence[int], taps: Sequence[int]) -> torch.Tensor:
    """[n, taps, hidden] bf16. Raises BrokenBody, and OtherStates naming what differs."""
    if checksum != sha256(body):
        raise BrokenBody(f"The checksum of {len(body)} bytes of states is not the one that was sent with them.")
    try:
        tensors, told = load(body), _metadata(body)
    except (SafetensorError, ValueError) as error:
        raise OtherStates(f"The states are no safetensors file ({error}). Is this a Lamplighter node?") from None
    if told.get("model") != model:
        raise OtherStates(
            f"The states come from a model with the fingerprint {told.get('model')}; this run's target has {model}. "
            "Serve the same files that the trainer reads."
        )
    if told.get("tokens") != tokens_hash(tokens) or told.get("taps") != ",".join(map(str, taps)):
        raise OtherStates("The states belong to other tokens or other layers than were asked for.")
    states = tensors["states"]
    if told["form"] == "fp8":
        states = states.to(torch.float32) * tensors["scale"][..., None]
    return states.to(torch.bfloat16)


def sha256(body: bytes) -> str:
    """What CHECKSUM's header carries."""
    return hashlib.sha256(body).hexdigest()


def tokens_hash(tokens: Sequence[int]) -> str:
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()


def fingerprint(files: ModelFiles) -> str:
    """Of a model's files: its config, the names and shapes of all tensors, and some bytes of each.

    Reads two pieces per tensor, so that it takes a second where hashing all bytes takes minutes. What was fine-tuned,
    merged or converted differs; so do files that are cut into shards in another way.
    """
    digest = hashlib.sha256()
    if files.gguf is not None:
        path = files.folder / files.gguf
        size = path.stat().st_size
        for piece in _pieces(path, [size * i // 64 for i in range(64)]):
            digest.update(piece)
        digest.update(str(size).encode())
    else:
        digest.update(json.dumps(files.config, sort_keys=True).encode())
        for path in sorted(files.folder.glob("*.safetensors")):
            for piece in _of_tensors(path):
                digest.update(piece)
    return digest.hexdigest()[:16]


def _of_tensors(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length)
    yield header
    places = []
    for name, told in json.loads(header).items():
        if name != "__metadata__":
            first, end = told["data_offsets"]
            places += [8 + length + first, 8 + length + (first + end) // 2]
    yield from _pieces(path, sorted(places))


def _pieces(path: Path, places: Sequence[int]) -> Iterator[bytes]:
    with path.open("rb") as file:
        for place in places:
            file.seek(place)
            yield file.read(PIECE)


def _metadata(body: bytes) -> dict[str, str]:
    length = int.from_bytes(body[:8], "little")
    found = json.loads(body[8 : 8 + length]).get("__metadata__", {})
    return {str(key): str(value) for key, value in found.items()}
