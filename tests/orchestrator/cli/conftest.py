"""The command in this process, for what needs no process of its own."""

import logging
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from orchestrator.cli.app import run
from tests.orchestrator.jobs.conftest import Service, embedded  # noqa: F401
from tests.support.host_settings import isolated


@dataclass(frozen=True)
class Said:
    status: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def lamplighter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """`lamplighter("reviews", "list")`, on a data folder of the test's own."""
    for name, value in isolated(tmp_path).items():
        monkeypatch.setenv(name, value)
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    handling = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def command(*arguments: str) -> Said:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["lamplighter", *arguments])
        status = run()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Said(status, said.out, said.err)

    yield command
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    for number, handler in handling.items():
        signal.signal(number, handler)
