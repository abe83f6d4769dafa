"""Passwords as Argon2 hashes, and secrets that are random by themselves as plain digests."""

import hashlib
import secrets
import threading
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from orchestrator.services.errors import BadInput

LEAST_CHARS, MOST_CHARS = 10, 200
# One hash takes 64 MiB and some 50 ms on purpose; a flood of logins must not take that many times.
AT_ONCE = threading.BoundedSemaphore(2)
HASHER = PasswordHasher()


def check(password: str, name: str = "") -> str:
    """The password, if it may be one. Raises `BadInput`."""
    if not LEAST_CHARS <= len(password) <= MOST_CHARS:
        raise BadInput(
            "password", f"A password has {LEAST_CHARS} to {MOST_CHARS} characters; this has {len(password)}."
        )
    if len(set(password)) < 4 or (name and password.casefold() == name.casefold()):
        raise BadInput("password", "That is guessed at once. Take a longer one that only you know.")
    return password


def hashed(password: str) -> str:
    with AT_ONCE:
        return HASHER.hash(password)


def matches(password: str, password_hash: str | None) -> bool:
    """Takes as long for an account that does not exist (None), so that nobody learns which names do."""
    with AT_ONCE:
        try:
            HASHER.verify(password_hash or nobodys(), password[: MOST_CHARS + 1])
        except (VerificationError, InvalidHashError):
            return False
    return password_hash is not None


@cache
def nobodys() -> str:
    return HASHER.hash(secrets.token_hex(16))


def outdated(password_hash: str) -> bool:
    """Whether the library meanwhile recommends more work for a guess."""
    return HASHER.check_needs_rehash(password_hash)


def new_secret(prefix: str = "") -> str:
    return prefix + secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """What is kept of a secret of 256 random bits: nobody can guess one, so a fast digest suffices."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
