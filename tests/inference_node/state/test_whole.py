"""A sequence's whole state goes back to any position of the last two blocks, and is then what it was there."""

import pytest
import torch

from inference_node.state import recurrent
from inference_node.state.whole import SequenceState
from tests.inference_node.helpers import prompt


def step(model, state: SequenceState, tokens: list[int], kept: int, kind: str) -> None:
    with torch.inference_mode():
        notes = recurrent.notes(kind, model.fold)
        model.block(tokens, state, notes)
        state.commit_block(tokens[:kept], notes)


def rows(state: SequenceState) -> list[torch.Tensor]:
    """Everything a later pass can read."""
    pages = [
        part[:, : split.valid]
        for layer in range(state.shapes.attention_layers)
        for split in state.pages.splits(layer, state.position)
        for part in (split.k, split.v)
    ]
    return [*pages, *state.recurrent.conv, *state.recurrent.delta]


@pytest.mark.parametrize("kind", ["replay", "snapshots"])
@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3"])
def test_truncate_reaches_every_position_from_the_start_of_the_block_before_last(loaded, family, kind):
    model = loaded(family, "none", "bf16").target.pair.model
    tokens = prompt(300, seed=9)

    state = SequenceState(model.shapes())
    with torch.inference_mode():
        for first in range(0, 245, 64):
            model.tile(tokens[first : min(first + 64, 245)], state)
    begun = state.keep()
    plain = SequenceState(model.shapes())
    plain.pages.pool = state.pages.pool
    plain.resume(begun)
    for token in tokens[245:250]:
        step(model, plain, [token], 1, kind)
    for back in range(250, 259):  # blocks: 245-249 (too old), 250-254 (kept 5 of 8), 255-258 (kept 4)
        state.resume(begun)
        step(model, state, tokens[245:253], 5, kind)
        step(model, state, tokens[250:258], 5, kind)
        step(model, state, tokens[255:263], 4, kind)
        assert state.floor == 250 and state.position == 259
        state.truncate(back)
        assert state.tokens == plain.tokens == tokens[:back]
        assert all(torch.equal(a, b) for a, b in zip(rows(state), rows(plain), strict=True)), back
        step(model, plain, [tokens[back]], 1, kind)


def test_truncate_refuses_what_it_cannot_reach(loaded):
    model = loaded("qwen3_5", "none").target.pair.model
    state = SequenceState(model.shapes())
    with torch.inference_mode():
        model.tile(prompt(20), state)
    for position in (19, 21, -1):
        with pytest.raises(ValueError, match="can reach 20 to 20"):
            state.truncate(position)


def test_a_kept_state_survives_what_comes_after_it(loaded):
    model = loaded("qwen3_5_moe", "none").target.pair.model
    state = SequenceState(model.shapes())
    tokens = prompt(40)
    with torch.inference_mode():
        model.tile(tokens[:20], state)
    before = [row.clone() for row in rows(state)]
    kept = state.keep()
    step(model, state, tokens[20:28], 8, "replay")
    state.reset()
    step(model, state, tokens[:5], 5, "replay")
    state.resume(kept)
    assert state.position == 20 and all(torch.equal(a, b) for a, b in zip(rows(state), before, strict=True))


def test_from_prefill_is_lost_by_a_decoded_row_and_comes_back_when_it_is_taken_back(loaded):
    model = loaded("qwen3_5", "none").target.pair.model
    state = SequenceState(model.shapes())
    with torch.inference_mode():
        model.tile(prompt(64), state)
    assert state.from_prefill
    step(model, state, [1, 2, 3], 2, "replay")
    assert not state.from_prefill
    state.resume(state.keep())
    assert not state.from_prefill
    step(model, state, [4, 5], 1, "replay")
    state.truncate(66)
    assert not state.from_prefill, "rows before it were decoded"
    again = SequenceState(model.shapes())
    with torch.inference_mode():
        model.tile(prompt(64), again)
    step(model, again, [1, 2, 3], 2, "replay")
    again.truncate(64)
    assert again.from_prefill
