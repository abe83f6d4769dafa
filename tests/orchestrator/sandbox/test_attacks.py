"""Attacks on the sandbox: none gets anywhere, and the service answers throughout."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.support.attack_ground import Ground, ground
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


def test_the_service_was_asked_all_the_time(attacked: Ground) -> None:
    wait_for(lambda: attacked.service.asked > 0, 30, "nobody asked")
    assert attacked.service.silences() == []
