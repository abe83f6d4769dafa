"""What the preparation did, as every later probe gets it. JSON round trip: the runner stores it between steps."""

from pydantic import Field

from review_agents.probes.install_failures import Failure
from review_agents.probes.manifest import Manifest
from review_agents.records import Record


class Attempt(Record):
    """One command of the preparation and how it ended."""

    purpose: str  # "venv plain", "wheel", "install plain", "sdist", "wheel from sdist", "install test", ...
    command: str
    ok: bool
    ending: str
    seconds: float = 0.0
    output: str = ""  # its last part
    failure: Failure | None = None

    @property
    def is_vital(self) -> bool:
        return self.purpose in ("wheel", "install plain") or self.purpose.startswith("venv")


class Distribution(Record):
    """One Python project of the repo, as built and installed."""

    name: str
    version: str = ""
    root: str = "."  # its folder in the repo
    backend: str = ""
    summary: str = ""
    import_packages: tuple[str, ...] = ()  # dotted roots, namespace packages followed down
    console_scripts: dict[str, str] = Field(default_factory=dict)  # name -> "module:function"
    gui_scripts: dict[str, str] = Field(default_factory=dict)
    requires: tuple[str, ...] = ()  # as the built metadata says, markers included
    extras: tuple[str, ...] = ()
    requires_python: str = ""
    files: tuple[str, ...] = ()  # the wheel's RECORD, relative to site-packages
    wheel: str = ""  # path in the sandbox
    sdist: str = ""  # folder of the wheel that was built from the source distribution, "" when there is none


class Prepared(Record):
    """What the preparation did; every later probe gets it. The plain names are those of the first distribution."""

    python: str = ""  # full version of the interpreter inside
    languages: tuple[str, ...] = ()  # python, node, rust, go, make, cmake
    manifests: tuple[Manifest, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    installed_plain: bool = False
    installed_test: bool = False
    editable: bool = False  # whether /venv/test imports the package from /job/repo
    resolved: dict[str, str] = Field(default_factory=dict)  # name -> version in /venv/plain
    resolved_test: dict[str, str] = Field(default_factory=dict)
    test_needs: tuple[str, ...] = ()  # where /venv/test's additions came from
    missing_modules: tuple[str, ...] = ()  # modules that tests import and nothing in the repo declares
    commands: tuple[Attempt, ...] = ()
    notes: tuple[str, ...] = ()
    lacking: str = ""  # what the sandbox lacks, so that nothing was tried at all

    @property
    def distribution(self) -> str:
        return self.distributions[0].name if self.distributions else ""

    @property
    def version(self) -> str:
        return self.distributions[0].version if self.distributions else ""

    @property
    def root(self) -> str:
        return self.distributions[0].root if self.distributions else "."

    @property
    def import_packages(self) -> tuple[str, ...]:
        return tuple(name for one in self.distributions for name in one.import_packages)

    @property
    def console_scripts(self) -> dict[str, str]:
        return {name: target for one in self.distributions for name, target in one.console_scripts.items()}

    @property
    def gui_scripts(self) -> dict[str, str]:
        return {name: target for one in self.distributions for name, target in one.gui_scripts.items()}

    @property
    def blame(self) -> Attempt | None:
        """The first command without which nothing can be installed, and which failed for good."""
        later = {one.command for one in self.commands if one.ok}
        vital = (one for one in self.commands if one.failure and one.is_vital and one.command not in later)
        return next(vital, None)

    @property
    def not_installed(self) -> str:
        """Why a Python project could not be installed for its users; empty when it was, or when there is none."""
        if self.installed_plain or not ("python" in self.languages or self.manifests):
            return ""
        blame = self.blame
        why = self.lacking or (f"{blame.purpose}: {blame.failure.reason}" if blame and blame.failure else "")
        return "the package could not be installed" + (f": {why}" if why else "")

    def attempt(self, purpose: str) -> Attempt | None:
        """The last command with that purpose."""
        return next((one for one in reversed(self.commands) if one.purpose == purpose), None)
