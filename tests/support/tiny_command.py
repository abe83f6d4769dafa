"""The real command `lamplighter` with tiny reviews: python -m tests.support.tiny_command review TARGET"""

import sys
from dataclasses import replace
from typing import Any

from orchestrator import wiring
from orchestrator.cli.app import run
from orchestrator.services.workshop import Workshop
from tests.support import tiny

real = wiring.with_sandbox


def with_sandbox(*given: Any, **named: Any) -> Workshop:
    return replace(real(*given, **named), prepare=tiny.prepare, probes=tiny.PROBES)


if __name__ == "__main__":
    wiring.with_sandbox = with_sandbox
    sys.exit(run())
