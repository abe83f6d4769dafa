"""How quick every page is over 10,000 reviews, 200,000 findings and 1,000,000 lines of logs in PostgreSQL.

    python -m tests.bench scale                    at full size; writes docs/figures/scale.json
    python -m tests.bench scale --keep FOLDER      the database in there, filled in as far as an earlier run came

The list of pages is the app's own list of routes, each asked for with what stands in `values`: a new page is measured
without a word here, and one that asks for something unknown ends the bench. Filters are added by hand: the service
has no other search. A page is over its limit when its median is; whose worst request was over is told beside that,
because other programs on the machine can make a single request late. What is over shows the plan of its slowest
statement, and the command then ends with 1. The figures are kept also then, for they say which pages those are.
"""

import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sqlalchemy import event, text
from starlette.routing import Route

from orchestrator.services import accounts
from orchestrator.store.migrate import upgrade
from orchestrator.store.session import Sessions, open_sessions
from orchestrator.web.app import make_app
from orchestrator.web.doorman import LOGIN_COOKIE
from orchestrator.web.serving import spare_what_is_loaded
from tests.bench.figures import commit, record
from tests.bench.scale_rows import FOCUS_STEP, LONG_STEP, NOON, STAMP, Size, counts, fill, id_of
from tests.factories import Clock, make_shop
from tests.support.postgres import SUPERUSER, PostgresServer, binaries, free_port

PAGE_MS, SEARCH_MS = 150.0, 300.0
REQUESTS = 15  # that count, after WARM that do not
WARM = 2
SCHEMA = "scale"
KEPT = Path(tempfile.gettempdir()) / "lamplighter-scale"
ACCOUNT, PASSWORD = "reader", "a long night with a lamp"


@dataclass
class Page:
    """One address and what its requests took, in milliseconds."""

    name: str
    address: str
    search: bool
    took: list[float] = field(default_factory=list)
    web: float = 0.0  # processor time of this process, for each of them
    database: float = 0.0  # and of PostgreSQL's processes
    bytes: int = 0
    statements: int = 0
    slowest: str = ""  # statement with its plan, of a page over its limit

    @property
    def limit(self) -> float:
        return SEARCH_MS if self.search else PAGE_MS

    @property
    def median(self) -> float:
        return round(statistics.median(self.took), 1)

    @property
    def worst(self) -> float:
        return round(max(self.took), 1)

    @property
    def over(self) -> bool:
        return self.median > self.limit


def run(part: float = 1.0, *, keep: Path = KEPT, change: Callable[[FastAPI], None] | None = None) -> dict[str, float]:
    """Figures of all pages; `over_limit` counts those whose median is over. `change`: done to the app before."""
    began, load = commit(), os.getloadavg()[0]
    with database(keep, part) as (url, sessions):
        size = fill(url, sessions, part)
        with sessions.reading() as db:
            found = counts(db)
            largest = db.scalar(text("SELECT pg_database_size(current_database())")) or 0
        pages = list(measured(sessions, size, keep, change))
    figures = {**found, "database_mb": round(largest / 1e6), **figures_of(pages)}
    for page in pages:
        if page.over:
            print(f"OVER ITS LIMIT: {told(page)}\n{page.slowest}", flush=True)
    for page in pages:
        if page.worst > page.limit and not page.over:
            print(f"late once or more: {told(page)}", flush=True)
    loads = f"{load:.1f} at the beginning and {os.getloadavg()[0]:.1f} at the end, on {os.cpu_count()} CPUs"
    if part < 1:
        print("Nothing is recorded: only the full size counts.", flush=True)
    elif commit() != began:
        print("Nothing is recorded: the commit changed on the way. Run it again.", flush=True)
    else:
        record("scale", figures, libraries=("sqlalchemy", "psycopg", "fastapi"), note=note_of(pages, loads),
               table=table_of(pages))  # fmt: skip
    return figures


