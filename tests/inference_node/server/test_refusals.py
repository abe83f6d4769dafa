"""Requests that cannot be served: each is refused by name, in OpenAI's shape, and the next one is served."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from inference_node.engine.api import Reason
from inference_node.server.app import Options
from inference_node.speculate.seam import OutOfMemory
from tests.inference_node.server.conftest import Served

Serve = Callable[..., Served]

USER = [{"role": "user", "content": "Hi"}]
DEEP: Any = "x"
for _ in range(150):
    DEEP = [DEEP]

MALFORMED: list[tuple[str, Any, str]] = [
    ("chat", {}, "messages"),
    ("chat", {"messages": []}, "messages"),
    ("chat", {"messages": None}, "messages"),
    ("chat", {"messages": "Hi"}, "messages"),
    ("chat", {"messages": [{"role": "user"}]}, "content"),
    ("chat", {"messages": [{"role": "wizard", "content": "x"}]}, "role"),
    ("chat", {"messages": [{"content": "x"}]}, "role"),
    ("chat", {"messages": ["x"]}, "messages"),
    ("chat", {"messages": [{"role": "user", "content": 5}]}, "content"),
    ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "type"),
    (
        "chat",
        {"messages": [{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}]},
        "tool_calls",
    ),
    ("chat", {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "function"),
    ("chat", {"messages": USER, "wibble": 1}, "wibble"),
    ("chat", {"messages": USER, "temperature": "hot"}, "temperature"),
    ("chat", {"messages": USER, "temperature": -1}, "temperature"),
    ("chat", {"messages": USER, "temperature": True}, "temperature"),
    ("chat", {"messages": USER, "temperature": [0]}, "temperature"),
    ("chat", {"messages": USER, "top_p": 0}, "top_p"),
    ("chat", {"messages": USER, "top_p": 1.5}, "top_p"),
    ("chat", {"messages": USER, "top_k": -2}, "top_k"),
    ("chat", {"messages": USER, "top_k": 1.5}, "top_k"),
    ("chat", {"messages": USER, "min_p": 2}, "min_p"),
    ("chat", {"messages": USER, "repetition_penalty": 0}, "repetition_penalty"),
    ("chat", {"messages": USER, "max_tokens": 0}, "max_tokens"),
    ("chat", {"messages": USER, "max_tokens": -5}, "max_tokens"),
    ("chat", {"messages": USER, "max_tokens": "5"}, "max_tokens"),
    ("chat", {"messages": USER, "max_tokens": 1.5}, "max_tokens"),
    ("chat", {"messages": USER, "max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
    ("chat", {"messages": USER, "n": 0}, "n:"),
    ("chat", {"messages": USER, "n": 1000}, "n:"),
    ("chat", {"messages": USER, "seed": 2**64}, "seed"),
    ("chat", {"messages": USER, "seed": "x"}, "seed"),
    ("chat", {"messages": USER, "seed": 1.5}, "seed"),
    ("chat", {"messages": USER, "stop": 5}, "stop"),
    ("chat", {"messages": USER, "stop": ""}, "stop"),
    ("chat", {"messages": USER, "stop": [""]}, "stop"),
    ("chat", {"messages": USER, "stop": ["x"] * 17}, "stop"),
    ("chat", {"messages": USER, "stop": ["x" * 2000]}, "stop"),
    ("chat", {"messages": USER, "stop": [None]}, "stop"),
    ("chat", {"messages": USER, "stop": ["\ud83d"]}, "surrogate"),
    ("chat", {"messages": [{"role": "user", "content": "\ud83d"}]}, "surrogate"),
    ("chat", {"messages": USER, "chat_template_kwargs": {"\udc00": 1}}, "surrogate"),
    ("chat", {"messages": USER, "metadata": {"x": DEEP}}, "nest"),
    ("chat", {"messages": USER, "stream": "yes"}, "stream"),
    ("chat", {"messages": USER, "stream_options": {"what": 1}}, "what"),
    ("chat", {"messages": USER, "stream_options": {"continuous_usage_stats": True}}, "continuous_usage_stats"),
    ("chat", {"messages": USER, "logprobs": 3}, "logprobs"),
    ("chat", {"messages": USER, "top_logprobs": 3}, "top_logprobs"),
    ("chat", {"messages": USER, "logprobs": True, "top_logprobs": 99}, "top_logprobs"),
    ("chat", {"messages": USER, "logit_bias": {"x": 1}}, "logit_bias"),
    ("chat", {"messages": USER, "logit_bias": {"5": 1000}}, "logit_bias"),
    ("chat", {"messages": USER, "logit_bias": {"99999": 1}}, "logit_bias"),
    ("chat", {"messages": USER, "logit_bias": {"-1": 1}}, "logit_bias"),
    ("chat", {"messages": USER, "response_format": {"type": "xml"}}, "response_format"),
    ("chat", {"messages": USER, "response_format": {"type": "json_schema"}}, "json_schema"),
    ("chat", {"messages": USER, "response_format": {"type": "text", "json_schema": {"name": "x"}}}, "json_schema"),
    (
        "chat",
        {
            "messages": USER,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"type": "array", "uniqueItems": True}},
            },
        },
        "uniqueItems",
    ),
    (
        "chat",
        {"messages": USER, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
        "type",
    ),
    ("chat", {"messages": USER, "tools": [{"type": "retrieval"}]}, "tools"),
    ("chat", {"messages": USER, "tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "name"),
    ("chat", {"messages": USER, "tools": [{"type": "function", "function": {"name": "f"}}] * 2}, '"f"'),
    (
        "chat",
        {"messages": USER, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
        "array",
    ),
    (
        "chat",
        {
            "messages": USER,
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"$ref": "x:y"}}}}}
            ],
        },
        "x:y",
    ),
    ("chat", {"messages": USER, "tool_choice": "required"}, "required"),
    ("chat", {"messages": USER, "tool_choice": {"type": "function", "function": {"name": "g"}}}, '"g"'),
    ("chat", {"messages": USER, "tool_choice": "sometimes"}, "tool_choice"),
    ("chat", {"messages": USER, "functions": [{"name": "f"}]}, "functions"),
    ("chat", {"messages": USER, "function_call": "auto"}, "function_call"),
    ("chat", {"messages": USER, "best_of": 2}, "best_of"),
    ("chat", {"messages": USER, "guided_json": {}}, "guided_json"),
    ("chat", {"messages": USER, "store": True}, "store"),
    ("chat", {"messages": USER, "service_tier": "priority"}, "service_tier"),
    ("chat", {"messages": USER, "modalities": ["audio"]}, "modalities"),
    ("chat", {"messages": USER, "ignore_eos": True, "response_format": {"type": "json_object"}}, "ignore_eos"),
    ("chat", {"messages": USER, "chat_template_kwargs": {"tokenize": True}}, "tokenize"),
    ("chat", {"messages": USER, "chat_template_kwargs": []}, "chat_template_kwargs"),
    ("chat", {"messages": [{"role": "user", "content": "x" * 5000}]}, "2048"),
    ("chat", [], "JSON object"),
    ("chat", "x", "JSON object"),
    ("chat", None, "JSON object"),
    ("chat", 5, "JSON object"),
    ("completion", {}, "prompt"),
    ("completion", {"prompt": ""}, "no tokens"),
    ("completion", {"prompt": []}, "prompt"),
    ("completion", {"prompt": [[]]}, "no tokens"),
    ("completion", {"prompt": [1, "a"]}, "prompt"),
    ("completion", {"prompt": [999999]}, "999999"),
    ("completion", {"prompt": [-1]}, "-1"),
    ("completion", {"prompt": [2**70]}, "prompt"),
    ("completion", {"prompt": ["a"] * 17}, "17"),
    ("completion", {"prompt": {"a": 1}}, "prompt"),
    ("completion", {"prompt": "a", "echo": True}, "echo"),
    ("completion", {"prompt": "a", "suffix": "b"}, "suffix"),
    ("completion", {"prompt": "a", "logprobs": 100}, "logprobs"),
    ("completion", {"prompt": "a", "logprobs": True}, "logprobs"),
    ("completion", {"prompt": "a" * 5000}, "2048"),
    ("completion", {"prompt": "a", "messages": USER}, "messages"),
    ("tokenize", {}, "prompt"),
    ("tokenize", {"prompt": "a", "content": "b"}, "content"),
    ("tokenize", {"messages": []}, "messages"),
    ("tokenize", {"prompt": "\ud83d"}, "surrogate"),
    ("detokenize", {"tokens": "abc"}, "tokens"),
    ("detokenize", {"tokens": [10**9]}, "1000000000"),
    ("detokenize", {"tokens": [-1]}, "-1"),
]
PATHS = {
    "chat": "/v1/chat/completions",
    "completion": "/v1/completions",
    "tokenize": "/tokenize",
    "detokenize": "/detokenize",
}


def test_a_hundred_malformed_requests_are_each_refused_by_name(serve: Serve) -> None:
    served = serve()
    assert len(MALFORMED) >= 100
    wrong = []
    for kind, body, named in MALFORMED:
        raw = json.dumps(body).encode()
        reply = served.http.post(PATHS[kind], content=raw, headers={"content-type": "application/json"})
        error = reply.json().get("error", {})
        if reply.status_code != 400 or named not in error.get("message", ""):
            wrong.append((raw[:100], reply.status_code, reply.text[:200]))
        assert {"message", "type", "code", "param"} <= set(error)
    assert not wrong
    assert served.answer("Hi")["choices"][0]["finish_reason"] == "stop"
    assert served.engine.stats().endings == {Reason.STOP: 1}


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"{nope}", b"\xff\xfe", b'{"messages": [', b"[" * 100_000, b'{"a":' * 5000, b"\x00",
     b'{"messages": NaN}', b'{"messages":[{"role":"user","content":"a"}],"temperature":NaN}',
     b'{"messages":[{"role":"user","content":"a"}],"temperature":1e999}',
     b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1' + b"0" * 5000 + b"}"],
)  # fmt: skip
def test_bytes_that_are_no_request_are_refused(serve: Serve, raw: bytes) -> None:
    served = serve()
    reply = served.http.post("/v1/chat/completions", content=raw, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert served.answer("Hi")["choices"][0]["finish_reason"] == "stop"


def test_fields_without_effect_are_taken_from_the_clients_that_send_them(serve: Serve) -> None:
    """dflash, llama-server's, vLLM's and OpenAI's clients: what they send and what changes nothing here."""
    served = serve("Hello.")
    served.answer(
        "Hi", user="me", metadata={"a": "b"}, store=False, service_tier="auto", return_meta_info=True,
        chat_template_kwargs={}, prompt_cache_key="k", safety_identifier="s", cache_prompt=True, id_slot=-1,
        timings_per_token=True, skip_special_tokens=True, n=1, stop=None, tools=None, tool_choice=None,
        logit_bias=None, response_format=None, stream_options=None, functions=None, best_of=None, echo=False,
        parallel_tool_calls=True, modalities=["text"], reasoning_format="auto",
    )  # fmt: skip
    history = {
        "role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None, "function_call": None,
        "tool_calls": None, "provider_specific_fields": {"a": 1},
    }  # fmt: skip
    served.answer(messages=[*USER, history, *USER])


