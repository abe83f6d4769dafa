"""Every program that the package installs: does it start, and how does it answer wrong use?

A traceback is never the right answer, whatever was typed. A refusal must not end with exit status 0.
"""

import re
import shlex

from review_agents.ports import Workspace
from review_agents.probes.own import extras_needed
from review_agents.probes.prepared import Distribution, Prepared
from review_agents.probes.source_tree import SourceTree
from review_agents.probes.tracebacks import Raised, last_traceback
from review_agents.probes.within import InsideFailed, run_inside
from review_agents.records import (
    Candidate,
    Environment,
    Kind,
    Place,
    ProbeResult,
    ProbeState,
    Ran,
    Record,
    Repo,
    Reproduction,
    Severity,
    Symptom,
)

NAME = "entry_points"
LIMIT_S = 30.0
MOST_PROGRAMS, MOST_SUBCOMMANDS = 12, 15
UNKNOWN_OPTION = "--no-such-option-zzz"
UNKNOWN_WORD = "no-such-thing-zzz"
REFUSALS = re.compile(
    r"unrecogni[sz]ed (?:argument|option)|no such option|unknown (?:option|argument|command|flag)"
    r"|invalid (?:option|choice)|unexpected (?:option|argument)|^usage: .*\n.*error:|^error:",
    re.I | re.M,
)


class Program(Record):
    command: str  # what a user types
    target: str  # "module:function", or the module of `python -m`
    distribution: Distribution


class Try(Record):
    """One call of a program and what it did."""

    program: Program
    arguments: tuple[str, ...]
    ran: Ran
    environment: Environment = Environment.PLAIN

    @property
    def command(self) -> str:
        return shlex.join([*shlex.split(self.program.command), *self.arguments])


def probe(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    if not prepared.manifests:
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, summary="There is no Python package.")
    if not prepared.installed_plain:
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=prepared.not_installed)
    tree = SourceTree(workspace, repo, prepared)
    found = programs(prepared)
    extras = {program.command: named for program in found if (named := needed(workspace, prepared, program))}
    tries = [one for program in found for one in try_program(workspace, program, called_in(program, extras))]
    candidates = list(judge_all(tries, tree))
    broken, loading = broken_plugins(workspace, prepared, tree)
    candidates.extend(broken)
    versions = version_candidates(tries, tree)
    candidates.extend(versions)
    if not found and not loading:
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, summary="The package installs no programs.")
    facts = {
        "programs": {program.command: program.target for program in found},
        "tries": [{"command": one.command, "ending": one.ran.ending, "seconds": one.ran.seconds} for one in tries],
        "entry_points_loaded": loading,
        **({"extras_needed": {command: ", ".join(named) for command, named in extras.items()}} if extras else {}),
    }
    state = ProbeState.FAILED if candidates else ProbeState.PASSED
    summary = f"{len(found)} programs, {len(tries)} calls, {len(candidates)} problems."
    summary += answers(found, tries, extras, tree)
    log = "\n".join(f"$ {one.command}\n{one.ran.output[-1500:]}[{one.ran.ending}]" for one in tries)
    return ProbeResult(probe=NAME, state=state, summary=summary, facts=facts, log=log, candidates=tuple(candidates))


def programs(prepared: Prepared) -> list[Program]:
    found = []
    for one in prepared.distributions:
        for name, target in {**one.console_scripts, **one.gui_scripts}.items():
            found.append(Program(command=name, target=target, distribution=one))
        for package in one.import_packages:
            if f"{package.replace('.', '/')}/__main__.py" in one.files:
                found.append(Program(command=f"python -m {package}", target=package, distribution=one))
    return found[:MOST_PROGRAMS]


# Calling ---------------------------------------------------------------------------------


def needed(workspace: Workspace, prepared: Prepared, program: Program) -> tuple[str, ...]:
    return extras_needed(workspace, prepared, program.distribution, program.command)


def called_in(program: Program, extras: dict[str, tuple[str, ...]]) -> Environment:
    return Environment.TEST if program.command in extras else Environment.PLAIN


def answers(found: list[Program], tries: list[Try], extras: dict[str, tuple[str, ...]], tree: SourceTree) -> str:
    """How many programs gave their help: only with extras, or not at all and without a finding about it."""
    said = ""
    if extras:
        names = ", ".join(sorted({name for named in extras.values() for name in named}))
        said += f" {len(extras)} of {len(found)} answered --help only with what README installs besides: {names}."
    silent = [
        program
        for program in found
        if not any(one.program == program and one.arguments == ("--help",) and one.ran.ok for one in tries)
        and not any(one.program == program and judge(one, tree) for one in tries)
    ]
    return f"{said} {len(silent)} of {len(found)} did not answer --help." if silent else said


