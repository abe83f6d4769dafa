"""Every command that the pages for users name is typed as it stands there, or stands in a short list with the reason.

Here: what one starts by make, the processes one by one, accounts and backups, the boxes with systemd and the tunnel, on
a machine that is thrown away (tests/support/terminal.py). With compose and with digests: tests/orchestrator/deploy.
The tables are in tests/support/documented.py.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import typer
import yaml

from orchestrator.cli.app import app
from tests.orchestrator.deploy.test_compose import copy_tree, make_repo
from tests.support import documented
from tests.support.documented import ACCOUNTS, NOT_COMMANDS, NOT_RUN, ONE_BY_ONE, ONE_MACHINE, RUN, TUNNEL, UNITS
from tests.support.host_settings import isolated
from tests.support.model_servers import OurNode, our_node, random_model  # noqa: F401
from tests.support.terminal import Terminal, thrown_away

ROOT = documented.ROOT
Open = Callable[..., Terminal]


def test_each_command_of_the_pages_is_run_or_listed_and_each_that_is_listed_is_on_a_page() -> None:
    said = {command for page in documented.PAGES for command in documented.commands(page)}
    listed = {*(command for place in RUN.values() for command in place), *NOT_RUN, *NOT_COMMANDS}
    assert said - listed == set(), "add a test that types it, and name it in tests/support/documented.py"
    assert listed - said == set(), "no page names these any more"
    assert not set(NOT_RUN) & {command for place in RUN.values() for command in place}
    assert all((ROOT / place.partition(":")[0]).exists() for place in RUN)
    assert all(count == 1 for place in RUN.values() for count in Counter(place).values())


def test_each_option_that_stands_by_itself_on_a_page_is_one_of_a_command_of_ours() -> None:
    texts = [documented.BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8")) for page in documented.PAGES]
    said = {option for text in texts for option in re.findall(r"`(--[a-z-]+)`", text)}
    known = {option for command in every_command(typer.main.get_command(app)) for option in command}
    assert {"--adopt", "--replace"} <= said <= known | {"--help"}


def test_a_nodes_box_with_systemd_listens_where_the_workers_box_asks() -> None:
    page = "docs/two-machines.md"
    node = dict(line.split("=", 1) for line in documented.block_after(page, "node.env` holds").split())
    worker = dict(line.split("=", 1) for line in documented.block_after(page, "In `.env`:").split())
    assert worker["LAMPLIGHTER_MODEL_URL"] == f"http://{node['LAMPNODE_HOST']}:{node['LAMPNODE_PORT']}"
    assert f"127.0.0.1:{node['LAMPNODE_PORT']} " in documented.block_after(page, "Or TLS by a reverse proxy")


# What cannot be run here ----------------------------------------------------------------------


@pytest.mark.parametrize("command", ["make test", "make check"])
def test_make_says_what_a_command_would_do_that_takes_too_long_here(command: str) -> None:
    assert command in NOT_RUN
    said = subprocess.run([*command.split(), "-n"], cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0 and re.search("pytest|ruff", said.stdout), said


def test_the_kernels_two_numbers_mean_the_same_memory_and_the_devices_are_those_of_compose() -> None:
    assert {"sudo update-grub", "ls -l /dev/kfd /dev/dri"} <= set(NOT_RUN)
    words = documented.block_after("docs/two-machines.md", "command line").split()
    megabytes, pages = (int(word.partition("=")[2]) for word in words)
    assert megabytes << 20 == pages << 12 == 110 << 30
    services = yaml.safe_load((ROOT / "inference_node/services.yaml").read_text())["services"]
    assert services["node-rocm"]["devices"] == ["/dev/kfd", "/dev/dri"]


def test_the_reverse_proxys_file_is_one_that_caddy_takes(opened: Open) -> None:
    terminal = opened(needs="caddy")
    (terminal.cwd / "Caddyfile").write_text(documented.block_after("docs/two-machines.md", "Or TLS by a reverse proxy"))
    assert "Valid configuration" in terminal.also("caddy validate --adapter caddyfile --config Caddyfile")


# What can ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_clone_of_a_person_who_starts_it_by_make(opened: Open, tmp_path: Path) -> None:
    terminal = opened(network=False, LAMPLIGHTER_ALLOWED_ROOTS=str(tmp_path))
    up = r"Lamplighter is up: http://127\.0\.0\.1:{}"
    terminal.types("git clone REPO lamplighter && cd lamplighter")
    clone = terminal.cwd
    installed(clone)
    make_repo(clone / "my-package")
    terminal.as_here["https://github.com/python-humanize/humanize"] = str(clone / "my-package")  # out of reach here

    terminal.types("make up", until=up.format(8750))
    assert (terminal.home / ".local/share/lamplighter/lamplighter.sqlite3").is_file()
    terminal.as_here["DIR"] = str(tmp_path / "elsewhere")
    terminal.types('make up ARGS="--port 9000 --data DIR"', until=up.format(9000))
    assert (tmp_path / "elsewhere" / "lamplighter.sqlite3").is_file()
    terminal.types("make up NODE=demo", until=up.format(8750))

    found = "greet does not say hello"
    terminal.types(".venv/bin/lamplighter review ./my-package --format markdown --out review.md --fail-on high")
    assert found in (clone / "review.md").read_text()
    assert found in terminal.types(".venv/bin/lamplighter review https://github.com/python-humanize/humanize")

    def asked() -> None:
        path = "curl -s http://127.0.0.1:8750/api/reviews -H 'Content-Type: application/json' "
        answer = json.loads(terminal.types(path + """-d '{"target": "https://github.com/python-humanize/humanize"}'"""))
        assert "id" in answer, answer

    terminal.types("git pull && make up", until=up.format(8750), meanwhile=asked)

    said = terminal.types(".venv/bin/lamplighter doctor", status=(0, 3))
    assert "ok   git: " in said and "ok   database: " in said
    said = terminal.types(".venv/bin/lamplighter doctor --adopt", status=(0, 3))
    assert "config.toml" in said or "ok   package index" in said
    terminal.types("make clean")
    assert not (clone / ".venv").exists()
    assert terminal.typed == set(RUN[ONE_MACHINE])


@pytest.mark.slow
def test_the_processes_one_by_one(opened: Open) -> None:
    terminal = opened(network=False)
    assert "up to date" in terminal.types("lamplighter upgrade")
    assert "up to date" in terminal.types("lamplighter migrate")
    terminal.types("lamplighter web", until="http://127.0.0.1:8750|startup complete")
    terminal.types("lamplighter beat", until="beat starts")

    def alive() -> None:
        assert "ok   worker: " in terminal.types("lamplighter doctor --only alive")

    terminal.types("lamplighter worker", until="worker starts|ready", meanwhile=alive)
    assert terminal.typed == set(RUN[ONE_BY_ONE])


@pytest.mark.slow
def test_accounts_backups_and_the_doctors_questions(opened: Open, our_node: OurNode) -> None:  # noqa: F811
    terminal = opened(LAMPLIGHTER_MODEL_URL=our_node.url)
    twice = ["correct horse 9"] * 2
    assert "is the admin" in terminal.types("lamplighter accounts add ada --admin", answers=twice)
    terminal.as_here["NAME"] = "bob"
    terminal.types("lamplighter accounts add NAME --admin", answers=twice)
    terminal.types("lamplighter accounts password NAME", answers=["another one 1"] * 2)
    listed = terminal.types("lamplighter accounts list").splitlines()
    assert [line.split()[:2] for line in listed] == [["ada", "admin"], ["bob", "admin"]]
    assert terminal.types('lamplighter accounts token ada --for "nightly export"').startswith("lamp_")

    kept = terminal.types("lamplighter backup").strip()
    assert terminal.types("lamplighter backup --to /srv/backups --keep 14").startswith("/srv/backups/")
    (terminal.home / "data" / "lamplighter.sqlite3").unlink()
    terminal.as_here["FILE"] = kept
    assert "Restored " in terminal.types("lamplighter restore FILE")
    assert "bob" in terminal.types("lamplighter accounts list")

    said = terminal.types("lamplighter doctor --only node")
    assert "ok   node: " in said and our_node.url in said and "token" in said
    assert "package index: " in terminal.types("lamplighter doctor --only index")
    assert "ok   database: " in terminal.types("lamplighter doctor")
    assert terminal.typed == set(RUN[ACCOUNTS])


@pytest.mark.slow
def test_both_boxes_with_systemd(opened: Open) -> None:
    """On one machine, so what both boxes begin with is typed once."""
    box = opened(needs="systemctl")
    box.types("sudo useradd --system --home-dir /var/lib/lamplighter lamplighter")
    box.types("sudo git clone REPO /opt/lamplighter && cd /opt/lamplighter && sudo python3 -m venv .venv")
    box.types("sudo .venv/bin/pip install -c constraints.txt .")
    box.types("sudo cp orchestrator/systemd/* /etc/systemd/system/")
    names = "lamplighter-engine-proxy lamplighter-web lamplighter-worker lamplighter-beat lamplighter-backup.timer"
    said = box.types(f"sudo systemctl enable --now {names}")
    assert said.count("Created symlink") == len(names.split()), said

    box.types("sudo useradd --system --home-dir /var/lib/lamplighter-node lamplighter-node")
    box.types("sudo .venv/bin/pip install -c constraints.txt '.[node]'")
    key = "/etc/lamplighter/node-key"
    box.types(f"sudo install -d /etc/lamplighter && sudo install -m 640 -g lamplighter-node /dev/null {key}")
    box.types(f"openssl rand -hex 24 | sudo tee {key}")
    box.types("sudo cp inference_node/systemd/lamplighter-node.service /etc/systemd/system/")
    assert "Created symlink" in box.types("sudo systemctl enable --now lamplighter-node")

    box.also("groupadd --system --force render")  # not every machine has it
    assert "video:" in box.types("getent group video render")
    assert box.typed == set(RUN[UNITS])

    # What the units start is there, and the node's user may read the key, as nobody else.
    assert "engine-proxy" in box.also("/opt/lamplighter/.venv/bin/lamplighter --help")
    assert "serve" in box.also("/opt/lamplighter/.venv/bin/lamplighter-node --help")
    read = "setpriv --reuid {} --regid {} --clear-groups cat " + key
    assert re.fullmatch(r"[0-9a-f]{48}\n", box.also(read.format("lamplighter-node", "lamplighter-node")))
    box.also("! " + read.format("lamplighter", "lamplighter"))


def test_the_tunnel(opened: Open) -> None:
    terminal = opened(network=False, needs="wg")
    terminal.types("umask 077; wg genkey | tee key | wg pubkey > key.pub")
    assert (terminal.cwd / "key").stat().st_mode & 0o077 == 0
    file = documented.block_after("docs/two-machines.md", "`/etc/wireguard/wg0.conf`; on the node box:")
    file = re.sub("THE .* BOX'S key$", (terminal.cwd / "key").read_text().strip(), file, flags=re.M)
    file = re.sub("THE .* BOX'S key.pub$", (terminal.cwd / "key.pub").read_text().strip(), file, flags=re.M)
    (terminal.cwd / "wg0.conf").write_text(file)
    terminal.also("mkdir -p /etc/wireguard && install -m 600 wg0.conf /etc/wireguard/wg0.conf")
    assert "ListenPort = 51820" in terminal.also("wg-quick strip wg0")
    assert "Created symlink" in terminal.types("sudo systemctl enable --now wg-quick@wg0")
    terminal.types("wg show")
    assert terminal.typed == set(RUN[TUNNEL])


# Helpers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("origin") / "lamplighter"
    copy_tree(folder)
    return folder


@pytest.fixture
def opened(tmp_path: Path, origin: Path) -> Iterator[Open]:
    """`opened()` is a terminal on a machine to throw away, where Lamplighter is installed and nothing else is ours."""
    machines: list[AbstractContextManager[tuple[str, ...]]] = []

    def open_one(*, network: bool = True, needs: str = "bash", **variables: str) -> Terminal:
        if shutil.which(needs) is None:
            pytest.skip(f"needs {needs} (.ci/packages)")
        home = tmp_path / f"machine-{len(machines)}"
        programs(home / "programs")
        machine = thrown_away(home, network=network)
        inside = machine.__enter__()
        machines.append(machine)
        settings = isolated(home)
        if not network:
            del settings["LAMPLIGHTER_DATA"]  # where it is by itself
        path = f"{home / 'programs'}:{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"
        given = {**os.environ, **settings, "HOME": str(home), "PATH": path, "TERM": "dumb", "COLUMNS": "200"}
        given |= {"SYSTEMD_OFFLINE": "1", "PIP_NO_DEPS": "1", **variables}
        (home / "here").mkdir()
        return Terminal(home / "here", given, inside=inside, as_here={"REPO": str(origin)})

    yield open_one
    for machine in machines:
        machine.__exit__(None, None, None)


def programs(folder: Path) -> None:
    """Stand-ins: we are root already, nothing runs the units here, and what is installed is here already."""
    here = sysconfig.get_paths()["purelib"]
    texts = {
        "sudo": 'exec "$@"',
        "systemctl": 'for one; do shift; [ "$one" = --now ] || set -- "$@" "$one"; done\nexec /usr/bin/systemctl "$@"',
        "python3": f'{sys.executable} "$@" && if [ "$1 $2" = "-m venv" ]; then '
        f'for place in "$3"/lib/python3*/site-packages; do echo {here} > "$place/here.pth"; done; fi',
    }
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


def installed(clone: Path) -> None:
    """As after make's first minute, with reviews of one command each: make's own tests install for real."""
    command = clone / ".venv" / "bin" / "lamplighter"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -P -m tests.support.tiny_command "$@"\n')
    command.chmod(0o755)
    for stamp in (".service", ".node"):
        (clone / ".venv" / stamp).touch()


def every_command(group: typer.core.TyperGroup) -> Iterator[list[str]]:  # type: ignore[name-defined]
    for command in getattr(group, "commands", {}).values():
        yield [option for parameter in command.params for option in parameter.opts]
        yield from every_command(command)
