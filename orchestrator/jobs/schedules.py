"""The minute's tick over the schedules."""

from collections.abc import Callable

from celery import Celery

from orchestrator.services import ticking
from orchestrator.services.workshop import Workshop

TICK = "lamplighter.schedules.tick"


def register(app: Celery, workshop: Callable[[], Workshop]) -> None:
    @app.task(name=TICK, ignore_result=True)
    def tick() -> None:
        """Queue what is due. Two at the same time queue it once."""
        ticking.tick(workshop())
