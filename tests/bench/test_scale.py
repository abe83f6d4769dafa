"""The bench of pages at scale, over a few hundred reviews: it measures each page, names slow ones, and fails then."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastapi import FastAPI, Response
from sqlalchemy import text
from typer.testing import CliRunner

from tests.bench import __main__ as bench
from tests.bench import scale, scale_rows
from tests.support.postgres import binaries, may_run

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.skipif(
        binaries() is None or not may_run(), reason="PostgreSQL is not installed (Debian: apt-get install postgresql)"
    ),
]
PART = 0.03


@contextmanager
def own_folder() -> Iterator[Path]:
    """Into pytest's folders the user of the server does not get."""
    folder = Path(tempfile.mkdtemp(prefix="lamplighter-scale-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def keep() -> Iterator[Path]:
    """One database for the tests that measure: each goes on with what is filled in."""
    with own_folder() as folder:
        yield folder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast this machine is decides nothing here; the tests say which limits they mean."""
    monkeypatch.setattr(scale, "WARM", 1)
    monkeypatch.setattr(scale, "REQUESTS", 1)
    monkeypatch.setattr(scale, "PAGE_MS", 1e9)
    monkeypatch.setattr(scale, "SEARCH_MS", 1e9)


def test_a_page_made_slow_on_purpose_is_named_with_the_plan_of_its_slowest_statement(
    keep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_a_slow_page(app: FastAPI) -> None:
        @app.get("/slow/{review_id}")
        def slow(review_id: UUID) -> str:
            with app.state.shop.sessions.reading() as db:
                db.execute(text("SELECT pg_sleep(1)"))
            return "at last"

    monkeypatch.setattr(scale, "PAGE_MS", 1000.0)
    figures = scale.run(PART, keep=keep, change=with_a_slow_page)
    said = capsys.readouterr().out
    assert figures["over_limit"] >= 1 and figures["slowest_page_ms"] > 1000
    assert "OVER ITS LIMIT: /slow/{review_id}: median" in said
    assert "SELECT pg_sleep(1)" in said and "actual time" in said


def test_the_command_ends_with_1_when_a_page_or_a_search_is_over_its_own_limit(
    keep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["scale", "--part", str(PART), "--keep", str(keep)]
    ended = CliRunner().invoke(bench.app, command)
    assert ended.exit_code == 0, ended.output
    monkeypatch.setattr(scale, "SEARCH_MS", 0.0)  # nothing is that fast
    ended = CliRunner().invoke(bench.app, command)
    assert ended.exit_code == 1
    assert "OVER ITS LIMIT: search: reviews of a repo:" in ended.output
    assert "OVER ITS LIMIT: /reviews:" not in ended.output


def test_what_is_over_its_limit_is_said_in_the_figures_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "PAGE_MS", 150.0)
    monkeypatch.setattr(scale, "SEARCH_MS", 300.0)
    pages = [
        scale.Page("/slow", "/slow", False, took=[160.0, 170.0, 20.0]),
        scale.Page("/late", "/late", False, took=[20.0, 20.0, 151.0]),
        scale.Page("search: words", "/x", True, took=[200.0]),
    ]
    assert "OVER THEIR LIMITS: /slow: median 160.0 ms, worst 170.0 ms, limit 150 ms." in scale.note_of(pages, "1")
    verdicts = {row[0]: row[-1] for row in scale.table_of(pages)["rows"]}
    assert verdicts == {"/slow": "OVER", "/late": "late once or more", "search: words": "within"}
    figures = scale.figures_of(pages)
    assert (figures["over_limit"], figures["late_once_or_more"]) == (1, 1)
    assert (figures["slowest_page_ms"], figures["slowest_search_ms"]) == (160, 200)


def test_a_page_that_asks_for_something_unknown_ends_the_bench_and_is_named(keep: Path) -> None:
    def with_an_unknown(app: FastAPI) -> None:
        app.add_api_route("/lamps/{lamp_id}", lambda lamp_id: lamp_id, methods=["GET"])

    with pytest.raises(SystemExit, match=r"/lamps/\{lamp_id\} asks for lamp_id"):
        scale.run(PART, keep=keep, change=with_an_unknown)


def test_a_page_that_is_refused_is_no_fast_page(keep: Path) -> None:
    def with_a_refusal(app: FastAPI) -> None:
        app.add_api_route("/away", lambda: Response("not here", status_code=404), methods=["GET"])

    with pytest.raises(SystemExit, match=r"/away .* answers 404: not here"):
        scale.run(PART, keep=keep, change=with_a_refusal)


def test_filling_goes_on_where_it_was_cut_and_lines_stand_in_both_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scale_rows, "PORTION", 25)
    of_slice, made = scale_rows.slice_of, []

    def cut_at_the_second(connection: Any, size: Any, those: range) -> None:
        of_slice(connection, size, those)
        made.append(those.start)
        if len(made) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(scale_rows, "slice_of", cut_at_the_second)
    with own_folder() as keep:
        with pytest.raises(KeyboardInterrupt), scale.database(keep, 0.01) as (url, sessions):
            scale_rows.fill(url, sessions, 0.01)
        with scale.database(keep, 0.01) as (url, sessions):
            size = scale_rows.fill(url, sessions, 0.01)
            with sessions.reading() as db:
                found = scale_rows.counts(db)
    assert made == [0, 25, 25, 50, 75, 100]  # the portion that was cut is done again, and no other
    assert found["findings"] == size.findings == 2000
    assert found["log_lines_in_chunks"] == size.lines == 10_000
    assert found["log_lines_packed"] == size.lines - size.lines_of(size.running, scale_rows.LONG_STEP)


def test_another_size_begins_anew_and_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("dear")
    with pytest.raises(SystemExit, match="is no folder of this bench"), scale.database(tmp_path, PART):
        pass
    assert (tmp_path / "letters").exists()
