"""Runs the application with uvicorn, and ends it without waiting for open event streams."""

import gc
import sys
from contextlib import suppress
from typing import Any

import uvicorn
from fastapi import FastAPI

GRACE_S = 5  # for requests that are being answered
NEW_OBJECTS = 20_000  # before the garbage collector looks at them: much more than a usual page makes
DID_NOT_START = 3  # exit status, as uvicorn's own command has it


def spare_what_is_loaded() -> None:
    """What is loaded by now stays as long as the process does: looking through it would take a tenth of a second each
    time that a large page makes the garbage collector look at everything. And a page of ten thousand rows would make it
    look at them a dozen times while they come in."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)


class Server(uvicorn.Server):
    """uvicorn's server, which tells the event streams of live pages that it ends; browsers would hold them for ever."""

    def __init__(self, app: FastAPI, **options: Any):
        self.application = app
        # The application has nothing to open or close, so it takes no part in uvicorn's lifespan.
        super().__init__(uvicorn.Config(app, **{"timeout_graceful_shutdown": GRACE_S, "lifespan": "off", **options}))

    def run(self, sockets: Any = None) -> None:
        with suppress(KeyboardInterrupt):  # uvicorn has shut down by then and raises the signal once more
            super().run(sockets)
        if not self.started:
            sys.exit(DID_NOT_START)

    async def shutdown(self, sockets: Any = None) -> None:
        self.application.state.closing = True
        await super().shutdown(sockets)
