"""How much slower something must be to be found, and how often we cry wolf: from real sessions of a fixed workload.

Recorded once, quiet (the gate open) and disturbed (others at work on purpose); every trial after that is a stretch of
neighbouring sessions of the record, taken as A B B A, with the head's made slower by a known share. Neighbours stay
neighbours, so drift and runs of bad luck are in it. Live trials run the slower workload for real. What other tools
would say to the same numbers stands beside: pyperf's significance (Student's t-test at 95 %) and hyperfine's script for
it (Welch's t-test at 95 %). pyperf 2.11 itself said the same as the test here to 300 of 300 pairs of samples.

Everything goes on where it was cut off, at the same commit; the folder of records is the state.
"""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from orchestrator.measure import protocol
from orchestrator.measure.records import Block, Metric, Side, Taken, Unit
from orchestrator.measure.statistics import MAD_TO_SD, logs
from orchestrator.measure.verdict import Compared, Void, compared, is_candidate, settled
from orchestrator.sandbox.contract import BoxOrder, Patience
from orchestrator.sandbox.limits import configured, for_measuring
from orchestrator.sandbox.stopwatch import REPEATS, STRICT, Stopwatch
from review_agents.records import Environment, Session, Verdict
from tests.bench import figures
from tests.support.boxes import bubblewrap, bundled, here

TOOLS = ("ours", "pyperf", "hyperfine")
CHANGES = (0.0, 0.02, 0.05, 0.10, 0.30)
WANTED, TRIALS, LIVE = 300, 2000, 10
PROCESSES, LOOPS = 3, 60_000  # of a session: about 2 s in all on an ordinary machine
BUSY = 3  # processes that disturb
WALL = Metric(protocol.WALL, Unit.SECONDS, protocol.TIME_FLOOR_S)
WORKLOAD = """
import sys
def work(loops):
    table, total = {}, 0
    for number in range(loops):
        table[number * 7919 % 1009] = number
        total += sum(range(number % 40))
    return total + len(table)
for _ in range(6):
    work(int(sys.argv[1]))
"""
LOAD = "import time\nwhile True:\n    sum(range(200000))\n    time.sleep(0.0005)\n"


def run(
    keep: Path, *, parts: Sequence[str], wanted: int = WANTED, trials: int = TRIALS, live: int = LIVE
) -> dict[str, float]:
    """Record what is missing of the parts, then judge what there is; recorded as figures only when complete."""
    figures.same_commit(keep)
    if {"quiet", "disturbed", "live"} & set(parts):
        with stopwatch(keep) as watch:
            for name in ("quiet", "disturbed"):
                if name in parts:
                    record(watch, keep / f"{name}.jsonl", wanted, disturbed=name == "disturbed")
            if "live" in parts:
                live_trials(watch, keep / "live.jsonl", live)
    figures.same_commit(keep)
    result, table = judged(keep, trials)
    complete = min(result.get("sessions_quiet", 0), result.get("sessions_disturbed", 0)) >= WANTED
    if complete and result.get("live_trials", 0) >= LIVE * len(CHANGES) and trials >= TRIALS:
        figures.record("power", result, libraries=("numpy", "scipy"), table=beside_other_tools(table))
    else:
        print(f"Nothing is recorded without {WANTED} sessions of each kind, {TRIALS} trials and {LIVE} live ones.")
    for row in table:
        print("  ".join(f"{name} {value:.3f}" for name, value in row.items()))
    for words, holds in bars(result):
        print(f"{'holds' if holds else 'MISSED'}: {words}")
    return result


def bars(result: Mapping[str, float]) -> Iterator[tuple[str, bool]]:
    """What it has to come to, as far as it was measured, and whether it does."""
    steady = result.get("sd", math.inf) <= 0.01
    wanted: list[tuple[str, float, bool]] = [  # at least, or at most
        *((("found_10", 0.98, True), ("found_5", 0.80, True)) if steady else ()),
        ("wrong_5", 0.0, False),
        ("wrong_10", 0.0, False),
        ("false_alarms", 0.002, False),
        ("disturbed_wrong_0", 0.0, False),
        ("disturbed_wrong_10", 0.0, False),
        *((f"live_wrong_{percent(change)}", 0.0, False) for change in CHANGES),
        ("live_found_0", 0.0, False),
    ]
    for name, bar, least in wanted:
        if name in result:
            value = result[name]
            yield (
                f"{name} {value:.4g}, at {'least' if least else 'most'} {bar:g}",
                value >= bar if least else value <= bar,
            )


def beside_other_tools(rows: Sequence[dict[str, float]]) -> dict[str, list[Any]]:
    """Shares of trials that each rule calls slower (for no change: different), for the page of figures."""
    shown = [[f"{row['change']:.0%}", *(f"{row[name]:.2%}" for name in TOOLS)] for row in rows]
    return {"head": ["injected change", "ours", "pyperf's rule", "hyperfine's rule"], "rows": shown}


# Recording -----------------------------------------------------------------------------------


