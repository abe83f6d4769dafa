"""The long way from logits to tokens, for requests that ask for more than a temperature: all rows of a verify at once.

The same order and meaning as `speculate.choose.Chooser`: bias, penalties, grammar, temperature, top-k, top-p, min-p,
noise; ids with equal scores are kept or dropped together; the final tie goes to the lowest id. It always runs on every
row of the block, valid or not, and each row is summed for itself, so a row's choice does not depend on the row count or
on its neighbours. Everything a request can set is a tensor, so that one captured graph serves every request.

A filter is a cut-off: the lowest score that stays. With a small top-k, the usual case, it is found among the best few
ids and one count of ties. Without, by halving between the smallest and the largest float, since what lies above a score
shrinks as the score grows: 33 looks at the rows, no sort, and no order of ties. What a request does not ask for is left
out: `flags` names what it does, and a graph belongs to a set of flags.

Checked by: tests/inference_node/fast/test_filters.py, against Chooser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from inference_node.models.errors import NodeError
from inference_node.speculate.choose import FORBIDDEN_BIAS
from inference_node.speculate.seam import Sampling

LOWEST = -(2**31) + 1
FEW = 256
"""A top-k up to this is looked for among this many best ids."""

WORD = 32

Total = Callable[[torch.Tensor], torch.Tensor]


class Filters:
    """One request's settings as tensors, and what it has said. Set before a generation, read by the graph."""

    def __init__(self, ids: int, device: torch.device, holes: torch.Tensor | None = None) -> None:
        """ids: how many can be chosen. holes: bool [ids], true for those that no tokenizer entry has."""
        self.ids = ids
        self.holes = holes
        self.flags: tuple[str, ...] = ()
        one = torch.ones((), device=device)
        self.temperature, self.top_p, self.repetition = one.clone(), one.clone(), one.clone()
        self.min_p, self.presence, self.frequency = one.clone(), one.clone(), one.clone()
        self.top_k = torch.zeros((), dtype=torch.int64, device=device)
        self.bias = torch.zeros(ids, device=device)
        self.in_prompt = torch.zeros(ids, dtype=torch.bool, device=device)
        self.said = torch.zeros(ids, device=device)  # how often each id was said

    @staticmethod
    def needed(sampling: Sampling) -> bool:
        """Whether the request asks for more than the fused head does."""
        return bool(
            sampling.logit_bias
            or sampling.repetition_penalty != 1.0
            or sampling.presence_penalty != 0.0
            or sampling.frequency_penalty != 0.0
            or (not sampling.greedy and (sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0))
        )

    def set(
        self, sampling: Sampling, prompt: Sequence[int], output: Sequence[int], *, constrained: bool = True
    ) -> None:
        """Make ready for a generation."""
        penalised = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1, 0, 0)
        filtered = not sampling.greedy and (sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0)
        asked = {
            "bias": bool(sampling.logit_bias) or self.holes is not None,
            "penalties": penalised,
            "grammar": constrained,
            "few": filtered and 0 < sampling.top_k <= min(FEW, self.ids),
            "many": filtered and not 0 < sampling.top_k <= min(FEW, self.ids),
        }
        self.flags = tuple(name for name, yes in asked.items() if yes)
        self.temperature.fill_(sampling.temperature)
        self.top_k.fill_(sampling.top_k)
        self.top_p.fill_(sampling.top_p)
        self.min_p.fill_(sampling.min_p)
        self.repetition.fill_(sampling.repetition_penalty)
        self.presence.fill_(sampling.presence_penalty)
        self.frequency.fill_(sampling.frequency_penalty)
        self.bias.zero_()
        for token, value in sampling.logit_bias.items():
            if not 0 <= token < self.ids:
                raise NodeError(f"logit_bias names token {token}; expected an id from 0 to {self.ids - 1}.")
            self.bias[token] = -torch.inf if value <= FORBIDDEN_BIAS else value
        if self.holes is not None:
            self.bias.masked_fill_(self.holes, -torch.inf)
        self.in_prompt.zero_()
        self.said.zero_()
        device = self.said.device
        known = torch.tensor([token for token in prompt if token < self.ids], dtype=torch.int64, device=device)
        self.in_prompt[known] = True
        told = torch.tensor([token for token in output if token < self.ids], dtype=torch.int64, device=device)
        self.said += torch.bincount(told, minlength=self.ids)

    def record(self, tokens: torch.Tensor, committed: torch.Tensor) -> None:
        """The first `committed` of tokens [rows] were said."""
        counted = (torch.arange(tokens.shape[0], device=tokens.device) < committed).to(torch.float32)
        self.said.scatter_add_(0, tokens, counted)  # whole numbers: exact in any order

    def scores(self, logits: torch.Tensor, drafts: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        """[rows, ids]: what each row may say and how much it wants to, before temperature.

        logits [rows, ids] fp32. drafts [rows - 1]: row j stands after the first j of them. allowed: packed bits, int32
        [rows, ceil(ids / 32) or more].
        """
        if "bias" in self.flags:
            logits = logits + self.bias
        if "penalties" in self.flags:
            logits = self._penalise(logits, drafts.clamp(0, self.ids - 1))  # masks that stand there count for no row
        if "grammar" in self.flags:
            logits = logits.masked_fill(~unpack(allowed, self.ids), -torch.inf)
        return logits

    def cut(self, scores: torch.Tensor) -> torch.Tensor:
        """[rows]: the lowest score / temperature that stays."""
        if "few" in self.flags:
            return self._cut_of_few(scores / self.temperature)
        if "many" in self.flags:
            return self._cut_of_many(scores / self.temperature)
        return torch.full_like(scores[:, 0], -torch.inf)

    def _penalise(self, logits: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
        rows = logits.shape[0]
        before = torch.ones(rows, rows - 1, device=logits.device).tril(-1)
        counts = self.said.expand(rows, -1).scatter_add(1, drafts.expand(rows, -1), before)
        said = counts > 0
        repeated = torch.where(logits > 0, logits / self.repetition, logits * self.repetition)
        logits = torch.where(self.in_prompt | said, repeated, logits)
        return logits - said.to(torch.float32) * self.presence - counts * self.frequency

    def _cut_of_few(self, scaled: torch.Tensor) -> torch.Tensor:
        """Among the best few: the top-k-th of them, and how many more ids are equal to it."""
        values = torch.topk(scaled, min(FEW, self.ids), dim=-1).values
        place = torch.arange(values.shape[1], device=values.device)
        last = values.gather(1, (self.top_k - 1).expand(values.shape[0], 1))
        best = values[:, :1]
        ties = (scaled >= last).sum(-1, keepdim=True) - self.top_k
        mass = torch.where(place < self.top_k, (values - best).exp(), 0.0)
        whole = mass.sum(-1, keepdim=True) + ties * (last - best).exp()
        inside = (mass.cumsum(-1) - mass < self.top_p * whole) | (self.top_p >= 1.0)
        lowest = torch.where(inside & (place < self.top_k), values, torch.inf).amin(-1)
        return torch.maximum(torch.maximum(lowest, last[:, 0]), best[:, 0] + self.min_p.log())

    def _cut_of_many(self, scaled: torch.Tensor) -> torch.Tensor:
        order = _ordered(scaled)
        best = scaled.amax(-1, keepdim=True)
        by_count = _lowest(order, lambda above: above.sum(-1), torch.where(self.top_k == 0, self.ids, self.top_k))
        mass = torch.where(order >= by_count[:, None], (scaled - best).exp(), 0.0)
        most = torch.where(self.top_p >= 1.0, torch.inf, self.top_p * mass.sum(-1))
        by_mass = _lowest(order, lambda above: torch.where(above, mass, 0.0).sum(-1), most)
        kept = torch.maximum(by_count, by_mass)
        lowest = torch.where(order >= kept[:, None], scaled, torch.inf).amin(-1)
        return torch.maximum(lowest, best[:, 0] + self.min_p.log())


def unpack(words: torch.Tensor, ids: int) -> torch.Tensor:
    """Bool [rows, ids] from int32 words, lowest bit first."""
    bits = (words[..., None] >> torch.arange(WORD, device=words.device, dtype=words.dtype)) & 1
    return bits.flatten(-2)[..., :ids].to(torch.bool)


def pack(flags: torch.Tensor) -> torch.Tensor:
    """int32 [ceil(ids / 32)] from bool [ids]; the other way of `unpack`."""
    padded = torch.zeros(-(-flags.shape[0] // WORD) * WORD, dtype=torch.int64, device=flags.device)
    padded[: flags.shape[0]] = flags
    words = (padded.view(-1, WORD) << torch.arange(WORD, device=flags.device)).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def everything(rows: int, ids: int, device: torch.device) -> torch.Tensor:
    """Packed bits that allow all ids."""
    return torch.full((rows, -(-ids // WORD)), -1, dtype=torch.int32, device=device)


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """int32 keys in the order of the floats; -0.0 and 0.0 are one."""
    bits = (values + 0.0).view(torch.int32)
    return torch.where(bits < 0, LOWEST - 1 - bits, bits)


def _lowest(order: torch.Tensor, total: Total, limit: torch.Tensor) -> torch.Tensor:
    """Per row the lowest key so that what lies above it comes to less than `limit`."""
    low = order.amin(-1).to(torch.int64) - 1  # too low, unless everything stays
    high = order.amax(-1).to(torch.int64)  # nothing lies above: always low enough
    for _ in range(33):
        middle = (low + high).div(2, rounding_mode="floor")
        enough = total(order > middle[:, None].to(order.dtype)) < limit
        high = torch.where(enough, middle, high)
        low = torch.where(enough, low, middle)
    return high.to(order.dtype)
