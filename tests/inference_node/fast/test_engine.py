"""The engine above the seam, over a fast target: late stops, turns, and slices of the prompt."""

import queue
from dataclasses import replace

import pytest

from inference_node.engine.api import Ended, Request
from inference_node.engine.engine import Engine
from inference_node.engine.tokens import Tokens
from inference_node.speculate.seam import Sampling
from tests.inference_node.helpers import prompt


@pytest.fixture
def engine(fabricated):
    from inference_node.fast.loading import load_fast

    pair = fabricated("qwen3_5_moe")
    loaded = load_fast(str(pair.target), str(pair.drafter), weights="fp32", prefix_bytes=1 << 22)
    facts = loaded.target.facts
    loaded.target.facts = replace(facts, slice_rows=1024)
    made = Engine(lambda told: (loaded.target, Tokens(loaded.tokenizer, facts.vocab, facts.stop_ids)))
    made.wait_until_loaded()
    yield made, loaded.target
    made.close()


def ask(engine: Engine, tokens: list[int], **request):
    events: queue.Queue = queue.Queue()
    request.setdefault("sampling", Sampling(temperature=0.8, seed=5))
    engine.submit(Request(prompt=tuple(tokens), ignore_stop_ids=True, **request), events.put)
    while not isinstance(event := events.get(timeout=60), Ended):
        pass
    assert event.ending.error is None, event.ending.error
    return event.ending


def test_a_conversation_goes_on_from_its_last_turn_and_says_the_same_with_and_without_drafts(engine, monkeypatch):
    node, target = engine
    slices = []
    prefill = type(target).prefill
    monkeypatch.setattr(
        type(target), "prefill", lambda self, rows, **more: slices.append(len(rows)) or prefill(self, rows, **more)
    )
    line = prompt(600)
    first = ask(node, line, max_tokens=12)
    assert max(slices) > 512, "the target takes more rows at once than the engine's own slices"
    longer = [*line, *first.completion, *prompt(20, seed=9)]
    second = ask(node, longer, max_tokens=12)
    assert second.reuse.restored >= 600, "only what is new is computed"
    for plain in (ask(node, line, max_tokens=12, draft=False), ask(node, longer, max_tokens=12, draft=False)):
        assert plain.completion in (first.completion, second.completion)


def test_a_stop_string_that_is_seen_late_is_taken_back(engine):
    node, _ = engine
    line = prompt(70)
    whole = ask(node, line, max_tokens=24)
    stop = node.template.bytes_of(whole.completion[9]).decode("utf-8", "replace")
    stopped = ask(node, line, max_tokens=24, stop=(stop,))
    assert len(stopped.completion) <= 10
    again = ask(node, [*line, *stopped.completion], max_tokens=4)
    assert again.reuse.restored >= 64 and len(again.completion) == 4