@contextmanager
def stopwatch(keep: Path) -> Iterator[Stopwatch]:
    """In a real box, pinned as in reviews."""
    settings = here(data=keep / "data", sandbox="bubblewrap")
    sandbox = bubblewrap(settings)
    repo = keep / "repo"
    repo.mkdir(exist_ok=True)
    (repo / "work.py").write_text(WORKLOAD)
    bundle, one = bundled(repo, keep)
    review = f"power-{os.getpid()}"
    sandbox.prepare(review, bundle, one.commit)
    cpus = for_measuring(settings)
    limits = configured(settings, step_s=24 * 3600.0)
    try:
        box = sandbox.open(BoxOrder(review, "power", 1, limits=replace(limits, cpus=cpus)))
        yield Stopwatch(box, cpus=cpus, patience=Patience(math.inf), tolerance=STRICT)
        box.destroy()
    finally:
        sandbox.drop(review)


def record(watch: Stopwatch, file: Path, wanted: int, *, disturbed: bool) -> None:
    """Sessions one after another, void ones too. Quiet: until so many are good; disturbed: so many in all."""
    done = read(file)
    missing = wanted - (len(done) if disturbed else sum(not one.void for one in done))
    tries = 0
    with disturbing() if disturbed else at_peace():
        while missing > 0 and tries < 3 * wanted:
            session = watch.session(command(LOOPS), Environment.NONE, 120, processes=PROCESSES)
            tries += 1
            append(file, session.model_dump(mode="json"))
            missing -= disturbed or not session.void
            if tries % 25 == 0:
                print(f"{file.stem}: {tries} taken, {missing} to go", flush=True)


def command(loops: int) -> str:
    return f"python3 -I work.py {loops}"


