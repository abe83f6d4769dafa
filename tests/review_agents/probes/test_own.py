import pytest

from review_agents.probes.own import environment_for_programs, extras_needed, readme_extras
from review_agents.probes.prepared import Distribution, Prepared
from review_agents.records import Environment, Ran

TOOL = Distribution(
    name="lister",
    version="1.0.0",
    console_scripts={"lister": "lister.cli:main"},
    extras=("cli", "dev", "all"),
    requires=("click>=8; extra == 'cli'", "pytest; extra == 'dev'"),
)
SPEAKS = Ran(exit=0, head="usage: lister")
SAYS_WHY = Ran(exit=1, head='Run pip install "lister[cli]" to fix this.')


def prepared_with(*needs: str) -> Prepared:
    return Prepared(distributions=(TOOL,), installed_plain=True, installed_test=True, test_needs=needs)


class Answering:
    """A workspace whose program answers so in each environment."""

    def __init__(self, plain: Ran, test: Ran):
        self.answers = {Environment.PLAIN: plain, Environment.TEST: test}
        self.asked = 0

    def run(self, _: str, *, environment: Environment, timeout_s: float) -> Ran:
        self.asked += 1
        return self.answers[environment]


def needed(plain: Ran, test: Ran, *needs: str) -> tuple[str, ...]:
    return extras_needed(Answering(plain, test), prepared_with(*needs), TOOL, "lister")  # type: ignore[arg-type]


README = 'README: pip install "lister[cli]"'


def test_a_program_that_answers_only_with_readme_s_extra_needs_it():
    assert needed(SAYS_WHY, SPEAKS, "extra test", README) == ("cli",)


@pytest.mark.parametrize(
    ("plain", "test", "needs"),
    [
        (SPEAKS, SPEAKS, README),
        (SAYS_WHY, SAYS_WHY, README),
        (SAYS_WHY, SPEAKS, "extra test"),
        (SAYS_WHY, SPEAKS, "README: pip install -e '.[dev]'"),
        (Ran(exit=1, head="ModuleNotFoundError: No module named 'yaml'"), SPEAKS, README),
        (Ran(exit=None, timed_out=True), SPEAKS, README),
    ],
    ids=["answers", "never answers", "README names none", "for developers", "another module is lacking", "hangs"],
)
def test_no_extra_excuses_any_other_program(plain: Ran, test: Ran, needs: str):
    assert needed(plain, test, needs) == ()


def test_a_module_that_the_extra_brings_is_a_reason():
    assert needed(Ran(exit=1, head="ModuleNotFoundError: No module named 'click'"), SPEAKS, README) == ("cli",)


def test_extras_are_read_from_what_the_preparation_installed():
    assert readme_extras(prepared_with(README, "README: pip install lister[all,more]"), TOOL) == ("cli", "all")


@pytest.mark.parametrize(
    ("needs", "environment", "asked"), [((README,), Environment.TEST, 2), ((), Environment.PLAIN, 0)]
)
def test_commands_are_tried_where_they_answer(needs: tuple[str, ...], environment: Environment, asked: int):
    workspace = Answering(SAYS_WHY, SPEAKS)
    assert environment_for_programs(workspace, prepared_with(*needs)) is environment  # type: ignore[arg-type]
    assert workspace.asked == asked, "nothing is run where README names no extra"
