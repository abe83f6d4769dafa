"""The real command with tiny reviews and one more probe, which reads a page.

The indented lines of README.md are a script, the one that begins with `->` what it gives.
"""

import sys
from dataclasses import replace
from typing import Any

from orchestrator import wiring
from orchestrator.cli.app import run
from orchestrator.services.workshop import Workshop
from review_agents.copied import down_to
from review_agents.ports import Workspace
from review_agents.probes import Prepared, Probe
from review_agents.records import (
    Candidate,
    Kind,
    Place,
    ProbeResult,
    ProbeState,
    Repo,
    Reproduction,
    Severity,
    Symptom,
)
from tests.support import tiny

PAGE = "README.md"
real = wiring.with_sandbox


def page(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    text = workspace.read(PAGE)
    lines = text.splitlines()
    shown = next((at for at, line in enumerate(lines) if line.startswith("    -> ")), None)
    if shown is None:
        return ProbeResult(probe="page", state=ProbeState.NOT_APPLICABLE, reason="no example")
    wanted = lines[shown].removeprefix("    -> ")
    script = "\n".join(line.strip() for line in lines[:shown] if line.startswith("    "))
    came = workspace.run(script).output.strip()
    if came == wanted:
        return ProbeResult(probe="page", state=ProbeState.PASSED, summary="as shown")
    candidate = Candidate(
        kind=Kind.CORRECTNESS,
        rule="readme.output-differs",
        title=f"README.md shows {wanted}, but it gives {came}",
        description="A reader gets something else.",
        severity=Severity.MEDIUM,
        places=(Place(file=PAGE, line=shown + 1, symbol="Example", quote=lines[shown].strip()),),
        reproduction=Reproduction(
            command=script,
            expected=wanted,
            observed=came,
            control="true",
            symptom=Symptom(contains=(came,), lacks=(wanted,)),
            copied=(down_to(PAGE, text, shown + 1),),
        ),
    )
    return ProbeResult(probe="page", state=ProbeState.FAILED, summary="otherwise", candidates=(candidate,))


def with_sandbox(*given: Any, **named: Any) -> Workshop:
    return replace(real(*given, **named), prepare=tiny.prepare, probes=(*tiny.PROBES, Probe("page", page)))


if __name__ == "__main__":
    wiring.with_sandbox = with_sandbox
    sys.exit(run())
