"""One generation of many tokens: does a cycle go on taking what its bytes say?"""

from __future__ import annotations

import statistics
import time

from inference_node.lab import traffic
from inference_node.lab.shapes import draft_shape
from inference_node.lab.whole.live import Bench, accepted, begin, impose, stand_at
from inference_node.speculate.seam import Cut

TOKENS = 50_000


def endurance(bench: Bench) -> None:
    """Seconds of a cycle over the bytes predicted at its context: the last tenth of the tokens against the first."""
    target, first = bench.live, bench.contexts[0]
    room = target.facts.context - first - 1 - 4 * target.facts.block
    asked = min(TOKENS if bench.device.type == "cuda" else 200, room)
    stand_at(bench, first)
    impose(bench, 16, 47)
    accepted(bench, min(7.35, target.facts.block / 2))
    begin(bench, first, budget=asked)
    pending, said, took = target.cycle(), 0, []
    began = time.perf_counter()
    while True:
        ahead = target.cycle()
        result = pending.read()
        pending = ahead
        if result.cut is not Cut.NONE:
            break
        said += len(result.tokens)
        now = time.perf_counter()
        took.append((said, (now - began) / _bytes(bench, first + said)))
        began = now
    pending.read()
    bench.runner.shared.imposed = None
    tenth, warm = said / 10, len(took) // 100
    start = [each for at, each in took[warm:] if at <= tenth]
    end = [each for at, each in took if at > said - tenth]
    bench.tell(endurance_tokens=said, endurance_last_over_first=statistics.fmean(start) / statistics.fmean(end))


def _bytes(bench: Bench, context: int) -> int:
    """Of a cycle: draft and verify of whole blocks, 47 experts woken."""
    shape, block = bench.shape, bench.live.facts.block
    verified = traffic.verify(shape, rows=block, woken=min(47, shape.experts), context=context, folded=6)
    return traffic.total([*verified, *traffic.draft(shape, draft_shape("june", shape, block), context=context)])
