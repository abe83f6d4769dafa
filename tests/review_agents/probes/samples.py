"""Small repositories made on the spot, and the probes run on them in real sandboxes."""

from collections.abc import Mapping
from pathlib import Path

from orchestrator.sandbox.contract import BoxOrder, Patience, Role
from orchestrator.sandbox.limits import configured
from orchestrator.sandbox.workspace import BoxWorkspace
from review_agents import probes
from review_agents.probes.prepare import Prepared
from review_agents.records import Candidate, Environment, Network, ProbeResult, Ran, RepoSettings
from tests.support import boxes


class Reviewed:
    """One sample repo, prepared once; each probe runs, in a box of its own, when it is first asked for."""

    def __init__(self, folder: Path, files: Mapping[str, str], settings: RepoSettings | None = None):
        source = folder / "sample"
        write_files(source, files)
        for arguments in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "All of it")):
            boxes.git(source, *arguments)
        self._settings = boxes.here(data=folder / "data")
        self._sandbox = boxes.bubblewrap(self._settings)
        bundle, self.repo = boxes.bundled(source, folder / "data")
        self.repo = self.repo.model_copy(update={"settings": settings or RepoSettings()})
        self.source = source
        self._review = f"review-{folder.name}"
        self._results: dict[str, ProbeResult] = {}
        self._opened = 0
        self._sandbox.prepare(self._review, bundle, self.repo.commit)
        box = self._open(Role.INSTALL, egress=True)
        try:
            prepared, self.install = probes.prepare(BoxWorkspace(box), self.repo)
        finally:
            box.destroy()
        self.prepared = Prepared.model_validate_json(prepared.model_dump_json())

    def _open(self, role: Role = Role.STEP, *, egress: bool = False):
        self._opened += 1
        order = BoxOrder(
            self._review, "probe:test", self._opened, role, egress=egress, limits=configured(self._settings)
        )
        return self._sandbox.open(order)

    def close(self) -> None:
        self._sandbox.drop(self._review)

    def run(
        self,
        command: str,
        environment: Environment = Environment.PLAIN,
        network: Network = Network.NONE,
        timeout_s: float = 120.0,
    ) -> Ran:
        """One command in a fresh box."""
        box = self._open(egress=network is Network.EGRESS)
        try:
            return box.run(command, environment=environment, network=network, timeout_s=timeout_s)
        finally:
            box.destroy()

    def result(self, name: str) -> ProbeResult:
        if name not in self._results:
            probe = next(probe for probe in probes.ALL if probe.name == name)
            box = self._open()
            try:
                workspace = BoxWorkspace(box, patience=Patience(0))
                result = probes.run_probe(probe, workspace, self.repo, self.prepared)
            finally:
                box.destroy()
            assert not result.reason.startswith("our bug"), result.log
            self._results[name] = result
        return self._results[name]

    def candidates(self, name: str, rule: str = "") -> list[Candidate]:
        found = self.install.candidates if name == "install" else self.result(name).candidates
        return [one for one in found if not rule or one.rule == rule]

    def only(self, name: str, rule: str) -> Candidate:
        """The one candidate of that rule; its quotes are checked and its reproduction is run."""
        found = self.candidates(name, rule)
        assert len(found) == 1, [(one.rule, one.title) for one in self.candidates(name)]
        self.holds(found[0])
        return found[0]

    def holds(self, candidate: Candidate) -> None:
        """The proof as the service takes it: the quotes exist, the symptom shows, the control passes."""
        for place in candidate.places:
            assert place.quote in (self.source / place.file).read_text(), place
        proof = candidate.reproduction
        assert proof is not None
        ran = self.run(proof.command, proof.environment, proof.network, proof.timeout_s)
        assert proof.symptom.shown_by(ran), (proof.command, ran.ending, ran.output[-2000:])
        if proof.control:
            control = self.run(proof.control, proof.environment, proof.network, proof.timeout_s)
            assert control.ok, (proof.control, control.output[-2000:])


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


def setuptools_project(name: str, *, more: str = "", version: str = "1.0.0") -> str:
    """A pyproject.toml for a src layout; `more` follows the [project] table."""
    return (
        '[build-system]\nrequires = ["setuptools>=64"]\nbuild-backend = "setuptools.build_meta"\n\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\ndescription = "A sample"\n'
        f'requires-python = ">=3.9"\n{more}'
    )
