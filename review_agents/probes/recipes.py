"""Self-contained bash scripts: what a reader did before a command, then the command. They are what findings carry.

A script is for a clone of the repo with the package installed. It works in a folder of its own and brings the repo's
files that it needs there, so that it neither changes the clone nor imports from it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class File:
    """A file that the document shows."""

    name: str
    content: str


@dataclass(frozen=True, slots=True)
class Shell:
    """A command of the document, its output kept quiet unless it is the point."""

    text: str


@dataclass(frozen=True, slots=True)
class Python:
    """Python code of the document, run as one script."""

    text: str


Part = File | Shell | Python


def script(parts: Sequence[Part], *, bring: Iterable[str] = (), environment: dict[str, str] | None = None) -> str:
    """The whole script. All parts but the last are quiet; the script's status is the last part's.

    `bring`: names at the repo's root (folders or files) that the parts need.
    """
    lines = [f"export {name}={value}" for name, value in (environment or {}).items()]
    brought = sorted(set(bring))
    if brought:
        lines.append('repo=$PWD; cd "$(mktemp -d)"')
        lines.append("cp -R " + " ".join(f'"$repo"/{quoted(name)}' for name in brought) + " .")
    else:
        lines.append('cd "$(mktemp -d)"')
    for part in parts[:-1]:
        lines.append(_quiet(part))
    lines.append(render(parts[-1]))
    return "\n".join(lines) + "\n"


def render(part: Part) -> str:
    if isinstance(part, File):
        folder = part.name.rpartition("/")[0]
        made = f"mkdir -p {quoted(folder)}\n" if folder else ""
        return made + heredoc(f"cat > {quoted(part.name)}", part.content)
    if isinstance(part, Python):
        return heredoc("python -", part.text)
    return part.text


def _quiet(part: Part) -> str:
    if isinstance(part, File):
        return render(part)
    if isinstance(part, Python):
        return heredoc("python - > /dev/null", part.text)
    if re.match(r"^(?:cd|export|mkdir|cp|mv|touch|rm|alias|unset)\b", part.text) and "\n" not in part.text:
        return part.text
    if re.search(r"(?<![0-9&<>])>[^&]", part.text) and "\n" not in part.text and "|" not in part.text:
        return part.text
    if "<<" in part.text or "\n" in part.text:
        return f"{{ {part.text}\n}} > /dev/null"
    return f"{part.text} > /dev/null" if not re.search(r"[;&|]", part.text) else f"{{ {part.text}; }} > /dev/null"


def heredoc(command: str, text: str) -> str:
    """`command` fed with the text exactly, whatever is in it."""
    mark = "EOF"
    while mark in text.split("\n"):
        mark += "_"
    body = text if text.endswith("\n") or not text else text + "\n"
    return f"{command} <<'{mark}'\n{body}{mark}"


def quoted(name: str) -> str:
    return name if re.fullmatch(r"[\w@%+=:,./-]+", name) else "'" + name.replace("'", "'\\''") + "'"
