"""What in a workspace belongs to the reviewed repo: its modules, its commands, and which of these start at all."""

import re

from packaging.utils import canonicalize_name

from review_agents.ports import Workspace
from review_agents.probes import needs
from review_agents.probes.install_findings import asked_extras
from review_agents.probes.prepared import Distribution, Prepared
from review_agents.probes.shell import Package
from review_agents.records import Environment, Repo

HELP_S = 20.0
DOES_NOT_START = re.compile(
    r"^(?:ModuleNotFoundError|ImportError|AttributeError|importlib\.metadata\.PackageNotFoundError|SyntaxError)\b",
    re.MULTILINE,
)


def environment_of(prepared: Prepared) -> Environment | None:
    """Where a user's commands run; None when the package could not be installed at all."""
    if prepared.installed_plain:
        return Environment.PLAIN
    return Environment.TEST if prepared.installed_test else None


def environment_for_programs(workspace: Workspace, prepared: Prepared) -> Environment | None:
    """The same, with the tests' needs where a program answers only with an extra that README says to install."""
    environment = environment_of(prepared)
    if environment is Environment.PLAIN and any(
        extras_needed(workspace, prepared, one, name) for one in prepared.distributions for name in one.console_scripts
    ):
        return Environment.TEST
    return environment


def extras_needed(workspace: Workspace, prepared: Prepared, one: Distribution, command: str) -> tuple[str, ...]:
    """README's extras, where the program gives its help with them (/venv/test) and not without."""
    extras = readme_extras(prepared, one) if prepared.installed_plain and prepared.installed_test else ()
    if not extras:
        return ()
    script = f'cd "$(mktemp -d)"\n{command} --help </dev/null'
    alone = workspace.run(script, environment=Environment.PLAIN, timeout_s=HELP_S)
    if alone.ok or alone.timed_out or not lacks_extras(alone.output, one, extras):
        return ()
    return extras if workspace.run(script, environment=Environment.TEST, timeout_s=HELP_S).ok else ()


def readme_extras(prepared: Prepared, one: Distribution) -> tuple[str, ...]:
    """Extras for users that README says to install and /venv/test has."""
    own = {str(canonicalize_name(other.name)): other for other in prepared.distributions}
    lines = "\n".join(label.removeprefix("README: ") for label in prepared.test_needs if label.startswith("README: "))
    asked = [
        extra
        for line in needs.install_lines(lines, "README")
        for other, extra in asked_extras(line, prepared, own)
        if other == one and extra in one.extras and needs.is_for_users(extra)
    ]
    return tuple(dict.fromkeys(asked))


def lacks_extras(said: str, one: Distribution, extras: tuple[str, ...]) -> bool:
    """Whether a program that gives no help may do so for want of the extras: a module it lacks must be theirs."""
    missing = re.search(r"No module named '?(\w+)", said)
    if missing is None:
        return True
    brought = {
        canonicalize_name(needs.name_of(text))
        for text in one.requires
        if any(re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", text) for extra in extras)
    }
    return canonicalize_name(needs.WELL_KNOWN.get(missing[1], missing[1])) in brought


def package_of(workspace: Workspace, repo: Repo, prepared: Prepared, environment: Environment) -> Package:
    """The repo's names. A command that does not start is replaced by `python -m` of its package where that works.

    Why: the fault of the command itself is the entry-point probe's. What README says about it is still to be tried.
    """
    scripts = dict(prepared.console_scripts)
    stand_ins: dict[str, str] = {}
    for name, target in prepared.console_scripts.items():
        said = workspace.run(f"{name} --help < /dev/null", environment=environment, timeout_s=HELP_S)
        if said.exit in (0, 2) or not DOES_NOT_START.search(said.output):
            continue
        module = target.partition(":")[0].partition(".")[0]
        stand_in = f"python -m {module}"
        if workspace.run(f"{stand_in} --help < /dev/null", environment=environment, timeout_s=HELP_S).ok:
            stand_ins[name] = stand_in
        else:
            del scripts[name]
    return Package(
        names=tuple(one.name for one in prepared.distributions),
        modules=prepared.import_packages,
        scripts=scripts,
        repo_name=repo.name or repo.url.rstrip("/").rpartition("/")[2].removesuffix(".git"),
        url=repo.url,
        stand_ins=stand_ins,
    )


def with_stand_ins(text: str, package: Package) -> str:
    """The command with what does not start replaced by what does the same."""
    for name, command in package.stand_ins.items():
        text = re.sub(rf"(?<![\w./-]){re.escape(name)}(?=\s|$)", command, text, count=1)
    return text
