"""The systemd units: systemd itself reads them without a complaint, and what they start exists."""

import re
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest
import typer

from inference_node.__main__ import app as node
from orchestrator.cli.app import app
from orchestrator.settings import Settings

ROOT = Path(__file__).parents[3]
UNITS = sorted([*(ROOT / "orchestrator/systemd").iterdir(), *(ROOT / "inference_node/systemd").iterdir()])
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]
INSTALLED = "/opt/lamplighter/.venv/bin/"


def lines(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.M)


def test_systemd_reads_every_unit_without_a_complaint(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze (apt-get install systemd)")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("lamplighter", "lamplighter-node"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace(INSTALLED, f"{programs}/"))
    for unit in UNITS:
        said = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name)], capture_output=True, text=True
        )
        about_us = [line for line in (said.stdout + said.stderr).splitlines() if "lamplighter" in line]
        assert not about_us, "\n".join(about_us)


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_there_is_with_options_that_it_has(unit: Path) -> None:
    for command in lines(unit, "ExecStart") + lines(unit, "ExecStartPre"):
        program, name, *options = command.removeprefix(INSTALLED).split()
        assert command.startswith(INSTALLED)
        group = typer.main.get_command({"lamplighter": app, "lamplighter-node": node}[program])
        found = group.commands[name]  # type: ignore[attr-defined]
        known = {option for parameter in found.params for option in parameter.opts}
        assert {word for word in options if word.startswith("--")} <= known
    for setting in lines(unit, "Environment"):
        for name in re.findall(r"LAMPLIGHTER_(\w+)=", setting):
            assert name.lower() in Settings.model_fields


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.stem)
def test_a_unit_may_no_more_than_it_must(unit: Path) -> None:
    parsed = ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string(unit.read_text())
    service = parsed["Service"]
    assert service["NoNewPrivileges"] == "yes" and service["CapabilityBoundingSet"] == ""
    assert service["ProtectSystem"] == "strict" and service["PrivateTmp"] == "yes"
    if service["User"] == "root":  # the owner of the engine's socket
        assert unit.stem == "lamplighter-engine-proxy" and service["PrivateNetwork"] == "yes"
    assert "docker" not in service.get("SupplementaryGroups", "")
