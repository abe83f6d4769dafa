"""compose.yaml brought up for real: every service healthy, a review in sandboxes that the worker's container makes,
read again after a restart, and nothing of ours left when it is taken down.

On an engine of its own with a network of its own; public images are stand-ins (tests/support/standin_images.py).
What the pages for users say is typed as it stands there (tests/support/documented.py).
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from inference_node.settings import Settings as NodeSettings
from orchestrator.settings import PREFIX, Settings
from tests.support.boxes import git, own_settings
from tests.support.chromium import chromium
from tests.support.docker_engine import Engine, bridge_to_the_world, docker_engine
from tests.support.documented import COMPOSE, COMPOSED_NODE, RUN
from tests.support.host_settings import written
from tests.support.postgres import free_port
from tests.support.standin_images import ensure, ensure_for_building, ensure_with_wheels
from tests.support.terminal import Terminal
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]
COMPOSE_FILE = ROOT / "compose.yaml"
PROJECT = "lamplighter-test"
SERVICES = {"postgres", "redis", "web", "beat", "engine-proxy", "worker"}
LOOKED_AT_OFTEN = SERVICES - {"beat", "worker"}  # in this test; those two are in minutes
FILES_OF_IMAGES = ("compose.yaml", ".dockerignore", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")
NODES = {"node-cpu", "node-cuda", "node-rocm", "llama-server", "llama-swap"}
# Set by compose.yaml itself, of no use in a container, or not a setting of a running service.
NOT_HANDED_ON = {
    "data", "config", "host", "host_lock", "docker_url", "sandbox",
    "database_url", "database_password_file", "broker_url", "broker_password_file", "port",
}  # fmt: skip


def test_every_setting_that_makes_sense_in_a_container_is_handed_on_from_env() -> None:
    services = yaml.safe_load(COMPOSE_FILE.read_text())["services"]
    for name in ("web", "beat", "worker", "migrate"):
        given = {key.removeprefix(PREFIX).lower() for key in services[name]["environment"]}
        assert set(Settings.model_fields) - given <= NOT_HANDED_ON, name


def test_only_the_proxy_holds_the_engines_socket_and_only_the_web_port_is_published() -> None:
    services = yaml.safe_load(COMPOSE_FILE.read_text())["services"]
    holders = {name for name, one in services.items() if "docker.sock" in str(one.get("volumes"))}
    assert holders == {"engine-proxy"}
    assert services["engine-proxy"]["network_mode"] == "none"
    assert {name for name, one in services.items() if one.get("ports")} == {"web"}
    assert services["web"]["ports"] == ["${LAMPLIGHTER_PUBLISH:-127.0.0.1}:${LAMPLIGHTER_PORT:-8750}:8750"]
    for name in ("postgres", "redis", "beat", "migrate"):
        assert services[name]["networks"] == ["inside"], name
    for name in ("web", "beat", "worker", "migrate", "engine-proxy"):
        one = services[name]
        assert (one["read_only"], one["cap_drop"]) == (True, ["ALL"]), name
        assert one.get("user") == ("0" if name == "engine-proxy" else None)
        assert one["mem_limit"] and one["logging"]["options"]["max-size"]


@pytest.mark.parametrize("file", ["compose.yaml", "inference_node/compose.yaml"])
def test_each_way_to_run_a_node_is_a_profile_that_compose_can_read(file: str) -> None:
    if subprocess.run(["sh", "-c", "command -v docker-compose"], capture_output=True).returncode:
        pytest.skip("compose needs docker-compose (apt-get install docker-compose)")
    profiles = [word for node in sorted(NODES) for word in ("--profile", node)]
    said = subprocess.run(
        ["docker-compose", "-f", str(ROOT / file), *profiles, "config"], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    services = yaml.safe_load(said.stdout)["services"]
    assert services.keys() >= NODES
    for name in NODES:
        one = services[name]
        assert one["networks"]["outside"]["aliases"] == ["node"] and one["healthcheck"]["test"]
        assert (one["cap_drop"], one["pids_limit"], one["logging"]["options"]["max-file"]) == (["ALL"], 4096, "3")
        assert ("ports" in one) is (file != "compose.yaml")
        assert all(
            port["published"] if isinstance(port, dict) else port.startswith("127.0.0.1:")
            for port in one.get("ports", ())
        )
    rocm = services["node-rocm"]
    assert sorted(rocm["devices"]) == ["/dev/dri", "/dev/kfd"] and len(rocm["group_add"]) == 2
    assert services["node-cuda"]["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    known = {f"LAMPNODE_{name.upper()}" for name in NodeSettings.model_fields}
    for name in ("node-cpu", "node-cuda", "node-rocm"):
        assert {key for key in services[name]["environment"] if key.startswith("LAMPNODE_")} <= known


@pytest.mark.parametrize("file", ["compose.yaml", "inference_node/compose.yaml"])
def test_secrets_are_made_once_and_a_nodes_key_can_be_put_and_shown(file: str, tmp_path: Path) -> None:
    script = yaml.safe_load((ROOT / file).read_text())["services"]["prepare"]["entrypoint"][2]
    script = (
        script.replace("/secrets", str(tmp_path)).replace('"/data"', '"/nowhere"').replace('"/backups"', '"/nowhere"')
    )

    def prepare(*words: str, given: str = "") -> str:
        command = [sys.executable, "-c", script, *words]
        return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout

    assert prepare() == ""
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert len(set(made.values())) == len(made) and all(len(text) == 49 for text in made.values())
    prepare()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == made
    assert prepare("show", "node-key") == made["node-key"]
    prepare("put", "node-key", given="  from the other box\n")
    assert prepare("show", "node-key") == "from the other box\n"
    assert all(path.stat().st_mode & 0o777 == 0o444 for path in tmp_path.iterdir())


def test_the_template_of_settings_changes_nothing_until_a_line_is_uncommented() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    assert all(not line or line.startswith("#") for line in lines)
    offered = {line[1:].partition("=")[0] for line in lines if "=" in line and line.startswith("#") and line[1] != " "}
    composed = COMPOSE_FILE.read_text() + (ROOT / "inference_node/services.yaml").read_text()
    composed += (ROOT / "inference_node/compose.yaml").read_text()
    unused = {name for name in offered if name not in composed and name != "COMPOSE_PROFILES"}
    assert not unused, "compose does not use these"


@dataclass
class Stack:
    engine: Engine
    folder: Path
    port: int
    boxes: dict[str, dict[str, Any]] = field(default_factory=dict)  # of reviews, as the engine showed them
    typed: Terminal = field(init=False)  # in the clone

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def compose(self, *arguments: str, check: bool = True) -> str:
        tree = self.folder / "lamplighter"
        files = ["-f", str(tree / "compose.yaml"), "-f", str(self.folder / "override.yaml")]
        return self.composed("-p", PROJECT, "--project-directory", str(tree), *files, *arguments, check=check)

    def composed(self, *arguments: str, check: bool = True, cwd: Path | None = None, **more: str) -> str:
        """Compose with this stack's engine and settings, `more` of them."""
        command = ["docker-compose", *arguments]
        done = subprocess.run(command, cwd=cwd, env=self.environment(**more), capture_output=True, text=True)
        if check and done.returncode:
            raise AssertionError(f"docker-compose {' '.join(arguments)}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def environment(self, **more: str) -> dict[str, str]:
        ours = (PREFIX, "DOCKER", "COMPOSE")
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(ours)},
            "DOCKER_HOST": self.engine.url,
            "DOCKER_BUILDKIT": "0",
            "COMPOSE_DOCKER_CLI_BUILD": "0",
            "DOCKER_SOCKET": self.engine.url.removeprefix("unix://"),
            "LAMPLIGHTER_PORT": str(self.port),
            "LAMPLIGHTER_ALLOWED_ROOTS": "/repos",
            **self.settings(),
            **more,
        }

    def terminal(self, cwd: Path, **more: str) -> Terminal:
        """Where one types what the pages say. The old compose of Debian does what they say of `docker compose`."""
        programs = self.folder / "programs"
        programs.mkdir(exist_ok=True)
        (programs / "docker").write_text(AS_PLUGIN)
        (programs / "docker").chmod(0o755)
        cwd.mkdir(exist_ok=True)
        variables = self.environment(PATH=f"{programs}:{os.environ['PATH']}", TERM="dumb", **more)
        return Terminal(cwd, variables, as_here={"REPO": str(self.folder / "origin")}, patience_s=1200)

    def settings(self) -> dict[str, str]:
        """What installations need on this machine, the CA file where the override puts it."""
        here = {name: value for name, value in own_settings().items() if name in ("pip_index", "egress_allow_ranges")}
        if "sandbox_ca_file" in own_settings():
            here["sandbox_ca_file"] = "/run/ca.pem"
        return {f"{PREFIX}{name.upper()}": written(value) for name, value in here.items()}

    def health(self) -> dict[str, str]:
        """State of each service's container: its health where it has a check."""
        found = {}
        for container in self.inspected(f"label=com.docker.compose.project={PROJECT}"):
            state = container["State"]
            name = container["Config"]["Labels"]["com.docker.compose.service"]
            found[name] = state.get("Health", state).get("Status", state["Status"])
        return found

    def inspected(self, filter: str) -> list[dict[str, Any]]:
        names = self.engine.command("ps", "-aq", "--filter", filter).split()
        said = self.engine.command("inspect", *names, check=False) if names else "[]"
        return list(json.loads(said or "[]"))

    def container(self, service: str) -> str:
        labels = ("project=" + PROJECT, "service=" + service)
        filters = [word for label in labels for word in ("--filter", f"label=com.docker.compose.{label}")]
        return self.engine.command("ps", "-q", *filters).strip()

    def look_at_boxes(self) -> None:
        self.boxes |= {one["Name"]: one for one in self.inspected("label=lamplighter.review")}

    def get(self, path: str) -> Any:
        answer = httpx.get(f"{self.url}{path}", timeout=30)
        answer.raise_for_status()
        return answer.json()


