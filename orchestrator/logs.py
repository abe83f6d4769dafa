"""Logs of all processes: one line per event on stderr, coloured on a terminal, JSON where that is asked for."""

import logging
import sys
from typing import Any

import structlog

from orchestrator.settings import Settings


def configure(settings: Settings, process: str) -> None:
    """Send structlog and the standard library's loggers to stderr. `process` stands on every line."""
    structlog.contextvars.bind_contextvars(process=process)
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if settings.log_json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
        )
    )
    structlog.configure(
        processors=[*SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *traceback_of(settings), renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for name in ("httpx", "httpcore", "urllib3", "docker", "alembic", "celery", "kombu", "amqp"):
        logging.getLogger(name).setLevel(logging.WARNING)


def traceback_of(settings: Settings) -> list[Any]:
    return [structlog.processors.format_exc_info] if settings.log_json else []


def printable(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Values may hold line ends and terminal escapes that came out of a repo."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable() and name != "exception":
            event[name] = "".join(c if c.isprintable() else " " for c in value).strip()
    return event


SHARED: tuple[Any, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    printable,
)
