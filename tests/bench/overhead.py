"""What a review costs beside the repo's own commands: the service's own wall time, on a warm mirror.

The worker notes where a review's wall time went (the result of its `record` step): commands in boxes,
verification, and the rest, which is ours.
"""

import json
import shutil
import sqlite3
import tempfile
from pathlib import Path

from tests.bench import figures, pages
from tests.bench.reviewing import made_repos, reviewed

REPO = "spanparse"
SPENT = """
select steps.result from steps join reviews on reviews.id = steps.review_id
where steps.name = 'record' order by reviews.created_at desc limit 1
"""


def run(bench: Path) -> dict[str, float]:
    measured: dict[str, float] = {}
    for sandbox in ("bubblewrap", *(["docker"] if docker_answers() else [])):
        own, verification = own_seconds(bench, sandbox)
        measured |= {f"{sandbox}_s": round(own, 3), f"{sandbox}_verification_s": round(verification, 3)}
    measured |= pages.run()
    figures.record("overhead", measured, libraries=("sqlalchemy", "jinja2", "fastapi"))
    return measured


def own_seconds(bench: Path, sandbox: str) -> tuple[float, float]:
    """Seconds of the second review that no command took, and seconds of ours per verification run."""
    with tempfile.TemporaryDirectory(prefix="lamplighter-overhead-") as made:
        work = Path(made)
        repo = next(path for path in made_repos(bench, work, fixed=False) if path.name == REPO)
        for attempt in (1, 2):
            reviewed(repo, work / "data", work / f"{attempt}.json", LAMPLIGHTER_SANDBOX=sandbox)
        with sqlite3.connect(work / "data" / "lamplighter.sqlite3") as database:
            (spent,) = database.execute(SPENT).fetchone()
    times = json.loads(spent)
    own = times["wall_s"] - times["commands_s"] - times["verify_s"]
    return own, (times["verify_s"] - times["verify_commands_s"]) / max(1, times["verify_boxes"])


def docker_answers() -> bool:
    return shutil.which("docker") is not None and Path("/var/run/docker.sock").exists()