AS_PLUGIN = """#!/bin/sh
case "$1 $2 $3" in
"compose cp web:"*) from=${3#web:}; exec /usr/bin/docker cp "$(docker-compose ps -q web):$from" "$4" ;;  # 1.29 has none
"compose "*) shift; exec docker-compose "$@" ;;
esac
exec /usr/bin/docker "$@"
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if subprocess.run(["sh", "-c", "command -v docker-compose"], capture_output=True).returncode:
        pytest.skip("compose needs docker-compose (apt-get install docker-compose)")
    folder = tmp_path_factory.mktemp("compose")
    make_repo(folder / "repos" / "tiny")
    copy_tree(folder / "origin")
    (folder / "override.yaml").write_text(override(folder))
    with (
        bridge_to_the_world("lamptests0", "10.213.0.1/24") as bridge,
        docker_engine(folder, bridge=bridge, networks="10.214.0.0/16", images="compose") as engine,
    ):
        ensure_for_building(engine, "python:3.11-slim-bookworm")
        ensure(engine, "postgres:15-bookworm")
        ensure(engine, "redis:7.0-bookworm")
        stack = Stack(engine, folder, free_port())
        override_file = folder / "override.yaml"
        stack.typed = stack.terminal(folder, COMPOSE_PROJECT_NAME=PROJECT, COMPOSE_FILE=f"compose.yaml:{override_file}")
        stack.typed.types("git clone REPO lamplighter && cd lamplighter")
        stack.compose("down", "-v", check=False)  # of a run that was killed; so the next two
        for kind, listed, gone in (("container", ("-aq",), ("-f", "-v")), ("volume", ("-q",), ("-f",))):
            names = engine.command(kind, "ls", *listed, "--filter", "label=lamplighter.instance").split()
            if names:
                engine.command(kind, "rm", *gone, *names)
        stack.typed.types("cp .env.example .env")
        try:
            yield stack
        finally:
            stack.compose("down", "-v", check=False)
            engine.command("image", "prune", "-f", "--filter", "until=240h", check=False)


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1500)  # about 4 minutes on a quiet machine, half of it building
def test_a_review_is_done_in_containers_and_read_again_after_a_restart(stack: Stack) -> None:
    types = stack.typed.types
    (stack.typed.cwd / "node-key.txt").write_text("what the node box printed\n")
    types("docker compose run --rm -T prepare put node-key < node-key.txt")
    types("docker compose --profile build build")
    types("docker compose up -d")
    wait_for(lambda: all_well(stack), 240, stack.health)
    assert stack.compose("run", "--rm", "-T", "prepare", "show", "node-key") == "what the node box printed\n"
    assert stack.get("/health/ready") == {"status": "ok", "problem": ""}

    page = submitted_in_chromium(stack, "/repos/tiny")
    path = f"/api{page}"
    wait_for(lambda: ended(stack, path), 600, lambda: stack.compose("logs", "--tail=60", "worker"))
    review = stack.get(path)
    assert (review["row"]["state"], review["row"]["error"]) == ("done", "")
    assert review["sandbox"]["name"] == "docker"
    states = {one["probe"]: (one["state"], one["reason"]) for one in review["evidence"]}
    assert states["install"][0] == "passed", states["install"]
    assert states["tests"][0] == "passed", states["tests"]
    shown = headings_in_chromium(stack, page)
    assert shown[0] == "tiny" and len(shown) > 2, shown

    assert stack.boxes
    for box in stack.boxes.values():
        assert box["HostConfig"]["NetworkMode"] == "none"
        assert {mount["Type"] for mount in box["Mounts"]} <= {"volume", "tmpfs"}, box["Mounts"]
    assert not stack.inspected("label=lamplighter.review")  # the review's boxes are gone

    look_at_walls(stack)
    look_as_the_pages_say(stack)
    stack.compose("restart")
    wait_for(lambda: all_well(stack), 240, stack.health)
    again = stack.get(path)
    assert (again["row"], again["findings"]) == (review["row"], review["findings"])
    assert headings_in_chromium(stack, page) == shown

    kept = types("docker compose exec -T web lamplighter backup --to /backups --keep 14").split()[-1]
    for _ in range(2):  # the next night's lies beside it
        types("docker compose cp web:/backups/. ./lamplighter-backups")
    assert Path(kept).name in [file.name for file in (stack.typed.cwd / "lamplighter-backups").iterdir()]
    httpx.post(f"{stack.url}/api/reviews", json={"target": "/repos/tiny", "force": True}).raise_for_status()
    types("docker compose exec web lamplighter accounts add ada", answers=["correct horse 9"] * 2)
    assert httpx.get(f"{stack.url}/api/reviews").status_code == 401
    types("docker compose stop web worker beat")
    stack.typed.as_here["FILE"] = Path(kept).name
    types("docker compose run --rm web restore /backups/FILE --replace")
    types("git pull && docker compose --profile build build && docker compose up -d")
    wait_for(lambda: all_well(stack), 240, stack.health)
    assert stack.get("/api/reviews")["total"] == 1  # neither the later review nor the account
    assert headings_in_chromium(stack, page) == shown

    types("make sandbox-image")
    types("docker compose down -v")
    types("docker image prune --filter label=lamplighter.image", answers=["y"])
    assert stack.typed.typed == set(RUN[COMPOSE])
    for kind in ("container", "volume", "network"):
        everything = ["-a"] if kind == "container" else []
        listed = stack.engine.command(kind, "ls", *everything, "--format", "{{json .}}")
        assert "lamplighter" not in listed, listed


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1500)  # about 3 minutes on a quiet machine, most of it building
def test_the_node_of_a_machine_of_its_own_is_built_and_answers_from_its_container(stack: Stack) -> None:
    """As docs/two-machines.md says, with its .env beside its file; on the CPU, with the model of the demo."""
    port = free_port()
    base = ensure_with_wheels(stack.engine, "python:3.11-slim-bookworm")
    typed = stack.terminal(stack.folder / "node-box", COMPOSE_PROJECT_NAME=f"{PROJECT}-node", PYTHON_IMAGE=base)
    typed.types("git clone REPO lamplighter && cd lamplighter/inference_node")
    typed.types("cp ../.env.example .env")
    folder = typed.cwd
    with (folder / ".env").open("a") as lines:
        lines.write(f"COMPOSE_PROFILES=node-cpu\nNODE_PORT={port}\n")

    def compose(*arguments: str) -> str:
        return stack.composed("-p", f"{PROJECT}-node", *arguments, cwd=folder, PYTHON_IMAGE=base)

    def healthy() -> bool:
        (state,) = (one["State"] for one in stack.inspected(f"label=com.docker.compose.project={PROJECT}-node")
                    if one["Config"]["Labels"]["com.docker.compose.service"] == "node-cpu")  # fmt: skip
        assert state["Running"], compose("logs", "--tail=60", "node-cpu")
        return bool(state["Health"]["Status"] == "healthy")

    try:
        typed.types("docker compose up -d --build")
        wait_for(healthy, 300, lambda: compose("logs", "--tail=60", "node-cpu"))
        typed.as_here["node-rocm"] = "node-cpu"  # there is no AMD card
        typed.types("docker compose logs -f node-rocm", until=r"node-cpu.*\|", status=(0, 1))
        where = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{where}/health", timeout=30).status_code == 200
        asked = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
        assert httpx.post(f"{where}/v1/chat/completions", json=asked, timeout=60).status_code == 401
        show = "run --rm -T prepare show node-key"
        screen, secret = typed.types(f"docker compose {show}"), compose(*show.split()).strip()
        assert len(secret) == 48 and secret in screen
        key = {"Authorization": f"Bearer {secret}"}
        models = httpx.get(f"{where}/v1/models", headers=key, timeout=30).json()["data"]
        answer = httpx.post(
            f"{where}/v1/chat/completions", headers=key, json={**asked, "model": models[0]["id"]}, timeout=240
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"].strip(), answer.text
        inside = ("exec", "-T", "node-cpu", "sh", "-c")
        assert typed.typed == set(RUN[COMPOSED_NODE])
        assert compose(*inside, "id -u && touch ~/.cache/kept && ! touch /models/new 2>/dev/null").strip() == "10002"
    finally:
        stack.composed("-p", f"{PROJECT}-node", "down", "-v", check=False, cwd=folder)


CREATE = """
import docker
engine = docker.DockerClient(base_url="unix:///run/engine/engine.sock")
try:
    engine.containers.create("lamplighter-sandbox:latest", privileged=True, name="lamplighter.x", volumes=["/:/host"])
