"""Takes the pictures of docs/screenshots from a small made-up street: `python -m tests.bench.screenshots`.

The findings are those of a real review of the bench repo spanparse, and so is what its agents said (a recording,
`tests/bench/street_agents.py`); nights, timings, the model's name and the other repos are made up. Times stand still,
so that a picture changes only when a page does.
"""

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import quote
from uuid import UUID

from playwright.sync_api import Browser
from sqlalchemy.orm import Session

from orchestrator.services.workshop import Workshop
from orchestrator.store.machines import Machine
from orchestrator.store.migrate import upgrade
from orchestrator.store.repos import Repo
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.session import open_sessions
from orchestrator.store.steps import StepState
from review_agents.focus import builtin
from review_agents.records import (
    Candidate,
    FindingState,
    Kind,
    Lifecycle,
    Place,
    ProbeState,
    Ran,
    Severity,
    VerificationState,
)
from tests.bench import street_agents, street_numbers
from tests.bench.figures import ROOT
from tests.factories import (
    NOON,
    make_candidate,
    make_chunk,
    make_finding,
    make_probe_result,
    make_repo,
    make_reproduction,
    make_review,
    make_schedule,
    make_shop,
    make_sighting,
    make_step,
    make_verification,
)
from tests.support.chromium import chromium
from tests.support.site import served

FOLDER = ROOT / "docs" / "screenshots"
WIDTH, PHONE = 1040, (390, 844)
PICTURES = (
    ("review", "dark", 820),
    ("review", "light", 820),
    ("running", "dark", 620),
    ("running", "light", 620),
    ("home", "dark", 780),
    ("home", "light", 780),
    ("repo", "dark", 760),
    ("measurements", "dark", 900),
    ("benchmark", "light", 900),
    ("profile", "dark", 720),
    ("finding", "dark", 700),
    ("rounds", "light", 640),
    ("compare", "light", 760),
    ("memo", "light", 800),
    ("transcript", "dark", 740),
    ("waiting", "light", 600),
    ("ignored", "light", 480),
    ("form", "dark", 740),
)
PHONES = ("home", "review", "running", "memo", "transcript", "compare", "finding", "measurements")
MOST_BYTES = 150 * 1000
NIGHTS = 24
BROUGHT_UP = {"form": "#f-focuses"}  # what a picture shows whole
OPENED = {"transcript": ("details.call",), "form": ("form details.more",)}  # folds that a picture shows open
OTHERS = ("embercache", "rowdelta", "stagewright", "humanize", "tablecraft")
LIMITS = {
    "name": "bubblewrap",
    "version": "0.11.0",
    "image": "host /usr: Debian GNU/Linux 12 (bookworm)",
    "python": "3.13.0",
    "missing_limits": ["size of /base and /venv (watched while an install step writes them, not capped)"],
}


@dataclass(frozen=True)
class Sights:
    repo: UUID
    done: UUID
    before: UUID
    running: UUID
    finding: UUID
    waiting: UUID
    conversation: UUID  # the step of a focus


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, street(Path(folder)) as (shop, sights), served(shop) as site:
        addresses = {
            "home": "/",
            "review": f"/reviews/{sights.done}",
            "running": f"/reviews/{sights.running}",
            "repo": f"/repos/{sights.repo}",
            "measurements": f"/repos/{sights.repo}/measurements#series",
            "benchmark": f"/repos/{sights.repo}/benchmark?name=import+spanparse",
            "profile": f"/reviews/{sights.done}/profile?name={quote('bench_parse: format_clock')}",
            "finding": f"/findings/{sights.finding}",
            "rounds": "/schedules",
            "compare": f"/compare?one={sights.before}&other={sights.done}",
            "memo": f"/reviews/{sights.done}/memo",
            "transcript": f"/steps/{sights.conversation}/transcript",
            "waiting": f"/reviews/{sights.waiting}",
            "ignored": "/ignored",
            "form": "/",
        }
        with chromium() as browser:
            for name, theme, height in PICTURES:
                take(browser, site.address + addresses[name], FOLDER / f"{name}-{theme}.png", theme, (WIDTH, height))
            for name in PHONES:
                take(browser, site.address + addresses[name], FOLDER / f"{name}-phone.png", "dark", PHONE)
    large = [one.name for one in sorted(FOLDER.glob("*.png")) if one.stat().st_size > MOST_BYTES]
    if large:
        raise SystemExit(f"Larger than {MOST_BYTES} bytes: {', '.join(large)}.")


