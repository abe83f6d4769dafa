# ruff: noqa: E501  (rows read better in one line)
"""How quick the pages are over 10,000 reviews, 200,000 findings and 1,000,000 lines of logs in PostgreSQL.

Everything is filled in with COPY, then each page is asked for several times on the server. What is slow shows the plan of
its slowest statement.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
from fastapi.testclient import TestClient
from sqlalchemy import event, text

from orchestrator.store.migrate import upgrade
from orchestrator.store.session import Sessions, open_sessions
from orchestrator.web.app import make_app
from review_agents.records import Kind, Lifecycle, Severity, VerificationState
from tests.bench.figures import record
from tests.bench.pages import timed
from tests.factories import make_candidate, make_probe_result, make_reproduction, make_shop, make_verification
from tests.support.postgres import PostgresServer, binaries, free_port

REPOS, REVIEWS, FINDINGS, LINES = 100, 10_000, 200_000, 1_000_000
STEPS = 12  # of a review
CHUNKS = 2  # of a step that spoke
SIGHTINGS_EACH = 20  # of a review, so each finding is seen once
PAGE_MS, SEARCH_MS = 150.0, 300.0
NOW = datetime.now(UTC).replace(microsecond=0)


def run(part: float = 1.0) -> dict[str, float]:
    """Milliseconds by page; writes docs/figures/scale.json at full size."""
    where = binaries()
    if where is None:
        raise SystemExit("PostgreSQL is not installed (Debian: apt-get install postgresql).")
    folder = Path(tempfile.mkdtemp(prefix="lamplighter-scale-"))
    try:
        server = PostgresServer(where, folder, free_port())
        server.start()
        try:
            return measured(server, part, folder)
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measured(server: PostgresServer, part: float, folder: Path) -> dict[str, float]:
    url = server.make_schema()
    upgrade(url)
    began = time.monotonic()
    known = fill(url, part)
    print(f"filled in {time.monotonic() - began:.0f} s: {known['counts']}", flush=True)
    sessions = open_sessions(url)
    slow = Slow(sessions)
    shop = make_shop(sessions, folder / "data", clock=lambda: datetime.now(UTC))
    client = TestClient(make_app(shop, shop.settings), base_url="http://127.0.0.1:8750")
    figures: dict[str, float] = {}
    for name, address in addresses(known, client).items():
        slow.begin()
        figures[f"{name}_ms"] = timed(client, address)
        limit = SEARCH_MS if name.startswith("search") else PAGE_MS
        if figures[f"{name}_ms"] > limit:
            print(f"{name}: {figures[f'{name}_ms']} ms; its slowest statement:\n{slow.plan()}", flush=True)
    client.close()
    sessions.close()
    figures["slowest_page_ms"] = max(value for name, value in figures.items() if not name.startswith("search"))
    figures["slowest_search_ms"] = max(value for name, value in figures.items() if name.startswith("search"))
    if part >= 1:
        record("scale", {**known["counts"], **figures}, libraries=("sqlalchemy", "psycopg", "fastapi"))
    return figures


def addresses(known: dict[str, Any], client: TestClient) -> dict[str, str]:
    """Every kind of page, at the place that has most."""
    review, older, repo, finding = known["review"], known["older"], known["repo"], known["finding"]
    last = max(1, known["counts"]["reviews"] // 50)
    return {
        "home": "/",
        "now": "/now",
        "reviews": "/reviews",
        "reviews_last": f"/reviews?page={last}",
        "search_by_repo": f"/reviews?repo={repo}",
        "search_by_state": "/reviews?state=failed",
        "search_by_both": f"/reviews?repo={repo}&state=failed",
        "search_api": f"/api/reviews?repo={repo}&state=done&per_page=200",
        "review": f"/reviews/{review}",
        "review_api": f"/api/reviews/{review}",
        "progress": f"/api/reviews/{review}/progress",
        "step": f"/steps/{known['step']}",
        "finding": f"/findings/{finding}",
        "runs": f"/reviews/{review}/findings/{finding}/runs",
        "repos": "/repos",
        "repo": f"/repos/{repo}",
        "ignored": "/ignored",
        "schedules": "/schedules",
        "compare": f"/compare?one={older}&other={review}",
        "compare_choice": f"/compare?repo={repo}",
        "export": f"/api/reviews/{review}/export",
        "ready": "/health/ready",
    }


# Filling -----------------------------------------------------------------------------------


def fill(url: str, part: float) -> dict[str, Any]:
    """Rows as years of nights leave them; returns what is worth looking at."""
    number = max(20, int(REVIEWS * part))
    repos = [uuid4() for _ in range(max(4, int(REPOS * part)))]
    reviews = [uuid4() for _ in range(number)]
    findings = [uuid4() for _ in range(int(FINDINGS * part))]
    steps = [[uuid4() for _ in range(STEPS)] for _ in reviews]
    with copying(url) as connection:
        copy(connection, "repos", ((id, f"repo{at}", f"https://git.example/team/repo{at}", "git", "main", "", "", NOW)
             for at, id in enumerate(repos)), "id name url kind default_ref profile flavour created_at")  # fmt: skip
        copy(connection, "reviews", review_rows(repos, reviews), REVIEW_COLUMNS)
        copy(connection, "findings", finding_rows(repos, reviews, findings), FINDING_COLUMNS)
        copy(connection, "sightings", sighting_rows(reviews, findings), SIGHTING_COLUMNS)
        copy(connection, "steps", step_rows(reviews, steps), STEP_COLUMNS)
        lines = copy(connection, "log_chunks", chunk_rows(reviews, steps, int(LINES * part)), CHUNK_COLUMNS)
        connection.execute("ANALYZE")
    counts = {"reviews": number, "findings": len(findings), "log_lines": lines, "repos": len(repos)}
    last = len(reviews) - 1
    return {
        "counts": counts, "repo": repos[last % len(repos)], "review": reviews[last], "older": reviews[last - len(repos)],
        "step": steps[last][3], "finding": findings[sightings_of(last, len(findings), len(reviews))[0]],
    }  # fmt: skip


def copying(url: str) -> psycopg.Connection[Any]:
    """A connection of the driver's own to the schema of that URL."""
    from sqlalchemy import make_url

    parsed = make_url(url)
    return psycopg.connect(
        host=parsed.host, port=parsed.port, user=parsed.username, dbname=parsed.database,
        options=str(parsed.query["options"]),
    )  # fmt: skip


