"""The bench of weak models itself: what it counts, and that it goes on where it was."""

import json
from pathlib import Path

from tests.bench import weak_models
from tests.support.endpoint import Endpoint, Handler, refusal, streamed, text, tool_call


def breaks_off(handler: Handler) -> None:
    handler.begin_stream()
    handler.event({"error": {"message": "failed to parse a tool call"}})


ANSWERS = (
    tool_call("ready", {"word": "yes"}),
    tool_call("run", {"command": "ls"}),
    text("I think that all is well."),
    breaks_off,
    tool_call("run", '{"command": "l'),
    refusal(500, "failed to parse a tool call"),
    tool_call("read", {"path": "README.md"}),
    streamed({"content": "and so on"}, finish="length"),
    text("It is."),
)


def test_each_kind_of_answer_is_counted_once_and_every_turn_is_accounted_for(tmp_path: Path) -> None:
    with Endpoint(ANSWERS) as endpoint:
        found = weak_models.run(9, tmp_path, node=endpoint.url)
        asked = len(endpoint.bodies)
    assert found["turns"] >= 9 and found["turns"] == found["turns, node"]
    assert (found["crashes"], found["stuck"], found["unaccounted"]) == (0, 0, 0)
    assert (found["broken"], found["refused"], found["truncated"]) == (1, 1, 1) and found["malformed"] >= 1
    lines = [json.loads(line) for line in (tmp_path / "conversations.jsonl").read_text(encoding="utf-8").splitlines()]
    assert asked == 1 + sum(one["answered"] + one["refused"] for one in lines), "the probe and every question"


def test_an_interrupted_run_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    with Endpoint([text("Well.")]) as endpoint:
        first = weak_models.run(6, tmp_path, node=endpoint.url)
        record = tmp_path / "conversations.jsonl"
        half = record.read_text(encoding="utf-8").splitlines()[:1]
        record.write_text(half[0] + "\n", encoding="utf-8")
        again = weak_models.run(6, tmp_path, node=endpoint.url)
        before = len(endpoint.bodies)
        assert weak_models.run(6, tmp_path, node=endpoint.url) == again and len(endpoint.bodies) == before + 1
    assert (again["turns"], again["conversations"]) == (first["turns"], first["conversations"])


def test_a_conversation_that_crashes_is_counted_and_the_next_one_begins(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    real = weak_models.play
    calls = iter(range(100))

    def crashes_once(*given, **named):  # type: ignore[no-untyped-def]
        if next(calls) == 0:
            raise RuntimeError("a bug of ours")
        return real(*given, **named)

    monkeypatch.setattr(weak_models, "play", crashes_once)
    with Endpoint([text("Well.")]) as endpoint:
        found = weak_models.run(5, tmp_path, node=endpoint.url)
    assert (found["crashes"], found["ended crashed"], found["turns"]) == (1, 1, 5)
