"""Puts a process together: reads nothing but the settings, and knows every room but the doors."""

import re
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import structlog

from orchestrator.clients.git import Git
from orchestrator.clients.git_target import GitRules
from orchestrator.clients.inference import HttpChatModel
from orchestrator.clients.node import HttpNode
from orchestrator.measure.records import Surroundings
from orchestrator.sandbox import host
from orchestrator.sandbox.contract import Box, BoxOrder, Description, Limits, Patience, Sandbox
from orchestrator.sandbox.limits import configured, for_measuring
from orchestrator.sandbox.select import choose
from orchestrator.sandbox.stopwatch import STRICT, Stopwatch
from orchestrator.sandbox.workspace import BoxWorkspace
from orchestrator.services.workshop import Measuring, Workshop, never
from orchestrator.settings import Settings, SettingsError
from orchestrator.store.session import open_sessions
from review_agents.focus import Focus, FocusError, collected
from review_agents.ports import ChatModel, Node, Workspace

log = structlog.get_logger(__name__)

WAKE = "lamplighter.reviews.wake"  # the one task that is sent
QUEUE = "reviews"
WAKE_EXPIRES_S = 600  # a worker that was busy longer has looked at the table since
MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
NODE_NOTE = "node on this machine"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
RECORDING = "recording:"  # instead of an endpoint's address


def service(settings: Settings) -> Workshop:
    """For web, beat and command line: everything but the sandbox."""
    return Workshop(
        sessions=open_sessions(settings.database),
        settings=settings,
        machine=machine_id(settings),
        git=git(settings),
        nudge=nudge_of(settings),
        node=node(settings),
        focuses=focuses(settings),
    )


def nudge_of(settings: Settings) -> Callable[[UUID], None]:
    """Sends the message that wakes a worker."""
    sender: Any = None

    def nudge(review_id: UUID) -> None:
        nonlocal sender
        from celery import Celery  # most commands of the command line never send

        try:
            if sender is None:
                sender = Celery("lamplighter", set_as_current=False)
                sender.conf.update(celery_settings(settings))
            sender.send_task(WAKE, (str(review_id),), queue=QUEUE, expires=WAKE_EXPIRES_S, retry=False)
        except Exception as error:  # whatever a broker can do; the sweep finds the row all the same
            log.warning("no worker could be woken; the sweep will", review=str(review_id), error=str(error))

    return nudge


def worker(settings: Settings, *, stopping: Callable[[], bool] = never) -> Workshop:
    """For a worker. Where no sandbox works it lives all the same, and its reviews fail saying what to do."""
    return with_sandbox(service(settings), WhenAsked(settings), stopping=stopping)


def with_sandbox(shop: Workshop, sandbox: Sandbox, *, stopping: Callable[[], bool] = never) -> Workshop:
    """The same workshop, able to run reviews in that sandbox."""
    from review_agents.probes import ALL, prepare  # web and beat need neither them nor what they import

    settings = shop.settings

    def limits(step_s: float) -> Limits:
        return configured(settings, step_s=step_s)

    def workspace(box: Box, patience: Patience) -> Workspace:
        return BoxWorkspace(box, cpus=limits(60).cpus, note=note_of(settings), patience=patience)

    return replace(
        shop,
        sandbox=sandbox,
        limits=limits,
        workspace=workspace,
        prepare=prepare,
        measuring=measuring(settings, shop.machine),
        probes=ALL,
        stopping=stopping,
        chat=chat_of(settings),
    )


def measuring(settings: Settings, machine: str) -> Measuring:
    """How this machine measures where verdicts are at stake."""

    def cpus() -> tuple[int, ...]:
        return for_measuring(settings)

    def stopwatch(box: Box, patience: Patience) -> Stopwatch:
        return Stopwatch(box, cpus=cpus(), patience=patience, tolerance=STRICT)

    def surroundings(sandbox: Description) -> Surroundings:
        return Surroundings(
            machine=machine,
            cpu=host.cpu_model(),
            kernel=host.kernel(),
            microcode=host.microcode(),
            sandbox=sandbox.name,
            image=sandbox.image,
            python=sandbox.python,
            runtime=settings.sandbox_runtime,
            pinned=",".join(map(str, cpus())),
        )

    return Measuring(stopwatch, cpus, surroundings, no_verdicts=note_of(settings))


class WhenAsked:
    """The sandbox of the settings, chosen when it is first needed; until one works, each call says why none does."""

    def __init__(self, settings: Settings):
        self.name: str = settings.sandbox
        self._settings = settings
        self._chosen: Sandbox | None = None

    @property
    def _sandbox(self) -> Sandbox:
        if self._chosen is None:
            self._chosen = choose(self._settings, egress_log=log_egress)
            self.name = self._chosen.name
        return self._chosen

    def describe(self) -> Description:
        return self._sandbox.describe()

    def prepare(self, review: str, bundle: Path, commit: str) -> None:
        self._sandbox.prepare(review, bundle, commit)

    def prepared(self, review: str) -> bool:
        return self._sandbox.prepared(review)

    def open(self, order: BoxOrder) -> Box:
        return self._sandbox.open(order)

    def drop(self, review: str) -> None:
        self._sandbox.drop(review)

    def sweep(self, living: Collection[str]) -> tuple[str, ...]:
        return self._sandbox.sweep(living)


