"""`make digests` against a real registry and a real engine: what is written, what compose makes of it, what is kept."""

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import httpx
import pytest

from tests.support.docker_engine import Engine, docker_engine
from tests.support.documented import DIGESTS, RUN
from tests.support.postgres import free_port
from tests.support.terminal import Terminal
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]
NAMES = ("PYTHON_IMAGE", "POSTGRES_IMAGE", "REDIS_IMAGE")


@dataclass
class Tree:
    """The files that it reads, beside a registry that has an image for each name."""

    folder: Path
    engine: Engine
    registry: str

    @property
    def env(self) -> Path:
        return self.folder / ".env"

    def image(self, name: str) -> str:
        return f"{self.registry}/{name.partition('_')[0].lower()}:1"

    def publish(self, name: str, content: str) -> str:
        """An image of one file; its digest, as the registry says it."""
        archive = self.folder / "image.tar"
        with tarfile.open(archive, "w") as tar:
            file = tarfile.TarInfo("content")
            file.size = len(content)
            tar.addfile(file, BytesIO(content.encode()))
        self.engine.command("import", str(archive), self.image(name))
        self.engine.command("push", self.image(name))
        repository, _, tag = self.image(name).rpartition(":")
        accept = {"Accept": "application/vnd.docker.distribution.manifest.v2+json"}
        where = f"http://{self.registry}/v2/{repository.rpartition('/')[2]}/manifests/{tag}"
        return httpx.head(where, headers=accept).headers["Docker-Content-Digest"]

    def digests(self, **settings: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": "/usr/sbin:/usr/bin:/bin", "DOCKER_HOST": self.engine.url, **settings}
        command = ["bash", str(self.folder / ".ci" / "digests")]
        return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("digests come from a registry of the test's own (apt-get install docker-registry)")
    folder = tmp_path_factory.mktemp("digests")
    for name in (".ci/digests", "Makefile", "compose.yaml", "inference_node/services.yaml"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    registry = f"127.0.0.1:{free_port()}"
    config = {"version": 0.1, "storage": {"filesystem": {"rootdirectory": str(folder / "kept")}}}
    (folder / "registry.yaml").write_text(f"{config | {'http': {'addr': registry}}}")
    with docker_engine(folder) as engine, (folder / "registry.log").open("w") as log:
        process = subprocess.Popen([program, "serve", str(folder / "registry.yaml")], stdout=log, stderr=log)
        try:
            wait_for(lambda: answers(registry), 20, (folder / "registry.log").read_text)
            yield Tree(folder, engine, registry)
            ours = engine.command("images", "--quiet", "--filter", f"reference={registry}/*").split()
            engine.command("rmi", "--force", *set(ours), check=False)
        finally:
            process.terminate()
            process.wait(20)


def answers(registry: str) -> bool:
    try:
        return httpx.get(f"http://{registry}/v2/").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.docker
def test_each_image_is_pinned_to_what_its_tag_is_now_and_the_other_lines_stay(tree: Tree) -> None:
    known = {name: tree.publish(name, name) for name in NAMES}
    tree.env.write_text("LAMPLIGHTER_PORT=9000\n" + "".join(f"{name}={tree.image(name)}\n" for name in NAMES))
    said = tree.digests()
    assert said.returncode == 0, said.stderr
    written = [f"{name}={tree.image(name)}@{known[name]}" for name in NAMES]
    assert tree.env.read_text().splitlines() == ["LAMPLIGHTER_PORT=9000", *written]

    changed = tree.publish("REDIS_IMAGE", "a newer one")
    assert changed != known["REDIS_IMAGE"] and tree.digests(IMAGES="REDIS_IMAGE").returncode == 0
    assert tree.env.read_text().splitlines()[1:] == [
        *written[:2],
        f"REDIS_IMAGE={tree.image('REDIS_IMAGE')}@{changed}",
    ]
    if shutil.which("docker-compose"):
        config = ["docker-compose", "--env-file", str(tree.env), "-f", str(ROOT / "compose.yaml"), "config"]
        shown = subprocess.run(config, capture_output=True, text=True, check=True).stdout
        assert f"image: {tree.image('REDIS_IMAGE')}@{changed}" in shown
        assert f"BASE: {tree.image('PYTHON_IMAGE')}@{known['PYTHON_IMAGE']}" in shown
    tree.engine.command("pull", f"{tree.image('REDIS_IMAGE')}@{changed}")  # it is a name that an engine takes


@pytest.mark.docker
def test_where_one_cannot_be_pulled_nothing_is_written(tree: Tree) -> None:
    tree.publish("PYTHON_IMAGE", "there")
    before = f"PYTHON_IMAGE={tree.image('PYTHON_IMAGE')}\nREDIS_IMAGE={tree.registry}/nobody:1\n"
    tree.env.write_text(before)
    said = tree.digests(IMAGES="PYTHON_IMAGE REDIS_IMAGE")
    assert said.returncode == 1 and f"{tree.registry}/nobody:1 could not be pulled" in said.stderr
    assert tree.env.read_text() == before and list(tree.folder.glob(".env*")) == [tree.env]


@pytest.mark.docker
def test_a_name_that_compose_does_not_use_is_refused_with_those_that_it_does(tree: Tree) -> None:
    said = tree.digests(IMAGES="PITHON_IMAGE")
    assert said.returncode == 2 and "PYTHON_IMAGE" in said.stderr and "ROCM_IMAGE" in said.stderr


@pytest.mark.docker
def test_the_lines_of_the_page_write_into_the_files_that_they_name(tree: Tree) -> None:
    for file, names in ((tree.env, NAMES), (tree.folder / "inference_node/.env", ("PYTHON_IMAGE", "ROCM_IMAGE"))):
        for name in names:
            tree.publish(name, name)
        file.write_text("".join(f"{name}={tree.image(name)}\n" for name in names))
    terminal = Terminal(tree.folder, {"PATH": os.environ["PATH"], "DOCKER_HOST": tree.engine.url})
    terminal.types("make digests")
    assert tree.env.read_text().count("@sha256:") == len(NAMES)
    terminal.types('make digests IMAGES="PYTHON_IMAGE ROCM_IMAGE" ENV=inference_node/.env')
    assert (tree.folder / "inference_node/.env").read_text().count("@sha256:") == 2
    assert terminal.typed == set(RUN[DIGESTS])
