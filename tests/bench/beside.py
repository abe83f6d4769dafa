"""Our verdicts beside pyperf's and hyperfine's on the same samples, with what explains each disagreement.

The samples are those that `python -m tests.bench power` recorded: its live trials, in which one side really did more
work by a known share, and sessions of equal code beside busy neighbours. Each tool gets the value of every session that
our verdict rests on. pyperf is asked for real (`pyperf compare_to`). hyperfine reads no samples of others: its summary
("1.05 +- 0.02 times faster") is computed here from its documented rule and held against what the program itself says of
two commands, on every run. Its `scripts/welch_ttest.py` asks the question as Welch's t-test at 95 %.
"""

import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyperf
from scipy import stats

from orchestrator.measure import protocol
from orchestrator.measure.records import Block, Outcome, Side
from orchestrator.measure.verdict import Compared, Void, compared, is_candidate, settled
from review_agents.records import Session, Verdict
from tests.bench import figures, power

EQUAL, SLOWER, FASTER, SILENT = "no difference", "slower", "faster", "no verdict"
DISTURBED_SETS = 10
AGREED_TO = 0.02  # hyperfine prints two digits


@dataclass(frozen=True, slots=True)
class Trial:
    """One comparison: what each side gave, and what is true."""

    change: float  # by which the head's work is really more
    disturbed: bool
    base: tuple[float, ...]  # every session that the verdict rests on, void ones too where others have no gate
    head: tuple[float, ...]
    ours: Outcome

    @property
    def name(self) -> str:
        return f"{self.change:.0%}{', beside busy neighbours' if self.disturbed else ''}"


@dataclass(frozen=True, slots=True)
class Said:
    """Each tool's answer in the same words."""

    ours: str
    pyperf: str
    hyperfine: str
    welch: str


def run(keep: Path, *, kept: bool = True) -> dict[str, float]:
    """Judges what `power` recorded in `keep`. `kept`: write docs/figures/beside-other-tools.json."""
    trials = [*live(keep / "live.jsonl"), *disturbed(power.read(keep / "disturbed.jsonl"))]
    if not trials:
        raise SystemExit(f"{keep} has no live trials and no disturbed sessions: python -m tests.bench power first.")
    apart = summary_apart()
    said = [answers(one) for one in trials]
    result = {**counts(trials, said), "hyperfine_summary_apart": apart}
    table: dict[str, list[Any]] = {"head": HEAD, "rows": list(rows(trials, said))}
    for row in table["rows"]:
        print("  |  ".join(map(str, row)))
    if kept:
        stamp = keep / "commit"
        measured_at = stamp.read_text(encoding="utf-8") if stamp.exists() else ""
        figures.record(
            "beside-other-tools", result, libraries=("pyperf", "scipy"), measured_at=measured_at, table=table,
            note=f"{NOTE} The program asked was {hyperfine_version()}.",
        )  # fmt: skip
    return result


# The same samples -----------------------------------------------------------------------------


def live(file: Path) -> Iterator[Trial]:
    """Live trials of `power` that kept their sessions."""
    for entry in map(json.loads, power.lines(file)):
        blocks: dict[str, list[list[float]]] = entry.get("blocks", {})
        if "screen" not in blocks:
            continue
        found = {name: compared(base, head, power.WALL) for name, (base, head) in blocks.items()}
        again = {"it": found["confirm"]} if "confirm" in found else {}
        base, head = (tuple(chain.from_iterable(sides[at] for sides in blocks.values())) for at in (0, 1))
        yield Trial(entry["change"], False, base, head, settled({"it": found["screen"]}, again)["it"])


def disturbed(sessions: Sequence[Session]) -> Iterator[Trial]:
    """Neighbouring sessions of equal code, taken as A B B A. Others have no gate, so they get void sessions too."""
    each = 2 * protocol.sessions_each(Block.SCREEN)
    for at in range(0, min(len(sessions) - each + 1, DISTURBED_SETS * each), each):
        sides: dict[str, list[float]] = {"base": [], "head": []}
        for turn in protocol.turns(Block.SCREEN):
            sides[str(turn.side)].append(sessions[at + turn.place].value)
        ours = gated(sessions, at)
        yield Trial(0.0, True, tuple(sides["base"]), tuple(sides["head"]), ours)


