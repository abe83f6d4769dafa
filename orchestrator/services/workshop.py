"""What services are handed: everything outside them, as protocols, built once per process by wiring."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from orchestrator.sandbox.contract import Sandbox
from orchestrator.settings import Settings
from orchestrator.store.session import Sessions
from review_agents.ports import Git, Node


def utc_now() -> datetime:
    return datetime.now(UTC)


def addresses_of(host: str) -> tuple[str, ...]:
    """The IP addresses of a host name; empty when it cannot be resolved here."""
    try:
        return tuple(sorted({str(found[4][0]) for found in socket.getaddrinfo(host, None)}))
    except (OSError, UnicodeError):
        return ()


@dataclass(frozen=True)
class Workshop:
    sessions: Sessions
    settings: Settings
    machine: str  # this machine's id
    git: Git
    nudge: Callable[[UUID], None]  # wakes a worker for a review; call it after the commit. It must not raise.
    sandbox: Sandbox | None = None  # only workers have one
    node: Node | None = None  # None: no model is configured, reviews are evidence only
    clock: Callable[[], datetime] = utc_now  # aware
    resolve: Callable[[str], tuple[str, ...]] = addresses_of