@contextmanager
def database(keep: Path, part: float) -> Iterator[tuple[str, Sessions]]:
    """Filled in as far as it is; what other rows or another size left there is thrown away."""
    where = binaries()
    if where is None:
        raise SystemExit("PostgreSQL is not installed (Debian: apt-get install postgresql).")
    stamp, wanted = keep / "rows", f"{STAMP} {part}"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        if keep.exists() and any(keep.iterdir()) and not stamp.exists():
            raise SystemExit(f"{keep} is no folder of this bench. Name another with --keep.")
        stop_leftover(where, keep)
        shutil.rmtree(keep, ignore_errors=True)
        keep.mkdir(parents=True)
        stamp.write_text("half made", encoding="utf-8")
        server = PostgresServer(where, keep, free_port())
        stamp.write_text(wanted, encoding="utf-8")
    else:
        stop_leftover(where, keep)
        server = PostgresServer(where, keep, free_port())
    server.start()
    try:
        with psycopg.connect(
            host="127.0.0.1", port=server.port, user=SUPERUSER, dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}".encode())
        url = server.url_of(SCHEMA)
        upgrade(url)
        sessions = open_sessions(url)
        yield url, sessions
        sessions.close()
    finally:
        server.stop("fast")


def stop_leftover(where: Path, keep: Path) -> None:
    """The server of a run that was killed may run on, and would hold the data."""
    if (keep / "data" / "postmaster.pid").exists():
        with suppress(RuntimeError):
            PostgresServer(where, keep, 0).stop("immediate")


# Measuring ------------------------------------------------------------------------------------


def measured(sessions: Sessions, size: Size, folder: Path, change: Callable[[FastAPI], None] | None) -> Iterator[Page]:
    """Asked for by somebody who is logged in, as behind a proxy: that costs each page a look into the database."""
    with tempfile.TemporaryDirectory() as data:
        shop = make_shop(sessions, Path(data), clock=Clock(NOON))
        with suppress(Exception):  # an earlier run made it
            accounts.create(shop, ACCOUNT, PASSWORD, admin=True)
        app = make_app(shop, shop.settings)
        if change is not None:
            change(app)
        watched = Watched(sessions)
        with TestClient(app, base_url="http://127.0.0.1:8750", follow_redirects=False) as client:
            client.cookies.set(LOGIN_COOKIE, accounts.log_in(shop, ACCOUNT, PASSWORD, "127.0.0.1"))
            for page in pages_of(app, size, sessions):
                ask(client, page, watched)
                yield page


def ask(client: TestClient, page: Page, watched: "Watched") -> None:
    def get() -> None:
        answer = client.get(page.address)
        if answer.status_code not in (200, 303) or answer.headers.get("location", "").startswith("/login?"):
            raise SystemExit(f"{page.address} ({page.name}) answers {answer.status_code}: {answer.text[:300]}")
        page.bytes = len(answer.content)

    for _ in range(WARM):
        watched.begin()
        get()
    page.statements = watched.number
    spare_what_is_loaded()  # as serving does
    web, database = time.process_time(), watched.database_s()
    for _ in range(REQUESTS):
        began = time.perf_counter()
        get()
        page.took.append((time.perf_counter() - began) * 1000)
    page.web = (time.process_time() - web) * 1000 / REQUESTS
    page.database = (watched.database_s() - database) * 1000 / REQUESTS
    if page.over:
        watched.begin()
        get()
        page.slowest = watched.plan()


def pages_of(app: FastAPI, size: Size, sessions: Sessions) -> Iterator[Page]:
    known = values(size)
    for path, names in routes(app):
        asked = {name: str(known[name]) for name in names if name in known}
        if missing := [name for name in (*parameters(path), *names) if name not in known]:
            raise SystemExit(
                f"The page {path} asks for {', '.join(missing)}, and this bench has no such value. "
                "Give it one in `values` of tests/bench/scale.py."
            )
        if path not in INSTEAD:
            address = re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: str(known[found[1]]), path)
            yield Page(path, address + (f"?{urlencode(asked)}" if asked else ""), search=False)
    yield from (Page(name, address, search) for name, address, search in further(size, sessions))


