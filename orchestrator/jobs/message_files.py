"""Messages as files in the data folder: Celery's filesystem transport, where no process reads what another is writing.

kombu makes a message's file first and fills it then, and whoever looks takes any file with a message's name, so an
idle worker now and then took an empty one and ended for good. Here a message gets its name when it is whole. What is
broken all the same (a power cut keeps a name and loses the bytes) is put away with a warning: the row is the job, the
message only says that there is one.
"""

import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog
from kombu.exceptions import ChannelError
from kombu.transport import filesystem
from kombu.utils.json import dumps

log = structlog.get_logger(__name__)

UNFINISHED = ".new"  # behind the name of a message that is being written; nobody looks for such names
ABANDONED_S = 3600.0


class Channel(filesystem.Channel):
    """One process's access to the queues, in any number of processes at a time."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        for path in Path(self.data_folder_out).glob(f"*{UNFINISHED}"):  # of a process that was killed while it wrote
            with contextlib.suppress(FileNotFoundError):  # another process's, and whole by now
                if time.time() - path.stat().st_mtime > ABANDONED_S:
                    path.unlink()

    def _put(self, queue: str, payload: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Put a message there as a whole or not at all. Raises `ChannelError` when there is no room for it."""
        name = f"{round(time.monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg"
        path = os.path.join(self.data_folder_out, name)
        try:
            with open(path + UNFINISHED, "w", encoding="utf-8") as file:
                file.write(dumps(payload))
            os.rename(path + UNFINISHED, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(path + UNFINISHED)
            raise ChannelError(f"A message cannot be written as {path}: {error.strerror}.") from error

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        """The oldest message that can be read. Raises `Empty` when there is none."""
        while True:
            try:
                return super()._get(queue)
            except ValueError as error:
                log.warning("a message that cannot be read is left out", queue=queue, problem=str(error))

    def get_table(self, exchange: str) -> list[Any]:
        """The queues behind an exchange."""
        with self._tables():
            try:
                return super().get_table(exchange)  # type: ignore[no-any-return]
            except ValueError:
                return []  # made anew by the next process that binds

    def _queue_bind(self, exchange: str, *binding: str) -> None:
        with self._tables():
            try:
                super()._queue_bind(exchange, *binding)
            except ValueError as error:
                log.warning("a table of queues that cannot be read is made anew", exchange=exchange, problem=str(error))
                self._exchange_file(exchange).unlink(missing_ok=True)
                super()._queue_bind(exchange, *binding)

    @contextlib.contextmanager
    def _tables(self) -> Iterator[None]:
        """Alone with the tables: kombu empties a new one before it locks it."""
        self.control_folder.mkdir(parents=True, exist_ok=True)
        with (self.control_folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class Transport(filesystem.Transport):
    """`filesystem://`, as above."""

    Channel = Channel
