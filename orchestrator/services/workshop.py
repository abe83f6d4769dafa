"""What services are handed: everything outside them, as protocols, built once per process by wiring."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from orchestrator.measure.records import RULE, Rule, Surroundings
from orchestrator.sandbox.contract import Box, Description, Limits, Patience, Sandbox
from orchestrator.services.witness import Witness
from orchestrator.settings import Settings
from orchestrator.store.session import Sessions
from review_agents.focus import Focus
from review_agents.ports import ChatModel, Git, Node, Workspace
from review_agents.records import Environment, ProbeResult, Ran, Repo, Session

if TYPE_CHECKING:  # the probes and what they import are for workers only
    from review_agents.probes import Prepared, Probe

Prepare = Callable[[Workspace, Repo], tuple["Prepared", ProbeResult]]


def utc_now() -> datetime:
    return datetime.now(UTC)


def addresses_of(host: str) -> tuple[str, ...]:
    """The IP addresses of a host name; empty when it cannot be resolved here."""
    try:
        return tuple(sorted({str(found[4][0]) for found in socket.getaddrinfo(host, None)}))
    except (OSError, UnicodeError):
        return ()


def never() -> bool:
    return False


class Stopwatch(Protocol):
    """Takes sessions in one open box, and knows what disturbed them."""

    def until_good(
        self,
        command: str,
        environment: Environment,
        timeout_s: float,
        *,
        processes: int = 1,
        figures: Callable[[Ran], Mapping[str, float]] = ...,
    ) -> list[Session]:
        """One session, and its repeats while it is void. Raises `CommandFailed` when the command does not exit 0."""
        ...


@dataclass(frozen=True)
class Measuring:
    """What a worker measures with."""

    stopwatch: Callable[[Box, Patience], Stopwatch]
    cpus: Callable[[], tuple[int, ...]]  # that boxes are pinned to while verdicts are at stake
    surroundings: Callable[[Description], Surroundings]  # of this machine and that sandbox
    rule: Rule = RULE
    no_verdicts: str = ""  # why none may be given here, for example because a node works on this machine


@dataclass(frozen=True)
class Workshop:
    sessions: Sessions
    settings: Settings
    machine: str  # this machine's id
    git: Git
    nudge: Callable[[UUID], None]  # wakes a worker for a review; call it after the commit. It must not raise.
    sandbox: Sandbox | None = None  # only workers have one; so the five below
    limits: Callable[[float], Limits] = lambda step_s: Limits(step_s=step_s)  # of a box that may live that long
    workspace: Callable[[Box, Patience], Workspace] | None = None  # what a probe is given of an open box
    prepare: "Prepare | None" = None
    measuring: Measuring | None = None  # None: base and head are not compared here
    probes: "tuple[Probe, ...]" = ()
    stopping: Callable[[], bool] = never  # whether this process was told to end: then reviews are given back
    chat: Callable[[], ChatModel] | None = None  # the model that agents think with; only workers have one
    focuses: Mapping[str, Focus] = field(default_factory=dict)  # those there are, in the order in which they go
    node: Node | None = None  # None: no model is configured, reviews are evidence only
    clock: Callable[[], datetime] = utc_now  # aware
    resolve: Callable[[str], tuple[str, ...]] = addresses_of
    witness: Witness = field(default_factory=Witness)  # of this process's sweeps
