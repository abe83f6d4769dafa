"""How the repo runs its tests, as it says itself: settings, README and CONTRIBUTING, tox, nox, hatch, Makefile, CI."""

import configparser
import re
import shlex

from review_agents.probes.manifest import Manifest, ReadText
from review_agents.records import Record

RUNNERS = re.compile(
    r"(?:python[\d.]*\s+-(?:W\S*|bb|X\s*\S+)\s+)?"
    r"(?:python[\d.]*\s+-m\s+(?:pytest|unittest)|py\.test|pytest"
    r"|(?:python[\d.]*\s+-m\s+)?coverage\s+run\s[^\n]*-m\s+(?:pytest|unittest)"
    r"|python[\d.]*\s+(?:manage\.py\s+test|setup\.py\s+test|(?:[\w./-]*/)?(?:run_?tests?|tests?)(?:/__main__)?\.py)"
    r"|(?:zope-testrunner|nosetests|trial|stestr)\b)[^\n&|;#]*"
)
LINE = re.compile(rf"^\s*(?:[$%>]\s+|-\s+(?:run:\s*)?|run:\s*)?((?:[A-Z_]+=\S+\s+)*{RUNNERS.pattern})\s*$")


class Command(Record):
    """One way to run the tests, cut down to what a single interpreter can run."""

    text: str
    source: str  # the file that names it, or "default"

    @property
    def is_pytest(self) -> bool:
        return bool(re.search(r"(?:^|\s)(?:-m\s+pytest|pytest|py\.test)(?:\s|$)", self.text))


def documented_commands(files: tuple[str, ...], manifests: tuple[Manifest, ...], read: ReadText) -> tuple[Command, ...]:
    """Every test command the repo names, the ones for people first, without repeats."""
    found: list[Command] = []
    tracked = set(files)
    names = [
        path
        for path in files
        if re.match(r"(?:readme|contributing|hacking|development|docs/(?:contributing|development))[\w.]*$", path, re.I)
    ]
    for path in sorted(names, key=lambda path: (not path.lower().startswith("readme"), path)):
        found.extend(Command(text=text, source=path) for text in lines_of(read(path) or ""))
    if "tox.ini" in tracked:
        found.extend(Command(text=text, source="tox.ini") for text in tox_commands(read("tox.ini") or ""))
    found.extend(
        Command(text=text, source="pyproject.toml") for manifest in manifests for text in tool_commands(manifest)
    )
    for path in ("Makefile", "justfile", "noxfile.py"):
        if path in tracked:
            found.extend(Command(text=text, source=path) for text in lines_of(read(path) or ""))
    for path in files:
        if re.fullmatch(r"\.github/workflows/[^/]+\.ya?ml", path):
            found.extend(Command(text=text, source=path) for text in lines_of(read(path) or ""))
    good = [one.model_copy(update={"text": runnable(one.text)}) for one in found]
    return tuple({one.text: one for one in good if one.text}.values())


def lines_of(text: str) -> list[str]:
    """Lines that are a test command as a whole."""
    found = []
    for line in text.splitlines():
        match = LINE.match(line.rstrip("\\ "))
        if match:
            found.append(match[1].strip())
    return found


def tox_commands(text: str) -> list[str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return []
    joined = parser.get("testenv", "commands", fallback="").replace("\\\n", " ")
    lines = [re.sub(r"^[\w!,{}.-]+:\s+", "", line.strip()).lstrip("- ") for line in joined.splitlines()]
    return [line for line in lines if RUNNERS.match(line)]


def tool_commands(manifest: Manifest) -> list[str]:
    """Test commands in pyproject.toml: hatch scripts, tox's own table, poe and pdm tasks."""
    found: list[str] = []

    def look(key: str, value: object) -> None:
        if isinstance(value, str) and is_command_key(key):
            found.extend([value.strip()] if RUNNERS.fullmatch(value.strip()) else [])
        elif isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            line = shlex.join(value)
            for text in [line] if RUNNERS.fullmatch(line) else value:
                look(key, text)
        elif isinstance(value, list):
            for item in value:
                look(key, item)
        elif isinstance(value, dict):
            scripts = key in ("scripts", "tasks")
            for name, item in value.items():
                look("commands" if scripts else name, item)

    for name in ("hatch", "tox", "poe", "pdm", "taskipy"):
        look(name, manifest.tools.get(name, {}))
    return found


def is_command_key(key: str) -> bool:
    return key in ("commands", "command", "cmd", "shell", "run", "script", "legacy_tox_ini") or key.startswith("test")


def runnable(text: str) -> str:
    """The command with placeholders resolved; "" where something in it cannot be known here."""
    text = re.sub(r"\{posargs(?::([^{}]*))?\}", lambda found: found[1] or "", text)
    text = re.sub(r"\{(?:toxinidir|tox_root)\}/?", "", text)
    text = re.sub(r"\{args(?::([^{}]*))?\}", lambda found: found[1] or "", text)
    text = re.sub(r"\$\((?:PYTHON|PYTEST)\)", lambda found: "python" if "PYTHON" in found[0] else "pytest", text)
    text = re.sub(r"\s+(?:\"\$@\"|\$@|\$\{?PYTEST_ARGS\}?|\$\(PYTEST_ARGS\)|\$\(ARGS\))", "", text).strip()
    if re.search(r"[{}$<>\[\]`]|\.\.\.|::", text):
        return ""
    return re.sub(r"^py\.test", "pytest", re.sub(r"\s+", " ", text))


# A repo's own script that is run before the tests, in the files that say how the repo is worked on.
STEP = re.compile(r"(?<![\w/.-])python[\d.]*\s+((?:[\w-]+/)*[\w-]+\.py)\b")
WORKED_ON = re.compile(
    r"(?:tox\.ini|noxfile\.py|(?:GNU)?[Mm]akefile|justfile|(?:contributing|develop\w*|hacking)[\w.]*"
    r"|\.github/workflows/[^/]+\.ya?ml|\.gitlab-ci\.yml|\.travis\.yml|appveyor\.yml)",
    re.I,
)


def preparing_steps(files: tuple[str, ...], read: ReadText) -> tuple[str, ...]:
    """Own scripts, setup and tests apart, that developers or CI run: what they make, a fresh clone lacks."""
    tracked, found = set(files), []
    for path in files:
        if WORKED_ON.fullmatch(path):
            for script in STEP.findall(read(path) or ""):
                if script in tracked and not re.search(
                    r"(?:^|/)(?:setup|conftest|(?:run_?)?tests?(?:_\w+)?)\.py$", script
                ):
                    found.append(f"`python {script}` of {path}")
    return tuple(dict.fromkeys(found))
