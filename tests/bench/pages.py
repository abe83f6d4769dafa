"""How long the server takes to render its heaviest pages: medians over repeated requests, without network.

The page of measurements is also rendered over PostgreSQL and scrolled from top to bottom in Chromium, whose frames are
counted. Chromium paints with the processor here (there is no graphics card), which a reader's does not have to.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text, update

from orchestrator.measure import protocol
from orchestrator.measure.records import Block, Taken
from orchestrator.services.workshop import Workshop
from orchestrator.store.measurements import MeasurementRow
from orchestrator.store.migrate import upgrade
from orchestrator.store.reviews import Review
from orchestrator.store.session import Sessions, open_sessions
from orchestrator.web.app import make_app
from orchestrator.web.serving import spare_what_is_loaded
from review_agents.records import Session
from tests.bench.figures import record
from tests.factories import fill, make_compared, make_shop
from tests.support.chromium import chromium
from tests.support.postgres import PostgresServer, binaries, free_port
from tests.support.site import served

FINDINGS = 500
REVIEWS = 10_000
REPEATS = 15
SERIES = 3
MEASUREMENTS, BENCHMARKS = 10_000, 200
MOVED = 20  # of them, by one step in the middle of their nights
SCROLL_S = 6
SMOOTH_MS = 1000 / 30  # a frame that takes longer is seen to stutter


def run() -> dict[str, float]:
    """Milliseconds by page; writes docs/figures/pages.json."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/lamplighter.sqlite3"
        upgrade(url)
        sessions = open_sessions(url)
        ids = fill(sessions, repos=20, reviews=REVIEWS, findings_each=FINDINGS, measurements_each=SERIES)
        shop = make_shop(sessions, Path(folder))
        client = TestClient(make_app(shop, shop.settings), base_url="http://127.0.0.1:8750")
        review = f"/reviews/{ids[-1]}"
        repo = client.get(f"/api{review}").json()["row"]["repo_id"]
        figures = {
            "review_page_ms": timed(client, review),
            "review_page_cpu_ms": timed(client, review, clock=time.process_time),
            "list_page_ms": timed(client, "/reviews"),
            "last_list_page_ms": timed(client, f"/reviews?page={REVIEWS // 50}"),
            "filtered_list_page_ms": timed(client, f"/reviews?repo={repo}&state=done"),
            "home_page_ms": timed(client, "/"),
            "repo_page_ms": timed(client, f"/repos/{repo}"),
            "repos_page_ms": timed(client, "/repos"),
            "rounds_page_ms": timed(client, "/schedules"),
        }
        client.close()
        sessions.close()
    figures |= of_measurements()
    record("pages", figures, libraries=("fastapi", "jinja2", "sqlalchemy"))
    return figures


# The pages of measurements --------------------------------------------------------------------


def of_measurements() -> dict[str, float]:
    """Ten thousand measurements of 200 benchmarks, and ten thousand nights of a single one."""
    figures: dict[str, float] = {}
    with measured_repos() as (shop, of_many, of_one), TestClient(
        make_app(shop, shop.settings), base_url="http://127.0.0.1:8750"
    ) as client:  # fmt: skip
        page, single = f"/repos/{of_many}/measurements", f"/repos/{of_one}/benchmark?name=series+0"
        figures["measurements_page_ms"] = timed(client, page)
        figures["measurements_page_cpu_ms"] = timed(client, page, clock=time.process_time)
        figures["measurements_page_kb"] = round(len(client.get(page).content) / 1000)
        figures["benchmark_page_ms"] = timed(client, single)
        figures["repo_with_200_benchmarks_ms"] = timed(client, f"/repos/{of_many}")
        figures |= scrolled(shop, page)
    if binaries() is None:
        print("PostgreSQL is not installed (Debian: apt-get install postgresql): its figures are missing.", flush=True)
        return figures
    with measured_repos(postgres=True) as (shop, of_many, _), TestClient(
        make_app(shop, shop.settings), base_url="http://127.0.0.1:8750"
    ) as client:  # fmt: skip
        page = f"/repos/{of_many}/measurements"
        figures["measurements_page_postgres_ms"] = timed(client, page)
        figures["measurements_page_postgres_cpu_ms"] = timed(client, page, clock=time.process_time)
    return figures


