"""Repos under review."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

from sqlalchemy import UniqueConstraint, select
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


def by_url(db: Session, url: str) -> Repo | None:
    return db.scalar(select(Repo).where(Repo.url == url))


def get(db: Session, repo_id: UUID) -> Repo | None:
    return db.get(Repo, repo_id)
