"""What in a workspace belongs to the reviewed repo: its modules, its commands, and which of these start at all."""

import re

from review_agents.ports import Workspace
from review_agents.probes.prepare import Prepared
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


def package_of(workspace: Workspace, repo: Repo, prepared: Prepared) -> Package:
    """The repo's names. A command that does not start is replaced by `python -m` of its package where that works.

    Why: the fault of the command itself is the entry-point probe's. What README says about it is still to be tried.
    """
    environment = environment_of(prepared) or Environment.PLAIN
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
