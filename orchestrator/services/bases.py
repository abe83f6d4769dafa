"""The commit that a review's numbers are held against, built beside the reviewed one, and proof of what ran where."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from orchestrator.measure.records import CodeThatRan
from orchestrator.sandbox.contract import Role, SandboxError
from orchestrator.services.job import Job, StepRun
from orchestrator.store.reviews import Review, ReviewState
from review_agents import repo_settings
from review_agents.ports import Checkout, RepoProblem, Workspace
from review_agents.records import Environment, Repo

if TYPE_CHECKING:
    from review_agents.probes import Prepared

log = structlog.get_logger(__name__)

MANIFESTS = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "poetry.lock", "uv.lock", "pdm.lock")


@dataclass(frozen=True)
class Built:
    """One commit, installed in volumes of its own."""

    repo: Repo
    checkout: Checkout
    prepared: "Prepared"
    volumes: str  # empty: the review's own


def chosen(job: Job, repo: Repo) -> Checkout | None:
    """The base of this review, as the settings want it; None when there is none, or nothing may be compared."""
    shop = job.shop
    wanted = shop.settings.compare_with
    if wanted == "none" or not shop.settings.compare_minutes or shop.measuring is None or shop.measuring.no_verdicts:
        return None
    try:
        if wanted == "previous":
            with shop.sessions.reading() as db:
                before = previous_review(db, job)
                commit = before.commit if before else ""
        else:
            head = shop.git.at(job.asked.url, repo.commit)
            commit = head.parent() if wanted == "parent" else head.last_tag()
        return shop.git.at(job.asked.url, commit) if commit else None
    except RepoProblem:  # reviewed on another machine, or history was rewritten
        return None


def previous_review(db: Session, job: Job) -> Review | None:
    """The newest finished review of the repo before this one, of the same ref."""
    this = db.get_one(Review, job.review_id)
    return db.scalars(
        select(Review)
        .where(
            Review.repo_id == this.repo_id,
            Review.ref == this.ref,
            Review.id != this.id,
            Review.state == ReviewState.DONE,
            Review.commit != "",
            Review.created_at <= this.created_at,
        )
        .order_by(Review.created_at.desc(), Review.id.desc())
        .limit(1)
    ).first()


def build(job: Job, run: StepRun, head: Repo, checkout: Checkout, *, name: str) -> Built:
    """Clone and install that commit. Raises `SandboxError`; what could not be installed is in `prepared`.

    Whoever calls this drops the volumes.
    """
    settings, _ = repo_settings.parsed(checkout.show(repo_settings.FILE))
    files = checkout.files()
    repo = head.model_copy(
        update={
            "commit": checkout.commit,
            "commit_date": checkout.date(),
            "files": files,
            "settings": settings.model_copy(update={"benchmark": head.settings.benchmark}),
        }
    )
    volumes = volumes_of(job, name)
    with checkout.bundle() as bundle:
        job.sandbox.prepare(volumes, bundle, checkout.commit)
    assert job.shop.prepare is not None and job.shop.workspace is not None
    box = run.open(part=f"install-{name}", role=Role.INSTALL, egress=True, volumes=volumes)
    try:
        prepared, _ = job.shop.prepare(job.shop.workspace(box, job.patience), repo)
    finally:
        box.destroy()
    return Built(repo, checkout, prepared, volumes)


def volumes_of(job: Job, name: str) -> str:
    return f"{job.review_id}-{name}"


def drop(job: Job, name: str) -> None:
    """Remove that commit's volumes; what resists is left to the sweep."""
    try:
        job.sandbox.drop(volumes_of(job, name))
    except SandboxError as error:
        log.warning("a commit's volumes could not be removed yet", name=name, error=str(error))


# What really ran -----------------------------------------------------------------------------


def ran_code(workspace: Workspace, built: Built, environment: Environment) -> CodeThatRan:
    """Which code an import gives in that environment, held against the files of the commit it should be."""
    from review_agents.probes.source_tree import SourceTree
    from review_agents.probes.within import InsideFailed, run_inside

    names = list(built.prepared.import_packages)
    try:
        said = run_inside(
            workspace,
            "what_runs",
            json.dumps(names),
            built.prepared.distribution,
            "sha256" if len(built.checkout.commit) == 64 else "sha1",
            python="cd /tmp; python",
            environment=environment,
        )
    except InsideFailed as failed:
        return CodeThatRan(built.checkout.commit, "", "", "", False, f"it could not be told what runs: {failed}")
    tree = SourceTree(workspace, built.repo, built.prepared)
    imported: dict[str, str] = {}
    for one in built.prepared.distributions:
        for name in one.import_packages:
            imported |= by_tracked_path(tree.folder_of(one, name), said["packages"].get(name, {}))
    blobs = built.checkout.blobs()
    imported = {path: blob for path, blob in imported.items() if path in blobs}
    wrong = [path for path, blob in imported.items() if blob != blobs[path]]
    problems = [one["problem"] for one in said["packages"].values() if "problem" in one]
    problem = "; ".join(problems)
    if wrong:
        problem = f"what was imported is not what {built.checkout.commit[:12]} has: {', '.join(sorted(wrong)[:5])}"
    elif not imported:
        problem = problem or "no imported file belongs to the repo"
    first = next((one.get("path", "") for one in said["packages"].values()), "")
    whole = hashlib.sha256(json.dumps(sorted(imported.items())).encode()).hexdigest()[:16]
    return CodeThatRan(built.checkout.commit, first, str(said.get("version", "")), whole, not problem, problem)


def by_tracked_path(folder: str, told: Mapping[str, Any]) -> dict[str, str]:
    """Path in the repo -> git's id of what was imported from there."""
    if not folder:
        return {}
    if folder.endswith(".py"):
        return dict.fromkeys([folder], next(iter(told.get("files", {}).values()), ""))
    return {f"{folder}/{path}": blob for path, blob in told.get("files", {}).items()}


def same_code(base: Built, head: Built, base_ran: CodeThatRan, head_ran: CodeThatRan) -> bool:
    """Whether nothing that is measured differs, so that every alarm would be a false one."""
    if base.checkout.commit == head.checkout.commit:
        return True
    if not (base_ran.matches and head_ran.matches) or base_ran.digest != head_ran.digest:
        return False
    if base.prepared.resolved != head.prepared.resolved or base.prepared.resolved_test != head.prepared.resolved_test:
        return False
    changed = head.checkout.changed(base.checkout.commit)
    sources = (".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".pyx", ".pxd", ".pxi", ".rs", ".f90", ".go", ".toml", ".cfg")
    return not any(path.endswith(sources) or path.rpartition("/")[2] in MANIFESTS for path in changed)
