"""The cost curve that adaptive width goes by."""

from inference_node.fast import measure
from inference_node.fast.loading import warm
from inference_node.speculate.seam import Sampling
from tests.inference_node.helpers import generate, prompt


def test_rows_between_measured_ones_lie_on_a_line():
    assert measure._between({1: 1.0, 2: 2.0, 4: 3.0}, 3) == 2.5
    assert measure._between({1: 1.0, 2: 2.0, 4: 3.0}, 4) == 3.0


def test_measuring_leaves_a_target_that_says_what_it_said_before(fast):
    target = fast("qwen3_5_moe").target
    said = generate(target, prompt(30), Sampling(), 8)
    found = measure.costs(target.runner, rounds=3)
    assert len(found.verify) == 8 and found.draft > 0 and found.verify[7] > found.verify[0] > 0
    target.reset()
    assert generate(target, prompt(30), Sampling(), 8) == said


def test_adaptive_width_is_loaded_with_this_machines_curve(fast):
    chosen = fast("qwen3_5_moe", "june", "fp32", "fold", width="adaptive").target.runner.width
    assert chosen.adaptive and float(chosen.costs[-1]) > float(chosen.costs[0])


def test_warming_goes_every_usual_way_and_leaves_nothing(fast):
    target = fast("qwen3_5_moe").target
    said = generate(target, prompt(30), Sampling(), 8)
    warm(target)
    assert target.position == 0 and len(target.runner.table.held) == 0
    assert generate(target, prompt(30), Sampling(), 8) == said
