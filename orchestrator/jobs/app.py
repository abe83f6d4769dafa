"""Celery's side of the service: the worker, one child with one review at a time, and the beat.

A worker process is two: the main one consumes messages, reports this machine and watches; its one child (prefork,
because that pool alone stays answerable while a task runs) works. The beat runs its two tasks itself, each minute,
instead of sending them: a worker is busy for an hour at a time, and slots must not wait for it.
"""

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import structlog
from celery import Celery, signals
from celery.apps.beat import Beat
from celery.beat import ScheduleEntry, Scheduler, Service
from celery.exceptions import SecurityWarning

from orchestrator import wiring
from orchestrator.jobs import reviews, schedules, sweep
from orchestrator.services import host_lock, sweeping, working
from orchestrator.services.workshop import Workshop
from orchestrator.settings import Settings

log = structlog.get_logger(__name__)

REPORT_EVERY_S = 10.0
TICK_EVERY_S = 60.0
TURNS_UNTIL_ASKED_AGAIN = 6  # for a sandbox, while none works
GIVE_BACK = signal.SIGRTMIN + 1  # the pool takes all the ordinary signals for itself
STUCK_AFTER_S = 180.0  # a review that waits so long beside an idle worker means that messages do not arrive


class Works:
    """What the processes of one worker share: its settings and how a workshop is made."""

    def __init__(self, settings: Settings, build: Callable[..., Workshop]):
        self.settings = settings
        self.build = build
        self.stopping = threading.Event()
        self._shop: Workshop | None = None
        self._pid = 0

    def shop(self) -> Workshop:
        """This process's own workshop; a child never uses its parent's connections."""
        if self._pid != os.getpid():
            inherited, self._pid = self._shop, os.getpid()
            if inherited is not None:
                inherited.sessions.engine.dispose(close=False)
            self._shop = self.build(self.settings, stopping=self.stopping.is_set)
        assert self._shop is not None
        return self._shop


def make_app(settings: Settings, workshop: Callable[[], Workshop]) -> Celery:
    app = Celery("lamplighter")
    app.conf.update(wiring.celery_settings(settings))
    for room in (reviews, schedules, sweep):
        room.register(app, workshop)
    return app


# The worker --------------------------------------------------------------------------------


def run_worker(settings: Settings, *, build: Callable[..., Workshop] = wiring.worker) -> None:
    """Work until told to end. Raises `OutsideError` when another worker of this machine does."""
    machine = wiring.machine_id(settings)
    kept = working.one_worker_only(settings, machine)
    works = Works(settings, build)
    app = make_app(settings, works.shop)
    watch = Watch(works, app)
    connected = [
        (signals.setup_logging, lambda **kw: None),  # ours stands already, and Celery's would replace it in the child
        (signals.worker_process_init, lambda **kw: end_reviews_when_told(works)),
        (signals.worker_ready, lambda **kw: watch.start()),
        (signals.worker_shutting_down, lambda **kw: tell_children_to_end()),
    ]
    for signal_, receiver in connected:
        signal_.connect(receiver, weak=False)
    # Root is what the sandbox needs for its limits, and messages are JSON with nothing in them to be believed.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    log.info("worker starts", machine=machine)
    try:
        worker = app.Worker(
            pool="prefork",
            concurrency=1,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            loglevel=None,
            quiet=True,
            hostname=f"lamplighter@{machine}",
        )
        worker.start()
    finally:
        watch.end()
        os.close(kept)


def end_reviews_when_told(works: Works) -> None:
    """In the child: this signal gives the running review back to the queue, within about a second."""
    signal.signal(GIVE_BACK, lambda number, frame: works.stopping.set())


def tell_children_to_end() -> None:
    for pid in children():
        try:
            os.kill(pid, GIVE_BACK)
        except ProcessLookupError:
            continue