@contextmanager
def measured_repos(*, postgres: bool = False) -> Iterator[tuple[Workshop, UUID, UUID]]:
    """A workshop, and the ids of a repo with many benchmarks and of one with many nights (with SQLite only)."""
    with tempfile.TemporaryDirectory() as folder, database(Path(folder), postgres) as url:
        upgrade(url)
        sessions = open_sessions(url)
        wide = fill_wide(sessions)
        long = wide if postgres else fill(sessions, repos=1, reviews=MEASUREMENTS, measurements_each=1)
        with sessions.begin() as db:
            ids = db.get_one(Review, wide[-1]).repo_id, db.get_one(Review, long[-1]).repo_id
            db.execute(text("ANALYZE"))  # a server does it by itself after a while
        yield make_shop(sessions, Path(folder)), *ids
        sessions.close()


@contextmanager
def database(folder: Path, postgres: bool) -> Iterator[str]:
    where = binaries() if postgres else None
    if where is None:
        yield f"sqlite:///{folder}/lamplighter.sqlite3"
        return
    home = Path(tempfile.mkdtemp(prefix="lamplighter-pages-"))
    server = PostgresServer(where, home, free_port())
    try:
        server.start()
        yield server.make_schema()
    finally:
        server.stop("immediate")
        shutil.rmtree(home, ignore_errors=True)


def fill_wide(sessions: Sessions) -> list[UUID]:
    """Fifty nights of 200 benchmarks, a tenth of which moved, and a verdict on each by the last review.

    Verdicts have their sessions, as real ones do: they are most of what is stored of them.
    """
    wide = fill(sessions, repos=1, reviews=MEASUREMENTS // BENCHMARKS, measurements_each=BENCHMARKS)
    with sessions.begin() as db:
        review, middle = db.get_one(Review, wide[-1]), db.get_one(Review, wide[len(wide) // 2])
        moved = [f"series {number}" for number in range(MOVED)]
        row = MeasurementRow
        late = row.repo_id == review.repo_id, row.name.in_(moved), row.at >= middle.created_at
        db.execute(update(row).where(*late).values(median=row.median * 1.2))
        for number in range(BENCHMARKS):
            make_compared(db, review, f"series {number}", 1 + number % 10 / 100, taken=sessions_of_a_screen())
    return wide


def sessions_of_a_screen() -> list[Taken]:
    return [
        Taken(
            turn.block, turn.place, turn.side, 1, Session(value=0.1, user_s=0.09, peak_bytes=30 << 20, pressure=0.001)
        )
        for turn in protocol.turns(Block.SCREEN)
    ]


FRAMES = """
async seconds => {
  const whole = document.documentElement.scrollHeight - innerHeight, frames = [];
  const begun = performance.now();
  let before = begun;
  while (before - begun < seconds * 1000) {
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - before);
    before = now;
    scrollTo(0, whole * Math.min(1, (now - begun) / (seconds * 1000)));
  }
  return {frames: frames.slice(2), whole};
}
"""


def scrolled(shop: Workshop, address: str) -> dict[str, float]:
    """Times between frames while the page is scrolled evenly from top to bottom; nothing where there is no Chromium."""
    try:
        with served(shop) as site, chromium() as browser:
            tab = browser.new_page(viewport={"width": 1280, "height": 800})
            tab.goto(site.address + address, wait_until="load")
            tab.wait_for_timeout(500)
            told = tab.evaluate(FRAMES, SCROLL_S)
    except pytest.skip.Exception as missing:
        print(f"Not scrolled: {missing}", flush=True)
        return {}
    frames = sorted(told["frames"])
    return {
        "scroll_pixels": told["whole"],
        "scroll_frames_per_s": round(len(frames) / (sum(frames) / 1000), 1),
        "scroll_frame_median_ms": round(statistics.median(frames), 1),
        "scroll_frame_p99_ms": round(frames[int(len(frames) * 0.99)], 1),
        "scroll_frame_longest_ms": round(frames[-1], 1),
        "scroll_frames_that_stutter": sum(frame > SMOOTH_MS for frame in frames) / len(frames),
    }


# Timing ---------------------------------------------------------------------------------------


def timed(client: TestClient, address: str, *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Median milliseconds of a request after two that warm up, services and database included.

    Processor time (`clock=time.process_time`) tells a busy machine from a slow page.
    """

    def get() -> None:
        answer = client.get(address)
        assert answer.status_code == 200, f"{address}: {answer.status_code}"

    get()
    get()
    spare_what_is_loaded()  # as serving does
    return round(statistics.median(milliseconds(get, clock) for _ in range(REPEATS)), 1)


def milliseconds(work: Callable[[], None], clock: Callable[[], float]) -> float:
    begun = clock()
    work()
    return (clock() - begun) * 1000
