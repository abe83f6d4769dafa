"""Flame graphs as SVG made on the server: root on top, width is time, colour is what grew or shrank. No script.

Each frame is a link that makes it the whole width, so that the keyboard reaches what a pointer does.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from markupsafe import Markup

from orchestrator.services.measurements import Profile, function_of
from orchestrator.web.text import quantity, visible

ROW = 20  # pixels
NARROWEST = 0.15  # per cent of the width; what is less is not drawn
READABLE = 1.0  # and below what is less than this nothing is: start and imports would be towers as thin as hairs
DEEPEST = 80
STRONG = (0.005, 0.03, 0.1)  # share of the whole by which a function moved: faint, clear, strong


@dataclass
class Frame:
    """A function in one place of the stacks, with all below it; in the profile's unit of parts."""

    name: str
    path: str  # an address for it, the same on every visit
    base: float = 0.0
    head: float = 0.0
    below: dict[str, "Frame"] = field(default_factory=dict)

    @property
    def own_growth(self) -> float:
        """By how much more it takes itself at the head, without what it calls."""
        return (self.head - self.base) - sum(one.head - one.base for one in self.below.values())

    def of(self, side: str) -> float:
        return self.head if side == "head" else self.base


def tree(one: Profile) -> Frame:
    """Both sides laid over each other: stacks are matched by function, not by line, which moves with any edit."""
    root = Frame("all", "", one.whole("base"), one.whole("head"))
    for side, stacks in (("base", one.base_stacks), ("head", one.head_stacks)):
        sampled = sum(stacks.values()) or 1.0  # too short for a tick of the clock: no stacks on that side
        scale = one.whole(side) / sampled
        for stack, seconds in stacks.items():
            frame = root
            for name in map(function_of, stack.split(";")[:DEEPEST]):
                if name not in frame.below:
                    path = hashlib.sha256(f"{frame.path}\0{name}".encode("utf-8", "replace")).hexdigest()[:16]
                    frame.below[name] = Frame(name, path)
                frame = frame.below[name]
                setattr(frame, side, frame.of(side) + seconds * scale)
    return root


def found(root: Frame, path: str) -> list[Frame]:
    """The frame of that address with all above it, the root first; the root alone where there is none such."""
    way: list[tuple[Frame, list[Frame]]] = [(root, [root])]
    while way:
        frame, above = way.pop()
        if frame.path == path:
            return above
        way += [(child, [*above, child]) for child in frame.below.values()]
    return [root]


def graph(above: list[Frame], side: str, unit: str, address: str) -> Markup:
    """The last of `above` and all below it, `side` giving the widths; those above it are drawn whole.

    `address` is that of the page, with a query.
    """
    frame, root = above[-1], above[0]
    whole = frame.of(side)
    if whole <= 0:
        return Markup('<p class="soft">This function does not run on this side.</p>')
    rows = [(one, depth, 0.0, 100.0) for depth, one in enumerate(above[:-1])]
    rows += list(laid_out(frame, side, len(above) - 1, 0.0, 100.0 / whole))
    boxes = [box(one, depth, x, width, root, side, unit, address) for one, depth, x, width in rows]
    height = (max(depth for _, depth, _, _ in rows) + 1) * ROW
    return Markup('<svg class="flames" height="{}" role="group" aria-label="{}">{}</svg>').format(
        height, f"Flame graph of the {side}, {len(boxes)} functions", Markup("").join(boxes)
    )


def laid_out(
    frame: Frame, side: str, depth: int, x: float, per_unit: float
) -> Iterator[tuple[Frame, int, float, float]]:
    width = frame.of(side) * per_unit
    if width < NARROWEST:
        return
    yield frame, depth, x, width
    if width < READABLE:
        return
    for child in sorted(frame.below.values(), key=lambda one: one.name):
        yield from laid_out(child, side, depth + 1, x, per_unit)
        x += child.of(side) * per_unit


def box(one: Frame, depth: int, x: float, width: float, root: Frame, side: str, unit: str, address: str) -> Markup:
    said = f"{visible(one.name)}: {quantity(one.base, unit)} at the base, {quantity(one.head, unit)} at the head"
    link = f"{address}&at={one.path}#{side}"
    return Markup(
        '<a href="{}" aria-label="{}"><svg x="{}%" y="{}" width="{}%" height="{}"><rect class="{}" width="100%" '
        'height="100%"/><text x="4" y="14">{}</text><title>{}</title></svg></a>'
    ).format(
        link, said, round(x, 3), depth * ROW, round(width, 3), ROW - 1, colour(one, root),
        visible(one.name) if width > READABLE else "", said,
    )  # fmt: skip


def colour(one: Frame, root: Frame) -> str:
    """By its own time, so that the function to look at stands out, and not all that call it."""
    moved = one.own_growth / max(root.base, root.head)
    strength = sum(abs(moved) >= least for least in STRONG)
    return f"{'grew' if moved > 0 else 'shrank'}{strength}" if strength else "same"
