"""How commands explain themselves and how they fail: one message, an exit status, no traceback."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer

from orchestrator.cli.app import app
from tests.orchestrator.cli.conftest import Command

COMMANDS = [
    (),
    ("up",),
    ("review",),
    ("repos",),
    ("measurements",),
    ("reviews",),
    ("reviews", "list"),
    ("reviews", "show"),
    ("reviews", "compare"),
    ("reviews", "export"),
    ("reviews", "memo"),
    ("reviews", "transcripts"),
    ("reviews", "cancel"),
    ("schedules",),
    ("schedules", "list"),
    ("schedules", "add"),
    ("schedules", "remove"),
    ("schedules", "tonight"),
    ("web",),
    ("worker",),
    ("beat",),
    ("migrate",),
    ("backup",),
    ("restore",),
    ("upgrade",),
    ("engine-proxy",),
    ("accounts",),
    ("accounts", "list"),
    ("accounts", "add"),
    ("accounts", "password"),
    ("accounts", "remove"),
    ("accounts", "token"),
    ("doctor",),
]


def paths(group: object, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [before]
    for name, command in sorted(getattr(group, "commands", {}).items()):
        found += paths(command, (*before, name))
    return found


def test_these_are_all_commands() -> None:
    assert sorted(paths(typer.main.get_command(app))) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_says_what_the_command_and_each_of_its_options_do(lamplighter: Command, command: tuple[str, ...]) -> None:
    said = lamplighter(*command, "--help")
    assert said.status == 0 and said.err == ""
    found = typer.main.get_command(app)
    for name in command:
        found = found.commands[name]  # type: ignore[attr-defined]
    assert found.help
    for parameter in found.params:
        assert getattr(parameter, "help", "x"), f"{parameter.name} is not explained"


WRONG = {
    "an unknown command": ("frobnicate",),
    "an unknown option": ("review", "x", "--frobnicate"),
    "no target": ("review",),
    "an unknown format": ("review", "/", "--format", "xml"),
    "an unknown severity": ("review", "/", "--fail-on", "awful"),
    "a budget that is no number": ("review", "/", "--budget-minutes", "long"),
    "a folder as --out": ("review", "/", "--out", "/"),
    "a folder for --out that is not there": ("review", "/", "--out", "/no/such/folder/x"),
    "a review that is not there": ("reviews", "show", "abc"),
    "a review with a whole id that is not there": ("reviews", "show", "00000000-0000-0000-0000-000000000000"),
    "a repo that is not there": ("reviews", "list", "--repo", "nope"),
    "an export in an unknown format": ("reviews", "export", "abc", "--format", "xml"),
    "a schedule without a time": ("schedules", "add", "nope"),
    "a schedule for a repo that is not there": ("schedules", "add", "nope", "--at", "02:00"),
    "a schedule that is not there": ("schedules", "remove", "abc"),
    "a port that is none": ("web", "--port", "99999"),
}


@pytest.mark.parametrize("arguments", WRONG.values(), ids=WRONG.keys())
def test_wrong_use_is_said_on_stderr_with_status_2(lamplighter: Command, arguments: tuple[str, ...]) -> None:
    said = lamplighter(*arguments)
    assert (said.status, said.out) == (2, "") and said.err.strip()


def test_a_misspelt_setting_stops_every_command(lamplighter: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMPLIGHTER_PROT", "1")
    said = lamplighter("repos")
    assert said.status == 2 and "LAMPLIGHTER_PROT is not a setting" in said.err


@pytest.mark.parametrize("node", ["127.0.0.1:8760", "nonsense", "http://", "ftp://node/v1", "file:///v1"])
def test_a_node_without_an_address_stops_a_review_before_it_begins(lamplighter: Command, node: str) -> None:
    said = lamplighter("review", ".", "--node", node)
    assert said.status == 2 and "expected an address like http://" in said.err and f"(found '{node}')" in said.err


def test_a_data_folder_that_cannot_be_made_is_an_outside_failure(lamplighter: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = lamplighter("repos", "--data", str(tmp_path / "file" / "data"))
    assert said.status == 3 and "Name another one with --data" in said.err


def test_a_data_folder_that_cannot_be_written_is_named_with_the_reason(lamplighter: Command, tmp_path: Path) -> None:
    with read_only(tmp_path / "data") as (folder, why):
        said = lamplighter("repos", "--data", str(folder))
    assert said.status == 3 and f"The data folder {folder} cannot be written: {why}" in said.err


@contextmanager
def read_only(folder: Path) -> Iterator[tuple[Path, str]]:
    """Also for root, who may write where the folder's permissions say that nobody may."""
    folder.mkdir()
    if os.geteuid():
        folder.chmod(0o500)
        yield folder, "it belongs to user"
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", folder], check=True)
    try:
        yield folder, "its file system is mounted read-only"
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"prot = 1", "names prot, which is not a setting. Did you mean port?"),
        (b"quux = 1", "names quux, which is not a setting. Settings are: "),
        (b"port = ", "cannot be read"),
        (b"port = '\xff'", "cannot be read"),
    ],
)
def test_what_is_wrong_in_the_settings_file_is_said_with_its_name(
    content: bytes, told: str, lamplighter: Command, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_bytes(content)
    said = lamplighter("repos", "--data", str(tmp_path))
    assert said.status == 2 and f"The settings file {tmp_path / 'config.toml'} {told}" in said.err


def test_a_database_that_does_not_answer_is_an_outside_failure(
    lamplighter: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMPLIGHTER_DATABASE_URL", "postgresql://lamplighter@127.0.0.1:1/lamplighter")
    said = lamplighter("repos")
    assert said.status == 3 and "LAMPLIGHTER_DATABASE_URL" in said.err


def test_a_servers_database_is_not_migrated_unasked(
    lamplighter: Command, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    monkeypatch.setenv("LAMPLIGHTER_DATABASE_URL", postgres_url)
    said = lamplighter("repos")
    assert said.status == 3 and "lamplighter migrate" in said.err
    assert lamplighter("migrate").status == 0
    assert lamplighter("repos").status == 0


def test_doctor_finds_nothing_wrong_with_a_machine_that_works_and_says_what_is_wrong_else(
    lamplighter: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    lamplighter("migrate")
    monkeypatch.setenv("LAMPLIGHTER_BROKER_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("LAMPLIGHTER_MODEL_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("LAMPLIGHTER_FREE_DISK_BYTES", str(1 << 60))
    said = lamplighter("doctor")
    assert said.status == 3
    bad = {line.split()[1].rstrip(":") for line in said.out.splitlines() if line.startswith("BAD")}
    assert {"broker", "node", "disk"} <= bad
    assert "ok   git: git version" in said.out and "ok   database: SQLite, up to date" in said.out
