"""Waiting for what another process or thread does, as long as it may take and no longer."""

import time
from collections.abc import Callable


def wait_for(
    what: Callable[[], object],
    patience_s: float = 20.0,
    complaint: str | Callable[[], object] = "it did not happen",
    *,
    every_s: float = 0.1,
) -> None:
    """Until it is true. A complaint that is a function is asked for only when time is up."""
    give_up = time.monotonic() + patience_s
    while not what():
        if time.monotonic() >= give_up:
            told = complaint() if callable(complaint) else complaint
            raise AssertionError(f"{told} (after {patience_s:.0f} s)")
        time.sleep(every_s)
