"""Asking for a review."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.orm import Session

from orchestrator.services import judging
from orchestrator.services.errors import BadInput, BadTarget, OutsideError
from orchestrator.services.targets import Target, parse_ref, parse_target
from orchestrator.services.workshop import Workshop
from orchestrator.store import repos, reviews
from orchestrator.store.repos import Repo
from orchestrator.store.reviews import PRIORITY_ASKED, Review
from review_agents.ports import RemoteHead, RepoProblem, UnknownRef

FOCUS = re.compile(r"[a-z][a-z0-9_-]{0,39}")
MOST_FOCUSES = 20
MOST_MINUTES = 7 * 24 * 60
MOST_TOKENS = 2**31 - 1  # what the column holds


@dataclass(frozen=True, slots=True)
class Submission:
    """What somebody wants reviewed. Empty and None mean: the default."""

    target: str  # git URL or folder
    ref: str = ""  # branch, tag or commit; empty: the default branch
    focuses: tuple[str, ...] = ()  # empty: all
    budget_minutes: int | None = None
    budget_tokens: int | None = None
    agents: bool = True
    force: bool = False  # also when that commit was reviewed before
    profile: str = ""  # for whom agents judge; empty: as the repo was last
    flavour: str = ""  # what the repo means to be; empty: as it was last
    remember: bool = True  # keep profile and flavour with the repo
    from_cli: bool = False  # by a user of this machine, who may name any folder that they can read
    requested_by: str = "web"  # web, api or cli


def submit(shop: Workshop, asked: Submission) -> UUID:
    """Queue a review and wake a worker. A review of that repo and ref that waits already is returned instead.

    What can be wrong is found now: raises `BadInput` (for the target `BadTarget`) naming the field, and `OutsideError`
    when too many wait already.
    Nothing is written before all of it was checked.
    """
    focuses = check_focuses(asked.focuses, shop.focuses)
    check_range("budget_minutes", asked.budget_minutes, MOST_MINUTES, "minutes")
    check_range("budget_tokens", asked.budget_tokens, MOST_TOKENS, "tokens")
    judging.check(asked.profile, asked.flavour)
    ref = parse_ref(asked.ref)
    target = parse_target(asked.target, settings=shop.settings, from_cli=asked.from_cli, resolve=shop.resolve)
    head = look(shop, target, ref)
    with shop.sessions.begin() as db:
        repo = repo_for(db, shop, target, head)
        if asked.remember:
            repo.profile = asked.profile or repo.profile
            repo.flavour = asked.flavour or repo.flavour
        review_id = queue(db, shop, asked, repo, head, focuses)
    shop.nudge(review_id)  # after the commit, so no worker looks for a row that is not there
    return review_id


def check_focuses(focuses: tuple[str, ...], known: Collection[str]) -> list[str]:
    """The names in their order, each once. Where it is known which there are, only those."""
    if len(focuses) > MOST_FOCUSES:
        raise BadInput("focuses", f"{len(focuses)} focuses were given; at most {MOST_FOCUSES} are accepted.")
    for name in focuses:
        if not FOCUS.fullmatch(name):
            raise BadInput("focuses", f"{name[:60]!a} cannot be a focus; a name like “docs” was expected.")
        if known and name not in known:
            raise BadInput("focuses", f"There is no focus “{name}”. There are: {', '.join(known)}.")
    return list(dict.fromkeys(focuses))


def check_range(field: str, value: int | None, most: int, unit: str) -> None:
    if value is not None and not 1 <= value <= most:
        raise BadInput(
            field, f"{value} {unit} were given; from 1 to {most} are accepted. Leave it out for the default."
        )


def look(shop: Workshop, target: Target, ref: str) -> RemoteHead:
    """What the ref names there now; fails here and not minutes later in the worker."""
    try:
        return shop.git.probe(target.url, ref)
    except UnknownRef as problem:
        raise BadInput("ref", str(problem)) from problem
    except RepoProblem as problem:
        raise BadTarget("target", str(problem)) from problem


def repo_for(db: Session, shop: Workshop, target: Target, head: RemoteHead) -> Repo:
    repo = repos.by_urls(db, target.spellings)
    if repo is None:
        repo = repos.add_or_find(db, Repo(name=target.name, url=target.url, kind=target.kind, created_at=shop.clock()))
    if head.default_ref:
        repo.default_ref = head.default_ref
    return repo


def queue(db: Session, shop: Workshop, asked: Submission, repo: Repo, head: RemoteHead, focuses: list[str]) -> UUID:
    if reviews.queue_is_full(db) and reviews.waiting_for(db, repo.id, head.ref or head.commit) is None:
        raise OutsideError(
            f"{reviews.MOST_WAITING} reviews wait already, and no more are taken until some of them are done. "
            "Cancel what nobody needs (`lamplighter reviews list`), or ask again later.",
            retry=True,
        )
    review = reviews.add_or_find_waiting(
        db,
        Review(
            repo_id=repo.id,
            ref=head.ref or head.commit,
            commit=head.commit,
            focuses=focuses,
            profile=asked.profile or repo.profile,
            flavour=asked.flavour or repo.flavour,
            budget_minutes=asked.budget_minutes or shop.settings.budget_minutes,
            budget_tokens=asked.budget_tokens,
            agents=asked.agents,
            force=asked.force,
            requested_by="cli" if asked.from_cli else asked.requested_by,
            priority=PRIORITY_ASKED,
            max_attempts=shop.settings.max_attempts,
            created_at=shop.clock(),
        ),
    )
    # One that waited already takes over what was asked for now, or it would be dropped in silence.
    review.priority = max(review.priority, PRIORITY_ASKED)
    review.focuses = focuses or review.focuses
    review.profile = asked.profile or review.profile
    review.flavour = asked.flavour or review.flavour
    review.budget_minutes = asked.budget_minutes or review.budget_minutes
    review.budget_tokens = asked.budget_tokens or review.budget_tokens
    review.agents = asked.agents
    review.commit = head.commit
    review.force = review.force or asked.force
    return review.id
