"""What a repo's tests need beside the package itself, gathered from every place where projects write it down."""

import ast
import configparser
import re
import shlex
from collections.abc import Iterable
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from review_agents.probes.manifest import Manifest, ReadText, valid_requirement
from review_agents.records import Record

FOR_TESTS = ("test", "tests", "testing", "tests-require", "pytest", "unittest", "ci", "test-all", "all-tests")
FOR_DEVELOPERS = ("dev", "develop", "development", "devel", "all", "full", "complete", "quality", "check", "lint")
FOR_ALL = ("all", "full", "complete")

# An option in pytest's settings -> the distribution that provides it. Without it pytest refuses to start.
PYTEST_OPTIONS = {
    "--cov": "pytest-cov",
    "--no-cov": "pytest-cov",
    "-n": "pytest-xdist",
    "--numprocesses": "pytest-xdist",
    "--dist": "pytest-xdist",
    "--timeout": "pytest-timeout",
    "--asyncio-mode": "pytest-asyncio",
    "--benchmark": "pytest-benchmark",
    "--doctest-plus": "pytest-doctestplus",
    "--doctest-rst": "pytest-doctestplus",
    "--mypy": "pytest-mypy",
    "--randomly": "pytest-randomly",
    "--random-order": "pytest-random-order",
    "--reruns": "pytest-rerunfailures",
    "--html": "pytest-html",
    "--black": "pytest-black",
    "--flake8": "pytest-flake8",
    "--ruff": "pytest-ruff",
    "--isort": "pytest-isort",
    "--snapshot": "syrupy",
    "--django": "pytest-django",
    "--ds": "pytest-django",
    "--reuse-db": "pytest-django",
    "--nomigrations": "pytest-django",
    "--picked": "pytest-picked",
    "--memray": "pytest-memray",
    "--codeblocks": "pytest-codeblocks",
    "--sugar": "pytest-sugar",
    "--instafail": "pytest-instafail",
    "--hypothesis": "hypothesis",
    "--typeguard": "typeguard",
    "--beartype": "pytest-beartype",
    "--disable-socket": "pytest-socket",
    "--allow-hosts": "pytest-socket",
    "--strict-config": "",
}
PYTEST_SETTINGS = {
    "asyncio_mode": "pytest-asyncio",
    "asyncio_default_fixture_loop_scope": "pytest-asyncio",
    "timeout": "pytest-timeout",
    "timeout_method": "pytest-timeout",
    "doctest_plus": "pytest-doctestplus",
    "DJANGO_SETTINGS_MODULE": "pytest-django",
    "trio_mode": "pytest-trio",
    "env": "pytest-env",
    "mock_use_standalone_module": "pytest-mock",
}
# Import name -> distribution, only for tools that tests commonly use and whose distribution is beyond doubt.
WELL_KNOWN = {
    "hypothesis": "hypothesis", "mock": "mock", "freezegun": "freezegun", "responses": "responses", "numpy": "numpy",
    "requests_mock": "requests-mock", "pytest_mock": "pytest-mock", "pytest_asyncio": "pytest-asyncio",
    "pytest_cov": "pytest-cov", "xdist": "pytest-xdist", "parameterized": "parameterized", "ddt": "ddt",
    "yaml": "pyyaml", "trio": "trio", "anyio": "anyio", "pandas": "pandas", "requests": "requests", "httpx": "httpx",
    "respx": "respx", "pytest_httpserver": "pytest-httpserver", "syrupy": "syrupy", "time_machine": "time-machine",
    "inline_snapshot": "inline-snapshot", "dirty_equals": "dirty-equals", "pytest_benchmark": "pytest-benchmark",
    "pytest_subtests": "pytest-subtests", "testfixtures": "testfixtures", "setuptools": "setuptools",
    "pkg_resources": "setuptools<81", "attr": "attrs", "attrs": "attrs", "psutil": "psutil", "pexpect": "pexpect",
    "coverage": "coverage", "sybil": "sybil", "testpath": "testpath", "pretend": "pretend", "wheel": "wheel",
    "cloudpickle": "cloudpickle", "typing_extensions": "typing-extensions", "docutils": "docutils", "build": "build",
    "sphinx": "sphinx", "jinja2": "jinja2", "packaging": "packaging", "tomli": "tomli", "toml": "toml",
    "click": "click", "asgiref": "asgiref", "aiohttp": "aiohttp", "flask": "flask", "virtualenv": "virtualenv",
    "sortedcontainers": "sortedcontainers", "pytest_freezer": "pytest-freezer", "pytest_httpx": "pytest-httpx",
    "pytest_datadir": "pytest-datadir", "pytest_regressions": "pytest-regressions", "pyfakefs": "pyfakefs",
    "pytest_trio": "pytest-trio", "pytest_django": "pytest-django", "pytest_timeout": "pytest-timeout",
}  # fmt: skip
# Fixtures and marks that come from a plugin and need no import -> the plugin's module.
FIXTURES = {
    "mocker": "pytest_mock",
    "benchmark": "pytest_benchmark",
    "httpserver": "pytest_httpserver",
    "requests_mock": "requests_mock",
    "snapshot": "syrupy",
    "freezer": "pytest_freezer",
    "respx_mock": "respx",
    "httpx_mock": "pytest_httpx",
    "datadir": "pytest_datadir",
    "file_regression": "pytest_regressions",
    "data_regression": "pytest_regressions",
    "fs": "pyfakefs",
}
MARKS = {
    "asyncio": "pytest_asyncio",
    "anyio": "anyio",
    "trio": "pytest_trio",
    "django_db": "pytest_django",
    "timeout": "pytest_timeout",
    "benchmark": "pytest_benchmark",
    "freeze_time": "pytest_freezer",
}


