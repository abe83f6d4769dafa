"""What is wrong with installing the repo: a failing build, needs that cannot be met, extras that are not there.

Each proof is pip itself, once more, in a fresh copy of the clone.
"""

import re
import shlex
from collections.abc import Callable

from packaging.utils import canonicalize_name

from review_agents.copied import piece
from review_agents.probes import needs
from review_agents.probes.manifest import Manifest
from review_agents.probes.prepared import Attempt, Distribution, Prepared
from review_agents.probes.tracebacks import shape_of
from review_agents.records import (
    Candidate,
    Copied,
    Environment,
    Kind,
    Network,
    Place,
    Repo,
    Reproduction,
    Severity,
    Symptom,
)

ReadText = Callable[[str], str | None]
COPY_AND_BUILD = (
    'work="$(mktemp -d)"\ncp -R . "$work/src"\ncd "$work/src{folder}"\n'
    'python -m pip wheel --use-pep517 --no-deps --wheel-dir "$work/wheel" .'
)
INSTALL_WHEEL = '\npython -m venv "$work/fresh"\n"$work/fresh/bin/python" -m pip install "$work"/wheel/*.whl'


def install_candidates(repo: Repo, read: ReadText, prepared: Prepared, blame: Attempt | None) -> tuple[Candidate, ...]:
    found = []
    if blame is not None and blame.failure is not None and blame.failure.is_fault and not repo.settings.install:
        found.append(
            does_not_build(repo, read, prepared, blame)
            if blame.purpose == "wheel"
            else needs_unmet(read, prepared, blame)
        )
    found.extend(unknown_extras(repo, read, prepared))
    found.extend(missing_requirement_files(repo, read))
    return tuple(candidate for candidate in found if candidate is not None)


def place_at(path: str, number: int | None, read: ReadText) -> Place:
    """A place with that line as its quote, or with the file's first telling line."""
    lines = (read(path) or "").splitlines()
    if number is None or not 1 <= number <= len(lines):
        number = next((at for at, line in enumerate(lines, start=1) if len(line.strip()) > 2), None)
    return Place(file=path, line=number, quote=lines[number - 1].strip() if number else "")


# The build -------------------------------------------------------------------------------


def does_not_build(repo: Repo, read: ReadText, prepared: Prepared, blame: Attempt) -> Candidate | None:
    assert blame.failure is not None
    built = {one.root for one in prepared.distributions}
    manifest = next((one for one in prepared.manifests if one.root not in built), None)
    error = readable(blame.failure.reason)
    if manifest is None or not manifest.files or not says_why(error):
        return None
    folder = "" if manifest.root == "." else f"/{manifest.root}"
    return Candidate(
        kind=Kind.PACKAGING,
        rule="install.build-fails",
        title=f"`pip install .` fails on a fresh clone: {error[:140]}",
        description=(
            f"Building {manifest.name or 'the package'} with {manifest.backend} in a clean copy of the repository ends "
            f"with {error}. Nobody can install the package from a clone."
        ),
        severity=Severity.CRITICAL,
        places=(build_place(repo, manifest, blame.output, read),),
        reproduction=Reproduction(
            command=COPY_AND_BUILD.replace("{folder}", folder),
            expected="a wheel is built",
            observed=error,
            environment=Environment.PLAIN,
            network=Network.EGRESS,
            symptom=Symptom(nonzero=True, contains=(error.partition(":")[0].split("'")[0].strip(),)),
            timeout_s=600,
        ),
        shape=shape_of(*(error.split(": ", 1) if ": " in error else (error, ""))),
    )


def readable(reason: str) -> str:
    return re.sub(r"/tmp/(?:lamplighter-[\w-]+|pip-[\w-]+)/", "", reason)


def says_why(error: str) -> bool:
    """Whether the line is an error with a name or a text; a bare exit status proves too little."""
    return len(error) > 12 and not error.startswith("exit status")


