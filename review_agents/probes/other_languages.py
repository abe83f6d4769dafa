"""Projects that are not Python: the standard commands of their manifests, without a network.

A tool that is not here is "needs X". A build or test that fails is a finding only when nothing points at the sandbox.
"""

import json
import re
import shlex

from review_agents.ports import Workspace
from review_agents.probes.install_failures import read_failure
from review_agents.probes.prepared import Prepared
from review_agents.probes.source_tree import SourceTree
from review_agents.probes.tracebacks import surroundings
from review_agents.records import (
    Candidate,
    Environment,
    Kind,
    ProbeResult,
    ProbeState,
    Ran,
    Record,
    Repo,
    Reproduction,
    Severity,
    Symptom,
)

NAME = "other_languages"
LIMIT_S = 600.0
PACK = "npm pack --dry-run --json --ignore-scripts 2>/dev/null"
MANIFESTS = {
    "node": "package.json",
    "rust": "Cargo.toml",
    "go": "go.mod",
    "cmake": "CMakeLists.txt",
    "make": "Makefile",
}
NOT_DOWNLOADED = re.compile(
    r"no matching package named|failed to (?:get|download|load source)|can't (?:find|update)[^\n]*offline"
    r"|module lookup disabled|Cannot find (?:module|package)|MODULE_NOT_FOUND|requires? go ?>|Unsupported engine"
)
TOOLS = {"node": "npm", "rust": "cargo", "go": "go", "cmake": "cmake", "make": "make"}


class Command(Record):
    language: str
    what: str  # "build" or "test"
    text: str


