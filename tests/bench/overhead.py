"""What a review costs beside the repo's own commands: the service's own wall time, on a warm mirror.

The worker notes where a review's wall time went (the result of its `record` step): commands as timed inside their
boxes, verification, waiting for a quiet machine, and the rest, which is ours.
"""

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator import wiring
from orchestrator.services.workshop import never
from orchestrator.settings import load
from tests.bench import figures
from tests.bench.reviewing import HASTE, made_repos, reviewed
from tests.support.docker_engine import docker_engine
from tests.support.standin_images import ensure_sandbox_image

REPO = "spanparse"
SPENT = """
select steps.result from steps join reviews on reviews.id = steps.review_id
where steps.name = 'record' order by reviews.created_at desc limit 1
"""


def run(bench: Path) -> dict[str, float]:
    """Seconds by sandbox; writes docs/figures/overhead.json."""
    measured = own_seconds(bench, "bubblewrap", {})
    with engine() as settings:
        measured |= own_seconds(bench, "docker", settings)
    figures.record("overhead", measured, libraries=("sqlalchemy",))
    return measured


@contextmanager
def engine() -> Iterator[dict[str, str]]:
    """A Docker engine of our own and the settings that lead to it. Where none can be had there are no figures."""
    with (
        tempfile.TemporaryDirectory(prefix="lamplighter-docker-") as made,
        docker_engine(Path(made)) as started,
    ):
        yield {"LAMPLIGHTER_DOCKER_URL": started.url, "LAMPLIGHTER_SANDBOX_IMAGE": ensure_sandbox_image(started)}


def own_seconds(bench: Path, sandbox: str, settings: dict[str, str]) -> dict[str, float]:
    """Our seconds of one review whose mirror is there, without and for each run of a verification."""
    with tempfile.TemporaryDirectory(prefix="lamplighter-overhead-") as made:
        work = Path(made)
        repo = next(path for path in made_repos(bench, work, fixed=False) if path.name == REPO)
        data = work / "data"
        wiring.git(load(data=data)).fetch(str(repo), "", cancelled=never)
        reviewed(repo, data, work / "export.json", LAMPLIGHTER_SANDBOX=sandbox, **settings, **HASTE)
        with sqlite3.connect(data / "lamplighter.sqlite3") as database:
            (spent,) = database.execute(SPENT).fetchone()
    times = json.loads(spent)
    own = times["wall_s"] - times["commands_s"] - times["verify_s"] - times["waited_s"]
    runs = max(1, times["verify_boxes"])
    return {
        f"{sandbox}_s": round(own, 3),
        f"{sandbox}_verification_run_s": round((times["verify_s"] - times["verify_commands_s"]) / runs, 4),
        f"{sandbox}_verification_runs": times["verify_boxes"],
        f"{sandbox}_review_wall_s": round(times["wall_s"], 1),
    }
