"""Which of the host's interpreters a box gets."""

from pathlib import Path

import pytest
from packaging.version import Version

from orchestrator.sandbox import interpreters
from orchestrator.sandbox.contract import NeedsMissing
from orchestrator.sandbox.interpreters import Interpreter


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuple(
        Interpreter(Path(f"/opt/py/{version}/bin/python3"), version, Path(f"/opt/py/{version}"))
        for version in ("3.13.1", "3.12.4", "3.9.2")
    )
    monkeypatch.setattr(interpreters, "found", lambda: found)


@pytest.mark.parametrize(
    ("wanted", "version"),
    [
        ("", "3.13.1"),
        (">=3.8", "3.13.1"),
        ("<3.13", "3.12.4"),
        ("~=3.9.0", "3.9.2"),
        (">=3.8,!=3.13.*", "3.12.4"),
        ("==3.9.*", "3.9.2"),
    ],
)
@pytest.mark.usefixtures("known")
def test_newest_that_satisfies_is_chosen(wanted: str, version: str):
    assert interpreters.choose(wanted).version == version


@pytest.mark.usefixtures("known")
def test_nothing_that_satisfies_names_what_is_needed_and_what_is_here():
    with pytest.raises(NeedsMissing, match=r"needs Python >=3\.14; this sandbox has 3\.13\.1, 3\.12\.4, 3\.9\.2"):
        interpreters.choose(">=3.14")
    with pytest.raises(NeedsMissing, match="no version specifier"):
        interpreters.choose("3 or so")


def test_interpreters_of_this_machine_are_real_final_and_ordered():
    found = interpreters.found()
    assert found, "this machine has no interpreter with venv, ensurepip, ssl and ctypes"
    versions = [Version(one.version) for one in found]
    assert versions == sorted(versions, reverse=True)
    assert all(not version.is_prerelease and version.release >= (3, 8) for version in versions)
    assert all(one.path.is_relative_to(one.prefix) or not one.outside_usr for one in found)


def test_scripts_and_broken_programs_are_no_interpreters(tmp_path: Path):
    script = tmp_path / "python3"
    script.write_text('#!/bin/sh\nexec /usr/bin/python3 "$@"\n')
    script.chmod(0o755)
    assert interpreters.ask(script) is None
    broken = tmp_path / "python3.9"
    broken.write_bytes(b"\x7fELF broken")
    broken.chmod(0o755)
    assert interpreters.ask(broken) is None
    assert interpreters.ask(tmp_path / "missing") is None


def test_interpreter_that_others_may_not_read_is_left_out(tmp_path: Path):
    closed = tmp_path / "python3"
    closed.write_bytes(b"")
    closed.chmod(0o700)
    assert not interpreters.others_can_read(closed)
    closed.chmod(0o755)
    assert interpreters.others_can_read(closed)
