"""The web application behind a real server on loopback, for browsers: start, stop, and start again on the same port."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.services.workshop import Workshop
from orchestrator.web.app import make_app
from orchestrator.web.serving import Server


class Site:
    """`address` stays the same over a restart."""

    def __init__(self, shop: Workshop):
        self.shop = shop
        self.port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        app = make_app(self.shop, self.shop.settings)
        self.server = Server(app, host="127.0.0.1", port=self.port, log_level="warning")
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        until = time.monotonic() + 20
        while not self.server.started:
            assert self.thread.is_alive() and time.monotonic() < until, "the server did not start"
            time.sleep(0.02)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive(), "the server did not stop"


@contextmanager
def served(shop: Workshop) -> Iterator[Site]:
    site = Site(shop)
    try:
        yield site
    finally:
        site.stop()
