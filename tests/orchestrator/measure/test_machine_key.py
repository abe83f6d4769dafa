from dataclasses import fields, replace
from typing import Any, cast

import pytest

from orchestrator.measure.machine_key import changed_dependencies, digest, machine_key
from orchestrator.measure.records import Surroundings

ALL = Surroundings("m", "cpu", "6.1", "0x1", "docker", "sha256:1", "3.11.2", "runsc", "2-3", "abc", {"numpy": "2.0"})


@pytest.mark.parametrize("name", [field.name for field in fields(Surroundings) if field.name != "dependencies"])
def test_whatever_differs_starts_a_new_series(name: str) -> None:
    assert machine_key(replace(ALL, **cast(Any, {name: "other"}))) != machine_key(ALL)


def test_dependencies_belong_to_the_repo_and_start_none() -> None:
    assert machine_key(replace(ALL, dependencies={"numpy": "2.1"})) == machine_key(ALL)
    assert changed_dependencies({"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "3"}) == {
        "b": ("1", "2"),
        "c": ("1", ""),
        "d": ("", "3"),
    }


def test_the_benchmark_s_version_follows_its_command_and_files() -> None:
    one = digest("python b.py", {"b.py": "x"})
    assert one == digest("python b.py", {"b.py": "x"})
    assert (
        len(
            {
                one,
                digest("python c.py", {"b.py": "x"}),
                digest("python b.py", {"b.py": "y"}),
                digest("python b.py", {"c.py": "x"}),
            }
        )
        == 4
    )
