"""One page about a grid of arms: a table, curves, what can be concluded and what not. Nothing comes from outside.

Plots are SVG made here. Colours come from the page's style, so that it reads in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 310, 56, 44, 28, 28
COLOURS = 7

STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --soft: #5d6670; --rule: #d8dde3; --paper: #ffffff;
  --c0: #1f5fa8; --c1: #b4480f; --c2: #2b7a3f; --c3: #7a3aa3; --c4: #a8851b; --c5: #127a80; --c6: #b02a5b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #9aa5b1; --rule: #3a424b; --paper: #15191e;
  --c0: #7fb2ee; --c1: #f0945f; --c2: #7cc98f; --c3: #c495e6; --c4: #dcbd5c; --c5: #68c3c9; --c6: #f08bb0; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; max-width: 44rem; height: auto; display: block; } svg text { fill: var(--soft); font-size: 12px; }
.axis { stroke: var(--rule); stroke-width: 1; } .line { fill: none; stroke-width: 2; } .dot { stroke: none; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; list-style: none; color: var(--soft); }
.key span { display: inline-block; width: 1.1rem; height: .2rem; vertical-align: middle; margin-right: .4rem; }
footer { color: var(--soft); margin-top: 2.5rem; font-size: .85rem; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]


def page(title: str, lines: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any], notes: Sequence[str]) -> str:
    """lines: as grid.summary gives them."""
    drawn = plots(lines)
    parts = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(note)}</p>" for note in notes),
        '<div class="table">' + _table(lines) + "</div>",
        "<h2>tau against tokens seen</h2>",
        _key([line["arm"] for line in lines]),
        drawn["tau"],
        "<h2>Difference of tau from the first arm, 95 % intervals</h2>",
        "<p>Thick: over prompts, for these drafters. Thin: over seeds, for training again.</p>",
        drawn["differences"],
        "<h2>S_k: share of cycles that accept at least k drafts</h2>",
        drawn["survival"],
        "<h2>Accuracy by slot on given text</h2>",
        drawn["slots"],
        f"<footer>{escape('; '.join(f'{name}: {value}' for name, value in provenance.items()))}</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def plots(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By name, as they stand in the page."""
    curves = [Series(line["arm"], line["curve"]) for line in lines]
    survived = [Series(line["arm"], list(enumerate(line["survival"], 1))) for line in lines]
    slots = [Series(line["arm"], list(enumerate(line["slot_accuracy"], 1))) for line in lines]
    return {
        "tau": plot(curves, "tokens of context seen", "tau"),
        "differences": forest(lines),
        "survival": plot(survived, "k", "S_k", zero=True),
        "slots": plot(slots, "slot", "accuracy", zero=True),
    }