class Source(Record):
    """One place that names test needs. Tier 1 is for tests, tier 2 for developers at large."""

    label: str  # for example "extra test" or "requirements-dev.txt"
    tier: int
    extras: tuple[str, ...] = ()  # of the project itself
    requirements: tuple[str, ...] = ()
    file: str = ""  # a requirements file, relative to the repo


def sources(
    manifest: Manifest | None, extras: Iterable[str], files: Iterable[str], read: ReadText
) -> tuple[Source, ...]:
    """Every source in the order in which it should be tried. `extras` are those that the built metadata provides."""
    tracked = tuple(files)
    root = manifest.root if manifest else "."
    found = [*_extras(extras), *_groups(manifest), *_requirement_files(tracked, root)]
    if manifest is not None:
        found.extend(_hatch(manifest))
        found.extend(_tox_table(manifest))
    for path, parse in (("tox.ini", tox_needs), ("noxfile.py", nox_needs), ("setup.cfg", setup_cfg_tox)):
        text = read(path if root == "." else f"{root}/{path}")
        source = parse(text) if text else None
        if source is not None:
            found.append(source)
    return tuple(sorted(found, key=lambda source: source.tier))


def _tier(name: str) -> int:
    plain = canonicalize_name(name)
    if plain in FOR_TESTS or re.fullmatch(r"(py)?tests?(-.*)?|.*-tests?", plain):
        return 1
    return 2 if plain in FOR_DEVELOPERS else 0


def is_for_users(extra: str) -> bool:
    """Whether the extra is an optional part of the package, not what only its developers install."""
    return not _tier(extra) or canonicalize_name(extra) in FOR_ALL


def _extras(extras: Iterable[str]) -> list[Source]:
    return [Source(label=f"extra {name}", tier=_tier(name), extras=(name,)) for name in extras if _tier(name)]


