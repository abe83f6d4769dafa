"""A series as a small inline SVG made on the server: median, spread as a band, void nights hollow, the last one lit."""

from collections.abc import Sequence

from markupsafe import Markup

from orchestrator.services.views import Point
from orchestrator.web.text import quantity, visible

WIDTH, HEIGHT, EDGE = 260, 46, 5


def sparkline(name: str, unit: str, points: Sequence[Point]) -> Markup:
    """Points are spaced evenly, oldest left. The vertical scale covers the band, and at least 10 % of the value,
    so that noise does not look like a mountain range."""
    values = [point.median for point in points if point.median is not None]
    if not values:
        return Markup('<span class="none">no good session yet</span>')
    lows = [p.median * (1 - (p.spread or 0)) for p in points if p.median is not None]
    highs = [p.median * (1 + (p.spread or 0)) for p in points if p.median is not None]
    low, high = widened(min(lows), max(highs))
    step = (WIDTH - 2 * EDGE) / max(1, len(points) - 1)

    def x(index: int) -> float:
        return round(EDGE + index * step if len(points) > 1 else WIDTH / 2, 1)

    def y(value: float) -> float:
        return round(HEIGHT - EDGE - (value - low) / (high - low) * (HEIGHT - 2 * EDGE), 1)

    good = [(x(i), p) for i, p in enumerate(points) if p.median is not None]
    band = [(at, y(p.median * (1 + (p.spread or 0)))) for at, p in good if p.median is not None]
    band += [(at, y(p.median * (1 - (p.spread or 0)))) for at, p in reversed(good) if p.median is not None]
    line = [(at, y(p.median)) for at, p in good if p.median is not None]
    parts = [
        Markup('<polygon class="band" points="{}"/>').format(joined(band)),
        Markup('<polyline class="line" points="{}"/>').format(joined(line)),
        *(dot(at, height, p, unit) for (at, height), (_, p) in zip(line, good, strict=True) if p.contaminated),
        *(
            Markup('<circle class="void" cx="{}" cy="{}" r="3"><title>{}</title></circle>').format(
                x(i), HEIGHT - EDGE, f"{p.at:%d %b}: every session void"
            )
            for i, p in enumerate(points)
            if p.median is None
        ),
        Markup('<circle class="last" cx="{}" cy="{}" r="4"/>').format(*line[-1]),
    ]
    label = (
        f"{visible(name)}: {len(values)} measured {'night' if len(values) == 1 else 'nights'}, "
        f"from {quantity(values[0], unit)} to {quantity(values[-1], unit)}, "
        f"between {quantity(min(values), unit)} and {quantity(max(values), unit)}"
    )
    return Markup(
        '<svg class="spark" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}">{}</svg>'
    ).format(label, WIDTH, HEIGHT, WIDTH, HEIGHT, Markup("").join(parts))


def dot(at: float, height: float, point: Point, unit: str) -> Markup:
    return Markup('<circle class="void" cx="{}" cy="{}" r="3"><title>{}</title></circle>').format(
        at, height, f"{point.at:%d %b}: {quantity(point.median, unit)}, with void sessions"
    )


def widened(low: float, high: float) -> tuple[float, float]:
    least = max(abs(high), abs(low)) * 0.1 or 1.0
    missing = max(0.0, least - (high - low))
    return low - missing / 2, high + missing / 2


def joined(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)
