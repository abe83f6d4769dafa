"""`make up` as a person meets it: what it prints, and that nothing outlives it. With the environment that is there."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import httpx
import pytest

from orchestrator.cli import up
from orchestrator.settings import SettingsError
from tests.support.boxes import bubblewrap, git, here
from tests.support.host_settings import isolated
from tests.support.postgres import free_port
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow


@dataclass
class Up:
    """`lamplighter up` in a process group of its own, as a terminal would start it."""

    process: subprocess.Popen[bytes]
    folder: Path
    port: int

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def left(self) -> list[str]:
        """Command lines of processes that belong to this start; the boxes carry the instance's name."""
        instance = self.folder / "data" / "instance"
        marks = [str(self.folder / "data")]
        marks += [f"lamplighter.{instance.read_text().strip()}."] if instance.exists() else []
        listed = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True).stdout.splitlines()
        return [line[:200] for line in listed if any(mark in line for mark in marks)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*options: str, **variables: str) -> Up:
        environment = {
            "HOME": str(tmp_path / "home"),
            "PATH": os.defpath,
            "LAMPLIGHTER_DATA": str(tmp_path / "data"),
            "LAMPLIGHTER_HOST_LOCK": str(tmp_path / "host.lock"),
            "LAMPLIGHTER_MACHINE": tmp_path.name,
            **variables,
        }
        port = free_port()
        with (tmp_path / "said").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", "up", "--port", str(port), *options],
                cwd=ROOT,
                env=environment,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        started.append(Up(process, tmp_path, port))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()


def test_a_first_start_prints_the_sandbox_and_the_url_and_ctrl_c_ends_all_of_it(start: Callable[..., Up]) -> None:
    up = start()
    ready(up)
    assert "Sandbox: " in up.said or "No sandbox works here" in up.said
    assert httpx.get(up.url).status_code == 200
    wait_for(lambda: "Lamplighter is up: " + up.url in up.said)
    os.killpg(up.process.pid, signal.SIGINT)
    assert up.process.wait(30) == 0
    assert "Traceback" not in up.said
    assert up.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_no_process_and_no_box_outlives_its_parent_in_the_middle_of_a_review(
    start: Callable[..., Up], tmp_path: Path, number: signal.Signals
) -> None:
    bubblewrap(here(data=tmp_path / "trial"))
    repo = tmp_path / "repo"
    slow_repo(repo)
    up = start(LAMPLIGHTER_SANDBOX="bubblewrap", LAMPLIGHTER_ALLOWED_ROOTS=str(tmp_path))
    ready(up)
    httpx.post(f"{up.url}/api/reviews", json={"target": str(repo)}).raise_for_status()
    wait_for(lambda: any("sleep 613" in line for line in processes()), 60)
    up.process.send_signal(number)
    assert up.process.wait(30) == (0 if number is signal.SIGTERM else -signal.SIGKILL)
    wait_for(lambda: up.left() == [] and not any("sleep 613" in line for line in processes()))


def test_a_demo_node_beside_the_service_shows_its_health_tau_and_speed_on_the_node_page(
    start: Callable[..., Up],
) -> None:
    up = start("--demo-node", OMP_NUM_THREADS="1")
    ready(up)

    def shown() -> str:
        return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", httpx.get(f"{up.url}/node", timeout=30).text))

    wait_for(lambda: "answers in" in shown(), 240)
    figures = r"figures: (http://127\.0\.0\.1:\d+)/"
    wait_for(lambda: re.search(figures, up.said) is not None, 60)  # said once it answers, so maybe a moment later
    found = re.search(figures, up.said)
    assert found is not None
    assert f"Address {found[1]}" in shown() and "smollm2-135m-instruct" in shown()
    body = {"messages": [{"role": "user", "content": "Repeat five times: the lamp is lit."}], "max_tokens": 40}
    answer = httpx.post(f"{found[1]}/v1/chat/completions", json={**body, "temperature": 0}, timeout=240).json()
    assert answer["timings"]["draft_n_accepted"] > 0
    text = shown()
    assert "Says of itself ok" in text and "drafts by dflash" in text
    assert re.search(r"Tokens/s \d+\.\d", text) and re.search(r"tau [1-9]\.\d\d .* of drafts accepted", text), text
    os.killpg(up.process.pid, signal.SIGINT)
    assert up.process.wait(60) == 0
    assert "Traceback" not in up.said and up.left() == []
    with pytest.raises(httpx.TransportError):
        httpx.get(found[1])


def test_a_demo_node_beside_another_node_is_refused(start: Callable[..., Up]) -> None:
    up = start("--demo-node", "--node", "http://127.0.0.1:9")
    assert up.process.wait(60) == 2
    assert "leave out --node" in up.said


def test_whatever_the_node_needs_and_has_not_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.requires("lamplighter") or []
    wanted = [*real, 'not-there-at-all>=1; extra == "node"', 'for-tests-alone>=1; extra == "dev"']
    monkeypatch.setattr(metadata, "requires", lambda _: wanted)
    with pytest.raises(SettingsError, match=r"needs the inference node, and not-there-at-all is not installed here"):
        up.check_node_is_installed()


def test_a_port_that_is_taken_is_named_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-m", "orchestrator", "up", "--port", str(taken.getsockname()[1])]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **isolated(tmp_path)}, capture_output=True, text=True
        )
    assert done.returncode == 3
    assert "choose another one with --port" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("sys.version_info = (3, 10, 4)", "python3 is Python 3.10"),
        ("sys.modules['ensurepip'] = None", "without ensurepip"),
    ],
)
def test_make_names_a_python_that_will_not_do(tmp_path: Path, spoil: str, said: str) -> None:
    python = tmp_path / "python3"
    python.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; {spoil}; del sys.argv[0]; exec(sys.argv[0])" "$2" "$3"\n'
    )
    python.chmod(0o755)
    done = make("needs", "PYTHONS=python3", PATH=f"{tmp_path}:{os.defpath}")
    assert done.returncode == 2
    assert said in done.stderr and "apt-get install python3 python3-venv" in done.stderr


def test_make_names_git_where_it_is_missing(tmp_path: Path) -> None:
    for name in ("make", "sh"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    done = make("needs", f"PYTHON={sys.executable}", PATH=str(tmp_path))
    assert done.returncode == 2
    assert "git is missing" in done.stderr


# Helpers -----------------------------------------------------------------------------------


def make(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["/usr/bin/make", *arguments]
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)


def slow_repo(folder: Path) -> None:
    """A repo whose installation takes longer than any test."""
    folder.mkdir()
    (folder / ".lamplighter.toml").write_text('install = ["sleep 613"]\n')
    (folder / "one.py").write_text("one = 1\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "All of it")


def ready(up: Up) -> None:
    def answers() -> bool:
        assert up.process.poll() is None, up.said
        try:
            return httpx.get(f"{up.url}/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    wait_for(answers, 60)


def processes() -> list[str]:
    return subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True).stdout.splitlines()
