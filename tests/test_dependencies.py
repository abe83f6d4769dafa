"""What is declared is pinned, what is pinned is installed, and nothing else is asked of a package index."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from orchestrator.sandbox.package_index import certificate_file, pip_configuration

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [line.partition("#")[0].strip() for line in lines]
    return {canonicalize_name(name): version for name, _, version in (one.partition("==") for one in found if one)}


def declared() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    given = [*PROJECT["dependencies"], *(one for extra in extras for one in extra)]
    return [one for one in map(Requirement, given) if canonicalize_name(one.name) != "lamplighter"]


@pytest.mark.parametrize("wanted", declared(), ids=lambda one: one.name)
def test_a_declared_dependency_is_pinned_within_its_range(wanted: Requirement) -> None:
    version = pins()[canonicalize_name(wanted.name)]
    assert wanted.specifier.contains(version, prereleases=True), f"{wanted} does not allow the pinned {version}"
    assert wanted.url is None, "from the index only"


def test_the_torch_in_amds_image_is_new_enough_for_the_node() -> None:
    """Nothing else would tell: the image's torch stays, so pip is not asked about it."""
    files = ("inference_node/services.yaml", ".env.example")
    tags = [
        re.findall(r"rocm/pytorch:(\S+release_[0-9.]+)", (ROOT / name).read_text(encoding="utf-8")) for name in files
    ]
    assert tags[0] == tags[1] and len(tags[0]) == 1, tags
    (tag,) = tags[0]
    python, torch = re.findall(r"_py([0-9.]+)_pytorch_release_([0-9.]+)$", tag)[0]
    (wanted,) = {str(one.specifier) for one in declared() if one.name == "torch"}
    assert SpecifierSet(wanted).contains(torch), f"torch{wanted} does not allow the {torch} of {tag}"
    assert SpecifierSet(PROJECT["requires-python"]).contains(python)


def test_every_pin_is_exact() -> None:
    assert pins() and all(re.fullmatch(r"[0-9][0-9A-Za-z.+!-]*", version) for version in pins().values())


def test_the_torch_of_the_index_accepts_the_pins_beside_it() -> None:
    """A build from elsewhere, such as one for CPUs alone, asks for less, so what is installed here tells nothing."""
    config = pip_configuration()
    elsewhere = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL")
    only_the_index = {name: value for name, value in os.environ.items() if name not in elsewhere}
    only_the_index["PIP_CONFIG_FILE"] = os.devnull
    only_the_index |= {"PIP_INDEX_URL": config["index-url"]} if "index-url" in config else {}
    if authority := certificate_file(config):
        only_the_index["PIP_CERT"] = str(authority)
    ask = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--use-feature=fast-deps", "--report", "-"]
    asked = [sys.executable, "-m", "pip", "install", *ask, f"torch=={pins()['torch']}"]
    said = subprocess.run(asked, env=only_the_index, capture_output=True, text=True)
    if said.returncode:
        pytest.skip(f"the package index tells nothing about torch: {said.stderr.strip()[-300:]}")
    (torch,) = json.loads(said.stdout)["install"]
    wanted = [Requirement(text) for text in torch["metadata"]["requires_dist"]]
    asked_here = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    held = {one.name: pins()[name] for one in asked_here if (name := canonicalize_name(one.name)) in pins()}
    assert "triton" in held or sys.platform != "linux"
    refused = [str(one) for one in asked_here if one.name in held and held[one.name] not in one.specifier]
    assert not refused, f"constraints.txt has {held}"


def test_what_the_service_needs_is_installed_as_pinned() -> None:
    """With what that needs in turn: a version that nobody chose would come in by itself."""
    waiting = [canonicalize_name(Requirement(one).name) for one in PROJECT["dependencies"]]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform
        assert pins().get(name) == found.version, f"{name} {found.version} is installed; pinned is {pins().get(name)}"
        for text in found.requires or ():
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(one.name))
    assert len(seen) > 30


@pytest.mark.parametrize("package", ["orchestrator", "review_agents", "inference_node"])
def test_what_is_imported_is_declared_for_those_who_install_only_that(package: str) -> None:
    """In the environment of the tests the node started, with a library that only the tests declared."""
    extra = PROJECT["optional-dependencies"]["node"] if package == "inference_node" else []
    names = {canonicalize_name(Requirement(one).name) for one in (*PROJECT["dependencies"], *extra)}
    comes_from = metadata.packages_distributions()
    imported = third_party(ROOT / package)
    assert len(imported) > 3
    for module, file in imported.items():
        given_by = {canonicalize_name(one) for one in comes_from.get(module, ())}
        assert given_by & names, f"{file} imports {module} of {given_by or 'nothing installed'}, which is not declared"


def third_party(package: Path) -> dict[str, str]:
    """Module to one file that imports it, anywhere in it. What is run inside sandboxes has the repo's environment."""
    found: dict[str, str] = {}
    for file in sorted(file for file in package.rglob("*.py") if file.parent.name != "inside"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            found |= {name.partition(".")[0]: str(file.relative_to(ROOT)) for name in names}
    own = {"orchestrator", "review_agents", "inference_node"}
    return {name: file for name, file in found.items() if name not in sys.stdlib_module_names | own}


def test_the_audit_says_when_it_can_reach_nobody(tmp_path: Path) -> None:
    """With an index that is not there: no database was asked, which is not the same as nothing found."""
    environment = {
        "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHON": sys.executable,
        "PIP_INDEX_URL": "https://index.invalid/simple", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": "/dev/null",
        "PIP_TIMEOUT": "2", "TMPDIR": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run([ROOT / ".ci/audit"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stdout + done.stderr
    assert not list(tmp_path.glob("tmp.*")), "the throw-away environment stayed"