def take(browser: Browser, address: str, target: Path, theme: str, size: tuple[int, int]) -> None:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(address, wait_until="load")
    for fold in OPENED.get(target.stem.rpartition("-")[0], ()):
        page.locator(fold).first.evaluate("fold => { fold.open = true }")
    if shown := BROUGHT_UP.get(target.stem.rpartition("-")[0]):
        page.locator(shown).evaluate("element => element.scrollIntoView({block: 'end'})")
    page.wait_for_timeout(400)  # for what a page asks for when it is there: events, charts
    page.screenshot(path=target)
    context.close()
    print(f"{target.relative_to(ROOT)}  {target.stat().st_size} bytes")


@contextmanager
def street(folder: Path) -> Iterator[tuple[Workshop, Sights]]:
    url = f"sqlite:///{folder}/lamplighter.sqlite3"
    upgrade(url)
    sessions = open_sessions(url)
    with sessions.begin() as db:
        sights = build(db)
    yield make_shop(sessions, folder, focuses=builtin(), settings={"model_url": street_agents.NODE}), sights
    sessions.close()


def build(db: Session) -> Sights:
    chance = random.Random(7)
    repo = make_repo(
        db, name="spanparse", url="https://github.com/example/spanparse", created_at=NOON - timedelta(days=40)
    )
    last_night = NOON.replace(hour=1)
    nights = [night(db, repo, last_night - timedelta(days=NIGHTS - 1 - at), chance) for at in range(NIGHTS)]
    before, done = nights[-2], nights[-1]
    done.sandbox = LIMITS
    street_numbers.measure(db, repo, nights)
    steps(db, before)
    steps(db, done)
    findings = file_findings(db, nights)
    thoughts = street_agents.think(db, done)
    ignore_one(db, done)
    others(db, last_night, chance)
    waiting = make_review(
        db, make_repo(db, name="tablecraft-cli", url="https://github.com/example/tablecraft-cli"),
        state=ReviewState.RUNNING, created_at=NOON - timedelta(minutes=6), machine="lamp-post-2",
    )  # fmt: skip
    steps(db, waiting, until="merge", shown=False)
    street_agents.wait(db, waiting)
    running = running_review(db)
    make_schedule(db, repo, ref="")
    db.add(
        Machine(
            id="lamp-post-1", worker_pid=1, started_at=NOON, heartbeat=NOON, sandbox=LIMITS, version="0.1.0",
            current_review=running.id,
        )
    )  # fmt: skip
    return Sights(
        repo.id, done.id, before.id, running.id, findings, waiting.id, thoughts[-1].step.id
    )  # fmt: skip


def night(db: Session, repo: Repo, at: datetime, chance: random.Random) -> Review:
    return make_review(
        db, repo, state=ReviewState.DONE, created_at=at, slot=at, requested_by="schedule",
        commit=f"{chance.getrandbits(160):040x}", finished_at=at + timedelta(seconds=411 + chance.randrange(40)),
        outcome_note="evidence only: no model took part", machine="lamp-post-1",
    )  # fmt: skip