except docker.errors.APIError as error:
    print(error.explanation)
"""


def look_at_walls(stack: Stack) -> None:
    """What a worker that was taken over would find: no socket but the proxy's, and no root on either side of it."""
    worker, web = (stack.container(name) for name in ("worker", "web"))
    assert "engine-proxy: " in stack.engine.command("exec", worker, "python", "-c", CREATE)
    assert stack.engine.command("exec", worker, "id", "-u").strip() == "10001"
    assert "ok   worker" in stack.engine.command(
        "exec", worker, "lamplighter", "doctor", "--only", "engine,broker,alive"
    )
    for one, place in (
        (worker, "/var/run/docker.sock"),
        (web, "/var/run/docker.sock"),
        (web, "/run/engine/engine.sock"),
    ):
        assert stack.engine.command("exec", one, "sh", "-c", f"test -e {place} || echo none").strip() == "none"
    containers = stack.inspected(f"label=com.docker.compose.project={PROJECT}")
    bindings = [ports for one in containers for ports in (one["HostConfig"]["PortBindings"] or {}).values()]
    assert bindings == [[{"HostIp": "127.0.0.1", "HostPort": str(stack.port)}]]


def look_as_the_pages_say(stack: Stack) -> None:
    types = stack.typed.types
    said = types("docker compose exec worker lamplighter doctor")
    assert "ok   sandbox: " in said and "BAD" not in said
    said = types("docker compose exec web lamplighter doctor --only database,broker,web,node")
    assert "ok   database: " in said and "ok   broker: " in said
    assert "engine-proxy" in types("docker compose ps && docker compose logs --tail=50")
    assert "web" in types("docker compose logs web")
    assert "engine-proxy" in types("docker compose logs engine-proxy")