def build_place(repo: Repo, manifest: Manifest, output: str, read: ReadText) -> Place:
    """The line of the repo's own build file that the traceback names last, else the manifest."""
    prefix = "" if manifest.root == "." else f"{manifest.root}/"
    tracked = set(repo.files)
    for path, number in reversed(re.findall(r'File "(?:/tmp/[^"]*?/)?([\w./-]+\.py|<string>)", line (\d+)', output)):
        path = "setup.py" if path == "<string>" else path  # setuptools runs it from a string
        if prefix + path in tracked:
            return place_at(prefix + path, int(number), read)
    for path in manifest.files:
        for number, line in enumerate((read(path) or "").splitlines(), start=1):
            if re.match(r"build-backend|name\s*=|\s*name\s*=|setup\(", line):
                return place_at(path, number, read)
    return place_at(manifest.files[0], None, read)


# Dependencies ----------------------------------------------------------------------------


def needs_unmet(read: ReadText, prepared: Prepared, blame: Attempt) -> Candidate | None:
    """No version satisfies what is declared, or what is declared contradicts itself."""
    assert blame.failure is not None
    unmet = re.search(r"No matching distribution found for ([^\n(]+)", blame.output)
    conflict = re.search(
        r"Cannot install ([^\n]+) because these package versions have conflicting dependencies", blame.output
    )
    if "requires a different python version" in blame.output or "Ignored the following versions" in blame.output:
        return None
    if unmet is None and conflict is None:
        return None
    said = (
        f"no release satisfies `{unmet[1].strip()}`"
        if unmet
        else f"pip cannot resolve {conflict[1]}"
        if conflict
        else ""
    )
    name = re.split(r"[^\w.-]", (unmet or conflict)[1].strip())[0]  # type: ignore[index]
    place = declared_at(name, prepared, read)
    if place is None:
        return None
    return Candidate(
        kind=Kind.PACKAGING,
        rule="install.needs-unmet",
        title=f"The package cannot be installed: {said}",
        description=f"The wheel builds, but installing it fails because {said}, which {place.file} declares.",
        severity=Severity.CRITICAL,
        places=(place,),
        reproduction=Reproduction(
            command=COPY_AND_BUILD.replace("{folder}", "") + INSTALL_WHEEL,
            expected="the package and its dependencies are installed",
            observed=said,
            environment=Environment.PLAIN,
            network=Network.EGRESS,
            symptom=Symptom(
                nonzero=True, contains=("No matching distribution" if unmet else "conflicting dependencies",)
            ),
            timeout_s=600,
        ),
        shape=f"unmet {canonicalize_name(name)}",
    )


def declared_at(name: str, prepared: Prepared, read: ReadText) -> Place | None:
    pattern = re.compile(re.sub(r"[-_.]+", "[-_.]+", re.escape(canonicalize_name(name)).replace("\\-", "-")), re.I)
    for path in [path for manifest in prepared.manifests for path in manifest.files]:
        for number, line in enumerate((read(path) or "").splitlines(), start=1):
            if pattern.search(line) and not line.lstrip().startswith(("name", "#", "[")):
                return place_at(path, number, read)
    return None


# README ----------------------------------------------------------------------------------


def unknown_extras(repo: Repo, read: ReadText, prepared: Prepared) -> list[Candidate]:
    """README tells its reader to install an extra that the package does not have; pip only warns and installs less."""
    found = []
    own = {str(canonicalize_name(one.name)): one for one in prepared.distributions}
    for path in readme_files(repo):
        for line in needs.install_lines(read(path) or "", path):
            for one, extra in asked_extras(line, prepared, own):
                if canonicalize_name(extra) not in {canonicalize_name(known) for known in one.extras}:
                    found.append(unknown_extra(one, extra, line, read))
    return found


def readme_files(repo: Repo) -> list[str]:
    return [path for path in repo.files if path.lower().startswith("readme") and "/" not in path]