def children() -> list[int]:
    """This process's children, by any of its threads."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += [int(pid) for pid in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


class Watch:
    """In the worker's main process: reports the machine, and starts over when messages do not arrive.

    After a broker's restart a consumer can stay deaf for ever; the table shows it.
    """

    def __init__(self, works: Works, app: Celery):
        self._works = works
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="watch")

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        shop = self._works.shop()
        working.report(shop, worker_pid=None, current_review=None)

    def _run(self) -> None:
        shop = self._works.shop()
        started = shop.clock()
        description = waiting_since = None
        turn = 0
        while True:
            try:
                working.report(
                    shop, worker_pid=os.getpid(), started_at=started, version=wiring.our_version(), sandbox=description
                )
                if turn == 0 or working.holds_a_dead_review(shop):
                    self._sweep(shop)
                if description is None and turn % TURNS_UNTIL_ASKED_AGAIN == 0:
                    description = working.describe(shop)
                waiting_since = self._waiting_since(shop, waiting_since)
                if waiting_since is not None and time.monotonic() - waiting_since > STUCK_AFTER_S:
                    start_over()
            except Exception as error:  # the database is away, for example; the watch must outlive that
                log.warning("the worker's watch could not look", error=str(error))
            turn += 1
            if self._ended.wait(REPORT_EVERY_S):
                return

    def _sweep(self, shop: Workshop) -> None:
        """What an earlier worker, or a child that was killed, left here; unless somebody reviews right now."""
        with host_lock.held(shop.settings.host_lock, "lamplighter, sweeping", give_up=lambda: True) as ours:
            if ours:
                sweeping.sweep_machine(shop)
        sweeping.sweep(shop)

    def _waiting_since(self, shop: Workshop, before: float | None) -> float | None:
        """Since when a review could start and does not (monotonic); None when all is well."""
        return (before or time.monotonic()) if working.may_start(shop) else None


def start_over() -> None:
    """Become a fresh worker process under the same pid."""
    log.error("reviews wait, but no message arrives: the worker starts over")
    for pid in children():
        os.kill(pid, signal.SIGKILL)
    os.execv(sys.executable, [sys.executable, "-m", "orchestrator", *sys.argv[1:]])


# The beat ----------------------------------------------------------------------------------


class Here(Scheduler):
    """Beat's own scheduler, except that a due task runs in this process."""

    def apply_async(self, entry: ScheduleEntry, producer: Any = None, advance: bool = True, **options: Any) -> None:
        if advance:
            entry = self.reserve(entry)
        try:
            self.app.tasks[entry.task]()
        except Exception as error:  # the database is away, for example; the next minute may be better
            log.warning("a tick failed", task=entry.task, error=str(error))


class Once(Beat):
    """Celery's beat, ended by the first signal. A Ctrl-C reaches the whole group and `up` then ends its children, so a
    second signal comes while the interpreter leaves, where Celery's handler would end in a traceback. (So would
    SIG_IGN for one that has arrived and waits for its handler: Python complains that it was taken away.)"""

    def install_sync_handler(self, service: Service) -> None:
        def end(number: int, frame: FrameType | None) -> None:
            for known in (signal.SIGTERM, signal.SIGINT):
                signal.signal(known, lambda number, frame: None)
            service.sync()
            raise SystemExit

        for known in (signal.SIGTERM, signal.SIGINT):
            signal.signal(known, end)


def run_beat(settings: Settings, *, build: Callable[[Settings], Workshop] = wiring.service) -> None:
    """Tick and sweep each minute until told to end. Two beats do no harm."""
    shop = build(settings)
    app = make_app(settings, lambda: shop)
    each_minute = timedelta(seconds=TICK_EVERY_S)
    app.conf.beat_schedule = {
        "tick": {"task": schedules.TICK, "schedule": each_minute},
        "sweep": {"task": sweep.SWEEP, "schedule": each_minute},
    }
    log.info("beat starts", every_s=TICK_EVERY_S)
    Once(app=app, scheduler_cls=Here, max_interval=TICK_EVERY_S, quiet=True, loglevel="INFO", socket_timeout=30).run()
