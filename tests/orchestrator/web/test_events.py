"""The event stream of a review: resumed without doubling, and over when the review is."""

import asyncio
import re
from collections.abc import Callable
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from orchestrator.services.workshop import Workshop
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.steps import Step, StepState
from orchestrator.web import events
from tests.factories import NOON, make_chunk, make_review, make_step


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_S", 0.01)


@pytest.fixture
def running(shop: Workshop) -> UUID:
    """A review in its second step, which has said three things."""
    with shop.sessions.begin() as db:
        review = make_review(db, state=ReviewState.RUNNING)
        first = make_step(db, review, "checkout")
        second = make_step(db, review, "probe:tests", state=StepState.RUNNING, ended_at=None)
        make_chunk(db, first, "cloned\n")
        make_chunk(db, second, "one\n")
        make_chunk(db, second, "two <b>\n")
        return review.id


def follow(shop: Workshop, review: UUID, seen: int, *, until: str, meanwhile: Callable[[], None] | None = None) -> str:
    """What a browser gets until that text comes (or the end of the stream)."""

    async def read() -> str:
        got = ""
        async for event in events.follow(shop, review, seen):
            got += event
            if meanwhile and "event: log" in got:
                await asyncio.to_thread(meanwhile)
                return got + await rest(got)
            if until in got:
                break
        return got

    async def rest(so_far: str) -> str:
        got = ""
        async for event in events.follow(shop, review, last_id(so_far)):
            got += event
            if until in got:
                break
        return got

    async def in_time() -> str:
        async with asyncio.timeout(20):
            return await read()

    return asyncio.run(in_time())


def last_id(stream: str) -> int:
    return int(re.findall(r"^id: (\d+)$", stream, re.MULTILINE)[-1])


def said(stream: str) -> str:
    """The text of all log events."""
    data = re.findall(r"event: log\n((?:data: .*\n)+)", stream)
    lines = "\n".join("\n".join(re.findall(r"data: (.*)", block)) for block in data)
    return re.sub(r"<[^>]+>", "", lines)


def end(shop: Workshop, review: UUID) -> None:
    with shop.sessions.begin() as db:
        row = db.get(Review, review)
        assert row is not None
        row.state, row.finished_at = ReviewState.DONE, NOON


def test_a_stream_begins_with_the_steps_and_the_log(shop: Workshop, running: UUID) -> None:
    stream = follow(shop, running, 0, until="event: saying")
    assert stream.startswith("retry: 2000\n\n")
    assert "event: round" in stream and 'class="running"' in stream
    assert said(stream).split() == ["Check", "out", "cloned", "Probe", "tests", "one", "two", "&lt;b&gt;"]
    assert "data: Now: Probe tests." in stream


def test_a_resumed_stream_shows_nothing_twice_and_loses_nothing(shop: Workshop, running: UUID) -> None:
    def more() -> None:
        with shop.sessions.begin() as db:
            step = db.query(Step).filter_by(name="probe:tests").one()
            make_chunk(db, step, "three\n")

    stream = follow(shop, running, 0, until="three", meanwhile=more)
    assert said(stream).split() == ["Check", "out", "cloned", "Probe", "tests", "one", "two", "&lt;b&gt;", "three"]


def test_a_review_that_ends_says_its_last_words_first(shop: Workshop, running: UUID) -> None:
    end(shop, running)
    stream = follow(shop, running, 0, until="never")
    assert "two" in said(stream)
    assert stream.endswith("event: finished\ndata: The review has ended.\nid: end\n\n")


def test_an_ended_review_is_one_short_stream_and_then_nothing(
    client: TestClient, shop: Workshop, running: UUID
) -> None:
    end(shop, running)
    answer = client.get(f"/reviews/{running}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"] == "no-store"
    assert "event: finished" in answer.text
    assert client.get(f"/reviews/{running}/events", headers={"Last-Event-ID": "end"}).status_code == 204
    assert client.get(f"/reviews/{running}/events?after=end").status_code == 204


def test_the_browsers_own_last_id_goes_before_the_address(client: TestClient, shop: Workshop, running: UUID) -> None:
    whole = client.get(f"/reviews/{end(shop, running) or running}/events").text
    resumed = client.get(f"/reviews/{running}/events?after=0", headers={"Last-Event-ID": str(last_id(whole))}).text
    assert said(resumed) == ""


@pytest.mark.parametrize("given", ["nonsense", "-1", "1e9", "99999999999999999999", "²"])
def test_a_senseless_id_starts_somewhere_and_breaks_nothing(
    client: TestClient, shop: Workshop, running: UUID, given: str
) -> None:
    end(shop, running)
    answer = client.get(f"/reviews/{running}/events", params={"after": given})
    assert answer.status_code == 200 and "event: finished" in answer.text


def test_a_page_shows_the_log_that_its_stream_goes_on_from(client: TestClient, running: UUID) -> None:
    html = client.get(f"/reviews/{running}").text
    seqs = re.findall(r'data-seq="(\d+)"', html)
    assert len(seqs) == 3
    assert f"events?after={seqs[-1]}" in html


def test_too_many_streams_are_refused_until_one_ends(client: TestClient, shop: Workshop, running: UUID) -> None:
    end(shop, running)
    client.app.state.streams = events.STREAMS  # type: ignore[attr-defined]
    answer = client.get(f"/reviews/{running}/events")
    assert answer.status_code == 503 and answer.headers["retry-after"]
    client.app.state.streams = 0  # type: ignore[attr-defined]
    client.get(f"/reviews/{running}/events")
    assert client.app.state.streams == 0  # type: ignore[attr-defined]


def test_a_stream_ends_by_itself_so_that_forgotten_tabs_come_back(
    shop: Workshop, running: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "STREAM_S", 0.05)
    assert "finished" not in follow(shop, running, 0, until="never")


def test_a_quiet_stream_is_kept_open_by_comments(
    shop: Workshop, running: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "QUIET_S", 0.0)
    assert ": still here" in follow(shop, running, 0, until=": still here")


def test_waiting_is_put_into_words(client: TestClient, shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        make_review(db)
        second = make_review(db, created_at=NOON.replace(hour=13)).id
    assert "It waits. One review goes before it." in client.get(f"/reviews/{second}").text
