"""What the made-up street has measured: nights with steps, a new kernel, void sessions, verdicts and profiles."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy.orm import Session

from orchestrator.measure.records import ChangePoint, Grown, Why
from orchestrator.store.repos import Repo
from orchestrator.store.reviews import Review
from review_agents.records import Change, Measurement, Verdict
from review_agents.records import Session as Timed
from tests.factories import make_compared, make_measured, make_step_found

OLD, NEW = (f"lamp-post-1/bubblewrap/debian-12/3.13.0/{kernel}" for kernel in ("6.1.0-28", "6.12.3"))
KERNELS = {OLD: "6.1.0-28", NEW: "6.12.3"}
NEW_KERNEL = 9  # the night from which there is one


@dataclass(frozen=True)
class Made:
    """A benchmark and what happened to it."""

    name: str
    command: str
    base: float
    steps: Mapping[int, float] | None = None  # from that night on, times so much
    unit: str = "s"
    noise: float = 0.011
    void: Sequence[int] = ()  # nights with void sessions
    lost: Sequence[int] = ()  # nights without a good one


MADE = (
    Made("import spanparse", "python -I -c 'import spanparse'", 0.0412, {17: 1.13}, void=(5, 12)),
    Made("import spanparse: peak memory", "python -I -c 'import spanparse'", 24.1 * 2**20, {17: 1.31}, "bytes", 0.002),
    Made("test run", "python -m pytest -q", 2.91, void=(5, 12, 19), lost=(6,)),
    Made("spanparse --help", "spanparse --help", 0.0934),
    Made("bench_parse: parse_many", "python benchmarks/bench_parse.py", 0.00318, {14: 0.81}, noise=0.02),
    Made("bench_parse: format_clock", "python benchmarks/bench_parse.py", 0.000271, {23: 1.19}, noise=0.008),
    Made("agent: sum of a year of time sheets", "spanparse sum year.txt", 0.348, noise=0.03),
)
STACKS = {
    "main": (0.02, 0.02),
    "main;bench;parse_many;parse_duration": (0.31, 0.30),
    "main;bench;parse_many;parse_duration;scan": (0.42, 0.41),
    "main;bench;parse_many;parse_duration;scan;match_unit": (0.28, 0.28),
    "main;bench;format_many;format_clock": (0.24, 0.22),
    "main;bench;format_many;format_clock;pad": (0.11, 0.11),
    "main;bench;format_many;format_clock;_check_locale": (0.0, 0.21),
    "main;bench;format_many;format_clock;_check_locale;normalize": (0.0, 0.16),
    "main;bench;format_many;divide": (0.14, 0.08),
}
FILES = {
    "main": "benchmarks/bench_parse.py",
    "bench": "benchmarks/bench_parse.py",
    "normalize": "/usr/lib/python3/locale.py",
}


def measure(db: Session, repo: Repo, nights: Sequence[Review]) -> None:
    chance = random.Random(11)
    for number, review in enumerate(nights):
        for one in MADE:
            measured_night(db, review, number, one, chance)
    compare(db, nights)
    found = nights[17]
    point = ChangePoint(
        "import spanparse", "s", NEW, nights[16].commit, found.commit, nights[16].created_at, found.created_at,
        0.0412, 0.0466, 1.13, 1,
    )  # fmt: skip
    make_step_found(db, repo, point, culprit=found.commit)


def measured_night(db: Session, review: Review, number: int, one: Made, chance: random.Random) -> None:
    level = one.base
    for night, times in (one.steps or {}).items():
        level *= times if number >= night else 1.0
    level *= chance.gauss(1, one.noise / 3)  # the night's own luck
    void = set(range(6)) if number in one.lost else {1, 4} if number in one.void else set()
    sessions = tuple(
        Timed(value=level * chance.gauss(1, one.noise), void=at in void, reason="others used 7 %" if at in void else "")
        for at in range(6)
    )
    change = None
    if one.name.endswith("format_clock") and number == 23:
        change = Change(ratio=1.19, low=1.16, high=1.21, verdict=Verdict.SLOWER)
    key = OLD if number < NEW_KERNEL else NEW
    around = {"machine": "lamp-post-1", "sandbox": "bubblewrap", "kernel": KERNELS[key], "python": "3.13.0",
              "dependencies": {"tomli": "2.2.1" if number < 14 else "2.3.0"}}  # fmt: skip
    measurement = Measurement(name=one.name, command=one.command, unit=one.unit, sessions=sessions, change=change)
    make_measured(db, review, measurement, machine_key=key, surroundings=around)


def compare(db: Session, nights: Sequence[Review]) -> None:
    """The last night against the one before; pairs of equal code in each."""
    chance = random.Random(12)
    for before, review in pairwise(nights):
        make_compared(db, review, "spanparse --help", chance.gauss(1, 0.004), base_commit=before.commit, same_code=True,
                      machine_key=NEW, base=0.0934)  # fmt: skip
    before, last = nights[-2:]
    given: dict[str, Any] = {"base_commit": before.commit, "machine_key": NEW}
    make_compared(db, last, "bench_parse: format_clock", 1.19, base=0.000271, why=why(), **given)
    make_compared(db, last, "bench_parse: parse_many", 0.998, base=0.00258, **given)
    make_compared(db, last, "import spanparse", 1.004, base=0.0466, **given)
    make_compared(db, last, "import spanparse: peak memory", 0.93, base=31.6 * 2**20, unit="bytes", **given)
    make_compared(db, last, "test run", None, void=4, **given)


def why() -> Why:
    def frames(names: str, root: str) -> str:
        places = [(FILES.get(name, f"{root}/spanparse/clock.py"), name) for name in names.split(";")]
        return ";".join(f"{file}:{10 + len(name)}:{name}" for file, name in places)

    base, head = ({frames(names, root): both[side] for names, both in STACKS.items() if both[side]}
                  for side, root in enumerate(("/base/venv/site-packages", "/venv/plain/site-packages")))  # fmt: skip
    grown = (
        Grown("_check_locale", "src/spanparse/clock.py", 57, 0.0, 3.8e-5),
        Grown("normalize", "/usr/lib/python3/locale.py", 361, 0.0, 2.9e-5),
    )
    return Why(grown, base, head, {"tomli": ("2.2.1", "2.3.0")})