@contextmanager
def disturbing() -> Iterator[None]:
    """Others at work on the same processors, as neighbours are: now all of them, now fewer."""
    busy = [subprocess.Popen(["nice", "-n", "5", sys.executable, "-c", LOAD]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


@contextmanager
def at_peace() -> Iterator[None]:
    yield


def live_trials(watch: Stopwatch, file: Path, each: int) -> None:
    """The whole design for real: the head runs a workload that is so much longer."""
    done = [json.loads(line) for line in lines(file)]
    for change in CHANGES:
        for _ in range(each - sum(one["change"] == change for one in done)):
            started = time.monotonic()
            outcome, blocks = live_outcome(watch, change)
            seconds = time.monotonic() - started
            append(file, {"change": change, "verdict": outcome, "seconds": seconds, "blocks": blocks})


def live_outcome(watch: Stopwatch, change: float) -> tuple[str, dict[str, list[list[float]]]]:
    """The verdict, and the values of base and head in each block that gave some (`beside` asks other tools of them)."""
    blocks: dict[str, list[list[float]]] = {}
    loops = {Side.BASE: LOOPS, Side.HEAD: round(LOOPS * (1 + change))}

    def block(which: Block) -> Compared | Void:
        taken: list[Taken] = []
        for turn in protocol.turns(which):
            tried = watch.until_good(command(loops[turn.side]), Environment.NONE, 120)
            taken += [Taken(which, turn.place, turn.side, at, one) for at, one in enumerate(tried, start=1)]
            if tried[-1].void:
                return Void(protocol.contaminated(taken))
        base, head = (protocol.values(taken, which, side, WALL) for side in (Side.BASE, Side.HEAD))
        blocks[str(which)] = [base, head]
        return compared(base, head, WALL)

    screen = block(Block.SCREEN)
    again = isinstance(screen, Compared) and is_candidate(screen)
    outcome = settled({"it": screen}, {"it": block(Block.CONFIRM)} if again else {})["it"]
    return str(outcome.verdict), blocks


def append(file: Path, content: object) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(content) + "\n")


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def read(file: Path) -> list[Session]:
    return [Session.model_validate_json(line) for line in lines(file)]


# Trials --------------------------------------------------------------------------------------


def judged(keep: Path, trials: int) -> tuple[dict[str, float], list[dict[str, float]]]:
    quiet, disturbed = read(keep / "quiet.jsonl"), read(keep / "disturbed.jsonl")
    good = [one.value for one in quiet if not one.void]
    result: dict[str, float] = {"sessions_quiet": len(good), "sessions_disturbed": len(disturbed)}
    table: list[dict[str, float]] = []
    random = np.random.default_rng(20261130)
    if len(good) >= longest():
        result["sd"] = spread(good)
        result["trials"] = trials
        for change in CHANGES:
            row, counts = quiet_trials(good, change, trials, random)
            table.append(row)
            result |= counts
        result["false_alarms"] = table[0]["ours"]
    if len(disturbed) >= longest():
        result["void_share_disturbed"] = sum(one.void for one in disturbed) / len(disturbed)
        result |= disturbed_trials(disturbed, trials, random)
    live = [json.loads(line) for line in lines(keep / "live.jsonl")]
    result["live_trials"] = len(live)
    for change in CHANGES:
        verdicts = [one["verdict"] for one in live if one["change"] == change]
        if verdicts:
            result[f"live_found_{percent(change)}"] = verdicts.count(Verdict.SLOWER) / len(verdicts)
            result[f"live_wrong_{percent(change)}"] = verdicts.count(Verdict.FASTER) / len(verdicts)
    return result, table


def longest() -> int:
    return 2 * protocol.sessions_each(Block.CONFIRM)


def percent(change: float) -> str:
    return f"{change * 100:.0f}"


def spread(values: Sequence[float]) -> float:
    """Between-session standard deviation as a share, blind to a few wild sessions."""
    heights = logs(values)
    return float(np.median(np.abs(heights - np.median(heights))) * MAD_TO_SD)


def stretch(
    values: Sequence[float], block: Block, change: float, random: np.random.Generator
) -> tuple[list[float], list[float]]:
    """Neighbouring sessions as the two sides of a block."""
    start = int(random.integers(len(values) - 2 * protocol.sessions_each(block) + 1))
    base, head = [], []
    for turn in protocol.turns(block):
        value = values[start + turn.place]
        if turn.side is Side.BASE:
            base.append(value)
        else:
            head.append(value * (1 + change))
    return base, head


def quiet_trials(
    values: Sequence[float], change: float, trials: int, random: np.random.Generator
) -> tuple[dict[str, float], dict[str, float]]:
    """Shares of trials called different, by us and by the rules of other tools on the first block's numbers."""
    ours = wrong = unsure = pyperf = hyperfine = 0
    for _ in range(trials):
        base, head = stretch(values, Block.SCREEN, change, random)
        screen = compared(base, head, WALL)
        confirms = {}
        if is_candidate(screen):
            confirms["it"] = compared(*stretch(values, Block.CONFIRM, change, random), WALL)
        outcome = settled({"it": screen}, confirms)["it"]
        alarm = outcome.verdict in (Verdict.SLOWER, Verdict.FASTER)
        ours += alarm if change == 0 else outcome.verdict is Verdict.SLOWER
        wrong += outcome.verdict is Verdict.FASTER if change else alarm
        wrong += outcome.verdict is Verdict.NO_CHANGE and (outcome.within or 0.0) < change
        unsure += outcome.verdict is Verdict.INCONCLUSIVE
        pyperf += differs(base, head, equal_variances=True, slower_only=change > 0)
        hyperfine += differs(base, head, equal_variances=False, slower_only=change > 0)
    name = percent(change)
    row = {"change": change, "ours": ours / trials, "pyperf": pyperf / trials, "hyperfine": hyperfine / trials}
    return row, {
        f"found_{name}": ours / trials,
        f"wrong_{name}": wrong / trials,
        f"inconclusive_{name}": unsure / trials,
    }


def differs(base: Sequence[float], head: Sequence[float], *, equal_variances: bool, slower_only: bool) -> bool:
    """The t-tests of other tools at 95 %."""
    found = stats.ttest_ind(head, base, equal_var=equal_variances)
    return bool(found.pvalue < 0.05 and (found.statistic > 0 or not slower_only))


def disturbed_trials(sessions: Sequence[Session], trials: int, random: np.random.Generator) -> dict[str, float]:
    """The gate, repeats and verdicts on sessions that others disturbed, for no change and for 10 %."""
    result: dict[str, float] = {}
    for change in (0.0, 0.10):
        counts = {verdict: 0 for verdict in Verdict}
        for _ in range(trials):
            screen = disturbed_block(sessions, Block.SCREEN, change, random)
            again = isinstance(screen, Compared) and is_candidate(screen)
            confirms = {"it": disturbed_block(sessions, Block.CONFIRM, change, random)} if again else {}
            counts[settled({"it": screen}, confirms)["it"].verdict] += 1
        wrong = counts[Verdict.FASTER] + (counts[Verdict.SLOWER] if change == 0 else 0)
        result[f"disturbed_wrong_{percent(change)}"] = wrong / trials
        result[f"disturbed_contaminated_{percent(change)}"] = counts[Verdict.CONTAMINATED] / trials
        result[f"disturbed_found_{percent(change)}"] = counts[Verdict.SLOWER] / trials
    return result


def disturbed_block(
    sessions: Sequence[Session], block: Block, change: float, random: np.random.Generator
) -> Compared | Void:
    sides, _ = taken(sessions, int(random.integers(len(sessions))), block)
    if isinstance(sides, Void):
        return sides
    return compared(sides[Side.BASE], [value * (1 + change) for value in sides[Side.HEAD]], WALL)


def taken(sessions: Sequence[Session], start: int, block: Block) -> tuple[dict[Side, list[float]] | Void, int]:
    """What a block takes of recorded sessions from there on, going round, and where the next one begins. Void sessions
    are repeated; after some repeats the block is void."""
    at = start
    sides: dict[Side, list[float]] = {Side.BASE: [], Side.HEAD: []}
    for turn in protocol.turns(block):
        for _ in range(REPEATS + 1):
            session = sessions[at % len(sessions)]
            at += 1
            if not session.void:
                break
        else:
            return Void(session.reason), at
        sides[turn.side].append(session.value)
    return sides, at