def gated(sessions: Sequence[Session], start: int) -> Outcome:
    """What we say from there on: void sessions are repeated, and after some repeats there is no number."""
    at = start

    def block(which: Block) -> Compared | Void:
        nonlocal at
        sides, at = power.taken(sessions, at, which)
        if isinstance(sides, Void):
            return sides
        return compared(sides[Side.BASE], sides[Side.HEAD], power.WALL)

    screen = block(Block.SCREEN)
    again = isinstance(screen, Compared) and is_candidate(screen)
    return settled({"it": screen}, {"it": block(Block.CONFIRM)} if again else {})["it"]


# What each says ---------------------------------------------------------------------------------


def answers(one: Trial) -> Said:
    ratio, deviation = relative(one.base, one.head)
    return Said(
        ours=OURS[one.ours.verdict],
        pyperf=by_pyperf(one.base, one.head),
        hyperfine=EQUAL if abs(ratio - 1) <= deviation else SLOWER if ratio > 1 else FASTER,
        welch=by_welch(one.base, one.head),
    )


OURS = {
    Verdict.SLOWER: SLOWER,
    Verdict.FASTER: FASTER,
    Verdict.NO_CHANGE: EQUAL,
    Verdict.INCONCLUSIVE: SILENT,
    Verdict.CONTAMINATED: SILENT,
}


def by_pyperf(base: Sequence[float], head: Sequence[float]) -> str:
    """The program's own word. A session is a process of its own, as pyperf's runs are."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name, values in (("base", base), ("head", head)):
            runs = [pyperf.Run([value], metadata={"name": "work"}, collect_metadata=False) for value in values]
            file = Path(folder) / f"{name}.json"
            pyperf.Benchmark(runs).dump(str(file))
            files.append(str(file))
        told = subprocess.run(
            [sys.executable, "-m", "pyperf", "compare_to", *files], capture_output=True, text=True, check=True
        ).stdout
    if "not significant" in told:
        return EQUAL
    found = re.search(r"x (slower|faster)", told)
    if found is None:
        raise SystemExit(f"pyperf compare_to says something else than it did:\n{told}")
    return found[1]


def relative(base: Sequence[float], head: Sequence[float]) -> tuple[float, float]:
    """hyperfine's summary: the ratio of the means, and its deviation from both standard deviations of single runs."""
    means = statistics.fmean(base), statistics.fmean(head)
    deviations = statistics.stdev(base), statistics.stdev(head)
    ratio = means[1] / means[0]
    return ratio, ratio * math.hypot(deviations[0] / means[0], deviations[1] / means[1])


def by_welch(base: Sequence[float], head: Sequence[float]) -> str:
    found = stats.ttest_ind(head, base, equal_var=False)
    return EQUAL if not found.pvalue < 0.05 else SLOWER if found.statistic > 0 else FASTER


