"""The model's own multi-token head, against the same layer run by transformers over the whole sequence at once."""

import pytest
import torch

from inference_node.models.target import TextModel
from inference_node.speculate.mtp import MtpDrafter
from inference_node.speculate.seam import Sampling
from tests.inference_node.helpers import generate, prompt


def at_once(drafter: MtpDrafter, tokens: list[int], hidden: torch.Tensor) -> torch.Tensor:
    """Hidden rows [n - 1, hidden]: row t from the target's state at t and token t + 1, by transformers' layer."""
    head, model = drafter.head.head, drafter.head.model
    rotary = type(model.module.model.rotary_emb)(config=model.config)
    x = torch.cat(
        [head.pre_fc_norm_embedding(model.embed(tokens[1:])), head.pre_fc_norm_hidden(hidden[: len(tokens) - 1])],
        dim=-1,
    )
    x = head.fc(x)[None]
    position = torch.arange(x.shape[1])[None]
    mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)[None, None]
    layer = head.layers[0]
    layer.self_attn.config._attn_implementation = "eager"
    out = layer(x, position_embeddings=rotary(x, position), attention_mask=mask, position_ids=position)
    return head.norm(out[0] if isinstance(out, tuple) else out)[0]


def target_hidden(model: TextModel, tokens: list[int]) -> torch.Tensor:
    from inference_node.state.whole import SequenceState

    state = SequenceState(model.shapes())
    rows = [model.tile(tokens[i : i + 64], state).hidden[: len(tokens[i : i + 64])] for i in range(0, len(tokens), 64)]
    return torch.cat(rows)


@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3_5"])
def test_rows_fed_as_they_are_committed_are_those_of_the_whole_sequence_at_once(loaded, family):
    target = loaded(family, "mtp").target
    drafter = target.pair.drafter
    assert isinstance(drafter, MtpDrafter)
    tokens = prompt(80)
    target.reset()
    target.prefill(tokens[:-1])
    seen: list[torch.Tensor] = []

    def keep(logits: torch.Tensor, position: int) -> int:
        seen.append(logits)
        return 7

    with torch.inference_mode():
        drafter.propose(tokens, 1, keep)
        expected = at_once(drafter, tokens, target_hidden(target.pair.model, tokens))
        logits = drafter.head.logits(expected)
    # 1e-3 with logits of standard deviation 8, as for the target itself
    assert float((seen[0] - logits[-1]).abs().max()) < 1e-3


@pytest.mark.parametrize("draft", [True, False])
def test_rows_stay_right_over_cycles_and_a_truncation(loaded, draft):
    target = loaded("qwen3_5", "mtp").target
    drafter = target.pair.drafter
    tokens = prompt(70)
    tokens += generate(target, tokens, Sampling(temperature=0.8, seed=3), 12, draft=draft)
    back = target.position - 2
    target.truncate(back)
    tokens = [*tokens[:back], 11]
    target.prefill([11])
    tokens += [12]
    seen: list[torch.Tensor] = []
    with torch.inference_mode():
        drafter.propose(tokens, 1, lambda logits, _: seen.append(logits) or 0)
        rows = at_once(drafter, tokens, target_hidden(target.pair.model, tokens))
        expected = drafter.head.logits(rows)[-1]
    assert float((seen[0] - expected).abs().max()) < 5e-3


def test_its_first_draft_comes_from_real_states_and_later_ones_from_its_own(loaded):
    target = loaded("qwen3_5", "mtp").target
    tokens = prompt(70)
    target.reset()
    target.prefill(tokens[:-1])
    positions: list[int] = []
    with torch.inference_mode():
        target.pair.drafter.propose(tokens, 3, lambda logits, position: positions.append(position) or 1)
    assert positions == [70, 71, 72], "the anchor is at 69"
    assert target.pair.drafter.rows == 68, "draft rows are not kept"
