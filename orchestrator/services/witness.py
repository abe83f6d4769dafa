"""Which runners are dead, also where the clock is wrong.

Leases are times of day, because several machines and their database have nothing else in common; and a time of day can
be set. Put forward (or after a night in which the machine slept), it makes every lease look expired although its runner
lives and renews it within seconds. Set back, it keeps a dead runner's lease alive for hours. So a process that sweeps
remembers what it saw, with times of a clock that nobody can set.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy.orm import Session

from orchestrator.store import claims
from orchestrator.store.reviews import Review

JUMP = timedelta(seconds=10)  # further ahead than that since the last look means that the clock was set
SILENT_LEASES = 2.0  # a heartbeat that stands still for so many leases is a dead runner's, whatever time it names


@dataclass(frozen=True, slots=True)
class Seen:
    heartbeat: datetime | None
    fence: int
    at: float  # monotonic, when it was first seen so


class Witness:
    """One process's memory of the leases it saw. Not for several threads at once."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic):
        self._monotonic = monotonic
        self._last_look: tuple[datetime, float] | None = None
        self._seen: dict[UUID, Seen] = {}

    def lost(self, db: Session, now: datetime) -> Sequence[Review]:
        """Reviews whose runner has not been heard of for a lease."""
        tick = self._monotonic()
        jumped = self._jumped(now, tick)
        held = claims.held(db)
        self._seen = {review.id: self._sight(review, tick) for review in held}
        return [review for review in held if self._is_lost(review, now, tick, jumped=jumped)]

    def _jumped(self, now: datetime, tick: float) -> bool:
        before, self._last_look = self._last_look, (now, tick)
        return before is not None and now - before[0] > timedelta(seconds=tick - before[1]) + JUMP

    def _sight(self, review: Review, tick: float) -> Seen:
        seen = self._seen.get(review.id)
        same = seen is not None and (seen.heartbeat, seen.fence) == (review.heartbeat, review.fence)
        return seen if seen is not None and same else Seen(review.heartbeat, review.fence, tick)

    def _is_lost(self, review: Review, now: datetime, tick: float, *, jumped: bool) -> bool:
        if review.lease_until is None or review.heartbeat is None:
            return True  # nobody writes such a row: a runner renews both or neither
        lease = (review.lease_until - review.heartbeat).total_seconds()
        if tick - self._seen[review.id].at > SILENT_LEASES * lease:
            return True
        return review.lease_until < now and not jumped