def celery_settings(settings: Settings) -> dict[str, Any]:
    """What every Celery app of ours is configured with, whichever broker it is."""
    return {
        "broker_url": "filesystem://localhost//" if is_embedded(settings) else settings.broker,
        "broker_transport": "orchestrator.jobs.message_files:Transport" if is_embedded(settings) else None,
        "broker_transport_options": transport_options(settings),
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "task_default_queue": QUEUE,
        "task_ignore_result": True,
        "task_acks_late": False,  # the row is the job: a message that comes twice or never is harmless
        "worker_prefetch_multiplier": 1,
        "worker_concurrency": 1,
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "task_serializer": "json",
        "accept_content": ["json"],
        "timezone": "UTC",
    }


def transport_options(settings: Settings) -> dict[str, Any]:
    if not is_embedded(settings):
        return {
            "visibility_timeout": 3600,
            "socket_connect_timeout": 3,
            "socket_timeout": 30,
            "socket_keepalive": True,
            "health_check_interval": 10,
        }
    folder = settings.data / "queue"
    for name in ("messages", "control"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {
        "data_folder_in": str(folder / "messages"),
        "data_folder_out": str(folder / "messages"),
        "control_folder": str(folder / "control"),
        "polling_interval": 0.25,
    }


def is_embedded(settings: Settings) -> bool:
    """Whether messages are files in the data folder."""
    return settings.broker.startswith("filesystem:")


def git(settings: Settings) -> Git:
    rules = GitRules(
        schemes=settings.git_schemes,
        allow_ranges=settings.egress_allow_ranges,
        roots=tuple(Path(root) for root in settings.allowed_roots),
        ssh_key=settings.git_ssh_key,
        max_repo_bytes=settings.max_repo_bytes,
        timeout_s=settings.git_timeout_s,
    )
    return Git(settings.data / "mirrors", rules)


def node(settings: Settings) -> Node | None:
    if not settings.model_url or settings.model_url.startswith(RECORDING):
        return None
    return HttpNode(settings.model_url, model_key(settings))


def model_key(settings: Settings) -> str:
    if settings.model_key_file is None:
        return ""
    try:
        return settings.model_key_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"The key file {settings.model_key_file} cannot be read: {error}.") from None


def chat_of(settings: Settings) -> Callable[[], ChatModel] | None:
    """What makes the model that agents think with: an endpoint, or a recording that is played back."""
    if not settings.model_url:
        return None
    from review_agents.repetition import repeats_itself
    from review_agents.scripted import recorded

    if settings.model_url.startswith(RECORDING):
        file = Path(settings.model_url.removeprefix(RECORDING))
        try:
            text = file.read_text(encoding="utf-8")
            recorded(text)
        except (OSError, ValueError) as error:
            raise SettingsError(f"The recording {file} cannot be played: {error}.") from None
        return lambda: recorded(text)
    key = model_key(settings)
    return lambda: HttpChatModel(
        settings.model_url,
        settings.model_name,
        key,
        tools=settings.model_tools,
        temperature=settings.model_temperature,
        busy_s=settings.node_busy_s,
        repeats=repeats_itself,
    )


def focuses(settings: Settings) -> dict[str, Focus]:
    """Those of the package, and those that the operator put into the data folder, with their templates."""
    folder = settings.data / "focuses"
    try:
        found = [(file.name, file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.toml"))]
        templates = {file.name: file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.j2"))}
        return collected(found, templates)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The focuses in {folder} cannot be read: {error}.") from None
    except FocusError as error:
        raise SettingsError(f"A focus in {folder} is wrong. {error}") from None


def note_of(settings: Settings) -> str:
    """What must stand on every measurement: with a node on the same machine there are no verdicts."""
    host = urlsplit(settings.model_url).hostname if settings.model_url else None
    return NODE_NOTE if host in (*LOOPBACK, *map(str.lower, settings.model_beside)) else ""


def machine_id(settings: Settings) -> str:
    """The setting, else the host's own id, else one made once in the data folder."""
    if settings.machine:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", settings.machine):
            raise SettingsError(
                f"LAMPLIGHTER_MACHINE: found {settings.machine!r}, expected up to 64 letters, digits, dots, - and _."
            )
        return settings.machine
    for file in MACHINE_ID_FILES:
        try:
            if re.fullmatch(r"[0-9a-f]{32}", found := file.read_text().strip()):
                return found
        except OSError:
            continue
    own = settings.data / "machine"
    own.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError), own.open("x") as made:
        made.write(secrets.token_hex(16))
    return own.read_text().strip()


def our_version() -> str:
    try:
        return version("lamplighter")
    except PackageNotFoundError:
        return "unknown"


def log_egress(box: str, host: str, refusal: str) -> None:
    if refusal:
        log.info("egress refused", box=box, host=host, reason=refusal)