def named_for(modules: Iterable[str], manifest: Manifest, requires: Iterable[str]) -> tuple[Source, ...]:
    """Extras and groups of any name that bring one of the modules: optional parts of the package that tests need."""
    wanted = {canonicalize_name(WELL_KNOWN.get(module, module)) for module in modules}
    found = []
    extras = {name: set(map(_plain_name, good(needs))) for name, needs in manifest.extras.items()}
    for text in requires:
        if valid_requirement(text) and (named := re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", text)):
            extras.setdefault(named[1], set()).add(_plain_name(text))
    for name, names in extras.items():
        if names & wanted:
            found.append(Source(label=f"extra {name}", tier=3, extras=(name,)))
    for name, needs in manifest.groups.items():
        picked = tuple(need for need in good(needs) if _plain_name(need) in wanted)
        if picked:
            found.append(Source(label=f"dependency group {name}", tier=3, requirements=picked))
    return tuple(found)


def _plain_name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def _groups(manifest: Manifest | None) -> list[Source]:
    if manifest is None:
        return []
    return [
        Source(label=f"dependency group {name}", tier=_tier(name), requirements=good(needs))
        for name, needs in manifest.groups.items()
        if _tier(name) and needs
    ]


def _requirement_files(tracked: tuple[str, ...], root: str) -> list[Source]:
    found = []
    prefix = "" if root == "." else f"{root}/"
    for path in tracked:
        if not path.endswith((".txt", ".in")) or not path.startswith(prefix):
            continue
        plain = path[len(prefix) :].lower()
        if path.endswith(".in") and f"{path[:-3]}.txt" in tracked:
            continue
        stem = (
            re.sub(r"\.(txt|in)$", "", plain)
            .replace("requirements/", "requirements-")
            .replace("_", "-")
            .replace(".", "-")
        )
        stem = re.sub(r"^(tests?)/requirements$", r"\1-requirements", stem)
        word = re.fullmatch(r"(?:requirements?|reqs?)-(.+)|(.+)-(?:requirements?|reqs?)|tests/requirements-(.+)", stem)
        if word:
            tier = _tier(next(filter(None, word.groups())))
            if tier:
                found.append(Source(label=path, tier=tier, file=path))
    return found


def _hatch(manifest: Manifest) -> list[Source]:
    found = []
    envs = manifest.tools.get("hatch", {}).get("envs", {}) if isinstance(manifest.tools.get("hatch"), dict) else {}
    for name, env in envs.items() if isinstance(envs, dict) else ():
        if not isinstance(env, dict) or not (_tier(name) or name == "default"):
            continue
        needs = [*_list(env, "dependencies"), *_list(env, "extra-dependencies")]
        needs = [need for need in needs if "{" not in need]
        features = tuple(_list(env, "features"))
        if needs or features:
            tier = _tier(name) or 1
            found.append(
                Source(label=f"hatch environment {name}", tier=tier, extras=features, requirements=good(needs))
            )
    return found


def _tox_table(manifest: Manifest) -> list[Source]:
    """tox settings in pyproject.toml: an ini text, or tox 4's own tables."""
    tox = manifest.tools.get("tox")
    if not isinstance(tox, dict):
        return []
    legacy = tox_needs(str(tox.get("legacy_tox_ini") or ""))
    if legacy is not None:
        return [legacy.model_copy(update={"label": "pyproject.toml's tox settings"})]
    envs = tox.get("env") if isinstance(tox.get("env"), dict) else {}
    tables = [
        tox.get("env_run_base"),
        *(env for name, env in (envs or {}).items() if _tier(name) == 1 or name[:2] == "py"),
    ]
    needs = [need for table in tables if isinstance(table, dict) for need in _list(table, "deps")]
    extras = [extra for table in tables if isinstance(table, dict) for extra in _list(table, "extras")]
    if not good(needs) and not extras:
        return []
    return [Source(label="pyproject.toml's tox settings", tier=1, extras=tuple(extras), requirements=good(needs))]


def _list(table: dict[str, Any], key: str) -> list[str]:
    value = table.get(key)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def tox_needs(text: str) -> Source | None:
    """`deps` and `extras` of tox.ini's [testenv], factor-conditional lines without their factor."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return None
    needs: list[str] = []
    deps = re.sub(
        r"\{\[([\w.:-]+)\](\w+)\}",
        lambda found: parser.get(found[1], found[2], fallback=""),
        parser.get("testenv", "deps", fallback=""),
    )
    for line in deps.splitlines():
        line = line.split("#")[0].strip()
        factor = re.match(r"^([\w!,{}.-]+):\s+(.*)$", line)
        if factor:
            if not re.search(r"test|cov|^py\b|^!", factor[1]):
                continue
            line = factor[2].strip()
        if line and not line.startswith("-"):
            needs.append(line)
    names = re.split(r"[\s,]+", parser.get("testenv", "extras", fallback=""))
    extras = tuple(name for name in names if re.fullmatch(r"[\w-]+", name))
    if not good(needs) and not extras:
        return None
    return Source(label="tox.ini", tier=1, extras=extras, requirements=good(needs))


def setup_cfg_tox(text: str) -> Source | None:
    """tox settings kept in setup.cfg under [tox:testenv]."""
    if "[testenv]" not in text and "[tox:" not in text:
        return None
    source = tox_needs(text.replace("[tox:testenv]", "[testenv]"))
    return source and source.model_copy(update={"label": "setup.cfg's tox settings"})


def nox_needs(text: str) -> Source | None:
    """Plain strings that a session named test(s) passes to `session.install`."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    needs: list[str] = []
    extras: list[str] = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _tier(node.name) == 1):
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "install":
                words = [
                    word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)
                ]
                for word in words:
                    own = re.fullmatch(r"\.\[([\w, -]+)\]", word)
                    extras.extend(own[1].replace(" ", "").split(",") if own else ())
                    needs.extend([] if own or word.startswith((".", "-")) or "/" in word else [word])
    if not good(needs) and not extras:
        return None
    return Source(label="noxfile.py", tier=1, extras=tuple(extras), requirements=good(needs))


