"""Which sandbox this machine gets, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.sandbox.bubblewrap import Bubblewrap
from orchestrator.sandbox.contract import Sandbox, SandboxError
from orchestrator.sandbox.docker import DEFAULT_URL, Docker
from orchestrator.settings import Settings

# (box name, host:port, "" or why the proxy refused it)
EgressLog = Callable[[str, str, str], None]


@dataclass(frozen=True, slots=True)
class Choice:
    sandbox: Sandbox | None
    words: str  # what was chosen and why, or the one command to run


def choose(settings: Settings, *, egress_log: EgressLog | None = None) -> Sandbox:
    """The sandbox by LAMPLIGHTER_SANDBOX. Raises `SandboxError` with the one command to run."""
    choice = consider(settings, egress_log)
    if choice.sandbox is None:
        raise SandboxError(choice.words)
    return choice.sandbox


def explain(settings: Settings) -> str:
    """One paragraph for `up` and `doctor`: which sandbox, or why none. Never raises `SandboxError`."""
    return consider(settings, None).words


def consider(settings: Settings, egress_log: EgressLog | None) -> Choice:
    if settings.sandbox == "fake":
        from orchestrator.sandbox.fake import FakeSandbox

        return Choice(FakeSandbox(), "Sandbox: fake. Nothing of a repo really runs.")
    tried = []
    for backend in tuple(STARTERS) if settings.sandbox == "auto" else (settings.sandbox,):
        try:
            sandbox = STARTERS[backend](settings, egress_log)
            about = sandbox.describe()
        except SandboxError as error:
            tried.append(f"{backend}: {error}")
            continue
        lacks = f" Not limited here: {'; '.join(about.missing_limits)}." if about.missing_limits else ""
        reason = f" ({tried[0].rstrip('.')})" if tried else ""
        return Choice(sandbox, f"Sandbox: {about.name} {about.version}, Python {about.python}{reason}.{lacks}")
    return Choice(None, "No sandbox works here, so reviews are refused. " + " ".join(tried))


def start_bubblewrap(settings: Settings, egress_log: EgressLog | None) -> Sandbox:
    sandbox = Bubblewrap(settings, egress_log=egress_log)
    sandbox.check()
    return sandbox


def start_docker(settings: Settings, egress_log: EgressLog | None) -> Sandbox:
    url = settings.docker_url or DEFAULT_URL
    if url.startswith("unix://") and not Path(url.removeprefix("unix://")).exists():
        raise SandboxError(f"no engine here, {url.removeprefix('unix://')} does not exist.")
    sandbox = Docker(settings, egress_log=egress_log)
    sandbox.check()
    return sandbox


# In the order in which `auto` tries them.
STARTERS: dict[str, Callable[[Settings, EgressLog | None], Sandbox]] = {
    "docker": start_docker,
    "bubblewrap": start_bubblewrap,
}
