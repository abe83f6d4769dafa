"""The service's settings: one frozen object per process, read once at start.

They come from the environment (prefix LAMPLIGHTER_), then from a TOML file
(LAMPLIGHTER_CONFIG, or config.toml in the data folder), then from the defaults here. An unknown
variable with our prefix stops the start, naming it: a misspelt setting must not pass in silence.
"""

import difflib
import os
import tomllib
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

PREFIX = "LAMPLIGHTER_"

# Host names that an installation may reach unless the operator says otherwise.
DEFAULT_EGRESS_HOSTS = (
    "pypi.org",
    "files.pythonhosted.org",
    "registry.npmjs.org",
    "static.crates.io",
    "index.crates.io",
    "proxy.golang.org",
    "sum.golang.org",
)

Listed = Annotated[tuple[str, ...], NoDecode]  # written comma-separated in the environment


class SettingsError(ValueError):
    """A setting is unknown or has a value that is not accepted."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    # Places
    data: Path = Field(default_factory=lambda: default_data())
    config: Path | None = None  # TOML file
    database_url: str = ""  # empty: SQLite in the data folder
    database_password_file: Path | None = None
    broker_url: str = ""  # empty: Celery's filesystem transport in the data folder
    broker_password_file: Path | None = None
    host_lock: Path = Path("/run/lock/lamplighter.lock")
    machine: str = ""  # empty: the host's machine-id, else generated once in the data folder

    # Web
    host: str = "127.0.0.1"
    port: int = Field(8750, ge=0, le=65535)
    allowed_hosts: Listed = ("127.0.0.1", "localhost", "[::1]")
    publish: str = ""  # address at which others reach the port, where that is not `host` (compose publishes it)
    accounts: Literal["auto", "required", "none"] = "auto"  # auto: unless only this machine reaches the port
    allowed_roots: Listed = ()  # folders below which web and API accept local paths

    # Taking repos in
    git_schemes: Listed = ("https",)  # add ssh if keys are set up on the worker
    git_ssh_key: Path | None = None
    max_repo_bytes: int = 1 << 30
    git_timeout_s: float = 600.0

    # Sandbox
    sandbox: Literal["auto", "docker", "bubblewrap", "fake"] = "auto"
    sandbox_image: str = "lamplighter-sandbox:latest"
    sandbox_images: Listed = ()  # images that a repo's own settings may choose
    sandbox_runtime: str = ""  # docker runtime, for example runsc
    docker_url: str = ""  # empty: unix:///var/run/docker.sock
    sandbox_mounts: Listed = ()  # host:inside, read-only
    sandbox_env: Listed = ()  # NAME=value
    sandbox_ca_file: Path | None = None
    pip_index: str = ""
    sandbox_cpus: str = ""  # for example "2-3"; empty: no pinning
    sandbox_memory_bytes: int = 4 << 30
    sandbox_pids: int = 512
    sandbox_scratch_bytes: int = 4 << 30
    egress_hosts: Listed = DEFAULT_EGRESS_HOSTS
    egress_allow_ranges: Listed = ()  # private ranges that allowed host names may resolve to
    egress_bytes: int = 4 << 30  # a step

    # Reviews
    budget_minutes: int = 60
    command_timeout_s: float = Field(900.0, gt=0)  # whatever a check would allow a command
    measure_patience_s: float = Field(60.0, ge=0)  # of a review, for timings that others disturbed
    compare_with: Literal["previous", "parent", "tag", "none"] = "previous"  # the base that numbers are held against
    compare_minutes: float = Field(5.0, ge=0)  # of a review, for all of it: building the base, sessions, profiles
    bisect_minutes: float = Field(15.0, ge=0)  # of a review, for naming the commit of a confirmed slowdown
    lease_s: float = 60.0
    max_attempts: int = 3
    free_disk_bytes: int = 2 << 30  # no review starts below this

    # What is kept of ended reviews; each repo's newest keeps everything
    keep_log_days: int = Field(365, ge=0)  # logs and transcripts; 0: for ever
    keep_log_bytes: int = Field(20 << 30, ge=0)  # of packed logs, the oldest go first; 0: no limit

    # Model
    model_url: str = ""  # empty: evidence only
    model_name: str = ""
    model_key_file: Path | None = None
    model_beside: Listed = ()  # hosts of `model_url` that are this machine, as loopback always is
    model_tools: Literal["auto", "native", "text"] = "auto"  # auto: the endpoint is asked
    model_temperature: float | None = Field(None, ge=0, le=2)  # None: the server's own
    default_focuses: Literal["all", "none"] = "all"  # of reviews that name none
    node_busy_s: float = Field(60.0, ge=15)  # that a turn waits in a line before the node; then its review parks
    node_patience_minutes: int = Field(720, ge=0)  # then a review ends without what the node would have said

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False

    @field_validator(
        "allowed_hosts", "allowed_roots", "git_schemes", "sandbox_images", "sandbox_mounts", "sandbox_env",
        "egress_hosts", "egress_allow_ranges", "model_beside", mode="before",
    )  # fmt: skip
    @classmethod
    def split_commas(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("model_url")
    @classmethod
    def look_at_address(cls, value: str) -> str:
        """Else every review would do all its probes and then wait for a node that is nowhere."""
        parts = urlsplit(value)
        if value and not value.startswith("recording:") and not (parts.scheme in ("http", "https") and parts.hostname):
            raise ValueError("expected an address like http://127.0.0.1:8760/v1, or recording:FILE")
        return value

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

    @cached_property
    def database(self) -> str:
        """SQLAlchemy URL of the store, the password read from its file."""
        if not self.database_url:
            return f"sqlite:///{self.data / 'lamplighter.sqlite3'}"
        return with_password(self.database_url, self.database_password_file)

    @cached_property
    def broker(self) -> str:
        """Celery broker URL; the filesystem transport where none is set."""
        return with_password(self.broker_url, self.broker_password_file) if self.broker_url else "filesystem://"


def load(**given: Any) -> Settings:
    """Settings from `given`, environment and file, in that order. Raises `SettingsError`."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name in os.environ:
        if name.startswith(PREFIX) and name not in known:
            raise SettingsError(f"{name} is not a setting. {meant(name, known)}")
    try:
        bare = Settings(**given)
        file = bare.config or bare.data / "config.toml"
        if bare.config is None and not file.exists():
            return bare
        return Settings(**{**from_file(file), **given})
    except ValidationError as error:
        raise SettingsError("; ".join(in_words(problem) for problem in error.errors())) from None


def from_file(path: Path, *, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The file's settings, without those that the environment also gives. Raises `SettingsError`."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {path} cannot be read: {error}.") from None
    for name in content:
        if name not in Settings.model_fields:
            raise SettingsError(
                f"The settings file {path} names {name}, which is not a setting. {meant(name, Settings.model_fields)}"
            )
    return {name: value for name, value in content.items() if f"{PREFIX}{name.upper()}" not in environment}


def meant(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]}?" if near else f"Settings are: {', '.join(sorted(known))}."


def in_words(problem: Any) -> str:
    name = PREFIX + "_".join(str(part) for part in problem["loc"]).upper()
    return f"{name}: {problem['msg']} (found {problem.get('input')!r})"


def with_password(url: str, password_file: Path | None) -> str:
    if password_file is None:
        return url
    try:
        password = password_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"The password file {password_file} cannot be read: {error}.") from None
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    user = parts.username or ""
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}"))


def default_data() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "lamplighter"
