from datetime import timedelta
from pathlib import Path

from orchestrator.services import nodes
from orchestrator.store.machines import Machine
from orchestrator.store.session import Sessions
from review_agents.ports import NodeHealth
from tests.factories import NOON, make_shop


class Answers:
    def __init__(self, health: NodeHealth):
        self._health = health

    def health(self) -> NodeHealth:
        return self._health


def test_without_a_model_the_status_says_so(sessions: Sessions, tmp_path: Path) -> None:
    found = nodes.status(make_shop(sessions, tmp_path))
    assert (found.configured, found.reachable, found.problem) == (False, False, "no model is configured")


def test_the_status_is_what_the_node_answers_now(sessions: Sessions, tmp_path: Path) -> None:
    health = NodeHealth(reachable=True, models=("qwen",), seconds=0.1)
    shop = make_shop(
        sessions, tmp_path, node=Answers(health), settings={"model_url": "http://node:8000", "model_name": "qwen"}
    )
    found = nodes.status(shop)
    assert (found.configured, found.reachable, found.models) == (True, True, ("qwen",))
    assert (found.url, found.model) == ("http://node:8000", "qwen")


def test_a_machine_is_alive_while_its_worker_reports(sessions: Sessions, tmp_path: Path) -> None:
    with sessions.begin() as db:
        db.add(Machine(id="alive", worker_pid=1, heartbeat=NOON - timedelta(seconds=100), sandbox={"name": "docker"}))
        db.add(Machine(id="gone", worker_pid=None, heartbeat=NOON))
        db.add(Machine(id="never", worker_pid=2))
        db.add(Machine(id="silent", worker_pid=3, heartbeat=NOON - timedelta(seconds=200)))
    found = nodes.status(make_shop(sessions, tmp_path, settings={"lease_s": 60})).machines
    assert {machine.id: machine.alive for machine in found} == {
        "alive": True,
        "gone": False,
        "never": False,
        "silent": False,
    }
    assert found[0].sandbox == {"name": "docker"}
