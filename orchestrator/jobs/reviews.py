"""The task that a worker is woken by."""

from collections.abc import Callable

from celery import Celery

from orchestrator.services import working
from orchestrator.services.workshop import Workshop

WAKE = "lamplighter.reviews.wake"


def register(app: Celery, workshop: Callable[[], Workshop]) -> None:
    @app.task(name=WAKE, ignore_result=True)
    def wake(review_id: str = "") -> None:
        """Do what is due. Safe to deliver twice, late or never: only the table says what there is to do."""
        working.work(workshop())