def file_findings(db: Session, nights: list[Review]) -> UUID:
    """The last night's findings with their pasts; the id of the one to show by itself."""
    before, done = nights[-2], nights[-1]
    shown = None
    for candidate, nights_ago, lifecycle in claims():
        first = nights[-1 - nights_ago]
        finding = make_finding(db, first, candidate)
        for review in nights[-1 - nights_ago : -1]:
            make_sighting(db, review, finding, candidate=candidate, lifecycle=past(review, first, lifecycle, before))
        ran = Ran(exit=1, seconds=0.31, head=candidate.reproduction.observed + "\n" if candidate.reproduction else "")
        state = VerificationState.NOT_REPRODUCED if lifecycle is Lifecycle.FIXED else VerificationState.CONFIRMED
        controls = (Ran(exit=0, seconds=0.28),) * 2
        verification = make_verification(state, runs=(ran,) * 2, controls=controls)
        make_sighting(db, done, finding, candidate=candidate, lifecycle=lifecycle, verification=verification)
        finding.state = FindingState.FIXED if lifecycle is Lifecycle.FIXED else FindingState.OPEN
        shown = shown or finding.id
    assert shown is not None
    return shown


def ignore_one(db: Session, review: Review) -> None:
    """A finding that the operator does not want to hear of until spring."""
    place = Place(file="src/spanparse/cli.py", line=73, symbol="_sum", quote="return 0")
    candidate = make_candidate(
        title="`spanparse sum` ends with exit status 0 although a line could not be read",
        description="A script that adds up time sheets goes on with a sum that lacks lines.",
        kind=Kind.USABILITY, severity=Severity.LOW, rule="cli.exit-status", shape="sum", places=(place,),
        reproduction=make_reproduction(
            command="printf '1h\\nnonsense\\n' > sheet.txt\nspanparse sum sheet.txt; echo status $?",
            expected="exit status 1, as documented", observed="status 0",
        ),
    )  # fmt: skip
    finding = make_finding(
        db, review, candidate, ignored_reason="Changed together with the new command line in 0.6",
        ignored_until=NOON + timedelta(days=90),
    )  # fmt: skip
    make_sighting(
        db, review, finding, candidate=candidate, lifecycle=Lifecycle.IGNORED,
        ignored_by="operator: Changed together with the new command line in 0.6",
    )  # fmt: skip


def past(review: Review, first: Review, lifecycle: Lifecycle, before: Review) -> Lifecycle:
    if review is first:
        return Lifecycle.NEW
    return Lifecycle.FIXED if lifecycle is Lifecycle.REGRESSED and review is before else Lifecycle.PERSISTING


RULES = {
    Kind.PACKAGING: "wheel.missing-data",
    Kind.CORRECTNESS: "readme.output-differs",
    Kind.DOCUMENTATION: "readme.unknown-option",
    Kind.PERFORMANCE: "import.slow",
    Kind.USABILITY: "cli.traceback",
}