def pictures(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The same plots as SVG files, each with its key and on paper of its own, for pages that are not ours."""
    key = [line["arm"] for line in lines]
    drawn = plots(lines).items()
    return {  # the differences have each arm's name beside them
        name: _picture(plot, [] if name == "differences" else key) for name, plot in drawn if plot.startswith("<svg")
    }


def conclusions(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """In words: which differences are larger than both intervals, and which are not told apart from nothing."""
    if not lines:
        return ["Nothing has been trained."]
    base = lines[0]["arm"]
    sure, open_ = [], []
    for line in lines[1:]:
        told = line.get("difference") or {}
        seeds, prompts = told.get("over_seeds"), told.get("over_prompts")
        if seeds and prompts and all(one["low"] > 0 or one["high"] < 0 for one in (seeds, prompts)):
            sure.append(f"{line['arm']} {seeds['value']:+.3f} ({seeds['low']:+.3f} to {seeds['high']:+.3f})")
        else:
            open_.append(line["arm"])
    seeds_used = min(line["seeds"] for line in lines)
    said = [f"{len(lines)} arms, at least {seeds_used} seeds each, paired on data, order and anchors."]
    said.append(
        f"Apart from {base} by more than both intervals: {'; '.join(sure)}." if sure else
        f"No arm is apart from {base} by more than both intervals."
    )  # fmt: skip
    if open_:
        said.append(f"Not told apart from {base} with these seeds and prompts: {', '.join(open_)}.")
    said.append(
        "It holds for this target, these texts and this many steps; another size of either may order them anew."
    )
    return said


def plot(series: Sequence[Series], across: str, up: str, *, zero: bool = False) -> str:
    """Lines over common axes."""
    points = [point for one in series for point in one.points]
    if not points:
        return "<p>No points.</p>"
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x, x_marks = _axis(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    y, y_marks = _axis(0.0 if zero else min(ys), max(ys), HEIGHT - BOTTOM, TOP)
    drawn = [_frame(x, x_marks, y, y_marks, across, up)]
    for index, one in enumerate(series):
        colour = f"var(--c{index % COLOURS})"
        path = " ".join(f"{'M' if i == 0 else 'L'}{x(a):.1f} {y(b):.1f}" for i, (a, b) in enumerate(one.points))
        drawn.append(f'<path class="line" style="stroke: {colour}" d="{path}"><title>{escape(one.name)}</title></path>')
        drawn += [
            f'<circle class="dot" style="fill: {colour}" cx="{x(a):.1f}" cy="{y(b):.1f}" r="2.5"/>'
            for a, b in one.points
        ]
    return _svg(HEIGHT, drawn, f"{up} by {across}")


def forest(lines: Sequence[Mapping[str, Any]]) -> str:
    """A difference and its two intervals per arm."""
    shown = [line for line in lines if "difference" in line]
    if not shown:
        return "<p>There is nothing to compare.</p>"
    ends = [0.0]
    for line in shown:
        for one in line["difference"].values():
            if one is not None:
                ends += [one["low"], one["high"]]
    left = 150
    x, marks = _axis(min(ends), max(ends), left, WIDTH - RIGHT)
    height = TOP + 28 * len(shown) + BOTTOM
    floor = height - BOTTOM
    drawn = [f'<line class="axis" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="{TOP}" y2="{floor}"/>']
    drawn += [f'<text x="{x(mark):.1f}" y="{floor + 18}" text-anchor="middle">{mark:+g}</text>' for mark in marks]
    names = [line["arm"] for line in lines]
    for row, line in enumerate(shown):
        at, colour = TOP + 14 + 28 * row, f"var(--c{names.index(line['arm']) % COLOURS})"
        drawn.append(f'<text x="{left - 8}" y="{at + 4}" text-anchor="end">{escape(line["arm"])}</text>')
        for name, thick in (("over_seeds", 1.5), ("over_prompts", 5)):
            one = line["difference"][name]
            if one is not None:
                drawn.append(
                    f'<line style="stroke: {colour}" stroke-width="{thick}" x1="{x(one["low"]):.1f}" '
                    f'x2="{x(one["high"]):.1f}" y1="{at}" y2="{at}"/>'
                )
        middle = x(line["difference"]["over_prompts"]["value"])
        drawn.append(
            f'<circle style="fill: var(--paper); stroke: {colour}" stroke-width="2" cx="{middle:.1f}" cy="{at}" r="4"/>'
        )
    return _svg(height, drawn, "differences of tau")


def _table(lines: Sequence[Mapping[str, Any]]) -> str:
    with_eta = any("eta" in line for line in lines)
    heads = ["arm", "seeds", "tau", "over prompts", "by seed", "real loop", "difference", "over seeds", "S_1", "S_2"]
    rows = [heads + (["eta, rows"] if with_eta else [])]
    for line in lines:
        tau, told = line["tau"], line.get("difference")
        seeds = told and told["over_seeds"]
        survived = [*line["survival"], math.nan, math.nan]
        row = [
            line["arm"], str(line["seeds"]), f"{tau['value']:.3f}", f"{tau['low']:.3f} to {tau['high']:.3f}",
            " ".join(f"{one:.3f}" for one in line["tau_by_seed"]),
            " ".join(f"{one:.2f}" for one in line["loop_tau"]) or "",
            f"{told['over_prompts']['value']:+.3f}" if told else "",
            f"{seeds['low']:+.3f} to {seeds['high']:+.3f}" if seeds else "",
            f"{survived[0]:.3f}", f"{survived[1]:.3f}",
        ]  # fmt: skip
        if with_eta:
            row.append(f"{line['eta']['best']:.2f}, {line['eta']['best_rows']}" if "eta" in line else "")
        rows.append(row)
    cells = [
        "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in row) + "</tr>"
        for row, kind in zip(rows, ["th"] + ["td"] * len(lines), strict=True)
    ]
    return "<table>" + "".join(cells) + "</table>"


def _key(names: Sequence[str]) -> str:
    items = [
        f'<li><span style="background: var(--c{index % COLOURS})"></span>{escape(name)}</li>'
        for index, name in enumerate(names)
    ]
    return f'<ul class="key">{"".join(items)}</ul>'


def _picture(drawn: str, names: Sequence[str]) -> str:
    """A plot of the page with a key below it."""
    height = float(drawn.partition(f'viewBox="0 0 {WIDTH} ')[2].partition('"')[0])
    columns, across = 3, WIDTH / 3
    key = []
    for index, name in enumerate(names):
        x, y = LEFT / 2 + across * (index % columns), height + 18 * (index // columns) + 12
        key.append(
            f'<rect x="{x:.0f}" y="{y - 6:.0f}" width="16" height="3" style="fill: var(--c{index % COLOURS})"/>'
            f'<text x="{x + 22:.0f}" y="{y:.0f}">{escape(name)}</text>'
        )
    whole = height + 18 * math.ceil(len(names) / columns) + 8
    begin, _, body = drawn.partition(">")
    begin = begin.replace(
        f'viewBox="0 0 {WIDTH} {height:g}"', f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {whole:g}"'
    )
    paper = f'<rect width="{WIDTH}" height="{whole:g}" style="fill: var(--paper)"/>'
    font = "svg { font-family: system-ui, sans-serif; }"
    return f"{begin}><style>{STYLE}{font}</style>{paper}{body.removesuffix('</svg>')}{''.join(key)}</svg>\n"


def _axis(low: float, high: float, start: float, end: float) -> tuple[Any, list[float]]:
    """A scale from values to places, and round values to mark on it."""
    if high <= low:
        low, high = low - 0.5, high + 0.5
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    low, high = first * step, last * step

    def scale(value: float) -> float:
        return start + (end - start) * (value - low) / (high - low)

    return scale, [round(i * step, 10) for i in range(first, last + 1)]


def _frame(x: Any, x_marks: list[float], y: Any, y_marks: list[float], across: str, up: str) -> str:
    floor = HEIGHT - BOTTOM
    parts = [
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>'
        for mark in y_marks
    ]
    parts += [
        f'<text x="{x(mark):.1f}" y="{floor + 16}" text-anchor="middle">{_short(mark)}</text>' for mark in x_marks
    ]
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(across)}</text>')
    parts.append(f'<text x="12" y="14">{escape(up)}</text>')
    return "".join(parts)


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g} {letter}"
    return f"{value:g}"


def _svg(height: float, drawn: Sequence[str], told: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(told)}">{"".join(drawn)}</svg>'