def test_an_overflow_tells_both_counts(serve: Serve) -> None:
    """facts/orchestration.md 5.2: a client parses n_prompt_tokens and n_ctx, shortens its history once, tries once."""
    served = serve()
    for reply in (served.chat("x" * 5000), served.chat("x" * 5000, stream=True)):
        error = reply.json()["error"]
        assert reply.status_code == 400
        assert error["type"] == "exceed_context_size_error"
        assert error["code"] == "context_length_exceeded"
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (5000 + 21, 2048)
    reply = served.post("/v1/completions", {"prompt": "x" * 3000})
    assert reply.json()["error"]["n_prompt_tokens"] == 3000


@pytest.mark.parametrize("stream", [False, True])
def test_out_of_memory_is_an_error_and_the_next_request_is_served(serve: Serve, stream: bool) -> None:
    served = serve()

    def once(call: str, _: int) -> None:
        if call == "prefill":
            served.target.before = None
            raise OutOfMemory("The device is full.")

    served.target.before = once
    reply = served.chat("Hi", stream=stream)
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "out_of_memory"
    assert served.answer("Hi")["choices"][0]["finish_reason"] == "stop"


def test_a_failure_in_the_middle_of_a_stream_is_an_error_event(serve: Serve) -> None:
    served = serve("x" * 200)

    def later(call: str, count: int) -> None:
        if call == "read" and count == 5:
            raise RuntimeError("secret detail")

    served.target.before = later
    reply = served.chat("Hi", stream=True)
    events = [line for line in reply.text.split("\n\n") if line]
    assert reply.status_code == 200
    assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "internal_error"
    assert events[-1] == "data: [DONE]"
    assert "secret detail" not in reply.text
    assert served.target.before is not None
    served.target.before = None
    assert served.answer("Hi")["choices"][0]["finish_reason"] == "stop"