def claims() -> list[tuple[Candidate, int, Lifecycle]]:
    """Candidate, in how many earlier nights it was seen, and what it is now."""

    def claim(title: str, description: str, kind: Kind, severity: Severity, place: Place, **proof: str) -> Candidate:
        reproduction = make_reproduction(control="python -c 'import spanparse'", **proof)
        return make_candidate(
            title=title, description=description, kind=kind, severity=severity, places=(place,),
            reproduction=reproduction, rule=RULES[kind], shape=title,
        )  # fmt: skip

    return [
        (
            claim(
                "The built wheel lacks the data files `src/spanparse/aliases/*.json`",
                "`spanparse.units.aliases` opens package data that is in the repository but not in the wheel. After "
                "`pip install .`, `aliases(lang='de')` ends with `SpanError: no unit names for language 'de'`; from "
                "the source tree it works.",
                Kind.PACKAGING, Severity.HIGH,
                Place(file="src/spanparse/units.py", line=41, symbol="aliases",
                      quote='source = resources.files("spanparse").joinpath("aliases").joinpath(lang + ".json")'),
                command="cd \"$(mktemp -d)\"\npython -c \"import spanparse.units as m; m.aliases(lang='de')\"",
                expected="the data file is installed with the package",
                observed="SpanError: no unit names for language 'de'",
            ),
            1, Lifecycle.PERSISTING,
        ),
        (
            claim(
                "README shows `-2730.0` for `parse_duration(\"-0:45:30\")`, but it gives `2730.0`",
                "README.md, line 15: the page shows `-2730.0`. The package gives `2730.0`.",
                Kind.CORRECTNESS, Severity.MEDIUM, Place(file="README.md", line=15, symbol="Library"),
                command="python -c 'from spanparse import *; print(parse_duration(\"-0:45:30\"))'",
                expected="-2730.0", observed="2730.0",
            ),
            0, Lifecycle.NEW,
        ),
        (
            claim(
                "README uses the option `--unit`, which the program refuses",
                "README.md, line 63 tells to run `spanparse sum monday.txt --unit m`; the program knows no `--unit`.",
                Kind.DOCUMENTATION, Severity.MEDIUM, Place(file="README.md", line=63, symbol="Time sheets"),
                command="printf '1h\\n45m # call\\n' > monday.txt\nspanparse sum monday.txt --unit m",
                expected="exit status 0", observed="spanparse: error: unrecognized arguments: --unit m",
            ),
            6, Lifecycle.PERSISTING,
        ),
        (
            claim(
                "`import spanparse` takes 677 ms of the package's own time and keeps 40 MiB of memory",
                "Most of it is work at module level in `src/spanparse/durations.py` (`_CLOCK_READINGS`).",
                Kind.PERFORMANCE, Severity.MEDIUM,
                Place(file="src/spanparse/durations.py", line=25, symbol="_CLOCK_READINGS"),
                command="python -X importtime -c 'import spanparse'", expected="under 150 ms", observed="677 ms",
            ),
            5, Lifecycle.REGRESSED,
        ),
        (
            claim(
                "README shows `'1h 2m 5s'` for `format_duration(3725)`, but it gives `'1h 2m'`",
                "README.md, line 17: the page shows `'1h 2m 5s'`. The package gives `'1h 2m'`.",
                Kind.CORRECTNESS, Severity.MEDIUM, Place(file="README.md", line=17, symbol="Library"),
                command="python -c 'from spanparse import *; print(format_duration(3725))'",
                expected="1h 2m 5s", observed="1h 2m",
            ),
            9, Lifecycle.FIXED,
        ),
        (
            claim(
                "`spanparse size` ends with a traceback on an empty argument",
                "A user sees 11 lines of traceback instead of a message.",
                Kind.USABILITY, Severity.LOW, Place(file="src/spanparse/cli.py", line=51, symbol="main"),
                command="spanparse size ''", expected="a message and exit status 2", observed="IndexError",
            ),
            3, Lifecycle.PERSISTING,
        ),
    ]  # fmt: skip


PROBES = {  # NAME and MODULE stand for the repo's
    "install": ("passed", 70.6, "Installed NAME 0.5.0 with Python 3.13.0, 2 distributions in /venv/plain."),
    "wheel": ("failed", 4.3, "24 files installed, 1 problem."),
    "dependencies": ("passed", 0.9, "14 modules imported, 0 that nothing declares."),
    "entry_points": ("passed", 14.1, "1 program, 9 calls, 0 problems."),
    "readme": ("failed", 41.6, "14 of 17 examples on 2 pages ran: 9 as shown, 3 otherwise."),
    "tests": ("passed", 3.1, "63 of 63 tests passed in 2.9 s."),
    "profile": ("passed", 3.2, "2.5 s profiled; hottest is main with 23 %."),
}


LAST = ("merge", "record")  # behind what agents do


