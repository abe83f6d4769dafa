"""The commands in the pages for operators: each is run here, looked at as far as that goes, or has a reason not to be.

A new command in a page that fits none of the kinds below fails the test.
"""

import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from inference_node.settings import Settings as NodeSettings
from orchestrator.settings import Settings
from tests.orchestrator.cli.conftest import Command
from tests.orchestrator.cli.test_app import COMMANDS

ROOT = Path(__file__).parents[3]
PAGES = ("install", "two-machines", "operating", "troubleshooting")
NOT_HERE = {
    r"(sudo|cd /opt)": "changes the machine",
    r"lamplighter (web|beat|worker)": "runs until it is ended; test_first_start.py and the compose test start them",
    r"ls -l /dev/kfd": "needs an AMD device",
    r"getent group": "prints what this machine has",
    r"git pull": "needs a remote",
    r"openssl rand": "part of a line that changes the machine",
}


@dataclass(frozen=True)
class Told:
    page: str
    line: int
    command: str

    def __str__(self) -> str:
        return f"{self.page}.md:{self.line}: {self.command}"


def commands(page: str) -> Iterator[Told]:
    inside = False
    for number, line in enumerate((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if text.startswith("```"):
            inside = text == "```console"
        elif inside and text.startswith("$ "):
            whole = re.split(r"\s{2,}#|\s#\s", text[2:])[0]
            for command in whole.split("&&"):
                yield Told(page, number, command.strip())


ALL = [told for page in PAGES for told in commands(page)]


def test_there_are_commands_to_look_at() -> None:
    assert len(ALL) > 50 and {told.page for told in ALL} == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_works_or_says_why_it_is_not_tried(
    page: str, lamplighter: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lamplighter("migrate")
    here = ROOT
    for told in commands(page):
        if any(re.match(pattern, told.command) for pattern in NOT_HERE):
            continue
        words = shlex.split(told.command.partition(" < ")[0].partition(" > ")[0].partition(" | ")[0])
        match words:
            case ["docker", "compose", *rest]:
                look_at_compose(told, rest, here)
            case ["docker", "image", "prune", "--filter", label]:
                dockerfiles = [ROOT / place / "Dockerfile" for place in ("orchestrator", "inference_node")]
                name = label.removeprefix("label=")
                assert all(f"LABEL {name}=" in file.read_text() for file in dockerfiles), told
            case ["git", "clone", "REPO", "lamplighter"]:
                clone = ["git", "clone", "-q", "--shared", "--no-checkout", str(ROOT), str(tmp_path / "clone")]
                subprocess.run(clone, check=True)
                shutil.rmtree(tmp_path / "clone")
            case ["cd", folder] if folder.partition("/")[0] == "lamplighter":
                here = ROOT / folder.partition("/")[2]
            case ["cp", source, ".env"]:  # where compose looks for it: beside its file
                shutil.copy(here / source, tmp_path / ".env")
                assert (here / "compose.yaml").is_file(), told
            case ["make", *rest]:
                subprocess.run(["make", "-n", *rest], cwd=ROOT, check=True, capture_output=True)
            case [("lamplighter" | ".venv/bin/lamplighter"), *rest]:
                run(told, lamplighter, rest, tmp_path, monkeypatch)
            case _:
                raise AssertionError(f"{told} is of no kind that this test knows")


def test_every_variable_that_a_page_sets_is_one_that_something_reads() -> None:
    known = {f"LAMPLIGHTER_{name.upper()}" for name in Settings.model_fields}
    known |= {f"LAMPNODE_{name.upper()}" for name in NodeSettings.model_fields}
    known |= set(re.findall(r"^#([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.M))
    told = []
    for page in PAGES:
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        for block in re.findall(r"```sh\n(.*?)```", text, re.S):
            told += re.findall(r"^([A-Z_]+)=", block, re.M)
        told += re.findall(r"`((?:LAMPLIGHTER|LAMPNODE|NODE|LLAMA|COMPOSE|DOCKER)_[A-Z_]*[A-Z])=?[^`]*`", text)
    assert len(told) > 20
    unknown = set(told) - known
    assert not unknown


def run(told: Told, lamplighter: Command, words: list[str], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, on a data folder of the test's own."""
    words = [str(place / word.strip("/").replace("/", "-")) if word.startswith("/srv/") else word for word in words]
    if words[:2] in (["accounts", "add"], ["accounts", "password"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("correct horse 9\n"))
        words.append("--password-stdin")
    if words[0] == "restore":
        words[1] = lamplighter("backup").out.strip()
        (place / "data" / "lamplighter.sqlite3").unlink()
    said = lamplighter(*words)
    accepted = (0, 3) if words[0] == "doctor" else (0,)  # what it finds on this machine is the machine's
    assert said.status in accepted, f"{told}: {said}"


def look_at_compose(told: Told, words: list[str], here: Path) -> None:
    """Files, profiles and services that a command names must be there; `lamplighter` commands inside, too."""
    files, profiles = [], []
    while words and words[0] in ("-f", "--profile"):
        (files if words[0] == "-f" else profiles).append(words[1])
        words = words[2:]
    content = [yaml.safe_load((here / file).read_text()) for file in files or ["compose.yaml"]]
    services = {name: one for each in content for name, one in each["services"].items()}
    known = {profile for one in services.values() for profile in one.get("profiles", ())}
    assert set(profiles) <= known, told
    action, *rest = words
    assert action in ("up", "build", "exec", "run", "logs", "ps", "stop", "down", "config", "cp"), told
    named = [word for word in rest if not word.startswith("-")]
    if action in ("exec", "run", "logs"):
        assert not named or named[0] in services, told
    if action == "stop":
        assert set(named) <= services.keys(), told
    if action in ("exec", "run") and "lamplighter" in named:
        after = named[named.index("lamplighter") + 1 :]
        assert any(tuple(after[: len(command)]) == command for command in COMMANDS if command), told
