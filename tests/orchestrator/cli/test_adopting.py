import tomllib
from pathlib import Path

import pytest

from orchestrator.cli import adopting
from orchestrator.sandbox import package_index
from orchestrator.sandbox.package_index import Advice
from orchestrator.services.errors import OutsideError
from orchestrator.settings import Settings, load


@pytest.fixture(autouse=True)
def advice(monkeypatch: pytest.MonkeyPatch) -> Advice:
    """What a host's own pip might be configured with; how it is found is tests/orchestrator/sandbox's business."""
    found = Advice({"egress_allow_ranges": ("10.0.0.7",), "sandbox_ca_file": "/ca.pem"}, ("a note",))
    monkeypatch.setattr(package_index, "advise", lambda settings: found)
    return found


def test_what_pip_needs_is_written_and_is_what_the_next_start_reads(tmp_path: Path) -> None:
    said = "\n".join(adopting.adopt(Settings(data=tmp_path)))
    assert f"Written into {tmp_path / 'config.toml'}" in said and 'sandbox_ca_file = "/ca.pem"' in said
    assert "Note: a note." in said
    assert load(data=tmp_path).egress_allow_ranges == ("10.0.0.7",)


def test_what_the_file_says_already_is_kept_to_the_letter_and_said(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('# mine\nport = 9000\negress_allow_ranges = ["10.1.0.0/16"]')
    file.chmod(0o640)
    said = "\n".join(adopting.adopt(Settings(data=tmp_path)))
    assert file.read_text().startswith('# mine\nport = 9000\negress_allow_ranges = ["10.1.0.0/16"]\n#')
    assert tomllib.loads(file.read_text())["egress_allow_ranges"] == ["10.1.0.0/16"]
    assert "already sets egress_allow_ranges: left as it is" in said and '["10.0.0.7"]' in said
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_second_time_there_is_nothing_to_write(tmp_path: Path) -> None:
    adopting.adopt(Settings(data=tmp_path))
    before = (tmp_path / "config.toml").read_text()
    assert adopting.adopt(Settings(data=tmp_path))[-1].startswith("Nothing to write")
    assert (tmp_path / "config.toml").read_text() == before


def test_a_variable_that_wins_over_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMPLIGHTER_SANDBOX_CA_FILE", "/other.pem")
    assert any(
        "LAMPLIGHTER_SANDBOX_CA_FILE is set in the environment" in line for line in adopting.adopt(load(data=tmp_path))
    )


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="cannot be written"):
        adopting.adopt(Settings(data=tmp_path / "missing"))