def submitted_in_chromium(stack: Stack, target: str) -> str:
    """The path of the review's page, to which the form leads."""
    with chromium() as browser:
        tab = browser.new_page()
        tab.goto(stack.url)
        tab.get_by_label("Repository").fill(target)
        tab.get_by_role("button", name="Review it").click()
        tab.wait_for_url(re.compile(r"/reviews/[0-9a-f-]{36}$"))
        return tab.url.removeprefix(stack.url)


def headings_in_chromium(stack: Stack, path: str) -> list[str]:
    with chromium() as browser:
        tab = browser.new_page()
        tab.goto(f"{stack.url}{path}")
        return tab.locator("h1, h2, h3").all_inner_texts()


def all_well(stack: Stack) -> bool:
    state = stack.health()
    assert state.get("migrate", "exited") in ("exited", "running", "created"), state
    assert "unhealthy" not in state.values(), state
    return set(state) >= SERVICES and all(state[name] == "healthy" for name in LOOKED_AT_OFTEN)


def ended(stack: Stack, path: str) -> bool:
    stack.look_at_boxes()
    return stack.get(f"{path}/progress")["state"] in ("done", "failed", "cancelled")


def override(folder: Path) -> str:
    """What this machine adds: repos to review, its CA file, and a host lock that no other test waits for."""
    (folder / "lock").mkdir()
    (folder / "lock").chmod(0o1777)
    repos = f"{folder / 'repos'}:/repos:ro"
    worker = [repos, f"{folder / 'lock'}:/run/lock"]
    if authority := own_settings().get("sandbox_ca_file"):
        worker.append(f"{authority}:/run/ca.pem:ro")
    services: dict[str, Any] = {name: {"healthcheck": {"interval": "3s", "retries": 40}} for name in LOOKED_AT_OFTEN}
    services["web"]["volumes"], services["worker"] = [repos], {"volumes": worker}
    return json.dumps({"services": services})


def copy_tree(target: Path) -> None:
    """A repo to clone, with what images are built from, as it is now: each service's build must see the same files."""
    target.mkdir()
    for name in ("orchestrator", "review_agents", "inference_node", "migrations"):
        shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / ".ci", target / ".ci")
    for name in (*FILES_OF_IMAGES, "Makefile", ".env.example", ".gitignore"):
        shutil.copy2(ROOT / name, target / name)
    git(target, "init", "-q", "-b", "main")
    git(target, "add", "-A")
    git(target, "commit", "-q", "-m", "All of it")


def make_repo(folder: Path) -> None:
    files = {
        "pyproject.toml": '[build-system]\nrequires = ["setuptools>=61"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "tiny"\nversion = "1.0"\n[tool.setuptools]\npy-modules = ["tiny"]\n',
        "tiny.py": "def one():\n    return 1\n",
        "test_tiny.py": "import tiny\n\n\ndef test_one():\n    assert tiny.one() == 1\n",
        "README.md": "# tiny\n\n```python\n>>> import tiny\n>>> tiny.one()\n1\n\n```\n",
    }
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "All of it")
