"""What a process is put together from, as far as no other test looks at it."""

from pathlib import Path

import pytest
import yaml

from orchestrator.settings import Settings
from orchestrator.wiring import BESIDE_IN_COMPOSE, NODE_NOTE, note_of

COMPOSE = Path(__file__).parents[2] / "compose.yaml"


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("", False),
        ("http://127.0.0.1:8751", True),
        ("http://localhost:8751/v1", True),
        ("http://[::1]:8751", True),
        (f"http://{BESIDE_IN_COMPOSE}:8751", True),
        ("http://10.8.0.2:8751", False),
        ("https://node.example.com", False),
    ],
)
def test_measurements_say_when_a_node_thinks_on_the_same_machine(tmp_path: Path, url: str, here: bool) -> None:
    assert note_of(Settings(data=tmp_path, model_url=url)) == (NODE_NOTE if here else "")


def test_compose_gives_its_nodes_that_name() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    beside = [one for name, one in services.items() if name.startswith(("node-", "llama-"))]
    assert len(beside) == 5
    assert all(one["networks"]["outside"]["aliases"] == [BESIDE_IN_COMPOSE] for one in beside)
