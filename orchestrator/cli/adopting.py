"""What a person does about a package index that reviews cannot reach: the lines for config.toml, and writing them."""

import os
import tomllib
from pathlib import Path

from orchestrator.sandbox import package_index
from orchestrator.sandbox.package_index import Advice, Way
from orchestrator.services.errors import OutsideError
from orchestrator.settings import PREFIX, Settings, from_file


def explain(settings: Settings, way: Way) -> str:
    """Why installations will fail, and what to do about it; several lines."""
    said = [f"Installations will not reach the package index: {way.problem}."]
    advice = package_index.advise(settings)
    after = package_index.try_way(package_index.with_advice(settings, advice)) if advice.lines else way
    if after.open:
        said.append(
            f"This machine's own pip is configured for it. Reviews are, too, with these lines in {file_of(settings)}:"
        )
        said += [f"    {line}" for line in advice.lines]
        said.append("`lamplighter doctor --adopt` writes them there; then start again.")
    elif advice.lines and after.problem != way.problem:
        said.append(f"With this machine's own pip configuration it would get further, but: {after.problem}.")
    else:
        said.append("This machine's own pip is not configured for another way: see docs/settings.md, Sandbox.")
    said += [f"Note: {note}." for note in advice.notes]
    return "\n".join(said)


def adopt(settings: Settings) -> list[str]:
    """Write what this host's own pip is configured with into config.toml; returns what was done, in lines.

    Nothing that the file already says is changed. Raises `OutsideError` when it cannot be written.
    """
    file = file_of(settings)
    advice = package_index.advise(settings)
    there = from_toml(file)
    new = Advice({name: value for name, value in advice.settings.items() if name not in there})
    said = [
        f"{file} already sets {name}: left as it is. Wanted: {line}" for name, line in named(advice) if name in there
    ]
    said += [
        f"{PREFIX}{name.upper()} is set in the environment and wins over the file."
        for name in new.settings
        if f"{PREFIX}{name.upper()}" in os.environ
    ]
    said += [f"Note: {note}." for note in advice.notes]
    if not new.settings:
        return [*said, f"Nothing to write into {file}."]
    append(file, new.lines)
    written = [f"    {line}" for line in new.lines]
    return [
        *said,
        f"Written into {file}:",
        *written,
        "What runs already read its settings at its start: start it again.",
    ]


def file_of(settings: Settings) -> Path:
    return settings.config or settings.data / "config.toml"


def named(advice: Advice) -> list[tuple[str, str]]:
    return list(zip(advice.settings, advice.lines, strict=True))


def from_toml(file: Path) -> dict[str, object]:
    return from_file(file, environment={}) if file.exists() else {}


def append(file: Path, lines: tuple[str, ...]) -> None:
    """Whole or not at all."""
    try:
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        gap = "" if not before or before.endswith("\n") else "\n"
        comment = "# By `lamplighter doctor --adopt`, from the configuration of this machine's own pip:"
        after = f"{before}{gap}{comment}\n" + "".join(f"{line}\n" for line in lines)
        tomllib.loads(after)
        partial = file.with_name(f"{file.name}.partial")
        partial.write_text(after, encoding="utf-8")
        if file.exists():
            partial.chmod(file.stat().st_mode & 0o777)
        partial.replace(file)
    except OSError as error:
        raise OutsideError(f"The settings file {file} cannot be written: {error}.", retry=False) from None
