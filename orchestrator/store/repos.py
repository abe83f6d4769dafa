"""Repos under review."""

from collections.abc import Collection, Sequence
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from sqlalchemy import UniqueConstraint, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, Session, mapped_column

from orchestrator.store.base import Base, Key, choice


class RepoKind(StrEnum):
    GIT = "git"  # url is an https or ssh URL
    PATH = "path"  # url is an absolute folder on the worker


class Repo(Base):
    __tablename__ = "repos"
    __table_args__ = (UniqueConstraint("url"),)

    id: Mapped[Key]
    name: Mapped[str]
    url: Mapped[str]
    kind: Mapped[RepoKind] = mapped_column(choice(RepoKind))
    default_ref: Mapped[str] = mapped_column(default="")  # what HEAD names there; empty when unknown
    profile: Mapped[str] = mapped_column(default="")
    flavour: Mapped[str] = mapped_column(default="")
    created_at: Mapped[datetime]


def get(db: Session, repo_id: UUID) -> Repo | None:
    return db.get(Repo, repo_id)


def get_one(db: Session, repo_id: UUID) -> Repo:
    """For an id that another row refers to."""
    return db.get_one(Repo, repo_id)


def by_urls(db: Session, urls: Sequence[str]) -> Repo | None:
    """The repo with the first of the URLs that any has."""
    found = {repo.url: repo for repo in db.scalars(select(Repo).where(Repo.url.in_(urls)))}
    return next((found[url] for url in urls if url in found), None)


def add_or_find(db: Session, repo: Repo) -> Repo:
    """Add the repo, or return the one that somebody else added with its URL in this instant."""
    try:
        with db.begin_nested():
            db.add(repo)
        return repo
    except IntegrityError:
        return db.scalars(select(Repo).where(Repo.url == repo.url)).one()


def listed(db: Session) -> Sequence[Repo]:
    return db.scalars(select(Repo).order_by(func.lower(Repo.name), Repo.id)).all()


def names(db: Session, repo_ids: Collection[UUID]) -> dict[UUID, str]:
    found = db.execute(select(Repo.id, Repo.name).where(Repo.id.in_(repo_ids))) if repo_ids else ()
    return {row[0]: row[1] for row in found}
