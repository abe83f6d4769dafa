"""What is decided once for both backends: names, variables, mounts, the clone script, the instance."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.sandbox import box
from orchestrator.sandbox.cloning import bundle_files, clone_script
from orchestrator.sandbox.contract import BoxOrder, Limits, Role, SandboxError
from orchestrator.sandbox.instance import instance_of
from orchestrator.settings import Settings, load
from review_agents.records import Environment, Network


def settings(tmp_path: Path, **given: object) -> Settings:
    return load(data=tmp_path, **given)


def test_names_tell_the_review_back_and_only_of_this_instance():
    name = box.box_name("0a1b2c3d", BoxOrder("9f-review_1", "verify:ab/cd ef", 3))
    assert name == "lamplighter.0a1b2c3d.9f-review_1.verify-ab-cd-ef.3"
    assert box.review_of(name, "0a1b2c3d") == "9f-review_1"
    assert box.review_of(name, "ffffffff") is None
    assert box.review_of("trial-77", "0a1b2c3d") is None


def test_steps_with_long_names_stay_within_what_engines_take():
    assert len(box.box_name("0a1b2c3d", BoxOrder("x" * 80, "probe:" + "y" * 500, 1))) < 200


def test_sweep_spares_living_reviews_and_trials_that_may_still_run(monkeypatch: pytest.MonkeyPatch):
    trial = box.trial_review()
    box.check_review(trial)
    assert not box.to_sweep(trial, []) and not box.to_sweep("r", ["r"]) and box.to_sweep("r", ["other"])
    assert box.to_sweep("", [])
    for moved in (61e9, -61e9):  # by then it is over; or it comes from before the clock was set back
        monkeypatch.setattr("time.time_ns", lambda: int(trial.removeprefix("trial-")) + int(moved))  # noqa: B023
        assert box.to_sweep(trial, [])


def test_scratch_places_share_the_limit():
    for role in Role:
        order = BoxOrder("r", "s", 1, role=role, limits=Limits(scratch_bytes=1 << 20))
        assert sum(box.split_scratch(order).values()) <= 1 << 20


def test_workers_environment_never_gets_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    found = box.variables(settings(tmp_path), Environment.NONE, Network.NONE, "/opt/py/bin")
    assert "s3cr3t" not in str(found)
    assert found["PATH"].split(":")[0] == "/opt/py/bin" and "VIRTUAL_ENV" not in found


def test_environments_put_their_programs_first(tmp_path: Path):
    found = box.variables(settings(tmp_path), Environment.TEST, Network.NONE, "/usr/bin")
    assert found["PATH"].split(":")[:2] == ["/venv/test/bin", "/usr/bin"] and found["VIRTUAL_ENV"] == "/venv/test"
    assert found["PATH"].split(":").count("/usr/bin") == 1


def test_operators_settings_reach_the_commands(tmp_path: Path):
    ca = tmp_path / "ca.pem"
    ca.write_text("x")
    chosen = settings(
        tmp_path,
        sandbox_ca_file=ca,
        pip_index="https://index.example/simple",
        sandbox_env="A=1=2,HTTP_X=,TZ=Europe/Vienna",
    )
    inside = box.variables(chosen, Environment.PLAIN, Network.EGRESS, "/usr/bin")
    assert inside["PIP_INDEX_URL"] == "https://index.example/simple" and inside["SSL_CERT_FILE"] == box.CA_FILE
    assert (inside["A"], inside["HTTP_X"], inside["TZ"]) == ("1=2", "", "Europe/Vienna")
    assert "PIP_INDEX_URL" not in box.variables(chosen, Environment.PLAIN, Network.NONE, "/usr/bin")


@pytest.mark.parametrize("bad", ["NAME", "=value"])
def test_variable_without_name_or_value_is_refused(tmp_path: Path, bad: str):
    with pytest.raises(SandboxError, match="LAMPLIGHTER_SANDBOX_ENV"):
        box.variables(settings(tmp_path, sandbox_env=bad), Environment.NONE, Network.NONE, "/usr/bin")


def test_mounts_are_read_as_pairs_and_one_path_means_both(tmp_path: Path):
    assert box.operator_mounts(settings(tmp_path, sandbox_mounts="/a:/b,/c")) == [("/a", "/b"), ("/c", "/c")]


@pytest.mark.parametrize("bad", ["relative:/b", "/a:relative", "/a:/b/../../etc"])
def test_mounts_that_are_no_absolute_paths_are_refused(tmp_path: Path, bad: str):
    with pytest.raises(SandboxError, match="LAMPLIGHTER_SANDBOX_MOUNTS"):
        box.operator_mounts(settings(tmp_path, sandbox_mounts=bad))


def test_ca_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(SandboxError, match=r"LAMPLIGHTER_SANDBOX_CA_FILE.*missing\.pem"):
        box.read_ca(tmp_path / "missing.pem")


def test_paths_are_taken_from_the_repo_unless_absolute():
    assert box.inside("a/b") == "/job/repo/a/b" and box.inside("/tmp/x") == "/tmp/x" and box.inside(".") == "/job/repo"


def test_install_boxes_are_watched_for_disk_and_steps_are_not():
    order = BoxOrder("r", "s", 1, limits=Limits(memory_bytes=7))
    assert box.watched(Role.STEP, order.limits, memory=False) == {}
    assert box.watched(Role.STEP, order.limits, memory=True) == {"memory_bytes": 7}
    assert box.watched(Role.INSTALL, order.limits, memory=False)["folders"] == ["/base", "/venv"]
    assert box.setup_order(replace(order, role=Role.INSTALL))["copy"] is None
    assert box.setup_order(order)["copy"] == ["/base/repo", "/job/repo"]


def test_clone_script_holds_only_full_commit_ids():
    assert "commit=" + "a" * 40 in clone_script("a" * 40)
    assert "'/odd place/x'" in clone_script("a" * 64, "/odd place/x")
    for bad in ("main", "a" * 39, "A" * 40, "a" * 40 + "\n", "$(id)"):
        with pytest.raises(SandboxError, match="no full commit id"):
            clone_script(bad)


def test_list_of_a_cut_history_travels_with_its_bundle(tmp_path: Path):
    bundle = tmp_path / "x.bundle"
    assert bundle_files(bundle) == {"": bundle}
    shallow = tmp_path / "x.bundle.shallow"
    shallow.touch()
    assert bundle_files(bundle) == {"": bundle, ".shallow": shallow}


def test_instance_is_made_once_and_kept(tmp_path: Path):
    first = instance_of(tmp_path / "data")
    assert instance_of(tmp_path / "data") == first != instance_of(tmp_path / "other") and len(first) == 8


def test_instance_file_with_something_else_is_refused(tmp_path: Path):
    (tmp_path / "instance").write_text("../../etc")
    with pytest.raises(SandboxError, match="expected 8 hex digits"):
        instance_of(tmp_path)
    with pytest.raises(SandboxError, match="cannot be used"):
        instance_of(tmp_path / "instance")
