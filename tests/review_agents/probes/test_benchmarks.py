from review_agents.probes.benchmarks import probe
from review_agents.probes.prepared import Prepared
from review_agents.records import ProbeResult, ProbeState, Ran, Repo

REPO = Repo(
    name="c", url="https://example.org/c.git", ref="", commit="0" * 40, commit_date="2025-01-01T00:00:00+00:00",
    files=("tests/parse_output.py",),
)  # fmt: skip


def timed(ending: Ran) -> ProbeResult:
    class Workspace:
        def run(self, *_, **__) -> Ran:
            return ending

    return probe(Workspace(), REPO, Prepared(languages=("python",), installed_test=True))  # type: ignore[arg-type]


def test_helper_scripts_below_tests_are_no_test_run_to_time():
    assert timed(Ran(exit=5, head="no tests ran")).state is ProbeState.NOT_APPLICABLE


def test_a_failing_test_run_is_not_timed_and_says_why():
    result = timed(Ran(exit=1, head="1 failed"))
    assert result.state is ProbeState.COULD_NOT_RUN and result.reason == "test run: exit status 1"