def steps(db: Session, review: Review, *, until: str = "", shown: bool = True) -> None:
    """All steps of a review, or those before the one that runs now (with `shown`; else it has not begun either)."""
    begun = review.started_at or NOON
    running = False
    repo = db.get_one(Repo, review.repo_id).name
    names = ("checkout", "prepare", *(f"probe:{probe}" for probe in PROBES), "merge", "record")
    for position, name in enumerate(names):
        probe = name.partition(":")[2]
        word, seconds, summary = PROBES.get(probe, ("passed", 1.2, ""))
        summary = named(summary or {"checkout": "17 files", "merge": "1 new; 5 open"}.get(name, ""), repo)
        running = running or (name == until and not shown)
        now = name == until and shown
        state = StepState.RUNNING if now else StepState.PENDING if running else StepState.DONE
        running = running or now
        changed = {}
        if probe and state is StepState.DONE:
            result = make_probe_result(probe, state=ProbeState(word), seconds=seconds, summary=summary, facts={})
            changed = {"result": result.model_dump(mode="json")}
        step = make_step(
            db, review, name, position=position + (1_000_000 if name in LAST else 0), state=state,
            summary=summary if state is StepState.DONE else "",
            started_at=None if state is StepState.PENDING else NOON - timedelta(seconds=12) if now else begun,
            ended_at=begun + timedelta(seconds=seconds) if state is StepState.DONE else None, **changed,
        )  # fmt: skip
        if until and state is not StepState.PENDING:
            make_chunk(db, step, named(LOGS.get(name, f"{summary}\n"), repo))


def named(text: str, repo: str) -> str:
    return text.replace("NAME", repo).replace("MODULE", repo.replace("-", "_"))


LOGS = {
    "checkout": "commit eced0e7c22ea of 2025-02-17, 17 files\n",
    "prepare": "$ python3 -m venv --clear /venv/plain\n[exit status 0, 5.4 s]\n$ pip install .\n"
    "Processing /job/repo\nBuilding wheel for NAME (pyproject.toml): finished with status 'done'\n"
    "Successfully installed NAME-0.5.0\n[exit status 0, 21.9 s]\n",
    "probe:readme": "README.md:11  from MODULE import main\nREADME.md:14  as shown\nREADME.md:19  as shown\n"
    "README.md:23  $ NAME --json\nREADME.md:24  \x1b[31motherwise\x1b[0m: exit status 2\n"
    "docs/usage.md:8  as shown\ndocs/usage.md:15  ran\n",
}


def running_review(db: Session) -> Review:
    repo = make_repo(db, name="embercache", url="https://github.com/example/embercache")
    review = make_review(
        db, repo, state=ReviewState.RUNNING, created_at=NOON - timedelta(minutes=3), machine="lamp-post-1"
    )
    steps(db, review, until="probe:readme")
    waiting = make_repo(db, name="rowdelta", url="https://github.com/example/rowdelta")
    make_review(db, waiting, created_at=NOON - timedelta(minutes=1))
    return review


def others(db: Session, last_night: datetime, chance: random.Random) -> None:
    for at, name in enumerate(OTHERS):
        repo = make_repo(db, name=name, url=f"https://github.com/example/{name}.git")
        failed = name == "stagewright"
        review = make_review(
            db, repo, state=ReviewState.FAILED if failed else ReviewState.DONE,
            created_at=last_night + timedelta(minutes=10 * (at + 1)), slot=last_night, requested_by="schedule",
            commit=f"{chance.getrandbits(160):040x}", machine="lamp-post-1",
            error="The repository did not answer within 600 s." if failed else "",
        )  # fmt: skip
        for number in range(0 if failed else chance.randrange(5)):
            severity = chance.choice([Severity.HIGH, Severity.MEDIUM, Severity.MEDIUM, Severity.LOW])
            make_sighting(db, review, candidate=make_candidate(severity=severity, shape=f"{name}{number}"))
        later = timedelta(days=1, minutes=10 * (at + 1))
        make_schedule(
            db, repo, ref="", at=f"02:{10 * (at + 1):02d}", next_at=last_night + later, last_slot=last_night,
            last_note="unchanged since the last review, skipped" if at == 4 else "",
        )  # fmt: skip


if __name__ == "__main__":
    main()
