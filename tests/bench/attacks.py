"""Sandbox attacks, counted: how many there are on each sandbox and how many got anywhere."""

import tempfile
from collections import Counter
from pathlib import Path

from tests.bench.figures import record
from tests.support.attack_ground import ground
from tests.support.sandbox_attacks import ALL

SANDBOXES = ("bubblewrap", "docker")


def run(*, keep: bool = True) -> dict[str, float]:
    """Writes docs/figures/attacks.json. Without one of the sandboxes there are no figures."""
    cases: Counter[str] = Counter()
    through: Counter[str] = Counter()
    kinds: Counter[tuple[str, str]] = Counter()
    asked = 0
    for sandbox in SANDBOXES:
        with tempfile.TemporaryDirectory(prefix="lamplighter-attacks-") as made, ground(sandbox, Path(made)) as one:
            assert one.allowed_host_is_reached(), "the proxy lets nobody through, so its refusals say nothing"
            for attack in ALL:
                got = one.tried(attack)
                cases[sandbox] += 1
                through[sandbox] += bool(got)
                kinds[attack.kind, sandbox] += 1
                if got:
                    print(f"{sandbox}: {attack.name} got through: {got}", flush=True)
            asked += one.service.asked
    figures: dict[str, float] = {"cases": cases.total(), "through": through.total(), "service_asked": asked}
    figures |= {f"cases_{sandbox}": number for sandbox, number in cases.items()}
    if keep:
        rows = [[kind, sandbox, number] for (kind, sandbox), number in kinds.items()]
        record("attacks", figures, libraries=("docker",), table={"head": ["kind", "sandbox", "attacks"], "rows": rows})
    return figures
