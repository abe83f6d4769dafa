"""A confirmed slowdown as a finding: whether anybody notices it, its claim, and a command that shows it again."""

import math
import shlex
from importlib import resources

from orchestrator.measure import protocol
from orchestrator.measure.records import Comparison, Side, Unit, Why
from orchestrator.services import pairs
from orchestrator.services.bases import Built
from review_agents.records import BenchmarkKind, Candidate, Kind, Place, Reproduction, Severity, Symptom, Verdict

NOTICED_START_S = 0.05  # more time to import something or to start a program
NOTICED_MEMORY, NOTICED_BYTES = 0.10, 10 << 20
RULE, MEMORY_RULE = "slower-than-base", "more-memory-than-base"


def worth_a_finding(one: Comparison) -> bool:
    """Whether a confirmed slowdown is one that somebody notices; smaller ones are shown as verdicts only.

    A new feature may cost some milliseconds of import, or a module's worth of memory.
    """
    best = one.outcome.best
    if one.outcome.verdict is not Verdict.SLOWER or best is None:
        return False
    if one.metric.name == protocol.MEMORY:
        return best.effect >= NOTICED_MEMORY and best.head - best.base >= NOTICED_BYTES
    if one.benchmark.kind in (BenchmarkKind.IMPORT, BenchmarkKind.PROGRAM) and one.metric.unit is Unit.SECONDS:
        return best.head - best.base >= NOTICED_START_S
    return True


def candidate(one: Comparison, head: Built) -> Candidate:
    """A confirmed slowdown as a claim: its figures, where the time went, and a command that shows it again."""
    best = one.outcome.best
    assert best is not None and one.outcome.screen is not None
    memory = one.metric.name == protocol.MEMORY
    what = "takes more memory" if memory else "is slower"
    figures = f"{quantity(best.base, one.metric.unit)} at the base, {quantity(best.head, one.metric.unit)} at the head"
    description = (
        f"{one.name} {what} than at {one.base_commit[:12]}: {figures}, a factor of {best.ratio:.2f} "
        f"({best.low:.2f} to {best.high:.2f}). Timed in turns, {one.outcome.screen.sessions} and "
        f"{one.outcome.screen.sessions} fresh processes, then again {best.sessions} and {best.sessions}; "
        f"p = {best.p:.2g}."
    )
    if one.why and one.why.grown:
        description += by_profile(one.why, one.metric.unit)
    if one.why and one.why.dependencies:
        names = (
            f"{name} {before or 'none'} to {after or 'none'}" for name, (before, after) in one.why.dependencies.items()
        )
        description += f" Installed beside it changed: {', '.join(names)}."
    return Candidate(
        kind=Kind.PERFORMANCE,
        rule=MEMORY_RULE if memory else RULE,
        title=f"{one.name} {what} by {best.effect:.0%} since {one.base_commit[:12]}",
        description=description,
        severity=Severity.HIGH if best.ratio >= 2 else Severity.MEDIUM if best.ratio >= 1.2 else Severity.LOW,
        places=places(one, head),
        reproduction=reproduction(one),
    )


def by_profile(why: Why, unit: Unit) -> str:
    """What the functions grew by that grew most."""

    def part(of: float) -> str:
        return f"{of:.0%}" if why.shares else quantity(of, unit)

    grew = "; ".join(
        f"{one.function} ({one.file}:{one.line}) grew from {part(one.base_s)} to {part(one.head_s)}"
        for one in why.grown[:3]
    )
    return f" By profile{', in shares of all its figures together' if why.shares else ''}: {grew}."


def places(one: Comparison, head: Built) -> tuple[Place, ...]:
    """The benchmark first, because it stays; then the package's functions that grew."""
    tracked = set(head.repo.files)
    files = [path for path in one.benchmark.files if path in tracked and path in one.benchmark.command]
    files += [path for path in one.benchmark.files if path in tracked]
    files += [path for path in ("pyproject.toml", "setup.cfg", "setup.py") if path in tracked]
    first = Place(file=next(iter(files), head.repo.files[0] if head.repo.files else "."), symbol=one.name)
    grown = [grew for grew in (one.why.grown if one.why else ()) if grew.file in tracked]
    return (first, *(Place(file=grew.file, line=grew.line, symbol=grew.function) for grew in grown[:3]))


def reproduction(one: Comparison) -> Reproduction | None:
    """The benchmark once more, held against the middle between base and head as they were measured."""
    best = one.outcome.best
    if best is None or one.metric.unit is Unit.INSTRUCTIONS:
        return None
    what, limit = one.benchmark.figures_file or "output", math.sqrt(best.base * best.head)
    if one.metric.name == protocol.WALL:
        what = "wall"
    elif one.metric.name == protocol.MEMORY:
        what = "memory"
        sides = [
            [float(taken.session.peak_bytes) for taken in one.taken if taken.side is side and not taken.session.void]
            for side in (Side.BASE, Side.HEAD)
        ]
        limit = math.sqrt(sorted(sides[0])[len(sides[0]) // 2] * sorted(sides[1])[len(sides[1]) // 2])
    programs = {
        f"/tmp/lamplighter-{name}.py": source(f"inside/{name}") for name in (*one.benchmark.inside, "over_limit")
    }
    programs["/tmp/lamplighter_figures.py"] = source("figures")
    script = "".join(f"cat >{path} <<'END OF {path}'\n{text}END OF {path}\n" for path, text in programs.items())
    arguments = shlex.join([what, one.metric.name, f"{limit:.9g}", one.benchmark.command])
    shown = quantity(limit, one.metric.unit)
    return Reproduction(
        command=f"{script}python3 /tmp/lamplighter-over_limit.py {arguments}",
        expected=f"the best of three runs stays below {shown}, the middle between base and head on this machine",
        observed=f"even the best of three runs takes more than {shown}",
        environment=one.benchmark.environment,
        control=one.benchmark.command if not one.benchmark.inside else None,
        symptom=Symptom(exit=0, contains=("OVER THE LIMIT",)),
        timeout_s=4 * pairs.LONGEST_RUN_S,
    )


def source(name: str) -> str:
    """The text of one of our programs that run alone."""
    return resources.files("review_agents.probes").joinpath(f"{name}.py").read_text("utf-8")


def quantity(value: float, unit: Unit) -> str:
    if unit is Unit.BYTES:
        return f"{value / 2**20:.1f} MiB"
    if unit is Unit.INSTRUCTIONS:
        return f"{value:.3g} instructions"
    for limit, factor, word in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (1e-6, 1e6, "µs")):
        if value >= limit:
            return f"{value * factor:.3g} {word}"
    return f"{value * 1e9:.3g} ns"
