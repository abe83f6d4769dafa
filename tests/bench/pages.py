"""How long the server takes to render its heaviest pages: medians over repeated requests, without network."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fastapi.testclient import TestClient

from orchestrator.store.migrate import upgrade
from orchestrator.store.reviews import Review
from orchestrator.store.session import Sessions, open_sessions
from orchestrator.web.app import make_app
from tests.bench.figures import record
from tests.factories import fill, make_compared, make_shop

FINDINGS = 500
REVIEWS = 10_000
REPEATS = 15
SERIES = 3
MEASUREMENTS, BENCHMARKS = 10_000, 200


def run(*, keep: bool = True) -> dict[str, float]:
    """Milliseconds by page. `keep` writes docs/figures/pages.json."""
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
            **measurements(sessions, client),
        }
        client.close()
        sessions.close()
    if keep:
        record("pages", figures, libraries=("fastapi", "jinja2", "sqlalchemy"))
    return figures


def measurements(sessions: Sessions, client: TestClient) -> dict[str, float]:
    """Ten thousand measurements: those of a repo with 200 benchmarks, and the nights of a single one."""
    wide = fill(sessions, repos=1, reviews=MEASUREMENTS // BENCHMARKS, measurements_each=BENCHMARKS)
    long = fill(sessions, repos=1, reviews=MEASUREMENTS, measurements_each=1)
    with sessions.begin() as db:
        review = db.get_one(Review, wide[-1])
        for number in range(BENCHMARKS):
            make_compared(db, review, f"series {number}", 1 + number % 10 / 100)
        of_many, of_one = review.repo_id, db.get_one(Review, long[-1]).repo_id
    page, single = f"/repos/{of_many}/measurements", f"/repos/{of_one}/benchmark?name=series+0"
    return {
        "measurements_page_ms": timed(client, page),
        "measurements_page_cpu_ms": timed(client, page, clock=time.process_time),
        "benchmark_page_ms": timed(client, single),
        "repo_with_200_benchmarks_ms": timed(client, f"/repos/{of_many}"),
    }


def timed(client: TestClient, address: str, *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Median milliseconds of a request after two that warm up, services and database included.

    Processor time (`clock=time.process_time`) tells a busy machine from a slow page.
    """

    def get() -> None:
        answer = client.get(address)
        assert answer.status_code == 200, f"{address}: {answer.status_code}"

    get()
    get()
    return round(statistics.median(milliseconds(get, clock) for _ in range(REPEATS)), 1)


def milliseconds(work: Callable[[], None], clock: Callable[[], float]) -> float:
    begun = clock()
    work()
    return (clock() - begun) * 1000


if __name__ == "__main__":
    for name, figure in run(keep=False).items():
        print(f"{name:24} {figure:8.1f}")
