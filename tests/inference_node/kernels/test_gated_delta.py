import pytest
import torch
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from inference_node.kernels.plain import gated_delta
from inference_node.kernels.plain.gated_delta import DeltaInputs


def inputs(rows: int, heads: int = 4, dim: int = 16) -> tuple[DeltaInputs, dict[str, torch.Tensor]]:
    """Ours, and the same in transformers' form."""
    q, k, v = (torch.randn(rows, heads, dim) for _ in range(3))
    g, beta = -torch.rand(rows, heads), torch.rand(rows, heads)
    ours = DeltaInputs(gated_delta.normalise(q) * dim**-0.5, gated_delta.normalise(k), v, g.exp(), g, beta)
    return ours, {"query": q[None], "key": k[None], "value": v[None], "g": g[None], "beta": beta[None]}


def rule(function, theirs, state):
    out, state = function(**theirs, initial_state=state[None], output_final_state=True, use_qk_l2norm_in_kernel=True)
    return out[0], state[0]


@pytest.mark.parametrize("rows", [1, 2, 7, 16])
def test_stepping_is_transformers_recurrent_rule(rows):
    ours, theirs = inputs(rows)
    state = torch.randn(4, 16, 16)
    out, states = gated_delta.step(ours, state, rows)
    expected, final = rule(torch_recurrent_gated_delta_rule, theirs, state)
    assert torch.allclose(out, expected, atol=1e-6) and torch.allclose(states[-1], final, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_a_chunk_is_transformers_chunk_rule_and_close_to_stepping(rows):
    ours, theirs = inputs(rows)
    state = torch.randn(4, 16, 16)
    out, final = gated_delta.chunk(ours, state)
    expected, theirs_final = rule(torch_chunk_gated_delta_rule, theirs, state)
    assert torch.allclose(out, expected, atol=1e-5) and torch.allclose(final, theirs_final, atol=1e-5)
    stepped, states = gated_delta.step(ours, state, rows)
    assert torch.allclose(out, stepped, atol=1e-4) and torch.allclose(final, states[-1], atol=1e-4)


def test_rows_of_zeros_after_the_last_change_no_bit_of_a_chunk():
    ours, _ = inputs(64)
    state = torch.randn(4, 16, 16)

    def cut(rows: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(64).view(-1, *[1] * (rows.dim() - 1)) < 20, rows, 0.0)

    names = ("q", "k", "v", "decay", "log_decay", "beta")
    out, _ = gated_delta.chunk(ours, state)
    short, final = gated_delta.chunk(DeltaInputs(*(cut(getattr(ours, name)) for name in names)), state)
    assert torch.equal(out[:20], short[:20]), "later rows are not seen by earlier ones"
    stepped = gated_delta.step(ours, state, 20)[1][-1]
    assert torch.allclose(final, stepped, atol=1e-4)


def test_steps_in_two_parts_have_the_bits_of_steps_in_one():
    """Bug class: chunk and step rules differ (IsoExec: up to 0.25), so decode, verify and replay must all step."""
    ours, _ = inputs(16)
    state = torch.randn(4, 16, 16)
    out, states = gated_delta.step(ours, state, 16)
    rest = DeltaInputs(*(getattr(ours, name)[5:] for name in ("q", "k", "v", "decay", "log_decay", "beta")))
    again, again_states = gated_delta.step(rest, states[4], 11)
    assert torch.equal(again, out[5:]) and torch.equal(again_states[-1], states[-1])


def test_the_state_handed_in_is_left_alone():
    """Bug class: a verify that advances the live state through drafts that are refused later (z-lab#172)."""
    ours, _ = inputs(8)
    state = torch.randn(4, 16, 16)
    before = state.clone()
    gated_delta.step(ours, state, 8)
    gated_delta.chunk(ours, state)
    assert torch.equal(state, before)
