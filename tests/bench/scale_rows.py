# ruff: noqa: E501  (rows read better in one line)
"""Rows as years of nights leave them, for `scale`: filled in with COPY, in portions.

What is filled in follows from a row's number alone, ids too, and a portion is marked as done in the transaction that
brings it. So a run that was interrupted goes on with the portion that it was at. Times count back from NOON, which is
also what the pages' clock shows.

Each line of a log stands in both places where the service keeps any: as a chunk, as those of a running review do until
the sweep forgets them, and packed by steps, which is what the page of an ended step reads.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import md5
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy import make_url, text

from orchestrator.measure.records import Grown, Why
from orchestrator.store.repos import Repo
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.session import Sessions
from review_agents.records import (
    Answer,
    Entry,
    EntryKind,
    FocusResult,
    FocusState,
    Kind,
    Lifecycle,
    Message,
    Role,
    Severity,
    VerificationState,
)
from tests.factories import (
    NOON,
    make_candidate,
    make_compared,
    make_measurement,
    make_probe_result,
    make_reproduction,
    make_schedule,
    make_verification,
)

REPOS, REVIEWS, FINDINGS, LINES = 100, 10_000, 200_000, 1_000_000
FAMILIES = ("checkout", "prepare", *(f"probe:p{at}" for at in range(7)), "focus:correctness", "merge", "record")
STEPS = len(FAMILIES)
LONG_STEP, FOCUS_STEP = 3, 9  # of the newest ended review, the ones that are looked at
SERIES = 3  # that each review measures
TURNS = 40  # of a conversation
PORTION = 1000  # reviews
WAITING = 3
STAMP = md5(Path(__file__).read_bytes()).hexdigest()


@dataclass(frozen=True)
class Size:
    part: float

    @property
    def repos(self) -> int:
        return max(4, int(REPOS * self.part))

    @property
    def reviews(self) -> int:
        """That have ended. The one that runs and those that wait have the numbers after them."""
        return max(40, int(REVIEWS * self.part))

    @property
    def findings(self) -> int:
        return self.reviews * (FINDINGS // REVIEWS)

    @property
    def lines(self) -> int:
        return int(LINES * self.part)

    @property
    def newest(self) -> int:
        return self.reviews - 1

    @property
    def running(self) -> int:
        return self.reviews

    def lines_of(self, review: int, step: int) -> int:
        """A hundredth is one long log, half as much is the running review's; the rest is spread evenly."""
        long, live = self.lines // 100, self.lines // 200
        if review == self.running:
            return live if step == LONG_STEP else 0
        number, steps = review * STEPS + step, self.reviews * STEPS
        rest = self.lines - long - live
        even = (number + 1) * rest // steps - number * rest // steps
        return even + (long if (review, step) == (self.newest, LONG_STEP) else 0)


def id_of(kind: str, *number: int) -> UUID:
    return UUID(bytes=md5(f"{kind} {number}".encode()).digest(), version=4)


