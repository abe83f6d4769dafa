"""A checkpoint's own multi-token head: one more decoder layer that predicts the token after next.

For the row of token t it reads the target's final hidden state there and the embedding of token t + 1, and predicts
token t + 2. Its own output stands in for the target's hidden state when it is asked for more tokens in a row.

    x = fc([norm(embedding of token t + 1) ; norm(hidden of token t)])  ->  decoder layer  ->  norm  ->  target's head

Files keep it under `mtp.`: fc, pre_fc_norm_embedding, pre_fc_norm_hidden, layers.0.*, norm. transformers leaves these
out when it loads a model, so the loader and the forward are here. Drafts need no exact bits, so rows go as they come.
Checked by: tests/inference_node/models/test_mtp.py
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from inference_node.models.attention import Attention
from inference_node.models.errors import BadModel
from inference_node.models.files import TensorsInMemory
from inference_node.models.mlp import Dense, Experts
from inference_node.models.passes import Pass, together
from inference_node.models.target import TextModel
from inference_node.models.weights import fill
from inference_node.state.pages import PagePool, PageTable
from inference_node.state.recurrent import RecurrentState


class Head(nn.Module):
    """The parameters, under the files' names."""

    def __init__(self, model: TextModel) -> None:
        super().__init__()
        body: Any = model.module.model
        config = copy.deepcopy(model.config)
        config.layer_types = ["full_attention"]
        layer_class, norm_class = type(body.layers[0]), type(body.norm)
        hidden, eps = model.hidden, config.rms_norm_eps
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.pre_fc_norm_embedding = norm_class(hidden, eps=eps)
        self.pre_fc_norm_hidden = norm_class(hidden, eps=eps)
        self.layers = nn.ModuleList([layer_class(config, 0)])
        self.norm = norm_class(hidden, eps=eps)


class MultiToken:
    """The head with its target's embedding, rope and logits. It holds no sequence."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], model: TextModel, where: str) -> None:
        if not tensors:
            raise BadModel(where, "tensors under mtp.", found="missing", expected="the model's multi-token head")
        with torch.device("meta"):
            self.head = Head(model).to(model.dtype)
        fill(self.head, TensorsInMemory(tensors), model.config, model.dtype, model.device, f"{where} (mtp)")
        self.model = model
        layer = self.head.layers[0]
        self.mixer = Attention(0, layer, model.config, model.rope, window=None)
        self.mlp = Experts(layer) if hasattr(layer.mlp, "experts") else Dense(layer)

    def table(self) -> PageTable:
        """Room for its one layer's keys and values."""
        m, config = self.model, self.model.config
        return PageTable(PagePool(1, int(config.num_key_value_heads), self.mixer.dim, m.dtype, m.device))

    def run(self, tokens: list[int], hidden: torch.Tensor, start: int, pages: PageTable) -> torch.Tensor:
        """Hidden rows for tokens t + 1 [n] beside the target's (or its own) hidden rows of t; keys go to start.. ."""
        head, m = self.head, self.model
        both = torch.cat([head.pre_fc_norm_embedding(m.embed(tokens)), head.pre_fc_norm_hidden(hidden)], dim=-1)
        x = head.fc(both)
        pages.open(start, start + len(tokens))
        run = Pass(
            position=torch.arange(start, start + len(tokens), device=m.device),
            start=start,
            valid=len(tokens),
            pages=pages,
            recurrent=RecurrentState((), ()),
            apply=together,
        )
        result: torch.Tensor = head.norm(self.mlp.mix(self.mixer.mix(x, run), run))
        return result

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden.to(torch.float32), self.model.head)
