"""Engines over scripted targets, closed after each test."""

import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inference_node.engine.api import Ended, Ending, Event, Piece, Request, Sampling, Started, Ticket
from inference_node.engine.engine import Engine
from inference_node.speculate.scripted import ScriptedTarget, scripted_facts
from tests.inference_node.engine.toy import END, THINKING_TEMPLATE, VOCAB, ids, toy

FACTS = scripted_facts(vocab=VOCAB, known_ids=265, stop_ids=(END,), context=2048)


class Client:
    """Collects one request's events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.arrived: queue.Queue[Event] = queue.Queue()
        self.ticket: Ticket | None = None

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.arrived.put(event)

    def ending(self, timeout_s: float = 20.0) -> Ending:
        while True:
            event = self.arrived.get(timeout=timeout_s)
            if isinstance(event, Ended):
                return event.ending

    def wait_for(self, kind: type, timeout_s: float = 20.0) -> Any:
        while True:
            event = self.arrived.get(timeout=timeout_s)
            if isinstance(event, kind):
                return event

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Piece))


class Bench:
    """An engine over a scripted target, and the ways tests use it."""

    def __init__(self, engine: Engine, target: ScriptedTarget) -> None:
        self.engine = engine
        self.target = target

    def send(self, prompt: str | list[int] = "Hi", **request: Any) -> Client:
        client = Client()
        tokens = ids(prompt) if isinstance(prompt, str) else prompt
        request.setdefault("sampling", Sampling(seed=1))
        client.ticket = self.engine.submit(Request(prompt=tuple(tokens), **request), client)
        return client

    def say(self, prompt: str | list[int] = "Hi", **request: Any) -> tuple[str, Ending]:
        client = self.send(prompt, **request)
        ending = client.ending()
        assert [type(event) for event in client.events].count(Ended) == 1
        assert [type(event) for event in client.events].count(Started) <= 1
        return client.text, ending


def says(*answers: str) -> Callable[[tuple[int, ...]], list[int]]:
    """A script: one answer after another (the last one again and again), each ended by the end-of-turn token."""
    turn = iter(range(10**9))

    def script(_: tuple[int, ...]) -> list[int]:
        answer = answers[min(next(turn), len(answers) - 1)]
        return [*ids(answer), *[END] * 4096]

    return script


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(script: Any = "Hello there.", *, template: str = THINKING_TEMPLATE, **options: Any) -> Bench:
        engine_options = {
            name: options.pop(name)
            for name in ("queue_limit", "prefix_bytes", "slice_rows", "stall_s")
            if name in options
        }
        options.setdefault("facts", FACTS)
        target = ScriptedTarget(says(script) if isinstance(script, str) else script, **options)
        engine = Engine(lambda told: (target, toy(template)), **{"prefix_bytes": 1 << 30, **engine_options})
        engine.wait_until_loaded(10)
        benches.append(Bench(engine, target))
        return benches[-1]

    yield make
    for made in benches:
        made.target.before = None
        made.engine.close()