def fill(url: str, sessions: Sessions, part: float) -> Size:
    """Goes on where an earlier run stopped."""
    size = Size(part)
    with copying(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS bench_filled (portion text PRIMARY KEY)")
        connection.commit()
        done = {row[0] for row in connection.execute("SELECT portion FROM bench_filled")}
        for name, copy_in in portions(size):
            if name not in done:
                copy_in(connection)
                connection.execute("INSERT INTO bench_filled VALUES (%s)", (name,))
                connection.commit()
                print(f"filled in: {name}", flush=True)
    if "few" not in done:
        with sessions.begin() as db:
            few(db, size)
            db.execute(text("INSERT INTO bench_filled VALUES ('few')"))
    with copying(url) as connection:
        connection.autocommit = True
        connection.execute("VACUUM ANALYZE")  # as autovacuum does by itself after a while
    return size


def portions(size: Size) -> Iterator[tuple[str, Callable[[psycopg.Connection[Any]], None]]]:
    def reviews(connection: psycopg.Connection[Any]) -> None:
        copy(connection, "repos", "id name url kind default_ref profile flavour created_at", repo_rows(size))
        copy(connection, "reviews", REVIEW_COLUMNS, review_rows(size))

    yield "repos and reviews", reviews
    for first in range(0, size.reviews, PORTION):
        those = range(first, min(first + PORTION, size.reviews))
        yield (
            f"reviews {those.start} to {those.stop - 1}",
            lambda connection, those=those: slice_of(connection, size, those),
        )
    yield "the review that runs", lambda connection: slice_of(connection, size, range(size.running, size.running + 1))


def slice_of(connection: psycopg.Connection[Any], size: Size, those: range) -> None:
    ended = those if those.stop <= size.reviews else range(0)
    copy(connection, "findings", FINDING_COLUMNS, finding_rows(size, ended))
    copy(connection, "sightings", SIGHTING_COLUMNS, sighting_rows(size, ended))
    copy(connection, "steps", STEP_COLUMNS, step_rows(size, those))
    copy(connection, "log_chunks", "review_id step_id attempt seq at text", chunk_rows(size, those))
    copy(connection, "logs", "step_id compressed bytes", packed_rows(size, ended))
    copy(connection, "turns", "step_id attempt seq at body", turn_rows(size, ended))
    copy(connection, "measurements", MEASUREMENT_COLUMNS, measurement_rows(size, ended))


def copying(url: str) -> psycopg.Connection[Any]:
    """A connection of the driver's own to the schema of that URL."""
    parsed = make_url(url)
    return psycopg.connect(
        host=parsed.host, port=parsed.port, user=parsed.username, dbname=parsed.database,
        options=str(parsed.query["options"]),
    )  # fmt: skip


def copy(connection: psycopg.Connection[Any], table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
    names = ", ".join(f'"{name}"' for name in columns.split())
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN".encode()) as out:
        for row in rows:
            out.write_row(row)


# Rows -----------------------------------------------------------------------------------------

REVIEW_COLUMNS = (
    "id repo_id ref commit commit_date state focuses profile flavour budget_minutes agents force requested_by priority "
    "created_at started_at finished_at attempt max_attempts fence cancel_requested machine model node error outcome_note"
)
FINDING_COLUMNS = (
    "id repo_id fingerprint kind rule path symbol shape first_review_id last_review_id state title severity step "
    "repo_ignores ignored_reason"
)
SIGHTING_COLUMNS = (
    "id review_id finding_id lifecycle seen_late severity source focus ignored_by verification_state verification_reason "
    "body verification"
)
STEP_COLUMNS = "id review_id name position state attempt box started_at ended_at summary reason result"
MEASUREMENT_COLUMNS = (
    "id review_id repo_id name command unit machine_key commit at sessions median spread contaminated good note"
)


def at_of(size: Size, review: int) -> datetime:
    return NOON - timedelta(minutes=20 * (size.reviews - review))


def repo_of(size: Size, review: int) -> UUID:
    return id_of("repo", review % size.repos)


def repo_rows(size: Size) -> Iterator[Sequence[Any]]:
    for at in range(size.repos):
        yield id_of("repo", at), f"repo{at}", f"https://git.example/team/repo{at}", "git", "main", "", "", NOON


def review_rows(size: Size) -> Iterator[Sequence[Any]]:
    for at in range(size.reviews + 1 + WAITING):
        begun: datetime | None = at_of(size, min(at, size.reviews))
        ended = begun + timedelta(minutes=15) if begun and at < size.reviews else None
        state = "failed" if at % 20 == 7 else "cancelled" if at % 50 == 3 else "done"
        if at >= size.reviews:
            state = "running" if at == size.running else "queued"
        yield (
            id_of("review", at), repo_of(size, at), "main", f"{at:040x}", "2026-11-29T10:00:00+01:00", state, "[]", "", "",
            60, True, False, "schedule", 0, begun, None if state == "queued" else begun, ended, 1, 3, 1, False,
            None if state == "queued" else "machine", "", "", "", "",
        )  # fmt: skip


def findings_of(size: Size, review: int) -> range:
    """Numbers of the findings that the review of that number saw first."""
    each = size.findings // size.reviews
    return range(review * each, (review + 1) * each)


def finding_rows(size: Size, those: range) -> Iterator[Sequence[Any]]:
    """Nine in ten are fixed by now: nobody has thousands open in each repo. In the one that is looked at, none is."""
    severities, kinds = list(Severity), list(Kind)
    for review in those:
        newest = newest_of(size, review) if review < size.repos else review
        for at in findings_of(size, review):
            yield (
                id_of("finding", at), repo_of(size, review), f"{at:016x}", str(kinds[at % len(kinds)]), "tests.fail",
                f"src/module{at % 300}.py", f"function{at % 1000}", f"shape {at}", id_of("review", review),
                id_of("review", newest), "open" if at % 10 == 0 or review % size.repos == size.newest % size.repos else "fixed", f"Example {at} prints something else",
                str(severities[at % len(severities)]), "probe:readme", "", "known" if at % 1000 == 0 else "",
            )  # fmt: skip


def newest_of(size: Size, review: int) -> int:
    """The newest ended review of that one's repo."""
    return size.newest - (size.newest - review) % size.repos


def sighting_rows(size: Size, those: range) -> Iterator[Sequence[Any]]:
    """What a repo's first review found is seen again by each later one."""
    candidate = make_candidate(
        description="What a user sees, and why it is wrong. " * 10,
        reproduction=make_reproduction(command="set -e\n" + "python -m tool --number 7\n" * 5),
    )
    body = json.dumps(candidate.model_dump(mode="json"))
    verification = json.dumps(make_verification().model_dump(mode="json"))
    severities = list(Severity)
    for review in those:
        first = review % size.repos
        again = findings_of(size, first) if review != first else ()
        for at in (*findings_of(size, review), *again):
            lifecycle = Lifecycle.PERSISTING if at in again else Lifecycle.NEW
            yield (
                id_of("sighting", review, at), id_of("review", review), id_of("finding", at), str(lifecycle), False,
                str(severities[at % len(severities)]), "probe", "", "", str(VerificationState.CONFIRMED), "", body,
                verification,
            )  # fmt: skip


def step_rows(size: Size, those: range) -> Iterator[Sequence[Any]]:
    result = json.dumps(make_probe_result().model_dump(mode="json"))
    focus = FocusResult(focus="correctness", state=FocusState.FINISHED, turns=TURNS, model="a model")
    for review in those:
        begun = at_of(size, review)
        for number, name in enumerate(FAMILIES):
            family, _, rest = name.partition(":")
            results = {"probe": result.replace("readme", rest), "focus": focus.model_dump_json()}
            state = "done"
            if review == size.running and number >= LONG_STEP:
                state = "running" if number == LONG_STEP else "pending"
            done = state == "done"
            yield (
                id_of("step", review, number), id_of("review", review), name, number, state, 1, "",
                None if state == "pending" else begun, begun + timedelta(seconds=40) if done else None,
                "all well" if done else "", "", results.get(family) if done else None,
            )  # fmt: skip


def line_of(number: int) -> str:
    return f"tests/test_module{number % 97}.py::test_that_case_{number}_holds PASSED [{number % 100:3} %]\n"


def chunk_rows(size: Size, those: range) -> Iterator[Sequence[Any]]:
    for review in those:
        for step in range(STEPS):
            for seq in range(1, size.lines_of(review, step) + 1):
                yield id_of("review", review), id_of("step", review, step), 1, seq, at_of(size, review), line_of(seq)


def packed_rows(size: Size, those: range) -> Iterator[Sequence[Any]]:
    known: dict[int, tuple[bytes, int]] = {}
    for review in those:
        for step in range(STEPS):
            lines = size.lines_of(review, step)
            if lines not in known:
                whole = "".join(line_of(seq) for seq in range(1, lines + 1)).encode()
                known[lines] = zlib.compress(whole), len(whole)
            yield id_of("step", review, step), *known[lines]


def turn_rows(size: Size, those: range) -> Iterator[Sequence[Any]]:
    """Conversations of one review in ten; of the others they were forgotten."""
    said = Message(role=Role.ASSISTANT, text="I look at the next file and say what I saw. " * 20)
    entries = (
        Entry(kind=EntryKind.ASKED, answer=Answer(text=said.text)),
        Entry(kind=EntryKind.SAID, message=said),
        Entry(kind=EntryKind.SAID, message=Message(role=Role.USER, text="Result of read\n" + "a line of code\n" * 60)),
    )
    bodies = [one.model_dump_json() for one in entries]
    for review in those:
        if (size.newest - review) % 10 == 0:
            for seq in range(TURNS * len(bodies)):
                yield (
                    id_of("step", review, FOCUS_STEP), 1, seq, at_of(size, review), bodies[seq % len(bodies)],
                )  # fmt: skip


def measurement_rows(size: Size, those: range) -> Iterator[Sequence[Any]]:
    one = make_measurement()
    sessions = json.dumps([session.model_dump(mode="json") for session in one.sessions])
    for review in those:
        for series in range(SERIES):
            yield (
                id_of("measurement", review, series), id_of("review", review), repo_of(size, review), f"series {series}",
                one.command, one.unit, "machine/fake/image/3.11.2", f"{review:040x}", at_of(size, review), sessions,
                (one.median or 0.1) * (1 + review * 7919 % 1009 / 25_000), one.spread, 0, len(one.sessions), "",
            )  # fmt: skip


WHY = Why(
    (Grown("scan", "tool/lexer.py", 3, 0.05, 0.15),),
    {"/base/lib/site-packages/tool/a.py:1:main;b.py:9:scan": 1.0},
    {"/venv/lib/site-packages/tool/a.py:1:main;b.py:12:scan": 3.0},
)


def few(db: Any, size: Size) -> None:
    """A round of each repo, and what the newest review of each said of its benchmarks."""
    for at in range(size.repos):
        make_schedule(db, db.get_one(Repo, id_of("repo", at)), id=id_of("schedule", at))
        newest = db.get_one(Review, id_of("review", newest_of(size, at)))
        for series in range(SERIES):
            make_compared(db, newest, f"series {series}", 1.5 if series == 0 else 1.0, why=WHY if series == 0 else None)


def counts(db: Any) -> dict[str, int]:
    """As they stand in the database, and not as they were meant to."""
    tables = {"reviews": "reviews", "findings": "findings", "sightings": "sightings", "steps": "steps",
              "log_chunks": "log_lines_in_chunks", "measurements": "measurements", "turns": "turns"}  # fmt: skip
    found = {name: db.scalar(text(f"SELECT count(*) FROM {table}")) for table, name in tables.items()}
    packed = 0
    for blob in db.execute(text("SELECT compressed FROM logs")).scalars():
        packed += zlib.decompress(blob).count(b"\n")
    ended = db.scalar(text("SELECT count(*) FROM reviews WHERE state = :done"), {"done": ReviewState.DONE})
    return {**found, "log_lines_packed": packed, "reviews_done": ended}
