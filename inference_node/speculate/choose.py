"""How a token is chosen from one row of logits: by the request's settings, its own place, and what was said before.

The choice is a function of (logits, settings, position, tokens before it). It never asks whether or by whom the token
was drafted, so text is the same with and without speculation. One row is chosen at a time, by the same code whatever
the pass had for rows. Order: bias, penalties, grammar, temperature, top-k, top-p, min-p, noise.

A filter keeps every id whose score is at least a cut-off, so ids with equal scores are kept or dropped together and no
sort's order of ties can matter; the final tie goes to the lowest id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from inference_node.kernels.plain.philox import noise
from inference_node.models.errors import NodeError
from inference_node.speculate.seam import Sampling, TokenLogprobs

FORBIDDEN_BIAS = -100.0
"""A bias at or below this forbids its id, as OpenAI's API says."""

FIRST_LOOK = 1024
"""Top-p sorts this many best ids first, and all of them only when these do not hold enough mass."""


class Chooser:
    """Chooses the tokens of one request, one after another."""

    def __init__(
        self,
        sampling: Sampling,
        ids: int,
        device: torch.device,
        *,
        prompt: Sequence[int] = (),
        output: Sequence[int] = (),
        holes: torch.Tensor | None = None,
    ) -> None:
        """ids: how many can be chosen. holes: bool [ids], true for ids below that which no tokenizer entry has."""
        self.sampling = sampling
        self.holes = holes
        self.bias = _bias(sampling, ids, device)
        self.penalised = (
            sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
        )
        self.in_prompt = torch.zeros(ids if self.penalised else 0, dtype=torch.bool, device=device)
        self.in_output = torch.zeros(ids if self.penalised else 0, dtype=torch.float32, device=device)
        if self.penalised:
            self.in_prompt[[token for token in prompt if token < ids]] = True
            for token in output:
                self.record(token)

    def record(self, token: int) -> None:
        """This token was said."""
        if self.penalised:
            self.in_output[token] += 1.0

    def choose(self, logits: torch.Tensor, position: int, allowed: torch.Tensor | None = None) -> int:
        """The token at this absolute position. logits [ids] fp32; allowed: packed bits, see seam.Constraint."""
        if not bool(torch.isfinite(logits).all()):
            raise NodeError(
                f"The model's logits at position {position} are not finite. Its weights or this device's arithmetic "
                "are broken; run `lamplighter-node doctor`."
            )
        scores = self._penalise(logits if self.bias is None else logits + self.bias)
        if self.holes is not None:
            scores = scores.masked_fill(self.holes, -torch.inf)
        if allowed is not None:
            scores = scores.masked_fill(~unpack(allowed.to(logits.device), logits.shape[0]), -torch.inf)
        token = sample(scores, self.sampling, position)
        if not math.isfinite(float(scores[token])):
            raise NodeError(f"logit_bias and grammar together allow no token at position {position}.")
        return token

    def draft(self, logits: torch.Tensor, position: int, *, own_noise: bool) -> int:
        """A guess at what `choose` will say there, from a drafter's logits. Penalties and grammar are left out."""
        scores = logits if self.holes is None else logits.masked_fill(self.holes, -torch.inf)
        if self.sampling.greedy or not own_noise:
            return int(scores.argmax())
        return sample(scores, self.sampling, position)

    def _penalise(self, logits: torch.Tensor) -> torch.Tensor:
        if not self.penalised:
            return logits
        said = self.in_output > 0
        penalty = self.sampling.repetition_penalty
        repeated = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits = torch.where(self.in_prompt | said, repeated, logits)
        return (
            logits
            - said.to(torch.float32) * self.sampling.presence_penalty
            - self.in_output * self.sampling.frequency_penalty
        )


def sample(scores: torch.Tensor, sampling: Sampling, position: int) -> int:
    """argmax when greedy, else a sample of the filtered softmax by the position's own noise."""
    if sampling.greedy:
        return int(scores.argmax())
    scores = scores / sampling.temperature
    cut = _cut(scores, sampling)
    ids = torch.arange(scores.shape[0], device=scores.device) if cut is None else (scores >= cut).nonzero()[:, 0]
    return int(ids[(scores[ids] + noise(sampling.seed, position, ids)).argmax()])


def unpack(words: torch.Tensor, ids: int) -> torch.Tensor:
    """Bool [ids] from int32 words, lowest bit first."""
    bits = (words[:, None] >> torch.arange(32, device=words.device, dtype=words.dtype)) & 1
    return bits.flatten()[:ids].to(torch.bool)


def logprobs(logits: torch.Tensor, token: int, top: int) -> TokenLogprobs:
    """By the model's own law: the plain softmax of its logits."""
    listed = torch.log_softmax(logits, dim=-1)
    value, best = torch.topk(listed, min(top, listed.shape[0]))
    return TokenLogprobs(token, float(listed[token]), tuple(zip(best.tolist(), value.tolist(), strict=True)))


def _cut(scores: torch.Tensor, sampling: Sampling) -> torch.Tensor | None:
    """The lowest score that stays, or None when all do."""
    cuts = []
    kept = scores
    if 0 < sampling.top_k < scores.shape[0]:
        cuts.append(torch.topk(scores, sampling.top_k).values[-1])
        kept = scores[scores >= cuts[0]]
    if sampling.top_p < 1.0:
        cuts.append(_nucleus(kept, sampling.top_p))
    if sampling.min_p > 0.0:
        cuts.append(scores.max() + math.log(sampling.min_p))
    return torch.stack(cuts).max() if cuts else None


def _nucleus(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """The lowest score whose better ones together have less than top_p of the mass."""
    whole = torch.logsumexp(scores, dim=-1)
    for look in (min(FIRST_LOOK, scores.shape[0]), scores.shape[0]):
        best = torch.topk(scores, look).values
        mass = (best - whole).exp()
        before = mass.cumsum(0) - mass
        inside = int((before < top_p).sum())
        if inside < look:
            break
    return best[max(inside, 1) - 1]


def _bias(sampling: Sampling, ids: int, device: torch.device) -> torch.Tensor | None:
    if not sampling.logit_bias:
        return None
    bias = torch.zeros(ids, dtype=torch.float32, device=device)
    for token, value in sampling.logit_bias.items():
        if not 0 <= token < ids:
            raise NodeError(f"logit_bias names token {token}; expected an id from 0 to {ids - 1}.")
        bias[token] = -torch.inf if value <= FORBIDDEN_BIAS else value
    return bias
