"""What the kernels' switches give: every setting timed against none, and the bits of the best.

None of them makes a row's bits depend on its neighbours, so a setting is chosen by its times, and `bits` is asked.
"""

from __future__ import annotations

from inference_node.lab.compiling import Setting
from inference_node.lab.whole.bits import bits
from inference_node.lab.whole.live import Bench, accepted, captured, drafted, impose, passes_of, stand_at, timed

SETTINGS = (Setting(), Setting(one_route=True), Setting(halves=True), Setting(one_route=True, halves=True))
"""The first is what the others are held against."""


def switches(bench: Bench) -> None:
    """Decode, verify, draft and cycle with each; whole generations and bits (on fewer positions) with the best."""
    before = Setting.now()
    try:
        scores = {setting: _times(bench, setting, str(setting)) for setting in SETTINGS}
        _times(bench, SETTINGS[0], "again")
        best = min(scores, key=lambda setting: scores[setting])
        print(f"  the best: {best}", flush=True)
        bench.tell(best_one_route=float(best.one_route), best_halves=float(best.halves))
        if best == SETTINGS[0]:
            return
        _use(bench, best)
        for tau in (7.35, 4.9):
            stand_at(bench, bench.contexts[0])
            impose(bench, 16, 47)
            said, _, seconds = drafted(bench, bench.contexts[0], tau)
            bench.tell(**{f"switches_tok_s_tau_{str(tau).replace('.', '_')}": said / seconds})
        bench.runner.shared.imposed = None
        impose(bench, 16, None)
        bits(bench, positions=min(512, bench.bit_positions), name="switches_")
    finally:
        _use(bench, before)
        bench.runner.shared.imposed = None


def _times(bench: Bench, setting: Setting, name: str) -> float:
    """Told; returns a sum in which a decode counts about as much as a cycle."""
    _use(bench, setting)
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
    return 2 * found["decode"] + found["cycle"]


def _use(bench: Bench, setting: Setting) -> None:
    """From now on, in graphs that are captured anew."""
    setting.use()
    bench.runner.graphs.forget()
