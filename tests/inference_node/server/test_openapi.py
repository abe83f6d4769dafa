"""Fuzzed from its own OpenAPI document: whatever fits the document, or nearly does, gets a declared answer."""

from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from inference_node.engine.engine import Engine
from inference_node.lab.serving import Background
from inference_node.server.app import create_app
from inference_node.speculate.scripted import ScriptedTarget
from tests.inference_node.engine.conftest import FACTS, says
from tests.inference_node.engine.toy import THINKING_TEMPLATE, toy

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]

WELL: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/completions": {"prompt": "Hello"},
    "/tokenize": {"content": "Hello"},
    "/detokenize": {"tokens": [72, 105]},
}
"""What each operation with a body can do something with: its document allows much that is refused for its meaning."""

CONTENT = {"messages", "prompt", "content", "tokens"}


@pytest.fixture(scope="module")
def document() -> Iterator[schemathesis.BaseSchema]:
    target = ScriptedTarget(says("hm\n</think>\n\nHello."), facts=FACTS)
    engine = Engine(lambda told: (target, toy(THINKING_TEMPLATE)))
    engine.wait_until_loaded(10)
    background = Background(create_app(engine))
    config = SchemathesisConfig()
    yield schemathesis.openapi.from_url(f"{background.url}/openapi.json", config=config)
    background.stop()
    engine.close()


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_operation_answers_as_its_document_says(document: schemathesis.BaseSchema, mode: GenerationMode) -> None:
    """Requests that fit the document, and requests made to break it: no undeclared status, never a 5xx."""
    operations = [found.ok() for found in document.get_all_operations()]
    assert len(operations) >= 10
    well: Counter[str] = Counter()  # 200s of each operation that takes a body
    turns = count()
    for operation in operations:

        @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
        @settings(
            max_examples=20,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        )
        def answers(case: schemathesis.Case, data: st.DataObject) -> None:
            if isinstance(case.body, dict) and mode is GenerationMode.POSITIVE:
                # With all fields random at once nearly every request is refused for the first of them. What is drawn
                # follows from which modules are loaded too, so that answers are reached is not left to the draw.
                optional = sorted(set(case.body) - CONTENT - {"model"})
                kept = data.draw(st.sets(st.sampled_from(optional), max_size=2)) if optional else set()
                drawn = {name: value for name, value in case.body.items() if name in CONTENT}
                content = WELL[case.operation.path] if next(turns) % 2 else drawn
                case.body = {name: case.body[name] for name in kept} | content
            status = case.call_and_validate(checks=CHECKS, timeout=20).status_code
            if case.operation.method == "post":
                well[case.operation.path] += status == 200

        try:
            answers()
        except Unsatisfiable:  # an operation without parameters has nothing that could be broken
            assert mode is GenerationMode.NEGATIVE
    if mode is GenerationMode.POSITIVE:
        assert set(well) == set(WELL) and min(well.values()) >= 3, well