def test_a_bug_is_a_500_without_its_details(serve: Serve) -> None:
    served = serve()
    served.target.before = lambda call, _: (_ for _ in ()).throw(RuntimeError("secret")) if call == "begin" else None
    reply = served.chat("Hi")
    assert reply.status_code == 500
    assert "secret" not in reply.text


def test_a_full_queue_is_a_429_with_retry_after(serve: Serve) -> None:
    gate = threading.Event()
    served = serve(
        before=lambda call, _: gate.wait(20) and None if call == "begin" else None, engine={"queue_limit": 1}
    )
    waiting = [threading.Thread(target=served.chat) for _ in range(2)]
    waiting[0].start()
    while not served.engine.health().running:
        time.sleep(0.01)
    waiting[1].start()
    while not served.engine.health().waiting:
        time.sleep(0.01)
    for stream in (False, True):
        reply = served.chat("Hi", stream=stream)
        assert reply.status_code == 429
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.json()["error"]["type"] == "rate_limit_error"
    gate.set()
    for thread in waiting:
        thread.join(20)


def test_n_answers_that_do_not_all_fit_the_queue_leave_nothing_in_it(serve: Serve) -> None:
    gate = threading.Event()
    served = serve(
        before=lambda call, _: gate.wait(20) and None if call == "begin" else None, engine={"queue_limit": 3}
    )
    blocker = threading.Thread(target=served.chat)
    blocker.start()
    while not served.engine.health().running:
        time.sleep(0.01)
    assert served.chat("Hi", n=5).status_code == 429
    assert served.engine.health().waiting == 0
    gate.set()
    blocker.join(20)


