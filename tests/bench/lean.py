"""The real command, without the probes that only measure: `python -m tests.bench.lean review TARGET ...`

For benches that ask what is filed and not how long something takes: they do many reviews.
"""

import sys
from dataclasses import replace
from typing import Any

from orchestrator import wiring
from orchestrator.cli.app import run
from orchestrator.services.workshop import Workshop

MEASURE_ONLY = ("benchmarks", "profile")
real = wiring.with_sandbox


def with_sandbox(*given: Any, **named: Any) -> Workshop:
    shop = real(*given, **named)
    return replace(shop, probes=tuple(probe for probe in shop.probes if probe.name not in MEASURE_ONLY))


if __name__ == "__main__":
    wiring.with_sandbox = with_sandbox
    sys.exit(run())
