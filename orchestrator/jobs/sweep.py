"""The minute's sweep over the reviews."""

from collections.abc import Callable

from celery import Celery

from orchestrator.services import sweeping
from orchestrator.services.workshop import Workshop

SWEEP = "lamplighter.sweep"


def register(app: Celery, workshop: Callable[[], Workshop]) -> None:
    @app.task(name=SWEEP, ignore_result=True)
    def sweep() -> None:
        """Reviews of lost workers go on, and waiting ones are announced again."""
        sweeping.sweep(workshop())
