"""docs/strix-halo.md: what a Strix Halo should take, from bytes alone. `python -m inference_node.lab.predict`.

Nobody has run this on one. The page says so, and every number on it follows from `traffic.py` and the constants here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inference_node.lab import traffic
from inference_node.lab.shapes import SHAPES, draft_shape

PAGE = Path(__file__).parents[2] / "docs" / "strix-halo.md"
SHAPE = "35b-a3b"
GB_S = 215.0
"""Bytes read and written per second by a large copy on the chip, whose memory has 256 GB/s by the datasheet."""

SHARE = 0.80
"""Of the copy bandwidth that a pass reaches as a whole: what the same code reaches on an H200 is 0.47 (decode) to 0.64
(verify), where a launch costs as much as 20 MB; here it costs as much as 1 MB."""

LAUNCH_US = 5.0
"""Start and drain of one launch, as on the H200."""

CONTEXTS = (1024, 16384, 65536)
WOKEN = (8, 31, 47, 88)
TAUS = (7.35, 4.9)
FOLDED = 5
"""Rows that a verify folds of the block before it; a plain decode has one row to fold."""

OPENING = f"""# What a Strix Halo should give

Predicted, not measured: no such machine was at hand. Made by `python -m inference_node.lab.predict` from the bytes that
a pass must move (`inference_node/lab/traffic.py`); a test compares this text with them.

| assumption | value | why |
| --- | --- | --- |
| model | Qwen3.5/3.6-35B-A3B with its DFlash drafter of June | the shapes of the released files |
| bandwidth | {GB_S:.0f} GB/s | large copies on the chip, as others report them; the datasheet says 256 |
| best case | all bytes at that bandwidth, nothing else | a floor, never reached |
| expected | {SHARE:.0%} of it, and {LAUNCH_US:.0f} us a launch | a guess; an H200 reaches less |
| a pass of 16 rows | arithmetic is not counted | 16 rows want 16 operations a byte, far below what matrix units do |
| woken experts | 47 of 16 rows where not said | measured on text by others; random text wakes more |
| drafts | bf16, whole blocks of 16, the target's head | acceptance is put in, not predicted |

Memory: {{memory}} GB of weights in bf16, of the 128 GB that CPU and GPU share.
"""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    return "\n".join([OPENING.format(memory=f"{weights_gb():.0f}"), *passes(), *speeds(), *parts()])


def weights_gb() -> float:
    """All experts, and the embedding beside the head."""
    shape = SHAPES[SHAPE]
    whole = traffic.verify(shape, rows=1, woken=shape.experts, context=0)
    states = sum(part.bytes for part in whole if part.name == "delta states")
    return (traffic.total(whole) - states + 2 * shape.vocab * shape.hidden) / 1e9


def passes() -> Iterator[str]:
    yield "## Milliseconds of a pass\n"
    yield "| pass | bf16: best | expected | int8: best | expected |\n| --- | --- | --- | --- | --- |"
    for context in CONTEXTS:
        for rows, woken in ((1, 8), *((16, woken) for woken in WOKEN[1:])):
            both = [_verify(rows, woken, context, weight) for weight in (2.0, 1.0)]
            name = "decode" if rows == 1 else f"verify of 16 rows, {woken} woken"
            yield _row(f"{name}, {context // 1024}k", both)
        yield _row(f"draft, {context // 1024}k", [_draft(context, weight) for weight in (2.0, 1.0)])
    yield ""


def speeds() -> Iterator[str]:
    yield "## Tokens per second, one stream\n"
    yield "| context, drafts | bf16: best | expected | int8: best | expected |\n| --- | --- | --- | --- | --- |"
    for context in CONTEXTS:
        plain = [_verify(1, 8, context, weight) for weight in (2.0, 1.0)]
        yield _speed(f"{context // 1024}k, none", plain, 1.0)
        for tau in TAUS:
            cycles = [_verify(16, 47, context, weight) + _draft(context, weight) for weight in (2.0, 1.0)]
            yield _speed(f"{context // 1024}k, tau {tau:g}", cycles, tau)
    yield ""


def parts() -> Iterator[str]:
    yield "## Where the bytes are\n"
    yield "MB of one pass at 1k in bf16, and launches.\n"
    for title, rows, woken in (("decode", 1, 8), ("verify of 16 rows, 47 woken", 16, 47)):
        yield f"| {title} | MB | launches |\n| --- | --- | --- |"
        yield from traffic.table(_verify(rows, woken, 1024, 2.0))
        yield ""


def best_ms(count: list[traffic.Part]) -> float:
    return traffic.total(count) / GB_S / 1e6


def expected_ms(count: list[traffic.Part]) -> float:
    return best_ms(count) / SHARE + LAUNCH_US / 1e3 * sum(part.launches for part in count)


def _verify(rows: int, woken: int, context: int, weight: float) -> list[traffic.Part]:
    folded = min(FOLDED, rows)
    return traffic.verify(SHAPES[SHAPE], rows=rows, woken=woken, context=context, folded=folded, weight=weight)


def _draft(context: int, weight: float) -> list[traffic.Part]:
    shape = SHAPES[SHAPE]
    return traffic.draft(shape, draft_shape("june", shape, 16), context=context, head=weight)


def _row(name: str, both: list[list[traffic.Part]]) -> str:
    return f"| {name} | " + " | ".join(f"{best_ms(count):.1f} | {expected_ms(count):.1f}" for count in both) + " |"


def _speed(name: str, both: list[list[traffic.Part]], tau: float) -> str:
    rates = (f"{1e3 * tau / best_ms(count):.0f} | {1e3 * tau / expected_ms(count):.0f}" for count in both)
    return f"| {name} | " + " | ".join(rates) + " |"


if __name__ == "__main__":
    main()
