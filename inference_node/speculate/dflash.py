"""The DFlash drafter at work: context keys in pages, one block pass per cycle, both versions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference_node.kernels.plain.block_attention import Split, Visibility, attend
from inference_node.models.draft_weights import LoadedDrafter
from inference_node.models.target import Forwarded, TextModel
from inference_node.speculate.propose import Guess, KeptDraft
from inference_node.state.pages import PagePool, PageTable


class DFlashDrafter:
    """Always reads `block` rows; a shorter block would change all its logits, because its masks see each other."""

    def __init__(self, loaded: LoadedDrafter, model: TextModel) -> None:
        self.loaded, self.model, self.config = loaded, model, loaded.config
        self.name = self.config.kind
        self.block = self.config.block
        self.taps = self.config.taps
        self.mask = model.embed([self.config.mask_id])[0]
        # Layers with the same window share pages, so that those past the window can be given back.
        windows = sorted({layer.window or 0 for layer in self.config.layers})
        self.group = [windows.index(layer.window or 0) for layer in self.config.layers]
        self.place = [self.group[:index].count(group) for index, group in enumerate(self.group)]
        self.tables = [self._table(group, window or None) for group, window in enumerate(windows)]
        self.position = 0

    def reset(self) -> None:
        self.truncate(0)

    def absorb(self, start: int, tokens: Sequence[int], seen: Forwarded) -> None:
        n = len(tokens)
        feature = seen.taps[:n].reshape(n, -1)
        position = torch.arange(start, start + n, device=feature.device)
        for table in self.tables:
            table.open(start, start + n)
        for layer, (k, v) in enumerate(self.loaded.module.context(feature, position, self.loaded.rope)):
            self.tables[self.group[layer]].write(self.place[layer], start, k, v)
        self.position = start + n

    def propose(self, tokens: Sequence[int], most: int, guess: Guess) -> list[int]:
        if most == 0:
            return []
        hidden = self.hidden(tokens[-1])[1:]
        start = self.position + 1  # of the first mask row: the position it predicts
        logits = self.loaded.module.logits(hidden, self.model.head if self.loaded.head is None else self.loaded.head)
        logits = self._to_target_ids(logits)
        selector = self.loaded.module.candidate_selector
        if selector is None:
            return [guess(logits[row], start + row) for row in range(min(most, self.block - 1))]
        return selector(hidden[:most], logits[:most], tokens[-1], lambda row, scores: guess(scores, start + row))

    def hidden(self, anchor: int, rows: int | None = None) -> torch.Tensor:
        """[rows, hidden] after the final norm: of the anchor and rows - 1 masks, a whole block by default."""
        rows = rows or self.block
        scale = self.config.input_scale
        x = torch.cat([self.model.embed([anchor]), self.mask.expand(rows - 1, -1)])
        x = x if scale == 1.0 else x * scale
        position = torch.arange(self.position, self.position + rows, device=x.device)

        def read(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            how = self.config.layers[layer]
            visibility = Visibility(how.causal, how.window)
            table = self.tables[self.group[layer]]
            splits = table.splits(self.place[layer], self.position, visibility.first_seen(self.position))
            own = Split(k.transpose(0, 1), v.transpose(0, 1), self.position, rows)
            return attend(q, position, [*splits, own], visibility, self.config.head_dim**-0.5)

        return self.loaded.module(x, position, self.loaded.rope, read)

    def truncate(self, position: int) -> None:
        for table in self.tables:
            table.truncate(position)
        self.position = position

    def keep(self) -> KeptDraft:
        pages = tuple(table.share() for table in self.tables)
        sizes = {
            -1 - (page.id * len(self.tables) + group): page.bytes  # below 0: the target's pages count from 0
            for group, held in enumerate(pages)
            for page in held
            if page is not None
        }
        return KeptDraft((self.position, pages), 0, sizes)

    def resume(self, kept: KeptDraft) -> None:
        self.position, pages = kept.state
        for table, held in zip(self.tables, pages, strict=True):
            table.adopt(held)

    def release(self, kept: KeptDraft) -> None:
        for table, held in zip(self.tables, kept.state[1], strict=True):
            table.release(held)

    def poison(self, value: float) -> None:
        for table in self.tables:
            table.poison(self.position, value)

    def _to_target_ids(self, logits: torch.Tensor) -> torch.Tensor:
        """A smaller vocabulary's logits at the target's ids, all other ids impossible."""
        ids = self.loaded.head_ids
        if ids is None:
            return logits
        spread = logits.new_full((logits.shape[0], self.model.vocab), -torch.inf)
        spread[:, ids] = logits
        return spread[:, : self.model.known_ids]

    def _table(self, group: int, window: int | None) -> PageTable:
        c = self.config
        pool = PagePool(self.group.count(group), c.kv_heads, c.head_dim, self.model.dtype, self.model.device)
        return PageTable(pool, window, slack=2 * self.block)
