"""What a worker does when it is woken: one review after another, never two at a time on this machine."""

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import update

from orchestrator.sandbox.contract import SandboxError
from orchestrator.services import host_lock, running, sweeping
from orchestrator.services.errors import OutsideError
from orchestrator.services.workshop import Workshop, never
from orchestrator.settings import Settings
from orchestrator.store import claims, machines
from orchestrator.store.reviews import Review, ReviewState

log = structlog.get_logger(__name__)


def work(shop: Workshop) -> int:
    """Do what is due until nothing is left, and return how many reviews that were.

    A message that woke us is never believed: the table says what there is to do.
    """
    done = 0
    while not shop.stopping() and (something_is_due(shop) or holds_a_dead_review(shop)):
        if not do_one(shop, None):
            break
        done += 1
    return done


def do_one(
    shop: Workshop,
    review_id: UUID | None,
    *,
    waiting: Callable[[str], None] = lambda holder: None,
    give_up: Callable[[], bool] = never,
) -> bool:
    """Do that review, or the one that is due first, once the host is free. False when there was none to do.

    `waiting` hears who holds the host; `give_up` ends the waiting.
    """
    lock = shop.settings.host_lock
    name = f"lamplighter, process {os.getpid()}, data in {shop.settings.data}"
    with host_lock.held(lock, name, waiting=waiting, give_up=lambda: give_up() or shop.stopping()) as ours:
        if not ours:
            return False
        sweeping.sweep_machine(shop)
        with shop.sessions.reading() as db:
            chosen = review_id or claims.next_due(db, shop.clock())
        if chosen is None or not enough_disk(shop, chosen):
            return False
        report(shop, current_review=chosen)
        try:
            return running.execute(shop, chosen)
        finally:
            report(shop, current_review=None)


def enough_disk(shop: Workshop, review_id: UUID) -> bool:
    """Whether a review may start; if not, the waiting one says why."""
    floor, free = shop.settings.free_disk_bytes, free_disk(shop)
    if free >= floor:
        return True
    note = (
        f"waits: {free >> 20} MiB are free below {shop.settings.data}, and no review starts with less than "
        f"{floor >> 20} MiB (LAMPLIGHTER_FREE_DISK_BYTES)"
    )
    log.warning(note, review=str(review_id))
    with shop.sessions.begin() as db:
        db.execute(
            update(Review)
            .where(Review.id == review_id, Review.state == ReviewState.QUEUED)
            .values(outcome_note=note)
            .execution_options(synchronize_session=False)
        )
    return False


def free_disk(shop: Workshop) -> int:
    """Bytes below the data folder."""
    return shutil.disk_usage(shop.settings.data).free


def report(shop: Workshop, **what: object) -> None:
    """Tell the table about this machine."""
    with shop.sessions.begin() as db:
        machines.report(db, shop.machine, shop.clock(), **what)


def describe(shop: Workshop) -> dict[str, Any] | None:
    """This machine's sandbox, for its row; None while none works."""
    try:
        return asdict(shop.sandbox.describe()) if shop.sandbox is not None else None
    except SandboxError as error:
        log.error(str(error))
        return None


def may_start(shop: Workshop) -> bool:
    """Whether a review is due and nothing here keeps it from starting."""
    idle = something_is_due(shop) and host_lock.is_free(shop.settings.host_lock)
    return idle and free_disk(shop) >= shop.settings.free_disk_bytes


def something_is_due(shop: Workshop) -> bool:
    with shop.sessions.reading() as db:
        return claims.next_due(db, shop.clock()) is not None


def holds_a_dead_review(shop: Workshop) -> bool:
    """Whether the table says that this machine has a review, while nobody here is at work."""
    with shop.sessions.reading() as db:
        held = claims.held_on(db, shop.machine)
    return bool(held) and host_lock.is_free(shop.settings.host_lock)


# One worker per machine --------------------------------------------------------------------


def one_worker_only(settings: Settings, machine: str) -> int:
    """Hold this machine's worker lock as long as the process keeps the descriptor. Raises `OutsideError`."""
    path = worker_lock(settings, machine)
    kept = host_lock.take_for_good(path, f"process {os.getpid()}, data in {settings.data}")
    if kept is None:
        raise OutsideError(
            f"A worker for this machine ({machine}) already runs: {host_lock.holder_of(path)}. "
            "One machine does one review at a time: stop that worker first.",
            retry=False,
        )
    return kept


def worker_alive(settings: Settings, machine: str) -> bool:
    """Whether a worker process for this machine runs here."""
    return not host_lock.is_free(worker_lock(settings, machine))


def worker_lock(settings: Settings, machine: str) -> Path:
    return settings.host_lock.with_name(f"{settings.host_lock.stem}-worker-{machine}.lock")
