"""Which tests may run side by side: `make test` works on two folders at a time.

What is dear to make (fabricated models, container engines, a database server) is mostly shared within a folder, so a
folder stays in one process, in its usual order.
"""

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# The same examples for the same tree, so that a change never fails by luck. New ones are looked for with
# `make test ARGS="--hypothesis-profile=explore"`.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile("steady")


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist nobody asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return ByFolder(config, log)


class ByFolder(LoadScopeScheduling):
    """pytest-xdist's own grouping by mark writes into an attribute that pytest 9 no longer reads."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::", 1)[0].rpartition("/")[0]