def probe(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    tree = SourceTree(workspace, repo, prepared)
    languages = [name for name in prepared.languages if name in MANIFESTS and not is_helper(name, prepared)]
    if not languages or repo.settings.test:
        return ProbeResult(
            probe=NAME, state=ProbeState.NOT_APPLICABLE, summary="There is no project of another language."
        )
    missing = [f"needs {TOOLS[name]}" for name in languages if not has_tool(workspace, TOOLS[name])]
    runs: list[tuple[Command, Ran]] = []
    for name in languages:
        if f"needs {TOOLS[name]}" in missing:
            continue
        for command in commands(name, tree):
            ran = workspace.run(command.text, environment=Environment.TEST, timeout_s=LIMIT_S)
            runs.append((command, ran))
            if not ran.ok and command.what == "build":
                break
    candidates, unable = [], list(missing)
    for command, ran in runs:
        if not ran.ok:
            why = excuse(command, ran, workspace)
            if why:
                unable.append(f"{command.text}: {why}")
            else:
                candidates.append(failed(command, ran, tree))
    if "node" in languages and "needs npm" not in missing:
        candidates.extend(npm_pack(workspace, tree))
    facts = {"commands": [{"command": one.text, "ending": ran.ending, "seconds": ran.seconds} for one, ran in runs]}
    log = "\n".join(f"$ {one.text}\n{ran.output[-8000:]}[{ran.ending}]" for one, ran in runs)
    if candidates:
        state = ProbeState.FAILED
    elif unable:
        state = ProbeState.COULD_NOT_RUN
    else:
        state = ProbeState.PASSED if runs else ProbeState.NOT_APPLICABLE
    return ProbeResult(
        probe=NAME,
        state=state,
        reason="; ".join(unable)[:500],
        summary=f"{len(runs)} commands run, {sum(ran.ok for _, ran in runs)} passed.",
        facts=facts,
        log=log,
        candidates=tuple(candidates),
    )


def is_helper(language: str, prepared: Prepared) -> bool:
    """A Makefile or package.json beside a Python package is its helper; what it is for is not known."""
    return bool(prepared.manifests) and language in ("make", "node", "cmake", "rust")


def has_tool(workspace: Workspace, tool: str) -> bool:
    return workspace.run(f"command -v {tool}", environment=Environment.TEST, timeout_s=30).ok


def commands(language: str, tree: SourceTree) -> list[Command]:
    if language == "node":
        return npm_tests(npm_script(tree, "test"))
    if language == "rust":
        return [
            Command(language="rust", what="build", text=f"{CARGO}cargo build --offline"),
            Command(language="rust", what="test", text=f"{CARGO}cargo test --offline"),
        ]
    if language == "go":
        return [
            Command(language="go", what="build", text=f"{GO}go build ./..."),
            Command(language="go", what="test", text=f"{GO}go test ./..."),
        ]
    if language == "cmake":
        build = 'cmake -S . -B "${TMPDIR:-/tmp}/build" && cmake --build "${TMPDIR:-/tmp}/build"'
        found = [Command(language="cmake", what="build", text=build)]
        if tree.line_of("CMakeLists.txt", "enable_testing") or tree.line_of("CMakeLists.txt", "CTest"):
            text = f'{build} && ctest --test-dir "${{TMPDIR:-/tmp}}/build" --output-on-failure'
            found.append(Command(language="cmake", what="test", text=text))
        return found
    return make_commands(tree)


# What the preparation downloaded lies in the read-only test environment; the tools want to write beside it.
CARGO = 'if [ -d /venv/test/cargo ]; then cp -R /venv/test/cargo "$HOME/.cargo" 2>/dev/null; fi\n'
GO = "if [ -d /venv/test/go ]; then export GOMODCACHE=/venv/test/go GOFLAGS=-mod=mod GOPROXY=off; fi\n"


def make_commands(tree: SourceTree) -> list[Command]:
    name = next((name for name in ("Makefile", "makefile", "GNUmakefile") if name in tree.tracked), "")
    targets = set(re.findall(r"^([\w.-]+)\s*:(?!=)", tree.text(name), re.M))
    found = [Command(language="make", what="build", text="make")]
    target = next((target for target in ("test", "check", "tests") if target in targets), "")
    if target:
        found.append(Command(language="make", what="test", text=f"make {target}"))
    return found


LINTERS = {
    "xo",
    "eslint",
    "standard",
    "prettier",
    "tsd",
    "biome",
    "tslint",
    "jshint",
    "jscs",
    "semistandard",
    "ls-lint",
}


def npm_tests(script: str) -> list[Command]:
    """`npm test`, or what is left of it without linters: their rules change with every release, the code does not."""
    parts = [part.strip() for part in script.split("&&")]
    tests = [part for part in parts if part and part.split()[0] not in LINTERS]
    if len(tests) == len(parts) and script:
        return [Command(language="node", what="test", text="npm test")]
    return [
        Command(language="node", what="test", text=f'PATH="$PWD/node_modules/.bin:$PATH"\n{part}') for part in tests
    ]


def npm_script(tree: SourceTree, name: str) -> str:
    """The script of package.json, without npm's own placeholder for "no tests"."""
    try:
        document = json.loads(tree.text("package.json"))
    except ValueError:
        return ""
    scripts = document.get("scripts") if isinstance(document, dict) else None
    text = str(scripts.get(name) or "") if isinstance(scripts, dict) else ""
    return "" if "no test specified" in text else text


def excuse(command: Command, ran: Ran, workspace: Workspace) -> str:
    """Why the failure says nothing about the repo; "" when it is the repo's own."""
    if ran.exit == 127:
        return f"a program is missing: {ran.output.strip().splitlines()[-1][:120] if ran.output.strip() else ''}"
    failure = read_failure(ran)
    if not failure.is_fault:
        return failure.reason
    if NOT_DOWNLOADED.search(ran.output):
        return "needs downloads that are not here"
    return surroundings(ran.output[-4000:])


def failed(command: Command, ran: Ran, tree: SourceTree) -> Candidate:
    manifest = MANIFESTS[command.language]
    manifest = next((name for name in (manifest, "makefile", "GNUmakefile") if name in tree.tracked), manifest)
    lines = [
        line.strip()
        for line in ran.output.splitlines()
        if re.search(r"error|FAIL|fail|✖|not ok|panicked|Assertion", line)
    ]
    said = (lines[0] if lines else ran.ending)[:160]
    what = "does not build" if command.what == "build" else "has failing tests"
    shown = command.text.splitlines()[-1]
    return Candidate(
        kind=Kind.CORRECTNESS if command.what == "test" else Kind.PACKAGING,
        rule="tests.fail" if command.what == "test" else "build.fails",
        title=f"A fresh clone {what}: `{shown}` ends with {ran.ending}",
        description=f"`{shown}`, the standard command for {manifest}, ends with {ran.ending} on a fresh clone: {said}",
        severity=Severity.HIGH,
        places=(tree.place(manifest),),
        reproduction=Reproduction(
            command=command.text,
            expected="exit status 0",
            observed=f"{ran.ending}: {said}",
            environment=Environment.TEST,
            symptom=Symptom(nonzero=True),
            timeout_s=LIMIT_S,
        ),
        shape=f"{command.language} {command.what}",
    )


def npm_pack(workspace: Workspace, tree: SourceTree) -> list[Candidate]:
    """Files that package.json names as the package's entry and that `npm pack` leaves out."""
    try:
        document = json.loads(tree.text("package.json"))
    except ValueError:
        return []
    if not isinstance(document, dict) or document.get("private") or not document.get("name"):
        return []
    ran = workspace.run(PACK, environment=Environment.TEST, timeout_s=120)
    try:
        packed = {entry["path"] for entry in json.loads(ran.output)[0]["files"]}
    except (ValueError, LookupError, TypeError):
        return []
    bins = document.get("bin")
    named = [document.get("main"), document.get("types"), *(bins.values() if isinstance(bins, dict) else [bins])]
    found = []
    for path in filter(None, named):
        plain = re.sub(r"^\./", "", str(path))
        known = {plain, f"{plain}.js", f"{plain}/index.js"}
        if known & packed or not known & tree.tracked:
            continue
        line = tree.line_of("package.json", str(path))
        found.append(
            Candidate(
                kind=Kind.PACKAGING,
                rule="wheel.missing-data",
                title=f"`npm pack` leaves out {plain}, which package.json names as an entry of the package",
                description=(
                    f"package.json points at {path}, but the packed archive does not hold it, so requiring the "
                    "installed package fails."
                ),
                severity=Severity.HIGH,
                places=(tree.place("package.json", line),),
                reproduction=Reproduction(
                    command=f"{PACK} | grep -F {shlex.quote(json.dumps(plain))}",
                    expected=f"{plain} is in the archive",
                    observed="it is not",
                    environment=Environment.TEST,
                    symptom=Symptom(nonzero=True),
                ),
                shape=f"npm pack lacks {plain}",
            )
        )
    return found
