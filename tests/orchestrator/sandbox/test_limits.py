"""Cgroups on recorded trees: what a v2 or hybrid machine offers, without being on one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.sandbox.contract import Limits, SandboxError
from orchestrator.sandbox.limits import Cgroups, Hierarchy, configured, cpu_list, for_measuring, hierarchies
from orchestrator.settings import load

V1_MOUNTS = """\
tmpfs /sys/fs/cgroup tmpfs rw,nosuid 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/pids\\040and cgroup rw,relatime,pids 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0
"""


def pure_v2(tmp_path: Path, controllers: str = "cpuset cpu io memory hugetlb pids rdma misc") -> tuple[Hierarchy, ...]:
    """A tree like that of Debian 12 with systemd: every controller at the root, none passed on yet."""
    root = tmp_path / "cgroup"
    root.mkdir()
    (root / "cgroup.controllers").write_text(controllers + "\n")
    (root / "cgroup.subtree_control").write_text("memory pids\n")
    return hierarchies(f"cgroup2 {root} cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0\n")


def test_v1_trees_are_found_by_their_controllers_and_odd_names_are_decoded():
    found = {str(tree.root): (tree.version, set(tree.controllers)) for tree in hierarchies(V1_MOUNTS)}
    assert found == {
        "/sys/fs/cgroup/cpuset": (1, {"cpuset"}),
        "/sys/fs/cgroup/memory": (1, {"memory"}),
        "/sys/fs/cgroup/pids and": (1, {"pids"}),
    }


def test_v2_tree_offers_what_its_controllers_file_names(tmp_path: Path):
    (tree,) = pure_v2(tmp_path)
    assert tree.version == 2 and tree.controllers == {"memory", "pids", "cpuset"}


def test_hybrid_machines_v2_tree_has_no_controllers_for_us(tmp_path: Path):
    (tree,) = pure_v2(tmp_path, controllers="hugetlb")
    assert tree.controllers == frozenset()


def test_v2_box_gets_its_limits_and_its_parents_pass_them_on(tmp_path: Path):
    trees = pure_v2(tmp_path)
    folder = tmp_path / "cgroup/lamplighter.abc/box"
    folder.mkdir(parents=True)
    for name in ("memory.max", "memory.swap.max", "pids.max", "cpuset.cpus"):
        (folder / name).touch()
    box = Cgroups("abc", trees).create("box", Limits(cpus=(2, 3), memory_bytes=1 << 30, pids=77))
    written = {path.name: path.read_text() for path in folder.iterdir()}
    assert written == {"memory.max": str(1 << 30), "memory.swap.max": "0", "pids.max": "77", "cpuset.cpus": "2,3"}
    assert (tmp_path / "cgroup/cgroup.subtree_control").read_text() in ("+cpuset", "+memory", "+pids")
    assert list(box.process_files) == [folder / "cgroup.procs"]
    assert list(box.mounts) == [(folder, "/sys/fs/cgroup")]


def test_v2_without_pinning_leaves_the_cpuset_alone(tmp_path: Path):
    trees = pure_v2(tmp_path)
    Cgroups("abc", trees).create("box", Limits())
    assert not (tmp_path / "cgroup/lamplighter.abc/box/cpuset.cpus").exists()


def test_v1_box_takes_over_the_cpuset_of_its_parents_because_an_empty_one_takes_no_process(tmp_path: Path):
    root = tmp_path / "cpuset"
    box = root / "lamplighter.abc/box"
    box.mkdir(parents=True)
    for folder in (root, box.parent, box):
        for name in ("cpuset.cpus", "cpuset.mems"):
            (folder / name).write_text({"cpuset.cpus": "0-7\n", "cpuset.mems": "0\n"}[name] if folder == root else "\n")
    trees = (Hierarchy(root, 1, frozenset({"cpuset"})),)
    Cgroups("abc", trees).create("box", Limits(cpus=(5,)))
    assert (box / "cpuset.cpus").read_text() == "5" and (box / "cpuset.mems").read_text() == "0\n"
    assert (box.parent / "cpuset.cpus").read_text() == "0-7\n"


def test_limits_whose_files_do_not_appear_are_named(tmp_path: Path):
    missing = Cgroups("abc", pure_v2(tmp_path)).missing_limits()  # a plain folder never grows limit files
    assert [text.split(" (")[0] for text in missing] == ["memory", "number of processes", "pinning to CPUs"]


def test_without_any_cgroup_tree_everything_is_missing():
    assert len(Cgroups("abc", ()).missing_limits()) == 3


def test_removing_leaves_a_later_box_of_the_same_name_alone(tmp_path: Path):
    cgroups = Cgroups("abc", pure_v2(tmp_path, controllers="hugetlb"))
    first = cgroups.create("box", Limits())
    place = tmp_path / "cgroup/lamplighter.abc/box"
    place.rename(tmp_path / "kept")  # so that its number is not given again
    second = cgroups.create("box", Limits())
    first.remove()
    assert place.is_dir() and cgroups.names() == {"box"}
    second.remove()
    assert not place.exists()
    cgroups.remove("box")  # quiet when there is nothing


def test_the_instances_folder_goes_with_its_last_box_and_comes_back_with_the_next(tmp_path: Path):
    cgroups = Cgroups("abc", pure_v2(tmp_path, controllers="hugetlb"))
    one, other = cgroups.create("one", Limits()), cgroups.create("other", Limits())
    one.remove()
    assert cgroups.names() == {"other"}
    other.remove()
    assert not (tmp_path / "cgroup/lamplighter.abc").exists() and cgroups.names() == set()
    cgroups.create("left by a killed worker", Limits())
    Cgroups("abc", cgroups.trees).remove("left by a killed worker")
    cgroups.missing_limits()  # makes one and takes it away
    assert not (tmp_path / "cgroup/lamplighter.abc").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make cgroups")
def test_boxes_that_end_do_not_take_the_folder_from_boxes_that_begin():
    """Both at once, in processes of their own as workers are; in the kernel's tree where that may be written."""
    script = (
        "import sys\n"
        "from orchestrator.sandbox.limits import Cgroups, Limits\n"
        "for at in range(300): Cgroups(sys.argv[1]).create(f'{sys.argv[2]}-{at}', Limits()).remove()"
    )
    instance = f"test{os.getpid()}"
    runs = [subprocess.Popen([sys.executable, "-c", script, instance, name], stderr=subprocess.PIPE) for name in "abc"]
    assert [run.communicate(timeout=120)[1].decode() for run in runs] == ["", "", ""]
    assert not [tree.root for tree in Cgroups(instance).trees if (tree.root / f"lamplighter.{instance}").exists()]