def try_program(workspace: Workspace, program: Program, environment: Environment) -> list[Try]:
    """`--help` first; a program that cannot even be loaded is not tried further."""
    tries = [call(workspace, program, environment, "--help")]
    raised = last_traceback(tries[0].ran.output)
    if tries[0].ran.timed_out or (raised and cannot_load(raised, program)):
        return tries
    for arguments in (("--version",), (), (UNKNOWN_OPTION,), (UNKNOWN_WORD,)):
        tries.append(call(workspace, program, environment, *arguments))
    for word in subcommands(tries[0].ran.output)[:MOST_SUBCOMMANDS]:
        tries.append(call(workspace, program, environment, word, "--help"))
    return tries


def call(workspace: Workspace, program: Program, environment: Environment, *arguments: str) -> Try:
    ran = workspace.run(script([program.command], *arguments), environment=environment, timeout_s=LIMIT_S)
    return Try(program=program, arguments=arguments, ran=ran, environment=environment)


def script(command: list[str], *arguments: str) -> str:
    """The call in an empty folder, so that the installed package is used and nothing of the tree."""
    words = shlex.join([*shlex.split(command[0]), *arguments])
    return f'cd "$(mktemp -d)"\n{words} </dev/null'


def subcommands(usage: str) -> list[str]:
    """Names of subcommands in a help text, in argparse's and click's forms."""
    braces = re.search(r"^\s+\{([\w,-]+)\}", usage, re.M) or re.search(r"usage:[^\n]*\{([\w,-]+)\}\s*\.\.\.", usage)
    if braces:
        return braces[1].split(",")
    lines = usage.splitlines()
    at = next((at for at, line in enumerate(lines) if re.match(r"^(?:sub)?commands:\s*$", line, re.I)), None)
    if at is None:
        return []
    names = []
    for line in lines[at + 1 :]:
        word = re.match(r"^ {2,4}([a-z][\w-]*)(?:\s{2,}|\s*$)", line)
        if word:
            names.append(word[1])
        elif line and not line[0].isspace():
            break
    return names


# Judging ---------------------------------------------------------------------------------


def cannot_load(raised: Raised, program: Program) -> bool:
    """Whether the exception rose while the program's module was loaded, before any of its own code was called."""
    if raised.type in ("ImportError", "ModuleNotFoundError", "SyntaxError", "AttributeError", "PackageNotFoundError"):
        functions = [frame.function for frame in raised.frames if "importlib" not in frame.file]
        return all(
            name in ("<module>", "_run_module_as_main", "_run_code", "import_module", "load") for name in functions
        )
    return False


def judge_all(tries: list[Try], tree: SourceTree) -> list[Candidate]:
    """One candidate per program or cause: two programs that end at the same line are one fault."""
    found: dict[tuple[str, str, str], Candidate] = {}
    for one in tries:
        candidate = judge(one, tree)
        if candidate is not None:
            place = candidate.places[0]
            found.setdefault((candidate.rule, place.file, candidate.shape or place.symbol), candidate)
    return list(found.values())


def judge(one: Try, tree: SourceTree) -> Candidate | None:
    if one.ran.timed_out or one.ran.oom:
        return None
    raised = last_traceback(one.ran.output)
    if raised is not None and one.ran.exit != 0:
        if raised.surroundings or raised.type in ("KeyboardInterrupt", "EOFError"):
            return None
        if cannot_load(raised, one.program):
            return does_not_start(one, raised, tree)
        return traceback(one, raised, tree)
    if UNKNOWN_OPTION in one.arguments and one.ran.exit == 0 and REFUSALS.search(one.ran.output):
        return exit_zero(one, tree)
    return None


def does_not_start(one: Try, raised: Raised, tree: SourceTree) -> Candidate | None:
    missing = re.match(r"No module named '([^']+)'", raised.message)
    place = declaration(one.program, tree)
    if place is None:
        return None
    why = f"`{raised.text}`"
    needed = f" The module `{missing[1]}` is not there after `pip install`." if missing else ""
    return Candidate(
        kind=Kind.PACKAGING,
        rule="entry-point.does-not-start",
        title=f"The installed program `{one.program.command}` does not start: {raised.text}",
        description=(
            f"After `pip install .`, `{one.command}` ends with a traceback before it does anything: {why}. "
            f"The entry point `{one.program.command}` points at `{one.program.target}`.{needed} "
            "No user of the package can run it."
        ),
        severity=Severity.HIGH,
        places=tuple(filter(None, [place, last_own_frame(raised, tree) or target_place(one.program, tree)])),
        reproduction=Reproduction(
            command=script([one.program.command], *one.arguments),
            expected="the program starts and prints its help",
            observed=f"a traceback that ends with {why}, {one.ran.ending}",
            environment=one.environment,
            symptom=Symptom(nonzero=True, contains=("Traceback", raised.type)),
        ),
        shape=raised.shape,
    )


