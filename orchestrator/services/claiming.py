"""Having a review: taking it, keeping its lease alive, writing under its fence, hearing that it is cancelled."""

import os
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar
from uuid import UUID

import structlog
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.orm import Session

from orchestrator.sandbox.contract import Cancelled
from orchestrator.services.workshop import Workshop
from orchestrator.store import claims
from orchestrator.store.claims import Lease, LostClaim

T = TypeVar("T")

LOOK_EVERY_S = 1.0  # at the cancel flag, and how often logs are written
DATABASE_PATIENCE_S = 300.0  # a restarted database is waited for; after that the lease has long run out

log = structlog.get_logger(__name__)


class Interrupted(Exception):
    """This process ends; somebody goes on with the review later."""


def take(shop: Workshop, review_id: UUID) -> Lease | None:
    """Claim the review for this machine; None when somebody else has it or it does not wait."""
    with shop.sessions.begin() as db:
        return claims.claim(
            db,
            review_id,
            machine=shop.machine,
            owner=owner(),
            now=shop.clock(),
            lease_s=shop.settings.lease_s,
        )


def owner() -> str:
    return f"{socket.gethostname()} process {os.getpid()}"


class Hold:
    """A claimed review, as a context manager: a thread keeps the lease alive and looks whether to stop.

    The thread depends on nothing but the database, so a hanging engine or model cannot end the lease.
    """

    def __init__(self, shop: Workshop, lease: Lease):
        self.shop = shop
        self.lease = lease
        self.review_id = lease.review_id
        self._cancel = threading.Event()
        self._lost = threading.Event()
        self._ended = threading.Event()
        self._every_second: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._watch, daemon=True, name=f"lease of {lease.review_id}")

    def __enter__(self) -> "Hold":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=10)

    def why_stop(self) -> Exception | None:
        """Why the work is no longer wanted, if so."""
        if self._lost.is_set():
            return LostClaim(f"review {self.review_id} was taken over")
        if self._cancel.is_set():
            return Cancelled(f"review {self.review_id} was cancelled")
        if self.shop.stopping():
            return Interrupted(f"review {self.review_id} is given back: this worker was told to end")
        return None

    def stop_wanted(self) -> bool:
        """For whoever runs something long."""
        return self.why_stop() is not None

    def check(self) -> None:
        """Raise `Cancelled`, `LostClaim` or `Interrupted` when the work is no longer wanted."""
        why = self.why_stop()
        if why is not None:
            raise why

    def write(self, change: Callable[[Session], T]) -> T:
        """Run `change` in a transaction under the fence. Raises `LostClaim`.

        Waits for a database that is away; so `change` may run more than once, each time on a fresh transaction.
        """
        deadline = time.monotonic() + DATABASE_PATIENCE_S
        pause = 0.2
        while True:
            try:
                return self._write_once(change)
            except LostClaim:
                self._lost.set()
                raise
            except DBAPIError as error:
                if not passing(error) or time.monotonic() > deadline:
                    raise
                log.warning("the database does not answer; waiting for it", error=str(error.orig))
                time.sleep(pause)
                pause = min(pause * 2, 5.0)

    def each_second(self, do: Callable[[], None]) -> None:
        """Have the watching thread do this as well, until another call replaces it."""
        self._every_second = do

    def _write_once(self, change: Callable[[Session], T]) -> T:
        with self.shop.sessions.begin() as db:
            if claims.hold(db, self.lease, self.shop.clock()):
                self._cancel.set()
            return change(db)

    def _watch(self) -> None:
        renewed = time.monotonic()
        while not self._ended.wait(LOOK_EVERY_S):
            try:
                if time.monotonic() - renewed >= self.lease.lease_s / 4:
                    self._write_once(lambda db: None)
                    renewed = time.monotonic()
                else:
                    with self.shop.sessions.reading() as db:
                        if claims.wants_cancel(db, self.lease):
                            self._cancel.set()
                self._every_second()
            except LostClaim:
                self._lost.set()
                return
            except DBAPIError as error:  # asked again in a second; the fence guards what happens meanwhile
                log.warning("the database did not answer the heartbeat", error=str(error.orig))


def passing(error: DBAPIError) -> bool:
    """Whether the same statement may work later: no connection, a server that restarts, a lock held too long."""
    return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