def good(needs: Iterable[str]) -> tuple[str, ...]:
    """Only what is a valid requirement by name (no paths, no options), without repeats."""
    return tuple(dict.fromkeys(need for need in needs if valid_requirement(need) and "@" not in need))


def plugins_for(options: str, settings: Iterable[str], required: str = "") -> tuple[str, ...]:
    """Distributions that pytest's own settings call for: options in addopts, setting names, required_plugins, -p."""
    try:
        words = shlex.split(options)
    except ValueError:
        words = options.split()
    found = [name for word in words for option, name in PYTEST_OPTIONS.items() if name and _is_option(word, option)]
    found.extend(PYTEST_SETTINGS[name] for name in settings if name in PYTEST_SETTINGS)
    found.extend(word for word in required.split() if valid_requirement(word))
    return tuple(dict.fromkeys(found))


def _is_option(word: str, option: str) -> bool:
    if option == "-n":
        return bool(re.fullmatch(r"-n(\d+|auto|logical)?", word))
    return word == option or word.startswith((f"{option}=", f"{option}-"))


def ini_section(text: str, section: str) -> dict[str, str]:
    """One section of an ini file, empty when it or the file is not there or cannot be read."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    return dict(parser[section]) if parser.has_section(section) else {}


class InstallLine(Record):
    """One `pip install ...` line of a text."""

    file: str
    line: int  # counted from 1
    text: str  # the command as written, prompt stripped
    requirements: tuple[str, ...] = ()  # by name, extras and specifiers kept
    files: tuple[str, ...] = ()  # after -r
    paths: tuple[str, ...] = ()  # local folders, extras kept, for example ".[test]"


PIP_LINE = re.compile(r"^\s*(?:[$%>#]\s+)?((?:uv\s+|python[\d.]*\s+-m\s+)?pip[\d.]*\s+install\s+\S.*?)\s*\\?$")
WITH_VALUE = {"-c", "--constraint", "-i", "--index-url", "--extra-index-url", "-f", "--find-links", "-t", "--target"}


def install_lines(text: str, file: str) -> tuple[InstallLine, ...]:
    """All lines of the text that are a pip installation."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = PIP_LINE.match(line)
        if not match:
            continue
        try:
            words = shlex.split(match[1], comments=True)
        except ValueError:
            continue
        found.append(
            InstallLine(file=file, line=number, text=match[1], **_arguments(words[words.index("install") + 1 :]))
        )
    return tuple(found)


def _arguments(words: list[str]) -> dict[str, tuple[str, ...]]:
    requirements, files, paths = [], [], []
    rest = iter(words)
    for word in rest:
        if word in ("-r", "--requirement"):
            files.append(next(rest, ""))
        elif word in WITH_VALUE:
            next(rest, "")
        elif word.startswith(("&", "|", ";")):
            break
        elif word.startswith((".", "/")) and not word.startswith("..."):
            paths.append(word)
        elif not word.startswith("-") and valid_requirement(word):
            requirements.append(word)
    return {"requirements": tuple(requirements), "files": tuple(filter(None, files)), "paths": tuple(paths)}


def name_of(requirement: str) -> str:
    return Requirement(requirement).name


def extras_of(requirement: str) -> frozenset[str]:
    return frozenset(Requirement(requirement).extras)
