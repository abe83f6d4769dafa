"""Accounts: who may use this service, how they log in, and how guessing is slowed down.

Without any account the service asks nobody, which is right on a loopback address of one person's
machine and nowhere else; `needed` says when. With the first account everybody must log in.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from orchestrator.services import passwords
from orchestrator.services.errors import BadInput, NotAllowed, NotNow, TooManyTries, UnknownAccount, WrongPassword
from orchestrator.services.workshop import Workshop
from orchestrator.settings import Settings
from orchestrator.store import accounts as table
from orchestrator.store.accounts import Account, ApiToken, Login, Tries

NAME = re.compile(r"[a-z0-9][a-z0-9._@-]{0,63}")
LOGIN_LASTS = timedelta(days=14)  # without a visit
SEEN_EVERY = timedelta(hours=1)  # how exactly `seen_at` and `used_at` are kept
MOST_TOKENS = 50
TOKEN_PREFIX = "lamp_"
# Tries that cost nothing, before each further one doubles the wait.
FREE_TRIES_OF_A_PAIR, FREE_TRIES_OF_A_NAME, FREE_TRIES_FROM_AN_ADDRESS = 5, 20, 50
LONGEST_WAIT = timedelta(minutes=15)
TRIES_ARE_FORGOTTEN = timedelta(hours=2)


@dataclass(frozen=True, slots=True)
class Who:
    """An account, for pages and doors."""

    id: UUID
    name: str
    admin: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TokenRow:
    id: UUID
    name: str
    created_at: datetime
    used_at: datetime | None


# Whether anybody is asked -------------------------------------------------------------------


def needed(shop: Workshop, *, forwarded: bool = False) -> bool:
    """Whether a request needs an account. `forwarded`: it came through a proxy, so from who knows where."""
    settings = shop.settings
    if settings.accounts == "none":
        return False
    if settings.accounts == "required" or forwarded or not only_here(settings):
        return True
    return exist(shop)


def exist(shop: Workshop) -> bool:
    with shop.sessions.reading() as db:
        return table.any_account(db)


def only_here(settings: Settings) -> bool:
    """Whether only this machine reaches the port."""
    address = (settings.publish or settings.host).strip("[]")
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


# Logging in ---------------------------------------------------------------------------------


def log_in(shop: Workshop, name: str, password: str, address: str) -> str:
    """The secret of a new login's cookie. Raises `WrongPassword` or `TooManyTries`."""
    name = name.strip().lower()
    now = shop.clock()
    keys = keys_of(name, address)
    try:
        with shop.sessions.begin() as db:
            count_try(db, keys, now)
            account = table.by_name(db, name)
            known = None if account is None else (account.id, account.password_hash)
    except IntegrityError:  # somebody else counted the first try of this key in the same moment
        raise TooManyTries(1) from None
    if not passwords.matches(password, known and known[1]) or known is None:
        raise WrongPassword("The name or the password is wrong.")
    secret = passwords.new_secret()
    with shop.sessions.begin() as db:
        account = db.get(Account, known[0])
        if account is None or account.password_hash != known[1]:
            raise WrongPassword("The name or the password is wrong.")
        if passwords.outdated(account.password_hash):
            account.password_hash = passwords.hashed(password)
        table.forget_tries(db, *list(keys)[:2])
        table.forget_logins(db, now - LOGIN_LASTS)
        db.add(Login(account_id=account.id, digest=passwords.digest_of(secret), created_at=now, seen_at=now))
    return secret


def keys_of(name: str, address: str) -> Mapping[str, int]:
    """What tries are counted under, with how many of each are free. Behind a proxy all come from loopback."""
    keys = {f"pair {name} {address}": FREE_TRIES_OF_A_PAIR, f"name {name}": FREE_TRIES_OF_A_NAME}
    try:
        if not ipaddress.ip_address(address).is_loopback:
            keys[f"from {address}"] = FREE_TRIES_FROM_AN_ADDRESS
    except ValueError:
        pass
    return keys


def count_try(db: Session, keys: Mapping[str, int], now: datetime) -> None:
    """Counted before the password is looked at, so that many guesses at a time are many. Raises `TooManyTries`."""
    table.forget_tries_before(db, now - TRIES_ARE_FORGOTTEN)
    found = {key: table.tries(db, key) for key in keys}
    waits = [row.last_at + wait_after(row.count, keys[key]) - now for key, row in found.items() if row is not None]
    longest = max(waits, default=timedelta())
    if longest > timedelta():
        raise TooManyTries(int(longest.total_seconds()) + 1)
    for key, row in found.items():
        if row is None:
            db.add(Tries(key=key, count=1, last_at=now))
        else:
            row.count, row.last_at = row.count + 1, now
    db.flush()


def wait_after(count: int, free: int) -> timedelta:
    if count < free:
        return timedelta()
    return min(LONGEST_WAIT, timedelta(seconds=2 ** min(count - free + 1, 20)))


def who_logged_in(shop: Workshop, secret: str) -> Who | None:
    now, digest = shop.clock(), passwords.digest_of(secret)
    with shop.sessions.reading() as db:
        found = table.by_login(db, digest, now - LOGIN_LASTS)
    if found is None:
        return None
    account, login = found
    if login.seen_at < now - SEEN_EVERY:
        with shop.sessions.begin() as db:
            if row := db.get(Login, login.id):
                row.seen_at = now
    return who(account)