def test_another_model_is_not_found(serve: Serve) -> None:
    reply = serve().chat("Hi", model="gpt-4o")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"


def test_paths_and_methods_that_do_not_exist_have_the_same_shape(serve: Serve) -> None:
    served = serve()
    for reply, status in (
        (served.http.get("/nothing"), 404),
        (served.http.get("/v1/chat/completions"), 405),
        (served.http.delete("/health"), 405),
        (served.http.get("/docs"), 404),
        (served.http.get("/static/../settings.py"), 404),
    ):
        assert reply.status_code == status
        assert reply.json()["error"]["message"]


# The guard


def test_a_key_is_needed_where_one_is_set(serve: Serve) -> None:
    served = serve(options=Options(keys=("one", "two")))
    paths = ("/v1/models", "/metrics", "/stats", "/openapi.json", "/nothing")
    for path in paths:
        assert served.http.get(path).status_code == 401
    assert served.chat("Hi").status_code == 401
    for header in ({"Authorization": "Bearer wrong"}, {"Authorization": "Basic one"}, {"Authorization": "one"}):
        assert served.http.get("/v1/models", headers=header).status_code == 401
    for header in ({"Authorization": "Bearer two"}, {"Authorization": "bearer one"}, {"X-Api-Key": "one"}):
        assert served.http.get("/v1/models", headers=header).status_code == 200
    for path in ("/health", "/health/live", "/", "/page.js", "/page.css"):
        assert served.http.get(path).status_code == 200


def test_other_host_names_are_refused_where_names_are_set(serve: Serve) -> None:
    """A web page can point its own name at a loopback address; its requests then carry that name."""
    served = serve(options=Options(hosts=("127.0.0.1", "localhost", "[::1]")))
    assert served.answer("Hi")
    for host, status in (
        ("evil.example", 421), ("evil.example:8760", 421), ("127.0.0.1.evil.example", 421), ("", 421),
        ("localhost", 200), ("LOCALHOST:99", 200), ("[::1]", 200), ("[::1]:8760", 200),
    ):  # fmt: skip
        assert served.http.get("/health", headers={"Host": host}).status_code == status, host


def test_a_body_sent_as_plain_text_is_refused(serve: Serve) -> None:
    """A browser sends text/plain across sites without asking first."""
    reply = serve().http.post(
        "/v1/chat/completions",
        content=json.dumps({"messages": USER}),
        headers={"content-type": "text/plain"},
    )
    assert reply.status_code == 400
    assert "application/json" in reply.json()["error"]["message"]


def test_a_body_that_is_too_large_is_refused_declared_or_not(serve: Serve) -> None:
    served = serve(options=Options(max_body_bytes=10_000))
    assert served.chat("x" * 20_000).status_code == 413

    def pieces() -> Any:
        for _ in range(30):
            yield b'{"a": "' + b"x" * 1000

    reply = served.http.post("/v1/chat/completions", content=pieces(), headers={"content-type": "application/json"})
    assert reply.status_code == 413
    assert served.answer("Hi")