def summary_apart() -> float:
    """How far hyperfine's printed summary of two commands is from `relative` over the runs that it exports."""
    program = shutil.which("hyperfine")
    if program is None:
        raise SystemExit("hyperfine is not installed (Debian: apt-get install hyperfine).")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "runs.json"
        told = subprocess.run(
            [program, "--runs", "8", "--style", "basic", "--export-json", str(file), "sleep 0.02", "sleep 0.04"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        runs = [one["times"] for one in json.loads(file.read_text(encoding="utf-8"))["results"]]
    found = re.search(r"([\d.]+) ± ([\d.]+) times faster", told)
    if found is None:
        raise SystemExit(f"hyperfine's summary reads otherwise than it did:\n{told}")
    printed, ours = tuple(map(float, found.groups())), relative(*sorted(runs, key=statistics.fmean))
    apart = max(abs(one - other) for one, other in zip(printed, ours, strict=True))
    if apart > AGREED_TO:
        raise SystemExit(f"hyperfine says {printed}, its rule as it is written here says {ours}.")
    return round(apart, 4)


def hyperfine_version() -> str:
    return subprocess.run(["hyperfine", "--version"], capture_output=True, text=True, check=True).stdout.strip()


# The table ----------------------------------------------------------------------------------------

HEAD = ["more work", "trials", "ours", "pyperf compare_to", "hyperfine's summary", "hyperfine's t-test", "why"]
NOTE = (
    "Trials with equal answers share a row. hyperfine's summary counts as a difference where 1 lies outside of its ±; "
    "it gives no verdict itself. No verdict of ours is either inconclusive or contaminated."
)


def counts(trials: Sequence[Trial], said: Sequence[Said]) -> dict[str, float]:
    """Right: the true direction, or no difference. Wrong: a direction that is not true, or none where there is one."""
    result: dict[str, float] = {"trials": len(trials)}
    for tool in ("ours", "pyperf", "hyperfine", "welch"):
        alarms = [getattr(said[at], tool) not in (EQUAL, SILENT) for at, one in enumerate(trials) if one.change == 0]
        truths = [getattr(said[at], tool) == SLOWER for at, one in enumerate(trials) if one.change >= FROM]
        if alarms:
            result[f"false_alarms_{tool}"] = sum(alarms) / len(alarms)
        if truths:
            result[f"found_{tool}"] = sum(truths) / len(truths)
    result["disagreements"] = sum(len({one.ours, one.pyperf, one.hyperfine, one.welch}) > 1 for one in said)
    return result


FROM = 0.05  # changes of at least this count as "to be found"


def rows(trials: Sequence[Trial], said: Sequence[Said]) -> Iterator[list[Any]]:
    """Trials with equal answers together, and why the answers differ."""
    together: dict[tuple[float, bool, Said], list[Trial]] = {}
    for one, answer in zip(trials, said, strict=True):
        together.setdefault((one.change, one.disturbed, answer), []).append(one)
    for (_, _, answer), same in sorted(together.items(), key=lambda one: (*one[0][:2], -len(one[1]))):
        why = "; ".join(reasons(answer, same)) or "all agree"
        yield [same[0].name, len(same), answer.ours, answer.pyperf, answer.hyperfine, answer.welch, why]


def reasons(said: Said, trials: Sequence[Trial]) -> Iterator[str]:
    """What made the difference, in these trials' own figures."""
    moved = span((statistics.median(one.head) / statistics.median(one.base) - 1 for one in trials), signed=True)
    tests = {said.pyperf, said.welch}
    if said.ours == SILENT and trials[0].ours.verdict is Verdict.CONTAMINATED:
        yield f"our gate voided the sessions ({trials[0].ours.reason}); others have none, and medians are {moved} apart"
    elif said.ours == SILENT:
        yield f"we do not say what we cannot tell: {trials[0].ours.reason}"
    elif said.ours == EQUAL and tests - {EQUAL}:
        floors = span(one.ours.effect_floor or 0.0 for one in trials)
        rightly = "" if trials[0].change == 0 else "rightly "
        yield f"a t-test at 95 % {rightly}finds {moved} significant; we ask for {floors} at least, seen twice"
    elif said.ours in (SLOWER, FASTER) and EQUAL in tests:
        yield f"{moved} in both of our blocks by ranks, which no single wild session outweighs; it does in a mean"
    if said.hyperfine == EQUAL and SLOWER in (said.ours, said.pyperf, said.welch):
        width = span([relative(one.base, one.head)[1] for one in trials])
        yield f"hyperfine's ± ({width}) is that of single runs, and gets no narrower with more of them"
    if said.hyperfine in (SLOWER, FASTER) and said.ours == EQUAL and not tests - {EQUAL}:
        yield f"hyperfine's ± is narrower than {moved}, but asks for one deviation only"
    if said.pyperf != said.welch:
        yield "Student's and Welch's test part where one side scatters more than the other"


def span(shares: Iterable[float], *, signed: bool = False) -> str:
    found = sorted(shares)
    shown = [f"{share * 100:{'+' if signed else ''}.1f}" for share in (found[0], found[-1])]
    return f"{shown[0]} %" if shown[0] == shown[1] else f"{shown[0]} to {shown[1]} %"
