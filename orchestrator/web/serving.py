"""Runs the application with uvicorn, and ends it without waiting for open event streams."""

from typing import Any

import uvicorn
from fastapi import FastAPI

GRACE_S = 5  # for requests that are being answered


class Server(uvicorn.Server):
    """uvicorn's server, which tells the event streams of live pages that it ends; browsers would hold them for ever."""

    def __init__(self, app: FastAPI, **options: Any):
        self.application = app
        super().__init__(uvicorn.Config(app, **{"timeout_graceful_shutdown": GRACE_S, **options}))

    async def shutdown(self, sockets: Any = None) -> None:
        self.application.state.closing = True
        await super().shutdown(sockets)