def asked_extras(
    line: needs.InstallLine, prepared: Prepared, own: dict[str, Distribution]
) -> list[tuple[Distribution, str]]:
    asked = []
    for requirement in line.requirements:
        one = own.get(canonicalize_name(needs.name_of(requirement)))
        asked.extend([(one, extra) for extra in sorted(needs.extras_of(requirement))] if one else [])
    for path in line.paths:
        match = re.fullmatch(r"(\.|\./)\[([\w, .-]+)\]", path)
        if match and prepared.distributions and prepared.root == ".":
            asked.extend((prepared.distributions[0], extra.strip()) for extra in match[2].split(","))
    return asked


def unknown_extra(one: Distribution, extra: str, line: needs.InstallLine, read: ReadText) -> Candidate:
    known = ", ".join(one.extras) or "none"
    check = (
        f"import importlib.metadata as m; extras = m.metadata({one.name!r}).get_all('Provides-Extra') or []; "
        "print(extras); "
        f"assert {canonicalize_name(extra)!r} in [e.lower().replace('_', '-') for e in extras], 'no such extra'"
    )
    return Candidate(
        kind=Kind.DOCUMENTATION,
        rule="install.unknown-extra",
        title=f"{line.file} says `{line.text}`, but {one.name} has no extra `{extra}`",
        description=(
            f"pip warns that {one.name} does not provide the extra `{extra}` and installs the package without it, so "
            f"what the reader needs is missing. The extras of the built package: {known}."
        ),
        severity=Severity.MEDIUM,
        places=(place_at(line.file, line.line, read),),
        reproduction=Reproduction(
            command=f'cd "$(mktemp -d)"\npython -c {shlex.quote(check)}',
            expected=f"`{extra}` is among the extras",
            observed=f"the extras are: {known}",
            environment=Environment.PLAIN,
            symptom=Symptom(nonzero=True, contains=("no such extra",)),
            copied=about(line, read),
        ),
        shape=f"extra {canonicalize_name(extra)}",
    )


def missing_requirement_files(repo: Repo, read: ReadText) -> list[Candidate]:
    """README tells its reader to install from a requirements file that is not in the repository."""
    tracked, found = set(repo.files), []
    for path in readme_files(repo):
        text = read(path) or ""
        for line in needs.install_lines(text, path):
            for name in line.files:
                plain = name.removeprefix("./")
                named = re.fullmatch(r"[\w][\w./-]*\.(?:txt|in)", plain) and plain not in tracked
                if named and not stands_elsewhere(text, line.line, repo, plain):
                    found.append(missing_requirement_file(plain, line, read))
    return found


def stands_elsewhere(text: str, number: int, repo: Repo, name: str) -> bool:
    """Whether the lines above lead into another folder or repo, or make the file first."""
    above = text.splitlines()[max(0, number - 15) : number - 1]
    folders = [found[1].strip("/'\"") for line in above if (found := re.search(r"(?:^|\s|&&\s*)cd\s+(\S+)", line))]
    own = {repo.name.lower(), repo.url.rstrip("/").rpartition("/")[2].removesuffix(".git").lower()}
    made = any(name in line and not line.lstrip("$ ").startswith("pip") for line in above)
    return made or any(folder.lower() not in own for folder in folders)


def missing_requirement_file(name: str, line: needs.InstallLine, read: ReadText) -> Candidate:
    return Candidate(
        kind=Kind.DOCUMENTATION,
        rule="install.missing-file",
        title=f"{line.file} says `{line.text}`, but there is no {name} in the repository",
        description=(
            f"Following {line.file} line {line.line}, pip ends with an error at once, because {name} does not exist "
            "in a clone."
        ),
        severity=Severity.MEDIUM,
        places=(place_at(line.file, line.line, read),),
        reproduction=Reproduction(
            command=f"python -m pip install -r {shlex.quote(name)}",
            expected=f"{name} is there",
            observed=f"Could not open requirements file: No such file or directory: '{name}'",
            environment=Environment.PLAIN,
            symptom=Symptom(nonzero=True, contains=("Could not open requirements file",)),
            copied=about(line, read),
        ),
        shape=f"missing {name}",
    )


def about(line: needs.InstallLine, read: ReadText) -> tuple[Copied, ...]:
    """The line of the page that the claim is about."""
    return (piece(line.file, place_at(line.file, line.line, read).quote),)
