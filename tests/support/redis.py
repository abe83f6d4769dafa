"""A Redis server of our own for the tests: Debian's binary, a free port, a folder that goes away.

    from tests.support.redis import redis_server   # in a conftest.py

One server per test session; `stop` and `start` may be called again, for tests of a restart.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

PATIENCE_S = 20.0


class RedisServer:
    def __init__(self, binary: str, folder: Path, port: int):
        self._binary = binary
        self._folder = folder
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        command = [self._binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--save", "", "--appendonly", "yes", "--maxmemory-policy", "noeviction"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.client().ping()
                return
            except redis.ConnectionError:
                assert time.monotonic() < deadline and self._process.poll() is None, "redis-server did not start"
                time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self, database: int = 0) -> "redis.Redis":
        return redis.Redis(host="127.0.0.1", port=self.port, db=database)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    server = RedisServer(binary, tmp_path_factory.mktemp("redis"), free_port())
    server.start()
    yield server
    server.stop()
