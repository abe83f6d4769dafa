"""Which tests may run side by side: `make test` works on two groups at a time.

A group shares what is dear to make: fabricated models, container engines, a database server. So a group stays in one
process, in its usual order. The node's tests compute and those of the service mostly wait, which is why it pays.
"""

from pathlib import Path

import pytest
from hypothesis import settings

# The same examples for the same tree, so that a change never fails by luck. New ones are looked for with
# `make test ARGS="--hypothesis-profile=explore"`.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile("steady")

HERE = Path(__file__).parent
ENGINES = ("orchestrator/sandbox", "orchestrator/jobs", "orchestrator/deploy")  # each would start engines of its own


def group_of(test_file: Path) -> str:
    place = test_file.relative_to(HERE).as_posix()
    if place.startswith("inference_node/"):
        return "node"
    return "engines" if place.startswith(ENGINES) else "service"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group(group_of(item.path)))
