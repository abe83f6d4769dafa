"""One cycle of speculative decoding that never waits for the host: draft, choose the width, verify, choose, settle.

    draft    the drafter fills the block's masks: rows 1.. of `block`, with a confidence each
    width    how many of them are verified, by confidence and cost: VALID in `control`
    verify   the target reads anchor and drafts; first it folds the rows that the last cycle kept into its memories.
             It leaves the hidden rows, and the drafter's context keys for every row (later rows overwrite wrong ones)
    choose   the target's own choice after each row: the fused head, or the long way when a request asks for more
    settle   drafts that are the target's choice are kept, the text is cut where it ends, the next block is laid out

Everything these share lies in tensors that never move, so a cycle is one captured graph. `control` is the sequence as
the device knows it. The host launches a cycle, asks for a copy of the row that tells of it, and looks at that one cycle
later. Under a grammar the draft is a graph of its own: the host walks its ids through the grammar while the verify
runs. With drafts from the host (n-grams, checks) there is nothing to wait for on the device, but the host must have
read the cycle before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from inference_node.fast.drafter import DeviceDrafter
from inference_node.fast.filters import Filters, everything, pack
from inference_node.fast.forward import Model
from inference_node.fast.graphs import Graphs
from inference_node.fast.pages import Table
from inference_node.fast.parts import Parts
from inference_node.fast.recurrent import Kept, Recurrent
from inference_node.fast.width import Width
from inference_node.kernels.plain import accept
from inference_node.kernels.plain.accept import FIELDS, RECORD, Field, Told
from inference_node.models.errors import NodeError
from inference_node.speculate.seam import Constraint, Cut, CycleResult, Sampling, Timings, TokenLogprobs

CYCLES = 8
"""Rows of `record`: cycles that may be under way before the first of them is read."""

MOST_STOPS = 16
CUTS = {accept.Cut.NONE: Cut.NONE, accept.Cut.BUDGET: Cut.BUDGET, accept.Cut.STOP: Cut.STOP, accept.Cut.IDLE: Cut.IDLE}


@dataclass
class Launched:
    """A cycle under way. What it will tell is copied to the host behind it."""

    record: torch.Tensor  # int32 [RECORD + rows], on the host
    best: torch.Tensor  # fp32 [rows]: what the choices scored
    woken: torch.Tensor  # int32 [MoE layers]
    ready: Callable[[], float]  # waits; seconds that it took on the device
    error: Exception | None = None
    logprobs: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None  # of the choices, best values, best ids
    listed: int = 0

    def result(self) -> CycleResult:
        """Waits for it."""
        seconds = self.ready()
        if self.error is not None:
            raise self.error
        told = self.record.tolist()
        committed, cut = told[Told.COMMITTED], CUTS[accept.Cut(told[Told.CUT])]
        if not all(math.isfinite(score) for score in self.best[:committed].tolist()):
            raise NodeError(
                f"No token could be chosen at position {told[Told.START] + 1}: the model's logits are not finite, or "
                "logit_bias and grammar together allow no token. If it is not the request, run `lamplighter-node "
                "doctor`."
            )
        return CycleResult(
            start=told[Told.START],
            tokens=tuple(told[RECORD : RECORD + committed]),
            offered=told[Told.OFFERED],
            accepted=told[Told.ACCEPTED],
            cut=cut,
            timings=Timings(total_s=seconds),
            experts_woken=tuple(self.woken.tolist()) if committed else (),
            logprobs=self._logprobs(committed),
        )

    def _logprobs(self, committed: int) -> tuple[TokenLogprobs, ...]:
        if self.logprobs is None:
            return ()
        chosen, values, ids = (part[:committed].tolist() for part in self.logprobs)
        tokens = self.record[RECORD : RECORD + committed].tolist()
        return tuple(
            TokenLogprobs(token, own, tuple(zip(best[: self.listed], value[: self.listed], strict=True)))
            for token, own, value, best in zip(tokens, chosen, values, ids, strict=True)
        )


@dataclass
class Shared:
    """Tensors that the pieces of a cycle share. Their addresses are in the graphs."""

    control: torch.Tensor  # int32 [FIELDS]
    block: torch.Tensor  # int32 [rows]: the anchor, then mask ids or drafts
    positions: torch.Tensor  # int32 [rows]
    choices: torch.Tensor  # int32 [rows]
    best: torch.Tensor  # fp32 [rows]
    confidence: torch.Tensor  # fp32 [rows - 1], of the drafts
    record: torch.Tensor  # int32 [CYCLES, RECORD + rows]
    stops: torch.Tensor  # int32 [MOST_STOPS], -1 where there is none
    logits: torch.Tensor  # fp32 [rows, ids]; of the long way only
    allowed: torch.Tensor  # int32 [rows, words]
    known: torch.Tensor | None = None  # int32 [words]: ids that the tokenizer has; None: all
    imposed: torch.Tensor | None = None  # for benches: how many drafts each cycle accepts

    def at(self, place: Field) -> torch.Tensor:
        """One number of the control block, as kernels take it."""
        return self.control[place : place + 1]


class Runner:
    """A model, a drafter and the memory of one sequence on one device."""

    def __init__(
        self,
        model: Model,
        drafter: DeviceDrafter | None,
        table: Table,
        recurrent: Recurrent,
        width: Width,
        *,
        block: int,
        positions: int,
        holes: torch.Tensor | None = None,
        own_noise: bool = True,
        graphs: bool = True,
    ) -> None:
        """positions: that the table and the rotary tables reach. own_noise: drafts use the noise of their place."""
        self.model, self.drafter, self.table, self.recurrent, self.width = model, drafter, table, recurrent, width
        self.block, self.positions, self.device = block, positions, model.device
        self.parts: Parts = model.parts
        self.segment = self.parts.segment
        self.own_noise = own_noise
        self.graphs = Graphs(model.device, on=graphs)
        self.filters = Filters(model.known_ids, model.device, holes)
        device = model.device

        def whole(*shape: int, fill: int = 0) -> torch.Tensor:
            return torch.full(shape, fill, dtype=torch.int32, device=device)

        self.shared = Shared(
            control=whole(FIELDS),
            block=whole(block),
            positions=whole(block),
            choices=whole(block),
            best=torch.zeros(block, device=device),
            confidence=torch.zeros(block - 1, device=device),
            record=whole(CYCLES, RECORD + block),
            stops=whole(MOST_STOPS, fill=-1),
            logits=torch.zeros(block, model.known_ids, device=device),
            allowed=everything(block, model.known_ids, device),
            known=None if holes is None else pack(~holes),
        )
        self.mask = drafter.mask if drafter is not None else 0
        self.lag = drafter.lag if drafter is not None else 0
        self.slot = 0  # the host's copy of SLOT, which every pass turns; exact also where nothing was read
        self.pending = False  # whether the device may have rows to fold
        self.launches = 0  # since `begin`
        self.pieces: dict[str, Callable[[], None]] = {
            "draft": self._draft,
            "verify": self._verify,
            "logits": lambda: self.model.logits(self.shared),
            "choose": lambda: self._choose_and_settle(long=False),
            "long choose": lambda: self._choose_and_settle(long=True),
            "cycle": lambda: self._whole(draft=True, long=False),
            "long cycle": lambda: self._whole(draft=True, long=True),
            "plain": lambda: self._whole(draft=False, long=False),
            "long plain": lambda: self._whole(draft=False, long=True),
        }

    # The sequence.

    def reset(self) -> None:
        """An empty sequence."""
        self.recurrent.reset()
        self.shared.control.zero_()
        self.slot, self.pending = 0, False

    def begin(
        self,
        *,
        start: int,
        anchor: int,
        budget: int,
        stop_ids: Sequence[int],
        sampling: Sampling,
        prompt: Sequence[int],
        output: Sequence[int],
        width: int,
        filtered: bool,
        constrained: bool,
        host: bool = False,
    ) -> None:
        """Lay out the first block. Rows left to fold stay so."""
        if len(stop_ids) > MOST_STOPS:
            raise NodeError(f"{len(stop_ids)} ids that end the text; the fast engine knows {MOST_STOPS}.")
        s = self.shared
        self.filters.set(sampling, prompt, output, constrained=constrained)
        self._prepare(drafts=width > 1 and not host, filtered=filtered, constrained=constrained)
        self.model.sample(sampling)
        s.allowed.fill_(-1)
        s.stops.fill_(-1)
        if stop_ids:
            s.stops[: len(stop_ids)] = torch.tensor(list(stop_ids), dtype=torch.int32, device=self.device)
        self._lay_out([anchor], start)
        self._tell({
            Field.VALID: min(width, budget), Field.BUDGET: budget, Field.ENDED: 0, Field.WIDTH: width, Field.CYCLE: 0,
        })  # fmt: skip
        self.launches = 0

    def settle(self) -> bool:
        """Fold what is left to fold. Whether anything was done; if so, it counts as a pass."""
        if not self.pending:
            return False
        self._fold()
        self.pending = False
        return True

    def keep(self, position: int) -> Kept:
        """Copies of what is not in pages; the recurrent state must be settled."""
        return Kept(self.recurrent.kept(self.slot), self.drafter.keep(position) if self.drafter is not None else None)

    def resume(self, kept: Kept, position: int) -> None:
        self.reset()
        self.recurrent.resume(kept.recurrent, self.slot)
        if self.drafter is not None:
            self.drafter.resume(kept.drafter, position)

    def go_back(self, ago: int, *, start: int, fold: int) -> None:
        """To the block `ago` blocks before the last one, of which `fold` rows stay."""
        if self.recurrent.rollback == "replay":
            self._replay(ago, fold)
            fold = 0
        elif ago % 2:
            self.slot = 1 - self.slot
        self._tell({Field.START: start, Field.SLOT: self.slot, Field.FOLD: fold, Field.VALID: 0})
        self.pending = fold > 0

    def prefill(self, tokens: Sequence[int], start: int, tap_layers: Sequence[int] = ()) -> torch.Tensor:
        """Rows of tokens from a multiple of CHUNK on; the outputs of the asked layers."""
        taps = self.model.prefill(tokens, start, self.table, self.recurrent, self.slot, self._taps(tap_layers))
        self._tell({Field.START: start + len(tokens)})
        ids = torch.tensor(list(tokens), dtype=torch.int32).to(self.device, non_blocking=True)
        return self._absorb(ids, taps, start, len(tokens), tap_layers)

    def append(self, tokens: Sequence[int], start: int, tap_layers: Sequence[int] = ()) -> torch.Tensor:
        """At most a block of rows, the way a decode computes them; the outputs of the asked layers."""
        self._lay_out(tokens, start)
        taps = self.model.verify(self.shared, self.table, self.recurrent, self._taps(tap_layers))
        asked = self._absorb(self.shared.block, taps, start, len(tokens), tap_layers)
        self._keep_rows(start, len(tokens))
        return asked

    def probe(self, tokens: Sequence[int], start: int, kept: int) -> torch.Tensor:
        """Logits [rows, ids] of a block's rows, of which the first `kept` stay. For comparisons."""
        names = ("verify", "logits")
        if self.graphs.missing(names):
            self.settle()
            self._tell({Field.VALID: 0})
            for name in names:
                self.graphs.capture(name, self.pieces[name])
        self._lay_out(tokens, start)
        for name in names:
            self._run(name)
        self._keep_rows(start, kept)
        return self.shared.logits[: len(tokens)]

    def begin_pass(self, *, start: int, valid: int, fold: int, tokens: Sequence[int] = ()) -> None:
        """Lay out passes without end, for benches: nothing stops them and their texts mean nothing."""
        self.shared.stops.fill_(-1)
        self._lay_out(tokens or [0] * self.block, start)
        self._tell({
            Field.VALID: valid, Field.FOLD: fold, Field.BUDGET: 1 << 30, Field.WIDTH: max(1, valid), Field.ENDED: 0,
            Field.CYCLE: 0,
        })  # fmt: skip

    def end_passes(self) -> None:
        """Learn how many passes there were, as far as it matters."""
        self.slot = int(self.shared.at(Field.SLOT))
        self.pending = True

    def _lay_out(self, tokens: Sequence[int], start: int) -> None:
        s, n = self.shared, len(tokens)
        s.block.fill_(self.mask)
        s.block[:n].copy_(torch.tensor(list(tokens), dtype=torch.int32), non_blocking=True)
        torch.arange(start, start + self.block, out=s.positions, device=self.device)
        self._tell({Field.START: start, Field.VALID: n})

    def _keep_rows(self, start: int, kept: int) -> None:
        """The first rows of the pass that was run stay."""
        self.slot = 1 - self.slot
        self._tell({Field.START: start + kept, Field.VALID: 0, Field.FOLD: kept, Field.SLOT: self.slot})
        if self.recurrent.rollback == "replay":
            self._commit_replay()
        self.pending = self.recurrent.rollback != "replay"

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def poison(self, value: float, position: int) -> None:
        """Fill what no later pass may read, with `position` rows in."""
        if self.drafter is not None:
            self.drafter.poison(value, position)
        if self.recurrent.memories:
            self.recurrent.poison(value, self.slot, int(self.shared.at(Field.FOLD)))
        self.shared.logits.fill_(value)

    # A cycle.

    def launch(
        self,
        *,
        draft: bool,
        drafts: Sequence[int] | None,
        filtered: bool,
        constraint: Constraint | None,
        logprobs: int | None,
    ) -> Launched:
        """Start one cycle. drafts: from the host, in place of the device's drafter."""
        timer = _Timer(self.device)
        row = self.launches % CYCLES
        self.launches += 1
        own = draft and drafts is None and self.drafter is not None
        long = "long " if filtered else ""
        error = None
        if drafts is not None:
            self._put_drafts(drafts)
        if constraint is None:
            self._run(f"{long}cycle" if own else f"{long}plain")
        else:
            if own:
                self._run("draft")
            asked = _to_host(torch.cat([self.shared.at(Field.VALID), self.shared.block[1:]]))
            self._run("verify")
            error = self._mask(constraint, asked)
            self._run(f"{long}choose")
        self.slot, self.pending = 1 - self.slot, self.recurrent.rollback != "replay"
        launched = self._told(row, timer, logprobs)
        launched.error = error
        return launched

    def _whole(self, *, draft: bool, long: bool) -> None:
        if draft:
            self._draft()
        self._verify()
        self._choose_and_settle(long=long)

    def _draft(self) -> None:
        """Fill the block's masks, and say how many of them are verified."""
        assert self.drafter is not None
        s = self.shared
        self.drafter.run(s, self.table, self.model.sampling, own_noise=self.own_noise)
        offered = self.width.offer(s.confidence, s.control[Field.BUDGET].to(torch.int64))
        valid = s.at(Field.VALID)
        torch.minimum(valid, (offered + 1).to(torch.int32).view(1), out=valid)

    def _verify(self) -> None:
        s = self.shared
        taps = self.model.verify(s, self.table, self.recurrent, self._taps(()))
        if self.drafter is not None:
            self.drafter.absorb(s.block, taps, s.at(Field.START), s.at(Field.VALID), self.table)

    def _choose_and_settle(self, *, long: bool) -> None:
        s = self.shared
        if long:
            self._choose_long()
        else:
            self.model.choose(s)
        self.parts.accept(
            s.block, s.choices, s.stops, s.control, s.positions, s.record, self.mask, s.imposed
        )  # fmt: skip
        if long and "penalties" in self.filters.flags:
            self.filters.record(s.choices.clamp(min=0).to(torch.int64), s.control[Field.FOLD])
        self._teach_width()
        if self.recurrent.rollback == "replay":
            self._commit_replay()

    def _choose_long(self) -> None:
        s = self.shared
        self.model.logits(s)
        scores = self.filters.scores(s.logits, s.block[1:].to(torch.int64), s.allowed)
        heat = self.model.sampling
        self.parts.pick(
            scores, self.filters.cut(scores), heat.temperature, heat.seed, s.positions + 1, s.choices, s.best
        )

    def _teach_width(self) -> None:
        if not self.width.adaptive or self.drafter is None:
            return
        s = self.shared
        told = s.record.index_select(0, ((s.control[Field.CYCLE] - 1) % CYCLES).view(1).to(torch.int64))[0]
        self.width.learn(s.confidence, told[Told.OFFERED], told[Told.ACCEPTED], told[Told.COMMITTED])

    def _commit_replay(self) -> None:
        new = self.shared.at(Field.SLOT)
        self.model.replay(self.recurrent, 1 - new, new, self.shared.at(Field.FOLD))
        self.shared.at(Field.FOLD).zero_()

    def _replay(self, ago: int, rows: int) -> None:
        """Replay's way back: to `rows` rows of the last block, or of the one before it."""
        new = torch.tensor([self.slot], dtype=torch.int32, device=self.device)
        kept = torch.tensor([rows], dtype=torch.int32, device=self.device)
        self.recurrent.start_of(ago, self.slot)
        self.model.replay(self.recurrent, 1 - new, new, kept, inputs=1 - new if ago == 0 else new, keep_earlier=False)

    def _fold(self) -> None:
        """A pass without rows, over the recurrent layers alone."""
        self.model.fold(self.shared, self.recurrent)
        self.slot = 1 - self.slot
        self._tell({Field.SLOT: self.slot, Field.FOLD: 0})

    # Between host and device.

    def _prepare(self, *, drafts: bool, filtered: bool, constrained: bool) -> None:
        """Capture what this generation will replay. Warm runs are passes without rows, an even number of them."""
        long = "long " if filtered else ""
        own = drafts and self.drafter is not None
        if constrained:
            names = (*(("draft",) if own else ()), "verify", f"{long}choose", f"{long}plain")
        else:
            names = (f"{long}cycle",) if own else (f"{long}plain",)
        if not self.graphs.missing(tuple(map(self._graph, names))):
            return
        self.settle()
        self._tell({Field.VALID: 0, Field.BUDGET: 0})
        for name in names:
            self.graphs.capture(self._graph(name), self.pieces[name])

    def _run(self, name: str) -> None:
        self.graphs.run(self._graph(name), self.pieces[name])

    def _graph(self, piece: str) -> str:
        """The long way's graphs differ by what the request asks for."""
        return piece if not piece.startswith("long") else " ".join((piece, *self.filters.flags))

    def _tell(self, values: dict[Field, int]) -> None:
        for place, value in values.items():
            self.shared.control[place] = value

    def _put_drafts(self, drafts: Sequence[int]) -> None:
        """The host's own. A text that has ended stays so."""
        s, n = self.shared, len(drafts)
        if n:
            s.block[1 : n + 1].copy_(torch.tensor(list(drafts), dtype=torch.int32), non_blocking=True)
        s.at(Field.VALID).clamp_(max=n + 1)

    def _mask(self, constraint: Constraint, asked: Callable[[], list[int]]) -> Exception | None:
        """Walk the offered drafts through the grammar; rows after the first that it refuses do not count."""
        valid, *drafts = asked()
        if valid == 0:
            return None
        s = self.shared
        try:
            bits = constraint.masks(drafts[: valid - 1])
        except Exception as error:  # the caller meets it when it reads
            s.at(Field.VALID).zero_()
            return error
        words = min(bits.shape[1], s.allowed.shape[1])
        s.allowed.zero_()
        s.allowed[: bits.shape[0], :words].copy_(bits[:, :words], non_blocking=True)
        s.at(Field.VALID).clamp_(max=bits.shape[0])
        return None

    def _told(self, row: int, timer: _Timer, logprobs: int | None) -> Launched:
        s = self.shared
        record, best, woken = (_behind(part) for part in (s.record[row], s.best, self.model.woken))
        listed = None
        if logprobs is not None:
            wanted = max(1, min(logprobs, s.logits.shape[1]))
            lawful = torch.log_softmax(s.logits, dim=-1)
            values, ids = torch.topk(lawful, wanted, dim=-1)
            own = lawful.gather(1, s.choices.to(torch.int64)[:, None])[:, 0]
            listed = (_behind(own), _behind(values), _behind(ids))
        return Launched(record, best, woken, timer.stop(), logprobs=listed, listed=logprobs or 0)

    def _taps(self, more: Sequence[int]) -> tuple[int, ...]:
        return (*(self.drafter.taps if self.drafter is not None else ()), *more)

    def _absorb(
        self, tokens: torch.Tensor, taps: torch.Tensor, start: int, rows: int, more: Sequence[int]
    ) -> torch.Tensor:
        """The drafter's share of taps [rows, layers, hidden] goes into its context; the rest is returned."""
        own = len(self.drafter.taps) if self.drafter is not None else 0
        if self.drafter is not None:
            first = torch.tensor([start], dtype=torch.int32, device=self.device)
            count = torch.tensor([rows], dtype=torch.int32, device=self.device)
            self.drafter.absorb(tokens, taps[:, :own], first, count, self.table)
        return taps[:rows, own : own + len(more)]


class _Timer:
    """Seconds between its making and `stop`, on the device where there is one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.began = time.perf_counter()
        if device.type == "cuda":
            self.first, self.last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.first.record()

    def stop(self) -> Callable[[], float]:
        """A function that waits for what was launched before, and gives the seconds."""
        if self.device.type != "cuda":
            seconds = time.perf_counter() - self.began
            return lambda: seconds
        self.last.record()

        def wait() -> float:
            self.last.synchronize()
            return float(self.first.elapsed_time(self.last)) / 1e3

        return wait


def _behind(part: torch.Tensor) -> torch.Tensor:
    """A copy on the host, there when what was launched before it is done."""
    if part.device.type != "cuda":
        return part.clone()
    return torch.empty(part.shape, dtype=part.dtype, pin_memory=True).copy_(part, non_blocking=True)


def _to_host(part: torch.Tensor) -> Callable[[], list[int]]:
    """A function that gives the numbers; what is launched after this does not have to be done."""
    copy = _behind(part)
    if part.device.type != "cuda":
        return copy.tolist
    event = torch.cuda.Event()
    event.record()

    def wait() -> list[int]:
        event.synchronize()
        return copy.tolist()

    return wait
