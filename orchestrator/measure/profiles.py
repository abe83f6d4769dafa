"""Two profiles of one benchmark held against each other: which functions grew."""

from collections.abc import Callable, Mapping

from orchestrator.measure.records import Grown

MOST = 20
WORTH_NAMING = 0.01  # of the base's time


def grown(
    base: Mapping[str, float],
    head: Mapping[str, float],
    *,
    base_metric: float,
    head_metric: float,
    base_file: Callable[[str], str],
    head_file: Callable[[str], str],
) -> tuple[Grown, ...]:
    """Functions by how much more of the metric they take at the head, what grew most first.

    A benchmark that fills a fixed time runs fewer rounds when it is slower, so that seconds of profiles say nothing:
    shares of them times the metric do. Files: from where something was installed to its place in the repo, else "".
    """
    sides = [
        by_function(base, base_metric, base_file),
        by_function(head, head_metric, head_file),
    ]
    names = set(sides[0]) | set(sides[1])
    found = []
    for name in names:
        (base_s, base_line), (head_s, head_line) = (side.get(name, (0.0, None)) for side in sides)
        found.append(Grown(name[1], name[0], head_line or base_line, base_s, head_s))
    named = [one for one in found if one.grew_s > WORTH_NAMING * base_metric]
    return tuple(sorted(named, key=lambda one: (-one.grew_s, one.file, one.function))[:MOST])


def by_function(
    stacks: Mapping[str, float], metric: float, file_of: Callable[[str], str]
) -> dict[tuple[str, str], tuple[float, int | None]]:
    """(file, function) -> own part of the metric, and the line of its `def`."""
    whole = sum(stacks.values())
    found: dict[tuple[str, str], tuple[float, int | None]] = {}
    for stack, seconds in stacks.items():
        file, line, function = parts(stack.rpartition(";")[2])
        name = (file_of(file) or file, function)
        before = found.get(name, (0.0, line))
        found[name] = (before[0] + seconds / whole * metric, line)
    return found


def parts(frame: str) -> tuple[str, int | None, str]:
    """File, line and function of "file:line:function"."""
    place, _, function = frame.rpartition(":")
    file, _, line = place.rpartition(":")
    return file, int(line) if line.isdigit() else None, function