def traceback(one: Try, raised: Raised, tree: SourceTree) -> Candidate | None:
    place = last_own_frame(raised, tree)
    if place is None:
        return None
    typed = f"`{one.command}`"
    what = {
        ("--help",): "Asking for help",
        ("--version",): "Asking for the version",
        (): "Starting it without arguments",
        (UNKNOWN_OPTION,): "An unknown option",
        (UNKNOWN_WORD,): "An argument that names nothing that exists",
    }.get(one.arguments, "Asking a subcommand for help")
    return Candidate(
        kind=Kind.USABILITY,
        rule="cli.traceback",
        title=f"`{one.program.command}` answers {what[0].lower()}{what[1:]} with a {raised.type} traceback",
        description=(
            f"{typed} ends with an uncaught `{raised.text}` raised in {place.symbol or place.file} ({place.file}). "
            "A user sees a Python traceback where a message that names the mistake belongs."
        ),
        severity=Severity.MEDIUM if one.arguments in (("--help",), ()) else Severity.LOW,
        places=(place,),
        reproduction=Reproduction(
            command=script([one.program.command], *one.arguments),
            expected="help or a one-line error message, no traceback",
            observed=f"a traceback that ends with {raised.text}, {one.ran.ending}",
            environment=one.environment,
            symptom=Symptom(nonzero=True, contains=("Traceback (most recent call last)", raised.type)),
        ),
        shape=raised.shape,
    )


def exit_zero(one: Try, tree: SourceTree) -> Candidate | None:
    place = target_place(one.program, tree) or declaration(one.program, tree)
    if place is None:
        return None
    refusal = REFUSALS.search(one.ran.output)
    assert refusal is not None
    said = next(line for line in one.ran.output[refusal.start() :].splitlines() if line.strip()).strip()
    return Candidate(
        kind=Kind.USABILITY,
        rule="cli.exit-zero",
        title=f"`{one.program.command}` refuses an unknown option but ends with exit status 0",
        description=(
            f"`{one.command}` prints {said!r} and still ends with exit status 0, "
            "so a script or a CI job that mistypes an option takes the failure for success."
        ),
        severity=Severity.MEDIUM,
        places=(place,),
        reproduction=Reproduction(
            command=script([one.program.command], *one.arguments),
            expected="a non-zero exit status",
            observed=f"exit status 0 after {said!r}",
            environment=one.environment,
            symptom=Symptom(exit=0, contains=(said[:80],)),
        ),
    )


def last_own_frame(raised: Raised, tree: SourceTree) -> Place | None:
    """The deepest line of the traceback that belongs to the repo."""
    for frame in reversed(raised.frames):
        path = tree.tracked_path(frame.file)
        if path:
            return tree.place(path, frame.line)
    return None


def target_place(program: Program, tree: SourceTree) -> Place | None:
    """The function that an entry point calls, in the tree."""
    module, _, function = program.target.partition(":")
    for one in tree.prepared.distributions:
        for package in one.import_packages:
            if module == package or module.startswith(f"{package}."):
                root = tree.path_root(one, package)
                stem = "/".join(filter(lambda part: part != ".", [root, *module.split(".")]))
                for path in (f"{stem}.py", f"{stem}/__init__.py", f"{stem}/__main__.py"):
                    if path in tree.tracked:
                        name = function.split("[")[0].strip()
                        return tree.place(path, tree.line_of(path, f"def {name}") if name else None)
    return None


def manifest_files(program: Program, tree: SourceTree) -> tuple[str, ...]:
    manifest = next((one for one in tree.prepared.manifests if one.root == program.distribution.root), None)
    return manifest.files if manifest else ()


def declaration(program: Program, tree: SourceTree) -> Place | None:
    """The line of the manifest that declares the program, or else the module that it runs."""
    for path in manifest_files(program, tree):
        line = tree.line_of(path, program.command.split()[-1], program.target.partition(":")[0])
        if line and ":" in program.target:
            return tree.place(path, line, symbol=f"scripts.{program.command}")
    return target_place(program, tree)


# Versions --------------------------------------------------------------------------------


