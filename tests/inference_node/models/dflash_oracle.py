"""Runs z-lab's own drafter over a recorded scenario. Executed by an interpreter that has their package and its pins.

    python dflash_oracle.py DRAFTER_FOLDER SCENARIO.pt RESULT.pt

A scenario holds the target's embedding and head and, per round, the features of the rows that are new, the anchor and
how many rows the block has. The result holds, per round, the mask rows' hidden states, their logits, the greedy drafts.
"""

import sys
from types import SimpleNamespace

import torch
from dflash.model import DFlash2DraftModel, DFlashDraftModel, _crop_to, _draft_value, _make_cache, _raw_input_embeddings


def main(folder: str, scenario_path: str, result_path: str) -> None:
    scenario = torch.load(scenario_path)
    kind = DFlash2DraftModel if scenario["second"] else DFlashDraftModel
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    embedding = torch.nn.Embedding.from_pretrained(scenario["embedding"])
    target = SimpleNamespace(get_input_embeddings=lambda: embedding)

    def head(hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(hidden, scenario["head"])

    cache, start, results = _make_cache(model.config), 0, []
    with torch.inference_mode():
        for features, anchor, rows in scenario["rounds"]:
            start += features.shape[0]
            block = torch.full((1, rows), model.mask_token_id)
            block[0, 0] = anchor
            scale = float(_draft_value(model.config, "input_embedding_scale", 1.0))
            hidden = model(
                target_hidden=features[None],
                noise_embedding=_raw_input_embeddings(target, block, scale),
                position_ids=torch.arange(start - features.shape[0], start + rows)[None],
                past_key_values=cache,
                use_cache=True,
            )[:, 1:]
            _crop_to(cache, start)
            logits = model.compute_logits(hidden, head)
            if scenario["second"]:
                drafts = model.propose(hidden, torch.tensor([anchor]), head, 0.0)[0][0]
            else:
                drafts = logits[0].argmax(-1)
            results.append((hidden[0], logits[0], drafts))
    torch.save({"rounds": results, "taps": model.target_layer_ids, "block": model.block_size}, result_path)


if __name__ == "__main__":
    main(*sys.argv[1:])
