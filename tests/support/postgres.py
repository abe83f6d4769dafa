"""A PostgreSQL server of our own for the tests: Debian's binaries, a free port, a folder that goes away.

    from tests.support.postgres import postgres_server, postgres_url   # in a conftest.py

`postgres_server` starts one server per test session; `postgres_url` is a new, empty schema in it.
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import psycopg
import pytest

SUPERUSER = "lamplighter"


class PostgresServer:
    """One server process group. `stop` and `start` may be called again, for tests of a restart."""

    def __init__(self, binaries: Path, folder: Path, port: int):
        self.binaries = binaries
        self.folder = folder
        self.port = port
        # The server refuses to run as root; Debian's package has a user for it.
        self.user = "postgres" if os.geteuid() == 0 else None
        if self.user:
            shutil.chown(folder, self.user)
        if not (folder / "data" / "PG_VERSION").exists():  # or an earlier run made it, for one that goes on
            self.call("initdb", "--auth=trust", f"--username={SUPERUSER}", "--encoding=UTF8", "--locale=C.UTF-8", "-N")

    def call(self, program: str, *arguments: str) -> None:
        ran = subprocess.run(
            [self.binaries / program, "-D", self.folder / "data", *arguments],
            user=self.user,
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if ran.returncode:
            raise RuntimeError(f"{program} ended with {ran.returncode}: {ran.stderr}")

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k {self.folder} -F"  # -F: no fsync, the data are for a test
        self.call("pg_ctl", "start", "-w", "-l", str(self.folder / "server.log"), "-o", options)

    def stop(self, mode: str = "fast") -> None:
        self.call("pg_ctl", "stop", "-w", "-m", mode)

    def make_schema(self) -> str:
        """The SQLAlchemy URL of a new, empty schema: as good as a database, and made and removed in no time."""
        name = f"test_{uuid4().hex}"
        with psycopg.connect(
            host="127.0.0.1", port=self.port, user=SUPERUSER, dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return self.url_of(name)

    def url_of(self, schema: str) -> str:
        options = quote(f"-c search_path={schema}")
        return f"postgresql+psycopg://{SUPERUSER}@127.0.0.1:{self.port}/postgres?options={options}"


def binaries() -> Path | None:
    """Where initdb and the server are: Debian keeps them off PATH."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


def may_run() -> bool:
    try:
        return os.geteuid() != 0 or bool(pwd.getpwnam("postgres"))
    except KeyError:
        return False


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    where = binaries()
    if where is None or not may_run():
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="lamplighter-postgres-"))
    server = PostgresServer(where, folder, free_port())
    try:
        server.start()
        yield server
        server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    return postgres_server.make_schema()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