def who_has_token(shop: Workshop, secret: str) -> Who | None:
    now, digest = shop.clock(), passwords.digest_of(secret)
    with shop.sessions.reading() as db:
        found = table.by_token(db, digest)
    if found is None:
        return None
    account, token = found
    if token.used_at is None or token.used_at < now - SEEN_EVERY:
        with shop.sessions.begin() as db:
            if row := db.get(ApiToken, token.id):
                row.used_at = now
    return who(account)


def log_out(shop: Workshop, secret: str) -> None:
    with shop.sessions.begin() as db:
        found = table.by_login(db, passwords.digest_of(secret), shop.clock() - LOGIN_LASTS)
        if found is not None:
            db.delete(found[1])


# Accounts -----------------------------------------------------------------------------------


def listed(shop: Workshop) -> tuple[Who, ...]:
    with shop.sessions.reading() as db:
        return tuple(who(account) for account in table.listed(db))


def create(shop: Workshop, name: str, password: str, *, admin: bool, only_first: bool = False) -> Who:
    """Raises `BadInput`, or `NotNow` when it should have been the first account and is not."""
    name = name.strip().lower()
    if not NAME.fullmatch(name):
        raise BadInput(
            "name", "A name has up to 64 letters (a-z), digits, dots, @, - and _, and begins with one of the first."
        )
    password_hash = passwords.hashed(passwords.check(password, name))
    try:
        with shop.sessions.begin() as db:
            if only_first and table.any_account(db):
                raise NotNow("There is an account already. Log in with it.")
            if table.by_name(db, name):
                raise BadInput("name", f"There is an account {name} already.")
            account = Account(name=name, admin=admin, password_hash=password_hash, created_at=shop.clock())
            db.add(account)
            db.flush()
            return who(account)
    except IntegrityError:
        raise BadInput("name", f"There is an account {name} already.") from None


def change_password(shop: Workshop, account_id: UUID, old: str, new: str, *, keep: str = "") -> None:
    """By its owner; all logins but the one with the secret `keep` end. Raises `BadInput`."""
    with shop.sessions.reading() as db:
        account = known(db, account_id)
    if not passwords.matches(old, account.password_hash):
        raise BadInput("old", "That is not the present password.")
    set_password(shop, account.name, new, keep=keep)


def set_password(shop: Workshop, name: str, password: str, *, keep: str = "") -> None:
    """By the operator. Ends its logins and forgets failed tries."""
    password_hash = passwords.hashed(passwords.check(password, name))
    with shop.sessions.begin() as db:
        account = named(db, name)
        account.password_hash = password_hash
        table.end_logins(db, account.id, but=passwords.digest_of(keep) if keep else "")
        table.forget_tries(db, f"name {account.name}")


def remove(shop: Workshop, name: str) -> None:
    """With its logins and tokens. The last admin goes only together with all others."""
    with shop.sessions.begin() as db:
        account = named(db, name)
        if account.admin and table.admins(db) == 1 and len(table.listed(db)) > 1:
            raise NotNow(f"{account.name} is the last admin; make another one first, or remove the others.")
        db.delete(account)


def must_be_admin(account: Who | None) -> None:
    """None is the single user of a service that asks nobody."""
    if account is not None and not account.admin:
        raise NotAllowed("Only an admin may do that.")


# Tokens -------------------------------------------------------------------------------------


def tokens(shop: Workshop, account_id: UUID) -> tuple[TokenRow, ...]:
    with shop.sessions.reading() as db:
        found = table.tokens_of(db, account_id)
        return tuple(TokenRow(one.id, one.name, one.created_at, one.used_at) for one in found)


def make_token(shop: Workshop, account_id: UUID, name: str) -> str:
    """The token, which is shown this once. Raises `BadInput`."""
    name = name.strip()
    if not 1 <= len(name) <= 80 or not name.isprintable():
        raise BadInput("token_name", "Say in up to 80 characters what the token is for.")
    secret = passwords.new_secret(TOKEN_PREFIX)
    with shop.sessions.begin() as db:
        account = known(db, account_id)
        if len(table.tokens_of(db, account_id)) >= MOST_TOKENS:
            raise BadInput("token_name", f"There are {MOST_TOKENS} tokens already; revoke one first.")
        digest = passwords.digest_of(secret)
        db.add(ApiToken(account_id=account.id, name=name, digest=digest, created_at=shop.clock()))
    return secret


def revoke_token(shop: Workshop, account_id: UUID, token_id: UUID) -> None:
    with shop.sessions.begin() as db:
        token = db.get(ApiToken, token_id)
        if token is not None and token.account_id == account_id:
            db.delete(token)


def by_name(shop: Workshop, name: str) -> Who:
    with shop.sessions.reading() as db:
        return who(named(db, name))


def who(account: Account) -> Who:
    return Who(account.id, account.name, account.admin, account.created_at)


def known(db: Session, account_id: UUID) -> Account:
    account = db.get(Account, account_id)
    if account is None:
        raise UnknownAccount(account_id)
    return account


def named(db: Session, name: str) -> Account:
    account = table.by_name(db, name.strip().lower())
    if account is None:
        raise UnknownAccount(name)
    return account