def routes(app: FastAPI) -> list[tuple[str, list[str]]]:
    """Path, and the names that a query must have, of all that answers GET, however rooms are nested."""
    found: dict[str, list[str]] = {}
    waiting: list[Any] = list(app.routes)
    while waiting:
        route = waiting.pop()
        waiting += list(getattr(getattr(route, "original_router", None), "routes", ()) or ())
        if isinstance(route, Route | APIRoute) and "GET" in (route.methods or ()):
            asked = route.dependant.query_params if isinstance(route, APIRoute) else []
            found[route.path] = [one.alias for one in asked if one.field_info.is_required()]
    assert len(found) > 40, f"only {len(found)} routes were found"
    return sorted(found.items())


def parameters(path: str) -> list[str]:
    return re.findall(r"\{(\w+)", path)


def values(size: Size) -> dict[str, Any]:
    """For each parameter that a path or a query must have: of the newest review that ended, what has most."""
    first = size.newest % size.repos  # of its repo: its findings were seen in every review since
    return {
        "review_id": id_of("review", size.newest),
        "repo_id": id_of("repo", first),
        "step_id": id_of("step", size.newest, FOCUS_STEP),
        "finding_id": id_of("finding", first * (size.findings // size.reviews)),
        "schedule_id": id_of("schedule", first),
        "one": id_of("review", size.newest - size.repos),
        "other": id_of("review", size.newest),
        "name": "series 0",
        "side": "head",
    }


# A stream of a review that ended tells its whole log before it says so; what counts is one portion of it.
INSTEAD = {"/reviews/{review_id}/events"}


def further(size: Size, sessions: Sessions) -> Iterator[tuple[str, str, bool]]:
    """Name, address, whether it is a search: the same pages with what can be chosen in them."""
    known = values(size)
    review, repo = known["review_id"], known["repo_id"]
    running, long = id_of("review", size.running), id_of("step", size.newest, LONG_STEP)
    with sessions.reading() as db:
        ends = "SELECT max(id) FROM log_chunks WHERE review_id = :id"
        last, live = (db.scalar(text(ends), {"id": one}) or 0 for one in (review, running))
    pages = max(1, size.reviews // 50)
    for name, address in {
        "the last page of all reviews": f"/reviews?page={pages}",
        "the last page of all reviews (JSON)": f"/api/reviews?page={pages}",
        "a repo, the last page of its open findings": f"/repos/{repo}?page={size.findings // size.repos // 200}",
        "a running review": f"/reviews/{running}",
        "a running review (JSON)": f"/api/reviews/{running}",
        "a running review's progress (JSON)": f"/api/reviews/{running}/progress",
        "its newest 500 lines (JSON)": f"/api/reviews/{running}/progress?after={live - 500}",
        "an ended review's newest 500 lines, as events": f"/reviews/{review}/events?after={last - 500}",
        "a step with a long log": f"/steps/{long}",
        "that log as text": f"/steps/{long}/log.txt",
        "that log (API)": f"/api/steps/{long}/log",
        "two reviews compared": f"/compare?one={known['one']}&other={review}",
        "what to compare, of a repo": f"/compare?repo={repo}",
        "an export as Markdown (API)": f"/api/reviews/{review}/export?format=markdown",
        "an export as SARIF (API)": f"/api/reviews/{review}/export?format=sarif",
        "all measurements, whole": f"/repos/{repo}/measurements?whole=true",
    }.items():
        yield name, address, False
    for words, query in (
        ("of a repo", {"repo": repo}),
        ("in a state", {"state": "failed"}),
        ("of a repo in a state", {"repo": repo, "state": "done"}),
        ("of a repo in a state that none has", {"repo": repo, "state": "cancelling"}),
        ("in a state, last page", {"state": "done", "page": max(1, size.reviews * 9 // 10 // 50)}),
    ):
        yield f"search: reviews {words}", f"/reviews?{urlencode(query)}", True
        yield f"search: reviews {words} (JSON)", f"/api/reviews?{urlencode(query)}", True
    yield "search: 200 reviews of a state (JSON)", "/api/reviews?state=done&per_page=200", True
    yield "search: benchmarks by words", f"/repos/{repo}/measurements?q=series+1", True
    yield "search: benchmarks that moved", f"/repos/{repo}/measurements?moved=true", True


# Telling --------------------------------------------------------------------------------------


def figures_of(pages: list[Page]) -> dict[str, float]:
    plain, searches = [one for one in pages if not one.search], [one for one in pages if one.search]
    return {
        "requests_each": REQUESTS,
        "page_limit_ms": PAGE_MS,
        "search_limit_ms": SEARCH_MS,
        "pages": len(plain),
        "searches": len(searches),
        "slowest_page_ms": max(one.median for one in plain),
        "slowest_page_worst_ms": max(one.worst for one in plain),
        "slowest_search_ms": max(one.median for one in searches),
        "slowest_search_worst_ms": max(one.worst for one in searches),
        "over_limit": sum(one.over for one in pages),
        "late_once_or_more": sum(one.worst > one.limit and not one.over for one in pages),
    }


def table_of(pages: list[Page]) -> dict[str, Any]:
    head = [
        "page or search",
        "limit ms",
        "median ms",
        "worst ms",
        "processor ms",
        "of it PostgreSQL",
        "statements",
        "kB",
        "verdict",
    ]
    rows = [
        [
            one.name, f"{one.limit:g}", one.median, one.worst, round(one.web + one.database, 1),
            round(one.database, 1), one.statements,
            round(one.bytes / 1000), "OVER" if one.over else "late once or more" if one.worst > one.limit else "within",
        ]
        for one in sorted(pages, key=lambda one: -one.median / one.limit)
    ]  # fmt: skip
    return {"head": head, "rows": rows}


def note_of(pages: list[Page], loads: str) -> str:
    over = "; ".join(told(page) for page in pages if page.over)
    return (
        f"{f'OVER THEIR LIMITS: {over}.' if over else 'No median is over its limit.'} Milliseconds on the server, "
        "without network, by somebody who is logged in; a median decides. The machine's load was "
        f"{loads}. Processor time is the web process's and PostgreSQL's together: it waits for no other program."
    )


def told(page: Page) -> str:
    return f"{page.name}: median {page.median} ms, worst {page.worst} ms, limit {page.limit:g} ms"


class Watched:
    """Counts the statements of a page and remembers the slowest, to show its plan."""

    def __init__(self, sessions: Sessions):
        self._engine = sessions.engine
        self.begin()
        event.listen(self._engine, "before_cursor_execute", self._before)
        event.listen(self._engine, "after_cursor_execute", self._after)

    def begin(self) -> None:
        self.number, self._began, self._longest, self._sum = 0, 0.0, 0.0, 0.0
        self._statement: tuple[str, Any] = ("", ())

    def _before(self, *given: Any) -> None:
        self._began = time.perf_counter()

    def _after(self, connection: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        took = time.perf_counter() - self._began
        self.number += 1
        self._sum += took
        if took > self._longest:
            self._longest, self._statement = took, (statement, parameters)

    def database_s(self) -> float:
        """Seconds that the server's processes for our connections have had of a processor."""
        with self._engine.connect() as connection:
            pids = connection.execute(text("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"))
            found = [int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids.scalars()]
        return sum(found) / 1e9

    def plan(self) -> str:
        (statement, parameters), longest = self._statement, self._longest
        said = f"    {self.number} statements took {self._sum * 1000:.0f} ms; the slowest {longest * 1000:.0f} ms:"
        if not statement:
            return said
        with self._engine.connect() as connection:
            connection.execute(text("SET TRANSACTION READ ONLY"))
            found = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS) {statement}", parameters)
            plan = "\n".join(f"    {row[0][:200]}" for row in found)
        return f"{said} {' '.join(statement.split())[:500]}\n{plan}"
