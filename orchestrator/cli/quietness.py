"""Whether numbers of this machine can be trusted: minutes of a fixed workload as A/A pairs, and what to change."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import resources

from orchestrator.cli.links import Checked
from orchestrator.measure.statistics import estimate, session_sd
from orchestrator.sandbox import quiet
from orchestrator.sandbox.limits import for_measuring
from orchestrator.sandbox.pressure import Contention
from orchestrator.sandbox.quiet import Timed
from orchestrator.settings import Settings

PAIR = "ABBAABBAABBA"  # six and six sessions, as base and head are compared
STEADY_SD, USABLE_SD = 0.01, 0.03  # between sessions; how much is found at each: `python -m tests.bench power`
MOST_DISTURBED = 0.1
NOTICED_SHARE = 0.01  # of a processor, by a neighbour
MOST_NEIGHBOURS = 5
SPEAK_EVERY_S = 20.0


def check_settings(settings: Settings) -> Iterator[Checked]:
    """What can be seen at once."""
    cpus = for_measuring(settings)
    where = f"on CPUs {', '.join(map(str, cpus))}" if cpus else "on all CPUs: there is only one core"
    yield Checked("measuring", None, f"{where}; `lamplighter doctor --only quiet` says how steady they are")
    yield from set_to(cpus)


def set_to(cpus: tuple[int, ...]) -> Iterator[Checked]:
    for one in quiet.machine_settings(cpus):
        yield Checked("measuring", None, f"{one.name}: {one.value}{f'; {one.advice}' if one.advice else ''}")
    if quiet.is_virtual():
        yield Checked("measuring", None, "a virtual machine: the hypervisor may give its processors to others")


def check_quiet(
    settings: Settings,
    *,
    minutes: float = 5.0,
    say: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Checked]:
    """A few minutes of nothing but our own workload; after Ctrl-C what there is until then.

    say     hears now and then how far it is
    """
    cpus = for_measuring(settings)
    source = resources.files("review_agents.probes").joinpath("inside/canary.py").read_text("utf-8")
    yield from set_to(cpus)
    before, began, meanwhile = quiet.processor_times(), clock(), quiet.watched(cpus)
    taken: list[Timed] = []
    spoken_at = began - SPEAK_EVERY_S
    try:
        while clock() - began < minutes * 60 or len(taken) < len(PAIR):
            if clock() - spoken_at >= SPEAK_EVERY_S:
                spoken_at = clock()
                say(so_far(taken, spoken_at - began, minutes))
            taken.append(quiet.timed(source, cpus))
    except KeyboardInterrupt:
        if not taken:
            raise
        yield Checked("quiet", None, f"stopped after {(clock() - began) / 60:.1f} of {minutes:g} min")
    elapsed_s = clock() - began
    yield Checked("pressure", None, waited(meanwhile()))
    yield from told(taken, elapsed_s)
    busy = quiet.neighbours(before, quiet.processor_times(), elapsed_s)
    noticed = [f"{name} {share:.0%}" for name, share in busy if share >= NOTICED_SHARE][:MOST_NEIGHBOURS]
    if noticed:
        said = f"shares of one CPU: {', '.join(noticed)}; have them run at another time than reviews"
        yield Checked("neighbours", None, said)


def so_far(taken: Sequence[Timed], elapsed_s: float, minutes: float) -> str:
    if not taken:
        return f"measuring for {minutes:g} min; leave the machine alone. Ctrl-C says what there is until then."
    disturbed = sum(1 for one in taken if one.disturbed)
    return f"{elapsed_s / 60:.1f} of {minutes:g} min, {len(taken)} sessions, {disturbed} of them disturbed"


def told(taken: Sequence[Timed], elapsed_s: float) -> Iterator[Checked]:
    """The verdict on these sessions."""
    reasons = Counter(kind(one.disturbed) for one in taken if one.disturbed)
    disturbed = reasons.total() / len(taken)
    words = f"{reasons.total()} of {len(taken)} sessions in {elapsed_s / 60:.1f} min were disturbed"
    if reasons:
        words += f" ({', '.join(f'{number} times: {reason}' for reason, number in reasons.most_common(3))})"
    calm = disturbed <= MOST_DISTURBED
    if not calm:
        (worst, _), *_ = reasons.most_common(1)
        words += f"; reviews would wait, and often give no verdict. {ADVICE.get(worst, QUIETER)}"
    yield Checked("disturbance", calm, words)
    good = [one.wall_s for one in taken if not one.disturbed]
    if len(good) < len(PAIR):
        sd = session_sd([one.wall_s for one in taken], ())
        words = f"only {len(good)} sessions were good, too few to tell; all of them scatter by {sd:.1%}"
        yield Checked("steadiness", False, f"{words}. {QUIETER}")
        return
    sd, ratios = session_sd(good, ()), pairs(good)
    apart = max(abs(ratio - 1) for ratio in ratios)
    words = (
        f"sessions of {statistics.median(good) * 1000:.0f} ms scatter by {sd:.1%}; {len(ratios)} "
        f"{'pair' if len(ratios) == 1 else 'pairs'} of equal code came out at most {apart:.1%} apart"
    )
    yield Checked("steadiness", sd <= USABLE_SD, f"{words}. {means(sd)}")


def waited(meanwhile: Contention) -> str:
    """How much others were in the way in all that time, gentle or not."""
    said = [f"others used {meanwhile.foreign or 0.0:.1%} of the CPUs that are measured on"]
    if meanwhile.pressure is not None:
        said.insert(0, f"some task waited for a processor during {meanwhile.pressure:.1%} of the time")
    if meanwhile.steal:
        said.append(f"the hypervisor took {meanwhile.steal:.1%} of them")
    return ", ".join(said)


QUIETER = "Stop what else runs here, fix the frequency, or give measuring cores of its own (LAMPLIGHTER_SANDBOX_CPUS)."
OTHERS, WAITED = "others used the processors", "tasks waited for a processor"
HYPERVISOR, SWAP = "the hypervisor took the processors away", "pages came back from swap"
STOP = (
    "Have what runs beside reviews run at another time, or give measuring cores of its own (LAMPLIGHTER_SANDBOX_CPUS)."
)
ADVICE = {
    OTHERS: STOP,
    WAITED: STOP,
    HYPERVISOR: "Measure on a machine, or with processors, that the hypervisor gives to nobody else.",
    SWAP: "Give this machine more memory, or stop what fills it.",
    "the processor was throttled": "Cool it better, or lower its highest frequency (`cpupower frequency-set -u`).",
    "the processor's highest frequency was changed": "Keep what changes it (power profiles, tuned) from doing so.",
}


def means(sd: float) -> str:
    if sd <= STEADY_SD:
        return "Steady enough to look for slowdowns of 5 %."
    if sd <= USABLE_SD:
        return "Steady enough to look for slowdowns of 10 %; one of 5 % may be inconclusive."
    return f"Only large slowdowns are found. {QUIETER}"


def kind(disturbed: str) -> str:
    """What disturbed, without how much."""
    for words, found in (("others used", OTHERS), ("some task waited", WAITED), ("the hypervisor", HYPERVISOR)):
        if disturbed.startswith(words):
            return found
    return SWAP if "swap" in disturbed else disturbed


def pairs(good: Sequence[float]) -> list[float]:
    """Ratios of A/A pairs: neighbouring sessions as if they were base and head."""
    found = []
    for start in range(0, len(good) - len(PAIR) + 1, len(PAIR)):
        block = list(zip(PAIR, good[start : start + len(PAIR)], strict=True))
        base, head = ([value for side, value in block if side == wanted] for wanted in "AB")
        found.append(estimate(base, head, confidence=0.995).ratio)
    return found
