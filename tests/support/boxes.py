"""Real sandboxes for tests: a repo folder goes in, an open workspace comes out.

    with open_workspace(tmp_path / "repo", data=tmp_path / "data") as place:      # bubblewrap
        place.workspace.run("python --version")

    with open_workspace(repo, data=..., install="python -m venv /venv/plain && /venv/plain/bin/pip install .") as place:
        place.workspace.run("my-command --help")           # step box, network none

    with open_workspace(repo, data=..., role=Role.INSTALL, egress=True) as place:
        place.workspace.run("pip download attrs", network=Network.EGRESS)
        step = place.reopen("probe:next")                  # a fresh step box on the same volumes

The folder need not be a git repo; then all its files become one commit. Without bubblewrap the
test is skipped, loudly. Settings come from `here()`, which makes installs work on this machine.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from orchestrator.sandbox import package_index
from orchestrator.sandbox.bubblewrap import Bubblewrap
from orchestrator.sandbox.contract import Box, BoxOrder, Role, Sandbox, SandboxError
from orchestrator.sandbox.limits import configured
from orchestrator.sandbox.workspace import BoxWorkspace
from orchestrator.settings import Settings, load
from review_agents.records import Network, Ran, Repo

AUTHOR = {
    "GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org", "GIT_AUTHOR_DATE": "2025-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.org", "GIT_COMMITTER_DATE": "2025-01-01T00:00:00Z",
}  # fmt: skip
REVIEW = "review-1"


@dataclass
class Place:
    """An open box with everything around it."""

    workspace: BoxWorkspace
    box: Box
    sandbox: Sandbox
    settings: Settings
    repo: Repo
    review: str
    installed: Ran | None = None
    opened: list[Box] = field(default_factory=list)

    def reopen(self, step: str = "probe:next", *, role: Role = Role.STEP, **order: Any) -> BoxWorkspace:
        """Destroy the current box and open another on the same volumes."""
        self.box.destroy()
        order.setdefault("limits", configured(self.settings))
        self.box = self.sandbox.open(BoxOrder(self.review, step, len(self.opened) + 1, role=role, **order))
        self.opened.append(self.box)
        self.workspace = BoxWorkspace(self.box)
        return self.workspace


@contextmanager
def open_workspace(
    folder: Path,
    *,
    data: Path,
    sandbox: Sandbox | None = None,
    role: Role = Role.STEP,
    egress: bool = False,
    install: str = "",
    requires_python: str = "",
    review: str = REVIEW,
    settings: dict[str, Any] | None = None,
) -> Iterator[Place]:
    """A prepared review and an open box on it; all of it is gone afterwards.

    install     run first, in an install box with egress; must exit 0
    settings    settings to override
    """
    chosen = here(data=data, **(settings or {}))
    sandbox = sandbox or bubblewrap(chosen)
    bundle, repo = bundled(folder, data)
    sandbox.prepare(review, bundle, repo.commit)
    opened: list[Box] = []
    try:
        installed = None
        common: dict[str, Any] = {"limits": configured(chosen), "requires_python": requires_python}
        if install:
            opened.append(sandbox.open(BoxOrder(review, "prepare", 1, Role.INSTALL, egress=True, **common)))
            installed = opened[-1].run(install, network=Network.EGRESS, timeout_s=900)
            opened[-1].destroy()
            assert installed.ok, installed.output[-4000:]
        opened.append(sandbox.open(BoxOrder(review, "probe:test", 1, role, egress=egress, **common)))
        place = Place(BoxWorkspace(opened[-1]), opened[-1], sandbox, chosen, repo, review, installed, opened)
        yield place
    finally:
        for box in opened:
            box.destroy()
        sandbox.drop(review)


def bubblewrap(settings: Settings) -> Bubblewrap:
    try:
        sandbox = Bubblewrap(settings)
        sandbox.check()
    except SandboxError as error:
        pytest.skip(f"bubblewrap does not work here: {error}")
    return sandbox


def bundled(folder: Path, where: Path) -> tuple[Path, Repo]:
    """A git bundle of the folder's HEAD, made in `where`, and the Repo record of that commit."""
    where.mkdir(parents=True, exist_ok=True)
    if not (folder / ".git").exists():
        git(folder, "init", "-q", "-b", "main")
        git(folder, "add", "-A", "-f")
        git(folder, "commit", "-q", "--allow-empty", "-m", "All of it")
    bundle = where / f"{folder.name}.bundle"
    git(folder, "bundle", "create", "-q", str(bundle), "--all")
    files = git(folder, "ls-files", "-z").split("\0")
    return bundle, Repo(
        name=folder.name,
        url=str(folder),
        ref="main",
        commit=git(folder, "rev-parse", "HEAD").strip(),
        commit_date=git(folder, "show", "-s", "--format=%cI", "HEAD").strip(),
        files=tuple(sorted(filter(None, files))),
        today="2025-01-02",
    )


def git(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, **AUTHOR, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        ["git", "-c", "safe.directory=*", *arguments],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def here(**given: Any) -> Settings:
    """Settings with which installs work on this machine: its package index, CA file and mirrors as settings."""
    return load(**{**own_settings(), **given})


@cache
def own_settings() -> dict[str, Any]:
    """What `lamplighter doctor --adopt` would write here for somebody who has written nothing yet."""
    with tempfile.TemporaryDirectory() as empty:  # not the person's own data folder: its settings may be adopted ones
        return package_index.advise(load(data=Path(empty))).settings
