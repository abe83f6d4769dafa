"""What a launch gains by calling the next one's weight into the cache: every setting, and the bits of the best."""

from __future__ import annotations

from inference_node.kernels.triton import ahead as calls
from inference_node.lab.compiling import Ahead
from inference_node.lab.whole.live import Bench, accepted, captured, drafted, impose, passes_of, stand_at, timed

MIB = 1 << 20
VARIANTS: tuple[Ahead, ...] = (
    (0, False), (20 * MIB, False), (20 * MIB, True), (10 * MIB, False), (32 * MIB, False), (10 * MIB, True),
)  # fmt: skip
"""20 MiB hold the part of `down` that a decode reads; the first, nothing, is what the others are held against."""


def ahead(bench: Bench) -> None:
    """Decode, verify, draft and cycle with each; whole generations with the best. No bit can change: `bits` says so
    of it too, on fewer positions."""
    from inference_node.lab.whole.bits import bits

    before = calls.BYTES, calls.EARLY
    try:
        scores = {variant: _times(bench, variant) for variant in VARIANTS}
        _times(bench, VARIANTS[0], "again")
        best = min(VARIANTS, key=lambda variant: scores[variant])
        bench.tell(ahead_best_mib=best[0] / MIB, ahead_best_early=float(best[1]))
        if best == VARIANTS[0]:
            return
        _use(bench, best)
        for tau in (7.35, 4.9):
            stand_at(bench, bench.contexts[0])
            impose(bench, 16, 47)
            said, _, seconds = drafted(bench, bench.contexts[0], tau)
            bench.tell(**{f"ahead_tok_s_tau_{str(tau).replace('.', '_')}": said / seconds})
        bench.runner.shared.imposed = None
        impose(bench, 16, None)
        bits(bench, positions=min(512, bench.bit_positions), name="ahead_")
    finally:
        _use(bench, before)
        bench.runner.shared.imposed = None


def _times(bench: Bench, variant: Ahead, name: str = "") -> float:
    """Told; returns decode and cycle as shares of what they are about, so that both count."""
    _use(bench, variant)
    name = name or f"{variant[0] // MIB}{'_early' if variant[1] else ''}"
    stand_at(bench, bench.contexts[0])
    bench.runner.shared.imposed = None
    impose(bench, 1, 8)
    decode = passes_of(bench, 1)
    impose(bench, 16, 47)
    verify = passes_of(bench, bench.runner.block)
    accepted(bench, 7.35)
    cycle = captured(bench, "cycle")
    bench.runner.begin_pass(start=bench.start, valid=bench.runner.block, fold=0)
    whole = timed(bench, cycle, bench.repeat)
    bench.runner.end_passes()
    found = {"decode": decode, "verify16_e47": verify, "cycle": whole}
    bench.tell(**{f"ahead_{name}_{part}_ms": 1e3 * seconds for part, seconds in found.items()})
    return 2 * decode + whole


def _use(bench: Bench, variant: Ahead) -> None:
    """From now on, in graphs that are captured anew."""
    calls.BYTES, calls.EARLY = variant
    bench.runner.graphs.forget()
