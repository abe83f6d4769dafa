"""What two programs a tile give in the experts' second product (kernels/triton/expert_mlp.py, HALVES).

A row's bits depend on its neighbours neither way, so the way is chosen by its times, and `bits` is asked.
"""

from __future__ import annotations

from inference_node.kernels.triton import expert_mlp
from inference_node.lab.whole.bits import bits
from inference_node.lab.whole.live import Bench, accepted, captured, drafted, impose, passes_of, stand_at, timed

TURNS = {"none": False, "halves": True, "again": False}
"""By their names in the figures; the last says how far two measurements of one thing lie apart."""


def halves(bench: Bench) -> None:
    """Decode, verify, draft and cycle without and with; whole generations and bits (on fewer positions) with."""
    before = expert_mlp.HALVES
    try:
        for name, value in TURNS.items():
            _times(bench, value, name)
        _use(bench, True)
        for tau in (7.35, 4.9):
            stand_at(bench, bench.contexts[0])
            impose(bench, 16, 47)
            said, _, seconds = drafted(bench, bench.contexts[0], tau)
            bench.tell(**{f"halves_tok_s_tau_{str(tau).replace('.', '_')}": said / seconds})
        bench.runner.shared.imposed = None
        impose(bench, 16, None)
        bits(bench, positions=min(512, bench.bit_positions), name="halves_")
    finally:
        _use(bench, before)
        bench.runner.shared.imposed = None


def _times(bench: Bench, value: bool, name: str) -> None:
    _use(bench, value)
    stand_at(bench, bench.contexts[0])
    bench.runner.shared.imposed = None
    impose(bench, 1, 8)
    found = {"decode": passes_of(bench, 1)}
    impose(bench, 16, 47)
    found["verify16_e47"] = passes_of(bench, bench.runner.block)
    accepted(bench, 7.35)
    for piece in ("draft", "cycle"):
        replay = captured(bench, piece)
        bench.runner.begin_pass(start=bench.start, valid=bench.runner.block, fold=0)
        found[piece] = timed(bench, replay, bench.repeat)
        bench.runner.end_passes()
    bench.tell(**{f"with_{name}_{piece}_ms": 1e3 * seconds for piece, seconds in found.items()})


def _use(bench: Bench, value: bool) -> None:
    """From now on, in graphs that are captured anew."""
    expert_mlp.HALVES = value
    bench.runner.graphs.forget()
