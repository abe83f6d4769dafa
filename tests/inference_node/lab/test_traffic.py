"""The count of bytes against the tensors of a model, so that it cannot drift from what is read."""

import pytest
import torch

from inference_node.fast.sizes import sizes
from inference_node.fast.weights import AttentionPart, DeltaPart
from inference_node.kernels.plain import gated_delta_step
from inference_node.lab import traffic
from inference_node.lab.fast_model import random_weights, text_config
from inference_node.lab.shapes import SHAPES, SMALL


@pytest.fixture(scope="module")
def model():
    size = sizes(text_config("qwen3_5_moe", SMALL))
    return random_weights(size, torch.bfloat16, torch.device("cpu"))


def counted(**options) -> dict[str, int]:
    return {part.name: part.bytes for part in traffic.verify(SMALL, **options)}


def test_matrices_weigh_what_the_tensors_weigh(model):
    found = counted(rows=1, woken=SMALL.experts, context=0)
    deltas = [mixer for mixer in model.mixers if isinstance(mixer, DeltaPart)]
    attentions = [mixer for mixer in model.mixers if isinstance(mixer, AttentionPart)]
    assert found["delta projections"] == sum(mixer.enter.bytes for mixer in deltas)
    assert found["delta outputs"] == sum(mixer.out.bytes for mixer in deltas)
    assert found["attention projections"] == sum(mixer.enter.bytes + mixer.out.bytes for mixer in attentions)
    assert found["experts"] == sum(mlp.up.bytes + mlp.down.bytes for mlp in model.mlps)
    assert found["routers"] == sum(mlp.router.numel() * 2 for mlp in model.mlps)
    assert found["head"] == model.head.bytes


def test_states_are_read_and_written():
    memory = gated_delta_step.memory(
        block=8, key_heads=SMALL.linear_key_heads, heads=SMALL.linear_value_heads, width=SMALL.linear_dim,
        value_width=SMALL.linear_dim, dtype=torch.bfloat16, device=torch.device("cpu"),
    )  # fmt: skip
    state = memory.state[0].numel() * 4
    per_layer = counted(rows=1, woken=4, context=0)["delta states"] // traffic.recurrent_layers(SMALL)
    assert 2 * state < per_layer < 2.5 * state


def test_a_decode_of_the_real_model_moves_six_gigabytes_and_a_verify_sixteen():
    """The figures that the plan of the engine was made by."""
    real = SHAPES["35b-a3b"]
    decode = traffic.total(traffic.verify(real, rows=1, woken=8, context=1024))
    verify = traffic.total(traffic.verify(real, rows=16, woken=47, context=1024))
    assert 5.9e9 < decode < 6.2e9 and 15.6e9 < verify < 16.1e9


def test_keys_and_values_grow_with_the_context():
    short, long = (counted(rows=1, woken=4, context=context)["attention"] for context in (0, 100))
    assert long - short == 100 * 2 * 2 * SMALL.kv_heads * SMALL.head_dim
