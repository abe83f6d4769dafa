"""The minute's sweep over the reviews."""

import math
import time
from collections.abc import Callable

from celery import Celery

from orchestrator.services import retention, sweeping
from orchestrator.services.workshop import Workshop

SWEEP = "lamplighter.sweep"
FORGET_EVERY_S = 3600.0


def register(app: Celery, workshop: Callable[[], Workshop]) -> None:
    forgotten_at = -math.inf

    @app.task(name=SWEEP, ignore_result=True)
    def sweep() -> None:
        """Reviews of lost workers go on, and waiting ones are announced again; each hour old logs are forgotten."""
        nonlocal forgotten_at
        sweeping.sweep(workshop())
        if time.monotonic() - forgotten_at >= FORGET_EVERY_S:
            forgotten_at = time.monotonic()
            retention.forget(workshop())
