"""Replay and snapshots give the same state, to the bit, after any number of kept rows."""

import pytest
import torch

from inference_node.state import recurrent
from inference_node.state.whole import SequenceState
from tests.inference_node.helpers import prompt


def verified(model, start: int, rows: int, kind: str):
    state = SequenceState(model.shapes())
    tokens = prompt(start + rows, seed=4)
    with torch.inference_mode():
        for first in range(0, start, 64):
            model.tile(tokens[first : min(first + 64, start)], state)
        notes = recurrent.notes(kind, model.fold)
        model.block(tokens[start:], state, notes)
    return state, notes, tokens


@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3_5"])
@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_replay_and_snapshots_give_equal_states_conv_included(loaded, family, weights):
    """Bug class: replay that is not bitwise equal to stepping (LightLLM#1585, early sglang replay)."""
    model = loaded(family, "none", weights).target.pair.model
    replayed, replay, _ = verified(model, 70, 8, "replay")
    _, snapshots, _ = verified(model, 70, 8, "snapshots")
    for kept in range(9):
        with torch.inference_mode():
            one, other = replay.after(kept, replayed.recurrent), snapshots.after(kept, replayed.recurrent)
        assert all(torch.equal(a, b) for a, b in zip(one.delta, other.delta, strict=True)), f"delta after {kept}"
        assert all(torch.equal(a, b) for a, b in zip(one.conv, other.conv, strict=True)), f"conv after {kept}"


@pytest.mark.parametrize("kind", ["replay", "snapshots"])
@pytest.mark.parametrize("kept", [1, 3, 8])
def test_the_state_after_partial_acceptance_is_that_of_plain_decoding_of_the_kept_tokens(loaded, kind, kept):
    """Bug class: the recurrent matrix keeps refused drafts (z-lab#172, transformers#49036, mlx-lm#846)."""
    model = loaded("qwen3_5_moe", "none", "bf16").target.pair.model
    state, notes, tokens = verified(model, 70, 8, kind)
    plain, _, _ = verified(model, 70, 1, kind)
    with torch.inference_mode():
        state.commit_block(tokens[70 : 70 + kept], notes)
        for token in tokens[70 : 70 + kept]:
            single = recurrent.notes(kind, model.fold)
            model.block([token], plain, single)
            plain.commit_block([token], single)
    assert all(torch.equal(a, b) for a, b in zip(state.recurrent.delta, plain.recurrent.delta, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(state.recurrent.conv, plain.recurrent.conv, strict=True))


@pytest.mark.parametrize("kind", ["replay", "snapshots"])
def test_a_verify_leaves_the_state_at_the_blocks_start_alone(loaded, kind):
    model = loaded("qwen3_5", "none").target.pair.model
    before, _, _ = verified(model, 70, 1, kind)
    after, _, _ = verified(model, 70, 8, kind)
    assert all(torch.equal(a, b) for a, b in zip(before.recurrent.delta, after.recurrent.delta, strict=True))


def test_rollbacks_differ_in_what_they_hold(loaded):
    model = loaded("qwen3_5", "none").target.pair.model
    _, replay, _ = verified(model, 70, 8, "replay")
    _, snapshots, _ = verified(model, 70, 8, "snapshots")
    assert len(replay.inputs) == 3 and len(snapshots.states[0]) == 8


def test_a_rollback_that_does_not_exist_is_refused(loaded):
    with pytest.raises(ValueError, match='rollback="hope"'):
        recurrent.notes("hope", loaded("qwen3_5", "none").target.pair.model.fold)
