from review_agents.ports import NoSuchFile
from review_agents.probes import ALL, MODULES, Prepared, Probe, run_probe
from review_agents.probes.install_failures import Failure
from review_agents.probes.manifest import Manifest
from review_agents.probes.prepare import Attempt, unprepared
from review_agents.records import ProbeResult, ProbeState, Repo

REPO = Repo(
    name="a",
    url="https://example.org/a.git",
    ref="main",
    commit="0" * 40,
    commit_date="2025-01-01T00:00:00+00:00",
    files=(),
)


class Nothing:
    def run(self, *_, **__):
        raise AssertionError("nothing to run")

    def read(self, *_, **__):
        raise NoSuchFile

    def list(self, *_):
        return ()

    def search(self, *_, **__):
        return ()


def test_every_module_is_registered_once_under_its_own_name():
    assert len(ALL) == len(MODULES) == len({probe.name for probe in ALL})


def test_an_exception_in_a_probe_is_our_bug_and_no_fault_of_the_repo():
    def broken(workspace, repo, prepared):
        raise KeyError("lost")

    result = run_probe(Probe("broken", broken), None, REPO, Prepared())  # type: ignore[arg-type]
    assert result.state is ProbeState.COULD_NOT_RUN
    assert result.reason == "our bug: KeyError: 'lost'" and "Traceback" in result.log


def test_the_seconds_of_a_probe_are_taken_around_it():
    done = Probe(
        "done", lambda workspace, repo, prepared: ProbeResult(probe="done", state=ProbeState.PASSED, seconds=99)
    )
    assert run_probe(done, None, REPO, Prepared()).seconds < 1  # type: ignore[arg-type]


def test_every_probe_of_an_empty_repo_that_was_not_prepared_says_why_it_did_nothing():
    for probe in ALL:
        result = run_probe(probe, Nothing(), REPO, Prepared())  # type: ignore[arg-type]
        assert result.state is ProbeState.NOT_APPLICABLE, (probe.name, result.reason)


def test_probes_of_a_package_that_could_not_be_installed_say_so_and_why():
    files = ("pyproject.toml", "README.md", "pack/__init__.py", "tests/test_pack.py")
    project = Manifest(root=".", files=("pyproject.toml",), backend="setuptools", name="pack")
    failed = Attempt(
        purpose="wheel", command="pip wheel .", ok=False, ending="exit status 1",
        failure=Failure(kind="needs", reason="needs a compiler"),
    )  # fmt: skip
    not_built = Prepared(languages=("python",), manifests=(project,), commands=(failed,))
    no_python = unprepared(files, {"pyproject.toml": '[project]\nname = "pack"'}.get, "needs Python >=3.99")
    repo = REPO.model_copy(update={"files": files})
    for prepared, why in ((not_built, "wheel: needs a compiler"), (no_python, "needs Python >=3.99")):
        results = {probe.name: run_probe(probe, Nothing(), repo, prepared) for probe in ALL}  # type: ignore[arg-type]
        said = {name: (one.state, one.reason) for name, one in results.items()}
        del said["reviewer_text"]  # it needs no installation, and there is nothing to read here
        assert said.pop("other_languages")[0] is ProbeState.NOT_APPLICABLE
        wanted = (ProbeState.COULD_NOT_RUN, f"the package could not be installed: {why}")
        assert said == dict.fromkeys(said, wanted)


def test_probes_of_commands_and_modules_do_not_take_a_package_for_one_without_them_because_only_its_tests_installed():
    files = ("pyproject.toml", "README.md", "pack/__init__.py", "tests/test_pack.py")
    project = Manifest(root=".", files=("pyproject.toml",), backend="setuptools", name="pack")
    failed = Attempt(
        purpose="wheel", command="pip wheel .", ok=False, ending="exit status 1",
        failure=Failure(kind="needs", reason="needs a compiler"),
    )  # fmt: skip
    prepared = Prepared(languages=("python",), manifests=(project,), commands=(failed,), installed_test=True)
    repo = REPO.model_copy(update={"files": files})
    for probe in ALL:
        if probe.name in (
            "wheel",
            "dependencies",
            "entry_points",
            "doctests",
            "options",
            "misuse",
            "imports",
            "profile",
        ):
            result = run_probe(probe, Nothing(), repo, prepared)  # type: ignore[arg-type]
            assert result.state is ProbeState.COULD_NOT_RUN, probe.name
            assert result.reason == "the package could not be installed: wheel: needs a compiler"
