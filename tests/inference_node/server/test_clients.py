"""Clients that leave, hang, crowd and send half: nobody but themselves is harmed by it."""

import json
import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from inference_node.engine.api import Reason
from inference_node.server.app import Options
from tests.inference_node.server.conftest import Served
from tests.support.waiting import wait_for

Serve = Callable[..., Served]


def raw_chat(served: Served, body: dict[str, Any]) -> socket.socket:
    """A chat request on a bare socket, so that a test can leave in any way."""
    host, port = served.url.removeprefix("http://").split(":")
    text = json.dumps({"messages": [{"role": "user", "content": "Hi"}], **body}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
    return connection


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_leaves_stops_its_request_within_a_cycle(serve: Serve, stream: bool, how: str) -> None:
    """engines.md 6.5; ATOM#1562: a disconnect during a request without streaming went unseen."""
    served = serve("x" * 1900, cycle_s=0.02, accepts=(0,))
    connection = raw_chat(served, {"stream": stream})
    wait_for(lambda: "cycle" in served.target.calls, every_s=0.005)
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()
    left = time.monotonic()
    wait_for(lambda: served.engine.stats().endings.get(Reason.CANCELLED), every_s=0.005)
    assert time.monotonic() - left < 1.5  # a cycle takes 0.02 s; the rest is this busy machine
    cycles = served.target.calls.count("cycle")
    assert cycles < 200
    time.sleep(0.1)  # five cycles of one that goes on
    assert served.target.calls.count("cycle") == cycles


def test_a_client_that_leaves_the_queue_does_not_touch_who_is_served(serve: Serve) -> None:
    served = serve("y\n</think>\n\n" + "x" * 100, cycle_s=0.005)
    answers: list[Any] = []
    first = threading.Thread(target=lambda: answers.append(served.answer("Hi")))
    first.start()
    wait_for(lambda: served.engine.health().running, every_s=0.005)
    second = raw_chat(served, {})
    wait_for(lambda: served.engine.health().waiting, every_s=0.005)
    second.close()
    wait_for(lambda: served.engine.health().waiting == 0, every_s=0.005)
    first.join(20)
    assert answers[0]["choices"][0]["message"]["content"] == "x" * 100


def test_a_client_that_stops_reading_is_let_go(serve: Serve) -> None:
    """Its buffers fill up; after the send timeout its request is cancelled."""
    answer = "x" * 1900
    served = serve(answer, options=Options(send_timeout_s=0.3))
    host, port = served.url.removeprefix("http://").split(":")
    text = json.dumps(
        {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "n": 16, "logprobs": True, "top_logprobs": 20}
    ).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.connect((host, int(port)))
    connection.sendall(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\n\r\n".encode()
        + text
    )
    wait_for(lambda: sum(served.engine.stats().endings.values()) == 16, every_s=0.005)
    assert served.answer("Hi", max_tokens=3)
    connection.close()


def test_clients_that_never_finish_their_request_hold_nobody_up(serve: Serve) -> None:
    served = serve()
    host, port = served.url.removeprefix("http://").split(":")
    hanging = []
    for sent in (
        b"",
        b"POST /v1/chat",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{",
    ):
        for _ in range(10):
            connection = socket.create_connection((host, int(port)))
            connection.sendall(sent)
            hanging.append(connection)
    assert served.answer("Hi")["choices"][0]["finish_reason"] == "stop"
    for connection in hanging:
        connection.close()


def test_fifty_clients_at_once_are_all_answered(serve: Serve) -> None:
    served = serve("hm\n</think>\n\nHello.", engine={"queue_limit": 100})
    with ThreadPoolExecutor(50) as pool:
        replies = list(pool.map(lambda n: served.chat(f"Hi {n}", stream=n % 2 == 0), range(50)))
    assert [reply.status_code for reply in replies] == [200] * 50
    assert served.engine.stats().endings == {Reason.STOP: 50}


def test_a_storm_of_cancels_leaves_the_node_as_it_was(serve: Serve) -> None:
    served = serve("x" * 500, cycle_s=0.001, engine={"queue_limit": 200})
    rng = random.Random(3)

    def storm(n: int) -> None:
        connection = raw_chat(served, {"stream": n % 2 == 0, "max_tokens": rng.choice([1, 50, 500])})
        time.sleep(rng.random() * 0.05)
        connection.close()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(storm, range(150)))
    wait_for(lambda: served.engine.health().running == 0 and served.engine.health().waiting == 0, 60, every_s=0.005)
    assert served.answer("Hi", max_tokens=20)["choices"][0]["finish_reason"] == "length"
    assert Reason.FAILED not in served.engine.stats().endings


def test_a_waiting_stream_gets_comments_before_its_answer(serve: Serve) -> None:
    """llama-server does the same; clients skip lines that do not begin with data:."""
    gate = threading.Event()
    served = serve(
        "Hello.",
        options=Options(patience_s=0.05),
        before=lambda call, _: gate.wait(20) and None if call == "begin" else None,
    )
    with served.http.stream(
        "POST", "/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    ) as reply:
        lines = reply.iter_lines()
        assert next(lines).startswith(":")
        gate.set()
        rest = list(lines)
    assert rest[-2] == "data: [DONE]"


def test_comments_tell_a_request_that_waits_from_one_that_is_read(serve: Serve) -> None:
    gate = threading.Event()
    served = serve(
        "Hello.",
        options=Options(patience_s=0.05),
        before=lambda call, _: gate.wait(20) and None if call == "begin" else None,
    )
    asked = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with served.http.stream("POST", "/v1/chat/completions", json=asked) as first:
        lines = first.iter_lines()
        assert ": reading the prompt" in (next(lines) for _ in range(20))
        with served.http.stream("POST", "/v1/chat/completions", json=asked) as second:
            assert next(second.iter_lines()) == ": waiting for other requests to end"
        gate.set()
        assert not [line for line in lines if line.startswith(": waiting")]


def test_a_huge_prompt_is_refused_without_stopping_others(serve: Serve) -> None:
    served = serve("hm\n</think>\n\nHello.")
    with ThreadPoolExecutor(2) as pool:
        huge = pool.submit(served.chat, "<|im_end|> é" * 300_000)
        small = pool.submit(served.answer, "Hi")
        assert small.result(30)["choices"][0]["message"]["content"] == "Hello."
        reply = huge.result(60)
    assert reply.status_code == 400
    assert reply.json()["error"]["n_prompt_tokens"] > 3_000_000


@pytest.mark.parametrize("text", ["é漢🙂", "שלום ‏", "a\u0000b", "\u200d👩‍👩‍👧", "é́́́", "\ufeffx", "\ufdd0"])
def test_any_unicode_comes_back_as_it_was_sent(serve: Serve, text: str) -> None:
    from tests.inference_node.engine.toy import END, ids

    served = serve(lambda prompt: [*ids("hm\n</think>\n\n" + text), END, *[END] * 999])
    assert served.answer(text)["choices"][0]["message"]["content"] == text
    reply = served.chat(text, stream=True)
    pieces = [json.loads(line[6:]) for line in reply.text.split("\n\n") if line.startswith("data: {")]
    assert "".join(piece["choices"][0]["delta"].get("content") or "" for piece in pieces) == text


def test_closing_the_engine_ends_streams_with_an_error(serve: Serve) -> None:
    served = serve("x" * 1900, cycle_s=0.01)
    replies: list[Any] = []
    client = threading.Thread(target=lambda: replies.append(served.chat("Hi", stream=True)))
    client.start()
    wait_for(lambda: served.target.calls.count("read") > 3, every_s=0.005)
    served.engine.close()
    client.join(20)
    assert '"code":"not_ready"' in replies[0].text
    assert served.chat("Hi").status_code == 503
    assert served.http.get("/health").status_code == 503
