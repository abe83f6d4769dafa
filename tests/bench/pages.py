"""How long the server takes to render its heaviest pages: medians over repeated requests, without network."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fastapi.testclient import TestClient

from orchestrator.store.migrate import upgrade
from orchestrator.store.session import open_sessions
from orchestrator.web.app import make_app
from tests.bench.figures import record
from tests.factories import fill, make_shop

FINDINGS = 500
REVIEWS = 10_000
REPEATS = 15
SERIES = 3


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
        }
        client.close()
        sessions.close()
    if keep:
        record("pages", figures, libraries=("fastapi", "jinja2", "sqlalchemy"))
    return figures


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
