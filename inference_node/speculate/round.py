"""One round of speculative decoding: propose, verify, commit.

The last committed token is the anchor. A drafter proposes what may follow it. The target reads the anchor and the
drafts in one pass and says, at each row, what it would have said there. As long as that is what was drafted, the next
row's answer counts too; the first answer that differs is the target's own, and is kept. So each round gains one token
at least and all its drafts plus one at most, and every token is the target's.

What the target would say at a row is decided by `Chooser.choose` from the row's logits, the request's settings and the
absolute position. The row's logits have the same bits whatever was drafted (models/target.py), so the text is the same
with any drafter and with none. `draft=False` runs this very code with nothing proposed: the oracle.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from inference_node.models.target import Forwarded, TextModel
from inference_node.speculate.choose import Chooser, logprobs
from inference_node.speculate.propose import Drafter, Guess
from inference_node.speculate.seam import Constraint, Cut, CycleResult, Timings, TokenLogprobs
from inference_node.state import recurrent
from inference_node.state.recurrent import BlockNotes
from inference_node.state.whole import SequenceState


@dataclass
class Pair:
    """A target, a drafter, and what both know of the live sequence."""

    model: TextModel
    drafter: Drafter
    state: SequenceState
    rollback: str  # replay | snapshots
    own_noise: bool = True  # drafts use the noise of their position, so that they guess the sample, not the best


@dataclass
class Turn:
    """A generation under way. `tokens` are all committed ones; the anchor is the last and has no row yet."""

    tokens: list[int]
    chooser: Chooser
    left: int  # tokens that may still be committed
    stop_ids: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    logprobs: int | None = None  # alternatives to report per token
    draft: bool = True


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts for the places after the anchor, and what a grammar allows there."""

    drafts: tuple[int, ...]
    allowed: torch.Tensor | None = None  # packed bits, one row per draft and one more
    shortened: bool = False  # the budget left room for fewer than a full block


@dataclass(frozen=True, slots=True)
class VerifiedBlock:
    """What one pass of the target settled.

    The target read the anchor and the drafts. It would have said the first `agreed` drafts itself, and what it says
    after them is in `tokens` too, unless a stop id came first.
    """

    anchor_at: int  # position of the anchor, counted from the start of the sequence
    drafts: tuple[int, ...]
    agreed: int
    tokens: tuple[int, ...]  # the target's choices for anchor_at + 1, anchor_at + 2, ...
    listed: tuple[TokenLogprobs, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) > self.agreed + 1 or self.agreed > len(self.drafts):
            raise ValueError(f"{len(self.tokens)} tokens, agreed={self.agreed} of {len(self.drafts)} drafts")


def run_round(pair: Pair, turn: Turn) -> CycleResult:
    """One cycle. After the turn's end it settles nothing and says so."""
    start = pair.state.position
    if turn.left == 0:
        return CycleResult(start=start, tokens=(), offered=0, accepted=0, cut=Cut.IDLE)
    began = time.perf_counter()
    proposal = propose(pair, turn)
    proposed = time.perf_counter()
    verified, seen, notes = verify(pair, turn, proposal)
    judged = time.perf_counter()
    commit(pair, turn, verified, seen, notes)
    done = time.perf_counter()
    return CycleResult(
        start=start,
        tokens=verified.tokens,
        offered=len(verified.drafts),
        accepted=verified.agreed,
        cut=_cut(turn, verified, proposal),
        timings=Timings(proposed - began, judged - proposed, done - judged, done - began),
        experts_woken=seen.woken,
        logprobs=verified.listed,
    )


def propose(pair: Pair, turn: Turn) -> Proposal:
    """Ask the drafter. No more drafts are verified than the budget can use, and none after one a grammar refuses."""
    most = min(pair.drafter.block, turn.left) - 1 if turn.draft else 0
    drafts = pair.drafter.propose(turn.tokens, most, _guess(pair, turn)) if most > 0 else []
    shortened = turn.draft and most < pair.drafter.block - 1
    if turn.constraint is None:
        return Proposal(tuple(drafts), shortened=shortened)
    allowed = turn.constraint.masks(drafts)
    return Proposal(tuple(drafts[: allowed.shape[0] - 1]), allowed, shortened)


def verify(pair: Pair, turn: Turn, proposal: Proposal) -> tuple[VerifiedBlock, Forwarded, BlockNotes]:
    """One pass of the target over anchor and drafts, then its choices row by row up to the first that differs."""
    start, drafts = pair.state.position, proposal.drafts
    notes = recurrent.notes(pair.rollback, pair.model.fold)
    seen = pair.model.block([turn.tokens[-1], *drafts], pair.state, notes, pair.drafter.taps)
    logits = pair.model.logits(seen.hidden)
    tokens: list[int] = []
    listed: list[TokenLogprobs] = []
    agreed = 0
    for row in range(len(drafts) + 1):
        allowed = None if proposal.allowed is None else proposal.allowed[row]
        token = turn.chooser.choose(logits[row], start + 1 + row, allowed)
        turn.chooser.record(token)
        tokens.append(token)
        if turn.logprobs is not None:
            listed.append(logprobs(logits[row], token, turn.logprobs))
        if row == len(drafts) or token != drafts[row]:
            break
        agreed += 1
        if token in turn.stop_ids:
            break
    return VerifiedBlock(start, drafts, agreed, tuple(tokens), tuple(listed)), seen, notes


def commit(pair: Pair, turn: Turn, verified: VerifiedBlock, seen: Forwarded, notes: BlockNotes) -> None:
    """Keep the rows of the anchor and of all new tokens but the last, which is the next anchor."""
    rows = [turn.tokens[-1], *verified.tokens[:-1]]
    pair.state.commit_block(rows, notes)
    pair.drafter.absorb(verified.anchor_at, rows, seen)
    turn.tokens += verified.tokens
    turn.left = 0 if verified.tokens[-1] in turn.stop_ids else turn.left - len(verified.tokens)
    if turn.constraint is not None:
        turn.constraint.advance(verified.tokens)


def _guess(pair: Pair, turn: Turn) -> Guess:
    return lambda logits, position: turn.chooser.draft(logits, position, own_noise=pair.own_noise)


def _cut(turn: Turn, verified: VerifiedBlock, proposal: Proposal) -> Cut:
    if verified.tokens[-1] in turn.stop_ids:
        return Cut.STOP
    return Cut.BUDGET if proposal.shortened else Cut.NONE