def version_candidates(tries: list[Try], tree: SourceTree) -> list[Candidate]:
    """`--version` that says another version than the installed metadata; development versions are left alone."""
    found = []
    for one in tries:
        version = one.program.distribution.version
        if one.arguments != ("--version",) or not one.ran.ok or not re.fullmatch(r"\d+(\.\d+)+", version):
            continue
        said = re.findall(r"(?<![\w.])v?(\d+(?:\.\d+)+)(?![\w.]*\d)", one.ran.output)
        lines = [line for line in one.ran.output.splitlines() if said and said[0] in line]
        if len(lines) != 1 or len(said) != 1 or said[0] == version or not names_itself(lines[0], one.program):
            continue
        place = version_place(one.program, said[0], tree)
        if place is None:
            continue
        found.append(
            Candidate(
                kind=Kind.PACKAGING,
                rule="entry-point.version-differs",
                title=f"`{one.program.command} --version` says {said[0]}, the installed package is {version}",
                description=(
                    f"`{one.command}` prints {lines[0]!r}, but the metadata of {one.program.distribution.name} says "
                    f"{version}. Whoever reports a bug names a version that they do not have."
                ),
                severity=Severity.LOW,
                places=(place,),
                reproduction=Reproduction(
                    command=script([one.program.command], "--version"),
                    expected=version,
                    observed=lines[0],
                    environment=one.environment,
                    symptom=Symptom(exit=0, contains=(said[0],), lacks=(version,)),
                ),
            )
        )
    return found[:1]


def names_itself(line: str, program: Program) -> bool:
    """Whether the line speaks of this program's version and not of Python's or a library's."""
    rest = re.sub(r"v?\d[\w.]*", "", line).lower()
    words = re.findall(r"[a-z][\w-]*", rest)
    own = {program.command.lower().split()[-1], program.distribution.name.lower(), "version", "v", "v."}
    return all(word in own or word.replace("_", "-") in own for word in words)


def version_place(program: Program, version: str, tree: SourceTree) -> Place | None:
    for package in program.distribution.import_packages:
        folder = tree.folder_of(program.distribution, package)
        for path in sorted(
            path for path in tree.tracked if folder and path.startswith(folder) and path.endswith(".py")
        ):
            for quote in ('"', "'"):
                line = tree.line_of(path, f"{quote}{version}{quote}") or tree.line_of(path, version)
                if line:
                    return tree.place(path, line)
    return None


# Entry points of other groups ------------------------------------------------------------


def broken_plugins(
    workspace: Workspace, prepared: Prepared, tree: SourceTree
) -> tuple[list[Candidate], dict[str, str]]:
    """Entry points of every other group, loaded once: one that names a module or function of ours that is not there."""
    found, loading = [], {}
    for one in prepared.distributions:
        try:
            said = run_inside(workspace, "load_entry_points", one.name, environment=Environment.PLAIN, python="python")
        except InsideFailed:
            continue
        for point in said:
            key = f"{point['group']}: {point['name']}"
            loading[key] = point["error"] or "loads"
            if point["error"] and is_own_absence(point, one):
                candidate = broken_plugin(one, point, tree)
                found.extend([candidate] if candidate else [])
    return found, loading


def is_own_absence(point: dict[str, str], one: Distribution) -> bool:
    """Only a name of the package itself that is missing; a host application that is not installed is no fault."""
    missing = point["missing"]
    own = tuple(one.import_packages)
    if point["type"] == "AttributeError":
        return point["value"].partition(":")[0].startswith(own)
    return point["type"] == "ModuleNotFoundError" and any(
        missing == name or missing.startswith(f"{name}.") for name in own
    )


def broken_plugin(one: Distribution, point: dict[str, str], tree: SourceTree) -> Candidate | None:
    manifest = next((manifest for manifest in tree.prepared.manifests if manifest.root == one.root), None)
    lines = [
        (path, tree.line_of(path, point["value"].partition(":")[0])) for path in (manifest.files if manifest else ())
    ]
    place = next((tree.place(path, line) for path, line in lines if line), None)
    if place is None:
        return None
    command = (
        'cd "$(mktemp -d)"\npython -c "from importlib.metadata import distribution as d; '
        f"[p for p in d('{one.name}').entry_points "
        f"if (p.group, p.name) == ('{point['group']}', '{point['name']}')][0].load()\""
    )
    return Candidate(
        kind=Kind.PACKAGING,
        rule="entry-point.does-not-load",
        title=f"The entry point `{point['name']}` of group `{point['group']}` cannot be loaded",
        description=(
            f"{place.file} declares `{point['value']}`, but loading it from the installed package fails: "
            f"{point['error']}. Every program that looks for plugins of that group gets this error."
        ),
        severity=Severity.HIGH,
        places=(place,),
        reproduction=Reproduction(
            command=command,
            expected="the entry point loads",
            observed=point["error"],
            symptom=Symptom(nonzero=True, contains=(point["type"],)),
        ),
        shape=point["type"],
    )