def test_cgroup_that_does_not_become_empty_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("orchestrator.sandbox.limits.REMOVAL_PATIENCE_S", 0.05)
    box = Cgroups("abc", pure_v2(tmp_path, controllers="hugetlb")).create("box", Limits())
    (tmp_path / "cgroup/lamplighter.abc/box/stuck").touch()
    with pytest.raises(SandboxError, match="does not become empty"):
        box.remove()


@pytest.mark.parametrize(("text", "cpus"), [("", ()), ("0", (0,)), (" 0 , 0-0 ", (0,))])
def test_cpu_lists_are_read(text: str, cpus: tuple[int, ...]):
    assert cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["a", "1-", "0-x", "-1", "5000"])
def test_cpu_lists_that_name_nothing_here_are_refused_by_name(text: str):
    with pytest.raises(SandboxError, match="LAMPLIGHTER_SANDBOX_CPUS"):
        cpu_list(text)


def test_settings_become_limits(tmp_path: Path):
    settings = load(data=tmp_path, sandbox_memory_bytes=5, sandbox_pids=6, sandbox_scratch_bytes=7, budget_minutes=2)
    limits = configured(settings)
    assert (limits.memory_bytes, limits.pids, limits.scratch_bytes, limits.step_s) == (5, 6, 7, 120.0)
    assert configured(settings, step_s=9).step_s == 9


def test_measuring_leaves_the_first_core_to_others_unless_the_operator_chose(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr("orchestrator.sandbox.limits.with_siblings", lambda cpus: (0, 2))
    assert for_measuring(load(sandbox_cpus="")) == (1, 3)
    assert for_measuring(load(sandbox_cpus="0-1")) == (0, 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2})
    assert for_measuring(load(sandbox_cpus="")) == ()  # one core only: not pinned
