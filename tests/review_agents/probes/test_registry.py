from review_agents.probes import ALL, MODULES, Prepared, Probe, run_probe
from review_agents.records import ProbeResult, ProbeState, Repo

REPO = Repo(
    name="a",
    url="https://example.org/a.git",
    ref="main",
    commit="0" * 40,
    commit_date="2025-01-01T00:00:00+00:00",
    files=(),
)


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
    class Nothing:
        def run(self, *_, **__):
            raise AssertionError("nothing to run")

        def read(self, *_, **__):
            raise LookupError

        def list(self, *_):
            return ()

        def search(self, *_, **__):
            return ()

    for probe in ALL:
        result = run_probe(probe, Nothing(), REPO, Prepared())  # type: ignore[arg-type]
        assert result.state is ProbeState.NOT_APPLICABLE, (probe.name, result.reason)
