"""Run in an environment with Speculators: load drafters' folders with its own class and say what it made of them.

python speculators_oracle.py RESULT.json FOLDER ...
"""

import json
import sys

import torch
from safetensors.torch import load_file
from speculators.models.dflash import DFlashDraftModel

found = []
for folder in sys.argv[2:]:
    model = DFlashDraftModel.from_pretrained(folder)
    stored, own = load_file(f"{folder}/model.safetensors"), model.state_dict()
    both = set(stored) & set(own)
    found.append(
        {
            "no_place_for": sorted(set(stored) - set(own)),
            "changed": sorted(name for name in both if not torch.equal(own[name].float(), stored[name].float())),
            "not_stored": sorted(set(own) - set(stored)),
            "layers": list(model.target_layer_ids),
            "block": model.block_size,
            "mask": model.config.mask_token_id,
            "sliding": model.sliding_window_indices,
            "draft_vocabulary": model.config.draft_vocab_size,
        }
    )
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
