"""Attacks on the sandbox: none gets anywhere, and the service answers throughout."""

import re
import subprocess
from collections.abc import Iterator

import pytest

from orchestrator.sandbox.contract import Role
from review_agents.records import Environment
from tests.support.attack_ground import Ground, ground, processes_with
from tests.support.sandbox_attacks import ALL, Attack
from tests.support.waiting import wait_for

SANDBOXES = ["bubblewrap", pytest.param("docker", marks=pytest.mark.docker)]


@pytest.fixture(scope="module", params=SANDBOXES)
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ground(request.param, tmp_path_factory.mktemp("attacks")) as one:
        yield one


def test_there_are_enough_and_each_says_what_it_is() -> None:
    assert len({attack.name for attack in ALL}) == len(ALL) >= 40


def test_the_way_that_is_allowed_is_open(attacked: Ground) -> None:
    assert attacked.allowed_host_is_reached()


@pytest.mark.parametrize("attack", [one for one in ALL if one.on_the_host], ids=lambda attack: attack.name)
def test_outside_of_a_sandbox_it_gets_through(attacked: Ground, attack: Attack) -> None:
    """So that a refusal means the sandbox, and not a script that does not work."""
    done = subprocess.run(["bash", "-c", attack.script(attacked.known)], capture_output=True, text=True, timeout=60)
    assert "THROUGH" in done.stdout, done.stderr[-1000:]


@pytest.mark.parametrize("attack", ALL, ids=lambda attack: attack.name)
def test_an_attack_gets_nowhere(attacked: Ground, attack: Attack) -> None:
    assert attacked.tried(attack) == ""


def test_an_attack_that_cannot_begin_is_not_one_that_was_withstood(attacked: Ground) -> None:
    class NeverBegins(Attack):
        def script(self, known: dict[str, object]) -> str:
            return "exit 1"

    assert "was not tried" in attacked.tried(NeverBegins("", "", box="own"))
    attacked.shared = attacked.open(Role.STEP)
    attacked.shared.destroy()
    assert "was not tried" in attacked.tried(Attack("", "", bash="true"))


def test_a_process_that_an_attack_left_would_be_seen(attacked: Ground) -> None:
    leaves = "setsid sleep 3333 & until grep -qs ^sleep /proc/$!/cmdline; do sleep 0.05; done\n"
    box = attacked.open(Role.STEP)
    said = box.run(leaves + processes_with("3333"), environment=Environment.NONE, timeout_s=30).output
    assert re.search(r"^\d+ sleep 3333", said, re.MULTILINE), said


def test_the_service_is_asked_to_the_end(attacked: Ground) -> None:
    before = attacked.service.asked
    wait_for(lambda: attacked.service.asked > before, 30, "nobody asks")
    assert attacked.service.silences() == []
