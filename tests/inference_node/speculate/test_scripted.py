"""The scripted target keeps the same rules as the real one, so that tests above the seam mean something."""

import pytest

from inference_node.speculate.scripted import ScriptedTarget, scripted_facts
from inference_node.speculate.seam import ContextFull, Cut, MisuseOfTarget, OutOfMemory, Sampling, Target

WORDS = list(range(100, 160))


def begun(budget: int = 20, **options) -> ScriptedTarget:
    given = {name: options.pop(name) for name in ("stop_ids", "constraint", "draft", "logprobs") if name in options}
    target = ScriptedTarget(lambda committed: WORDS, **options)
    target.prefill([1, 2, 3])
    target.begin([1, 2, 3, 4], Sampling(), budget=budget, **given)
    return target


def test_it_is_a_target():
    target: Target = ScriptedTarget(lambda committed: WORDS)
    assert target.position == 0


def test_it_says_the_script_in_steps():
    target = begun(accepts=(2, 0))
    assert [target.cycle().read().tokens for _ in range(3)] == [(100, 101, 102), (103,), (104, 105, 106)]
    assert target.position == 3 + 7


def test_it_stops_at_budgets_and_stop_ids():
    target = begun(budget=5)
    results = [target.cycle().read() for _ in range(3)]
    assert [result.cut for result in results] == [Cut.BUDGET, Cut.BUDGET, Cut.IDLE]
    target = begun(stop_ids=[104])
    results = [target.cycle().read() for _ in range(3)]
    assert [result.cut for result in results] == [Cut.NONE, Cut.STOP, Cut.IDLE] and results[1].tokens == (103, 104)


def test_truncate_has_the_real_reach():
    target = begun()
    for _ in range(3):
        target.cycle()
    with pytest.raises(MisuseOfTarget, match="held are 6 to 12"):
        target.truncate(5)
    target.truncate(7)
    assert target.position == 7


def test_any_call_can_be_made_to_fail():
    def fail(call: str, count: int) -> None:
        if call == "cycle" and count == 1:
            raise OutOfMemory("no memory")

    target = begun(before=fail)
    target.cycle()
    with pytest.raises(OutOfMemory):
        target.cycle()
    assert target.calls == ["prefill", "begin", "cycle", "cycle"]


def test_wrong_calls_are_refused():
    target = ScriptedTarget(lambda committed: WORDS, facts=scripted_facts(context=8))
    with pytest.raises(MisuseOfTarget):
        target.cycle()
    with pytest.raises(ContextFull):
        target.prefill(range(9))
    with pytest.raises(MisuseOfTarget):
        target.begin([1, 2], Sampling(), budget=1)
    target.close()
    with pytest.raises(MisuseOfTarget):
        target.reset()


def test_checkpoints_of_equal_prefixes_share_pages():
    target = ScriptedTarget(lambda committed: WORDS)
    target.prefill(list(range(300)))
    one = target.checkpoint()
    target.prefill([5, 6])
    other = target.checkpoint()
    assert len(set(one.shared_bytes) & set(other.shared_bytes)) == 1 and len(other.shared_bytes) == 2
    target.restore(one)
    assert target.position == 300 and one.from_prefill and not other.from_prefill
    one.release()
    with pytest.raises(MisuseOfTarget):
        target.restore(one)
