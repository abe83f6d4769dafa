"""Who may use the pages and the API: accounts, their logins and tokens, and how often somebody guessed wrong."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, Index, UniqueConstraint, delete, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from orchestrator.store.base import Base, Key, Name


class Account(Base):
    __tablename__ = "accounts"
    __table_args__ = (UniqueConstraint("name"),)

    id: Mapped[Key]
    name: Mapped[str] = mapped_column(Name)
    admin: Mapped[bool] = mapped_column(default=False)  # may make and remove accounts
    password_hash: Mapped[str]
    created_at: Mapped[datetime]


class Login(Base):
    """A browser that gave the password. Only a digest of its cookie is kept."""

    __tablename__ = "logins"
    __table_args__ = (UniqueConstraint("digest"), Index("ix_logins_account_id", "account_id"))

    id: Mapped[Key]
    account_id: Mapped[UUID] = mapped_column(ForeignKey("accounts.id", ondelete="CASCADE"))
    digest: Mapped[str] = mapped_column(Name)
    created_at: Mapped[datetime]
    seen_at: Mapped[datetime]


class ApiToken(Base):
    """For programs. Only a digest is kept; the token itself is shown once."""

    __tablename__ = "api_tokens"
    __table_args__ = (UniqueConstraint("digest"), Index("ix_api_tokens_account_id", "account_id"))

    id: Mapped[Key]
    account_id: Mapped[UUID] = mapped_column(ForeignKey("accounts.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(Name)
    digest: Mapped[str] = mapped_column(Name)
    created_at: Mapped[datetime]
    used_at: Mapped[datetime | None]


class Tries(Base):
    """Logins that were tried for one name, from one address, or both, since the last one that was right."""

    __tablename__ = "login_tries"

    key: Mapped[str] = mapped_column(Name, primary_key=True)
    count: Mapped[int]
    last_at: Mapped[datetime]


def any_account(db: Session) -> bool:
    return db.scalar(select(Account.id).limit(1)) is not None


def by_name(db: Session, name: str) -> Account | None:
    return db.scalar(select(Account).where(Account.name == name))


def listed(db: Session) -> Sequence[Account]:
    return db.scalars(select(Account).order_by(Account.name)).all()


def admins(db: Session) -> int:
    return db.scalar(select(func.count()).select_from(Account).where(Account.admin)) or 0


def by_login(db: Session, digest: str, seen_since: datetime) -> tuple[Account, Login] | None:
    found = db.execute(
        select(Account, Login)
        .join(Login, Login.account_id == Account.id)
        .where(Login.digest == digest, Login.seen_at >= seen_since)
    ).first()
    return (found[0], found[1]) if found else None


def by_token(db: Session, digest: str) -> tuple[Account, ApiToken] | None:
    found = db.execute(
        select(Account, ApiToken).join(ApiToken, ApiToken.account_id == Account.id).where(ApiToken.digest == digest)
    ).first()
    return (found[0], found[1]) if found else None


def tokens_of(db: Session, account_id: UUID) -> Sequence[ApiToken]:
    return db.scalars(
        select(ApiToken).where(ApiToken.account_id == account_id).order_by(ApiToken.created_at, ApiToken.id)
    ).all()


def end_logins(db: Session, account_id: UUID, *, but: str = "") -> None:
    """All logins of the account end, except the one with the digest `but`."""
    db.execute(delete(Login).where(Login.account_id == account_id, Login.digest != but))


def forget_logins(db: Session, seen_before: datetime) -> None:
    db.execute(delete(Login).where(Login.seen_at < seen_before))


def tries(db: Session, key: str) -> Tries | None:
    """Locked until the transaction ends, so that two guesses at a time count as two."""
    return db.get(Tries, key, with_for_update=True)


def forget_tries(db: Session, *keys: str) -> None:
    db.execute(delete(Tries).where(Tries.key.in_(keys)))


def forget_tries_before(db: Session, when: datetime) -> None:
    db.execute(delete(Tries).where(Tries.last_at < when))