def copy(connection: psycopg.Connection[Any], table: str, rows: Iterable[Sequence[Any]], columns: str) -> int:
    names = ", ".join(f'"{name}"' for name in columns.split())
    number = 0
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN".encode()) as out:
        for row in rows:
            out.write_row(row)
            number += 1
    connection.commit()
    return number


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
CHUNK_COLUMNS = "review_id step_id attempt seq at text"


def at_of(number: int, of: int) -> datetime:
    return NOW - timedelta(minutes=20 * (of - number))


def review_rows(repos: list[UUID], reviews: list[UUID]) -> Iterator[Sequence[Any]]:
    for at, id in enumerate(reviews):
        begun = at_of(at, len(reviews))
        state = "failed" if at % 20 == 7 else "cancelled" if at % 50 == 3 else "done"
        yield (
            id, repos[at % len(repos)], "main", f"{at:040x}", "2026-11-29T10:00:00+01:00", state, "[]", "", "", 60, True, False,
            "schedule", 0, begun, begun, begun + timedelta(minutes=15), 1, 3, 1, False, "machine", "", "", "", "",
        )  # fmt: skip


def sightings_of(review: int, findings: int, reviews: int) -> range:
    """Numbers of the findings that the review of that number saw."""
    each = max(1, findings // reviews)
    return range(review * each, min((review + 1) * each, findings))


def finding_rows(repos: list[UUID], reviews: list[UUID], findings: list[UUID]) -> Iterator[Sequence[Any]]:
    """Nine in ten are fixed by now: nobody has thousands open in each repo."""
    severities, kinds = list(Severity), list(Kind)
    for review in range(len(reviews)):
        for at in sightings_of(review, len(findings), len(reviews)):
            yield (
                findings[at], repos[review % len(repos)], f"{at:016x}", str(kinds[at % len(kinds)]), "tests.fail",
                f"src/module{at % 300}.py", f"function{at % 1000}", f"shape {at}", reviews[review], reviews[review],
                "open" if at % 10 == 0 else "fixed", f"Example {at} prints something else", str(severities[at % len(severities)]),
                "probe:readme", "", "known" if at % 1000 == 0 else "",
            )  # fmt: skip


def sighting_rows(reviews: list[UUID], findings: list[UUID]) -> Iterator[Sequence[Any]]:
    candidate = make_candidate(
        description="What a user sees, and why it is wrong. " * 10,
        reproduction=make_reproduction(command="set -e\n" + "python -m tool --number 7\n" * 5),
    )
    body = json.dumps(candidate.model_dump(mode="json"))
    verification = json.dumps(make_verification().model_dump(mode="json"))
    severities = list(Severity)
    for review in range(len(reviews)):
        for at in sightings_of(review, len(findings), len(reviews)):
            lifecycle = Lifecycle.NEW if at % 3 else Lifecycle.PERSISTING
            yield (
                uuid4(), reviews[review], findings[at], str(lifecycle), False, str(severities[at % len(severities)]), "probe", "",
                "", str(VerificationState.CONFIRMED), "", body, verification,
            )  # fmt: skip


def step_rows(reviews: list[UUID], steps: list[list[UUID]]) -> Iterator[Sequence[Any]]:
    result = json.dumps(make_probe_result().model_dump(mode="json"))
    names = ("checkout", "prepare", *(f"probe:p{at}" for at in range(STEPS - 4)), "merge", "record")
    for at, review in enumerate(reviews):
        begun = at_of(at, len(reviews))
        for number, (id, name) in enumerate(zip(steps[at], names, strict=True)):
            of_probe = name.startswith("probe:")
            yield (
                id, review, name, number, "done", 1, "", begun, begun + timedelta(seconds=40), "all well", "",
                result.replace("readme", name.removeprefix("probe:")) if of_probe else None,
            )  # fmt: skip


def chunk_rows(reviews: list[UUID], steps: list[list[UUID]], lines: int) -> Iterator[Sequence[Any]]:
    each = max(1, lines // (len(reviews) * STEPS))
    left = lines
    for review, of_review in zip(reviews, steps, strict=True):
        for step in of_review:
            for seq in range(1, each + 2):
                if left <= 0:
                    return
                left -= 1
                yield (review, step, 1, seq, NOW, "collecting tests and running them, one after another\n")


# Plans -------------------------------------------------------------------------------------


class Slow:
    """Remembers the slowest statement, to show its plan."""

    def __init__(self, sessions: Sessions):
        self._engine = sessions.engine
        self._began = self._longest = 0.0
        self._statement: tuple[str, Any] = ("", ())
        event.listen(self._engine, "before_cursor_execute", self._before)
        event.listen(self._engine, "after_cursor_execute", self._after)

    def begin(self) -> None:
        self._longest = 0.0

    def _before(self, *given: Any) -> None:
        self._began = time.perf_counter()

    def _after(self, connection: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        took = time.perf_counter() - self._began
        if took > self._longest and not statement.startswith("EXPLAIN"):
            self._longest, self._statement = took, (statement, parameters)

    def plan(self) -> str:
        statement, parameters = self._statement
        with self._engine.connect() as connection:
            connection.execute(text("SET TRANSACTION READ ONLY"))
            found = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS) {statement}", parameters)
            plan = "\n".join(f"    {row[0]}" for row in found)
        return f"    {self._longest * 1000:.0f} ms: {' '.join(statement.split())[:500]}\n{plan}"
