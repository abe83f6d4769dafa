from review_agents.probes.documents import read_document
from review_agents.probes.examples import Reading, result_of
from review_agents.probes.reader import Step
from review_agents.probes.verdicts import Outcome
from review_agents.records import ProbeState

PAGE = "# aes\n\n```console\n$ arm-none-eabi-gcc -c aes.c\n$ size aes.o\n```\n"


def read(*states: tuple[str, str]) -> Reading:
    document = read_document("README.md", PAGE)
    steps = [Step(number=at, kind="shell", block=document.blocks[0], line=4 + at, text="") for at in range(len(states))]
    outcomes = [
        Outcome(step, 0, step.line, step.text, state, why) for step, (state, why) in zip(steps, states, strict=True)
    ]
    return Reading(document, None, outcomes)  # type: ignore[arg-type]  # nothing is read again here


def test_where_no_example_could_run_the_reason_names_what_is_missing():
    said = result_of([read(("not_run", "needs arm-none-eabi-gcc"), ("not_run", "needs size"))], (), ("README.md",))
    assert said.state is ProbeState.COULD_NOT_RUN
    assert said.reason == "no example could run here: needs arm-none-eabi-gcc; needs size"


def test_a_page_on_which_something_was_not_reached_or_not_proved_is_left_out():
    late, unproved = read(("matched", ""), ("not_run", "no time left")), read(("unsure", "seen while reading the page"))
    late.outcomes[1].step.skipped = "no time left"
    unproved.unproved = True
    assert result_of([late], (), ("README.md", "docs/a.md")).left_out == ("docs/a.md", "README.md")
    assert result_of([unproved], (), ("README.md",)).left_out == ("README.md",)
    assert result_of([read(("matched", ""))], (), ("README.md",)).left_out == ()


def test_the_summary_tells_what_ran_from_what_did_not_and_from_what_proves_nothing():
    outcomes = read(("matched", ""), ("unsure", "not self-contained"), ("not_run", "it is not Python as it stands"))
    said = result_of([outcomes], (), ("README.md",))
    assert said.state is ProbeState.PASSED
    assert said.summary.startswith("2 of 3 examples on 1 page(s) ran: 1 as shown")
    assert said.summary.endswith("1 cannot be judged; 1 not run here")
