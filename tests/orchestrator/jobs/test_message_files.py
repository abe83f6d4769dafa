"""The embedded queue between real processes: every message comes once and whole, and broken files stop nobody."""

import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue
from kombu.exceptions import ChannelError

from orchestrator import wiring
from orchestrator.jobs.message_files import UNFINISHED, Channel
from orchestrator.settings import Settings

QUEUE = Queue("reviews", Exchange("reviews"), routing_key="reviews")


def connected(data: Path) -> Connection:
    told = wiring.celery_settings(Settings(data=data))
    return Connection(
        told["broker_url"], transport=told["broker_transport"], transport_options=told["broker_transport_options"]
    )


def channel(data: Path) -> Channel:
    made = connected(data).channel()
    assert isinstance(made, Channel), "what Celery is configured with is what is tested here"
    return made


def bound(data: Path) -> Channel:
    made = channel(data)
    made.state.clear()  # of a process, not of a folder: what another test bound
    QUEUE(made).declare()
    return made


def sends(data: Path, start: int, count: int) -> None:
    with connected(data) as connection:
        producer = connection.Producer(serializer="json")
        for number in range(start, start + count):
            producer.publish(
                {"number": number, "padding": "x" * 5000}, exchange="reviews", routing_key="reviews", declare=[QUEUE]
            )


def takes(data: Path, count: int, taken: Any) -> None:
    """Without a pause between two looks, as no worker looks, so that a half-written file would be met."""
    mine = channel(data)
    while taken.qsize() < count:
        try:
            taken.put(mine._get("reviews"))
        except Empty:
            continue
        except Exception as error:
            taken.put(repr(error))


def test_four_processes_lose_no_message_and_read_none_that_is_half_written(tmp_path: Path) -> None:
    bound(tmp_path)
    context = multiprocessing.get_context("fork")
    taken = context.Queue()
    work: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        (takes, (tmp_path, 600, taken)),
        (takes, (tmp_path, 600, taken)),
        (sends, (tmp_path, 0, 300)),
        (sends, (tmp_path, 300, 300)),
    ]
    processes = [context.Process(target=what, args=arguments, daemon=True) for what, arguments in work]
    for process in processes:
        process.start()
    got = [taken.get(timeout=60) for _ in range(600)]
    broken = [one for one in got if isinstance(one, str)]
    assert not broken, broken[:3]
    bodies = [json.loads(connected(tmp_path).channel().decode_body(one["body"], "base64")) for one in got]
    assert sorted(body["number"] for body in bodies) == list(range(600))
    for process in processes:
        process.terminate()
        process.join(10)


@pytest.mark.parametrize("content", [b"", b'{"body": "e30', b"\xff\xfe\x00"])
def test_a_message_that_cannot_be_read_is_left_out_and_the_next_is_taken(tmp_path: Path, content: bytes) -> None:
    mine = bound(tmp_path)
    folder = tmp_path / "queue" / "messages"
    (folder / "0_cut.reviews.msg").write_bytes(content)
    mine._put("reviews", {"number": 7})
    assert mine._get("reviews") == {"number": 7}
    with pytest.raises(Empty):
        mine._get("reviews")
    assert not list(folder.iterdir())


def test_a_message_under_way_is_nobodys_yet(tmp_path: Path) -> None:
    mine = bound(tmp_path)
    (tmp_path / "queue" / "messages" / f"0_under-way.reviews.msg{UNFINISHED}").write_bytes(b"")
    with pytest.raises(Empty):
        mine._get("reviews")
    assert mine._size("reviews") == 0


def test_what_a_killed_process_left_half_written_goes_after_an_hour(tmp_path: Path) -> None:
    bound(tmp_path)
    folder = tmp_path / "queue" / "messages"
    for name, age_s in (("old", 3700), ("young", 3500)):
        path = folder / f"0_{name}.reviews.msg{UNFINISHED}"
        path.write_bytes(b"{")
        os.utime(path, (time.time() - age_s,) * 2)
    channel(tmp_path)
    assert [path.name for path in folder.iterdir()] == [f"0_young.reviews.msg{UNFINISHED}"]


def test_a_message_that_finds_no_room_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    mine = bound(tmp_path)
    folder = tmp_path / "queue" / "messages"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(ChannelError, match=rf"A message cannot be written as {folder}/\S+\.msg: File too large\."):
            mine._put("reviews", {"padding": "x" * 5000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("content", [b"", b'[["reviews", "'])
def test_a_table_of_queues_that_was_cut_is_made_anew(tmp_path: Path, content: bytes) -> None:
    bound(tmp_path)
    (table,) = (tmp_path / "queue" / "control").glob("*.exchange")
    table.write_bytes(content)
    assert channel(tmp_path).get_table("reviews") == []
    assert [tuple(one) for one in bound(tmp_path).get_table("reviews")] == [("reviews", "", "reviews")]
    sends(tmp_path, 0, 1)
    assert channel(tmp_path)._size("reviews") == 1
