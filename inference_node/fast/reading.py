"""Safetensors from disk into tensors that exist already, with no second copy in the host's memory.

Files are read in pieces of a few MiB into a ring of staging buffers, by several threads because one cannot keep a fast
disk busy, and each piece goes on to where it belongs: on an accelerator by an asynchronous copy from pinned memory. So
the host holds the ring and nothing else. (A memory-mapped file is not handed to the device: one driver reads such pages
wrong, and page faults come one by one.)

Checked by: tests/inference_node/fast/test_reading.py
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from inference_node.models.errors import BadModel
from inference_node.models.files import ModelFiles, SafetensorFiles, Told, untold

PIECE = 8 << 20
BUFFERS = 12
READERS = 6

KINDS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    first: int  # byte in the file
    bytes: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some elements of one tensor and where they go."""

    stored: Stored
    into: torch.Tensor  # flat
    offset: int  # byte in the tensor
    bytes: int


def stored(files: ModelFiles) -> dict[str, Stored]:
    """Every tensor of a model directory. Raises BadModel."""
    found: dict[str, Stored] = {}
    for name in SafetensorFiles(files.folder).files():
        found |= header(files.folder / name)
    return found


def read(wanted: Mapping[str, torch.Tensor], where: Mapping[str, Stored], told: Told = untold) -> int:
    """Fill each named tensor, which must be contiguous and of the stored shape. Returns the bytes read."""
    total = sum(where[name].bytes for name in wanted)
    if not total:
        return 0
    device = next(iter(wanted.values())).device
    pieces = list(_pieces(wanted, where))
    buffers: queue.Queue[torch.Tensor] = queue.Queue()
    for _ in range(min(BUFFERS, len(pieces))):
        buffers.put(torch.empty(PIECE, dtype=torch.uint8, pin_memory=device.type == "cuda"))
    full: queue.Queue[tuple[_Piece, torch.Tensor] | Exception] = queue.Queue()
    waiting = iter(pieces)
    lock, stop = threading.Lock(), threading.Event()

    def reader() -> None:
        try:
            with ExitStack() as stack:
                open_files: dict[Path, int] = {}
                while not stop.is_set():
                    buffer = buffers.get()
                    with lock:
                        piece = next(waiting, None)
                    if piece is None:
                        buffers.put(buffer)
                        return
                    file = piece.stored.file
                    if file not in open_files:
                        open_files[file] = os.open(file, os.O_RDONLY)
                        stack.callback(os.close, open_files[file])
                    _fill(open_files[file], piece, buffer)
                    full.put((piece, buffer))
        except Exception as error:  # handed to the thread that waits
            full.put(error)

    threads = [threading.Thread(target=reader, daemon=True) for _ in range(min(READERS, len(pieces)))]
    for thread in threads:
        thread.start()
    done = 0
    copied: list[tuple[torch.cuda.Event, torch.Tensor]] = []
    try:
        for _ in pieces:
            item = full.get()
            if isinstance(item, Exception):
                raise item
            piece, buffer = item
            piece.into.copy_(buffer[: piece.bytes].view(piece.stored.dtype), non_blocking=True)
            if device.type == "cuda":
                event = torch.cuda.Event()
                event.record()
                copied.append((event, buffer))
                while copied and (copied[0][0].query() or len(copied) > BUFFERS // 2):
                    copied[0][0].synchronize()
                    buffers.put(copied.pop(0)[1])
            else:
                buffers.put(buffer)
            done += piece.bytes
            told("loading weights", done / total)
    finally:
        stop.set()
        for event, buffer in copied:
            event.synchronize()
            buffers.put(buffer)
        for _ in threads:
            buffers.put(torch.empty(PIECE, dtype=torch.uint8))  # so that none waits for ever
        for thread in threads:
            thread.join()
    return done


def _pieces(wanted: Mapping[str, torch.Tensor], where: Mapping[str, Stored]) -> Iterator[_Piece]:
    """In the order of the files, so that a disk reads forward."""
    for name, into in sorted(wanted.items(), key=lambda item: (where[item[0]].file.name, where[item[0]].first)):
        what = where[name]
        if tuple(into.shape) != what.shape or not into.is_contiguous():
            raise ValueError(f"{name}: {tuple(into.shape)} for {what.shape}; expected a contiguous tensor of its shape")
        flat = into.view(-1)
        for offset in range(0, what.bytes, PIECE):
            size = min(PIECE, what.bytes - offset)
            each = what.dtype.itemsize
            yield _Piece(what, flat[offset // each : (offset + size) // each], offset, size)


def _fill(file: int, piece: _Piece, buffer: torch.Tensor) -> None:
    view = memoryview(buffer.numpy())[: piece.bytes]  # type: ignore[arg-type]
    done = 0
    while done < piece.bytes:
        got = os.preadv(file, [view[done:]], piece.stored.first + piece.offset + done)
        if got == 0:
            raise BadModel(piece.stored.file, "the file", found="an early end", expected="as many bytes as it says")
        done += got


def header(path: Path) -> dict[str, Stored]:
    """What a file says is in it: eight bytes of length, a JSON object, the data."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        described = json.loads(file.read(length))
    found = {}
    for name, entry in described.items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        kind = KINDS.get(entry["dtype"])
        if kind is None:
            raise BadModel(
                path, f'the type of tensor "{name}"', found=entry["dtype"], expected=f"one of {sorted(KINDS)}"
            )
        found[name] = Stored(path, kind, tuple(entry["shape"]), 8 + length + first, end - first)
    return found
