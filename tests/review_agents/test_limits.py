"""What a focus has spent, whatever a server tells of it."""

from review_agents.focus import builtin
from review_agents.limits import Meter
from review_agents.records import Usage


def spent_after(*answers: Usage) -> int:
    meter = Meter(builtin()["correctness"].budget, lambda: 0.0, seconds=1000)
    for usage in answers:
        meter.count(usage)
    return meter.spent


def test_a_conversation_is_paid_for_by_how_it_grows() -> None:
    assert spent_after(Usage(prompt=10_000, completion=100), Usage(prompt=10_300, completion=10)) == 10_310


def test_an_answer_that_was_cut_before_the_server_counted_it_makes_nothing_paid_for_twice() -> None:
    """Known fault: after a text that ran in circles the whole conversation was charged once more."""
    begun, cut, ended = Usage(prompt=10_000, completion=100), Usage(completion=50), Usage(prompt=10_200, completion=10)
    assert spent_after(begun, cut) == 10_150
    assert spent_after(begun, cut, ended) == 10_210


def test_a_history_that_was_cut_is_read_anew() -> None:
    meter = Meter(builtin()["correctness"].budget, lambda: 0.0, seconds=1000)
    meter.count(Usage(prompt=10_000, completion=100))
    meter.forget_prefix()
    meter.count(Usage(prompt=4_000, completion=10))
    assert meter.spent == 14_110


def test_seconds_in_the_nodes_line_are_none_of_the_focus_and_those_of_earlier_attempts_are() -> None:
    now = [0.0]
    meter = Meter(builtin()["correctness"].budget, lambda: now[0], seconds=1000)
    meter.count_earlier(Usage(prompt=10_000, completion=100, seconds=90.0, waited_s=50.0))
    assert (meter.elapsed, meter.turns) == (40.0, 1)
    now[0] = 70.0
    meter.count(Usage(prompt=10_300, completion=10, seconds=65.0, waited_s=55.0))
    assert meter.elapsed == 40.0 + 70.0 - 55.0 and meter.usage.seconds == 155.0
