"""Repos with a performance history: is the commit that made it slow named, and nothing else?

Each repo of review-bench is reviewed at its first commit and then at its last, which holds both against each other,
builds what lies between and names a commit. Its truth.json says which one it should be, or that there is none. With a
folder to keep answers in, it goes on where it was cut off, at the same commit.
"""

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import wiring
from orchestrator.services import reviews, submitting, working
from orchestrator.services.submitting import Submission
from orchestrator.services.views import ReviewState
from orchestrator.services.workshop import Workshop
from orchestrator.store import comparisons, migrate
from review_agents.records import Verdict
from tests.bench import figures
from tests.bench.reviewing import chosen, folder, made_repos
from tests.support.boxes import bubblewrap, git, here
from tests.support.measured_repo import lenient


def run(bench: Path, keep: Path, *, only: tuple[str, ...] = (), tolerant: bool = False) -> dict[str, float]:
    """`tolerant`: take disturbed sessions too, to see on a busy machine that it works; nothing is recorded."""
    result: dict[str, float] = {"repos": 0, "slow_commits": 0, "named": 0, "named_wrongly": 0, "contaminated": 0}
    with folder(keep) as work:
        for repo in chosen(made_repos(bench, work, fixed=False), only):
            truth = json.loads((bench / repo.name / "truth.json").read_text(encoding="utf-8")).get("history")
            file = work / f"{repo.name}{'-tolerant' if tolerant else ''}.json"
            if not file.exists():
                answer = json.dumps(asked(repo, work, tolerant))
                file.with_suffix(".part").write_text(answer, encoding="utf-8")
                file.with_suffix(".part").replace(file)
            told = json.loads(file.read_text(encoding="utf-8"))
            wanted = truth["bad_commit"] if truth else None
            result["repos"] += 1
            result["slow_commits"] += wanted is not None
            result["named"] += wanted is not None and told["named"] == [wanted]
            result["named_wrongly"] += len(set(told["named"]) - {wanted})
            result["contaminated"] += told["contaminated"]
            print(f"{repo.name}: named {', '.join(told['named']) or 'nothing'}; {told['summary']}", flush=True)
    if not only and not tolerant:
        figures.record("performance-history", result)
    return result


def asked(repo: Path, work: Path, tolerant: bool) -> dict[str, Any]:
    """In a clone, because one that was cut off in the middle stands on another commit."""
    place = Path(tempfile.mkdtemp(prefix=f"{repo.name}-", dir=work))
    try:
        git(place, "clone", "-q", str(repo), repo.name)
        found = reviewed(place / repo.name, place / "data", tolerant)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return {**found, "named": sorted(found["named"])}


def reviewed(
    repo: Path, data: Path, tolerant: bool, *, ends: tuple[str, str] | None = None, of: str = ""
) -> dict[str, Any]:
    """What is said of a repo's first and last commit, or of `ends`; with `of` only of figures of that benchmark."""
    settings = here(data=data, host_lock=data / "lock", sandbox="bubblewrap", compare_minutes=10, bisect_minutes=30)
    migrate.upgrade(settings.database)
    shop = wiring.with_sandbox(wiring.service(settings), bubblewrap(settings))
    shop = replace(shop, probes=(), nudge=lambda review: None)
    shop = lenient(shop) if tolerant else shop
    commits = git(repo, "rev-list", "--reverse", "--first-parent", "HEAD").split()
    branch = git(repo, "rev-parse", "--abbrev-ref", "HEAD").strip()
    try:
        for commit in ends or (commits[0], commits[-1]):
            git(repo, "checkout", "-q", "-B", branch, commit)
            review_id = submitting.submit(shop, Submission(str(repo), agents=False, force=True, from_cli=True))
            working.do_one(shop, review_id)
        return told(shop, review_id, of)
    finally:
        git(repo, "checkout", "-q", "-B", branch, commits[-1])
        shop.sessions.engine.dispose()


def told(shop: Workshop, review_id: Any, of: str) -> dict[str, Any]:
    page = reviews.get(shop, review_id)
    assert page.row.state is ReviewState.DONE, page.row.error
    with shop.sessions.reading() as db:
        found = [row for row in comparisons.of_review(db, review_id) if row.name.startswith(of)]
        steps = [row for row in comparisons.change_points(db, page.row.repo_id) if row.name.startswith(of)]
    (step,) = [step for step in page.steps if step.name.startswith("measure:")]
    return {
        "named": {row.culprit for row in steps if row.culprit},
        "slower": sum(row.verdict is Verdict.SLOWER for row in found),
        "contaminated": sum(row.verdict is Verdict.CONTAMINATED for row in found),
        "summary": step.summary or step.reason,
    }
