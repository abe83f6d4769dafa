"""The node's settings: one frozen object per process, read once at start.

Options of the command line come first, then the environment (prefix LAMPNODE_), then a TOML file (LAMPNODE_CONFIG),
then the defaults here. An unknown variable with our prefix, or an unknown name in the file, stops the start by name.
"""

import difflib
import os
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

PREFIX = "LAMPNODE_"
PORT = 8760

Listed = Annotated[tuple[str, ...], NoDecode]  # written comma-separated in the environment
LOSSY = ("int8", "mxfp4")
"""Weights that lose bits; the fast engine alone knows them."""

LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


class SettingsError(ValueError):
    """A setting is unknown or has a value that is not accepted."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", protected_namespaces=())

    config: Path | None = None  # TOML file

    # What is served
    model: str = ""  # a directory, a .gguf file, an id on the hub, package:NAME
    name: str = ""  # how clients call it; empty: from the model
    draft: str = "none"  # none, ngram, mtp, or a drafter's directory or id
    engine: Literal["auto", "reference", "fast"] = "auto"
    weights: str = "bf16"
    device: str = ""  # empty: the first accelerator, else cpu
    rollback: Literal["auto", "fold", "snapshots", "replay"] = "auto"
    width: str = "off"  # off, a number of rows, adaptive
    block: int = Field(0, ge=0, le=64)  # rows of a verify; 0: the drafter's
    ctx: int = Field(0, ge=0)  # positions of a sequence; 0: the model's own
    threads: int = Field(0, ge=0)  # CPU threads; 0: torch's own choice

    # For whom
    host: str = "127.0.0.1"
    port: int = Field(PORT, ge=0, le=65535)
    allowed_hosts: Listed = ()  # names requests may use; empty: on a loopback address its names, elsewhere any
    api_key_file: Path | None = None  # one key a line
    queue: int = Field(64, ge=1)  # requests that may wait
    prefix_bytes: int = Field(2 << 30, ge=0)  # of the prefix store; 0 switches it off
    max_body_bytes: int = Field(64 << 20, ge=1024)
    states_bytes: int = Field(1 << 30, ge=1024)  # of the states that one answer to a trainer may hold
    stall_s: float = Field(120.0, gt=0)  # silence after which /health calls the running request stalled

    # Sampling of requests that name none; empty: the model's generation config, else OpenAI's
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, le=1)

    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def split_commas(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("width")
    @classmethod
    def width_is_known(cls, value: str) -> str:
        if value in ("off", "adaptive") or (value.isdigit() and 1 <= int(value) <= 64):
            return value
        raise ValueError("expected off, adaptive, or a number of rows from 1 to 64")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings)

    @property
    def needs_fast(self) -> bool:
        """Something was asked for that only the fast engine does."""
        asked = self.engine == "fast" or self.width != "off" or self.rollback == "fold" or self.weights in LOSSY
        return asked and self.engine != "reference"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names that requests may use for this node; () is any."""
        if self.allowed_hosts:
            return () if "*" in self.allowed_hosts else self.allowed_hosts
        return LOOPBACK if self.host in LOOPBACK else ()

    @property
    def keys(self) -> tuple[str, ...]:
        """API keys; () lets everybody in. Raises SettingsError."""
        if self.api_key_file is None:
            return ()
        try:
            lines = self.api_key_file.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"The API key file {self.api_key_file} cannot be read: {error}.") from None
        if not lines:
            raise SettingsError(f"The API key file {self.api_key_file} is empty. Put one key a line into it.")
        return tuple(lines)

    @property
    def sampling(self) -> dict[str, Any]:
        """Defaults that the operator named."""
        named = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        return {name: value for name, value in named.items() if value is not None}


def load(**given: Any) -> Settings:
    """Settings from `given` (a None is not given), environment and file, in that order. Raises SettingsError."""
    given = {name: value for name, value in given.items() if value is not None}
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name in os.environ:
        if name.startswith(PREFIX) and name not in known:
            raise SettingsError(f"{name} is not a setting. {_meant(name, known)}")
    try:
        bare = Settings(**given)
        if bare.config is None:
            return bare
        return Settings(**{**_from_file(bare.config), **given})
    except ValidationError as error:
        raise SettingsError("; ".join(_in_words(problem) for problem in error.errors())) from None


def check(settings: Settings) -> None:
    """Raise SettingsError for what this version cannot serve, before anything is loaded."""
    if not settings.model:
        raise SettingsError(
            "No model was named. Give --model DIR_OR_ID (or LAMPNODE_MODEL), or start `lamplighter-node demo`, "
            "which serves a small model that comes as a Python package."
        )
    if settings.engine == "reference":
        if settings.width != "off":
            raise SettingsError(f"width={settings.width}: the reference engine verifies whole blocks. Use --width off.")
        if settings.rollback == "fold":
            raise SettingsError("rollback=fold belongs to the fast engine. Use replay or snapshots.")
        if settings.weights in LOSSY:
            raise SettingsError(f"weights={settings.weights} belongs to the fast engine. Use fp32, bf16 or fp16.")


def _from_file(path: Path) -> dict[str, Any]:
    """The file's settings, without those that the environment also gives."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {path} cannot be read: {error}.") from None
    for name in content:
        if name not in Settings.model_fields:
            raise SettingsError(
                f"The settings file {path} names {name}, which is not a setting. {_meant(name, Settings.model_fields)}"
            )
    return {name: value for name, value in content.items() if f"{PREFIX}{name.upper()}" not in os.environ}


def _meant(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]}?" if near else f"Settings are: {', '.join(sorted(known))}."


def _in_words(problem: Any) -> str:
    name = PREFIX + "_".join(str(part) for part in problem["loc"]).upper()
    return f"{name}: {problem['msg']} (found {problem.get('input')!r})"
