"""What is accepted as a repo to review: the URL or folder, the ref, and what the operator allows."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.clients import git_local
from orchestrator.clients.git_command import printable
from review_agents.ports import UnknownRef, UnreachableRepo

FULL_OID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
SHORT_OID = re.compile(r"[0-9a-f]{7,64}")
URL_SHAPE = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>[^\s\x00-\x1f\x7f]+)")
SCP_SHAPE = re.compile(
    r"(?P<user>[A-Za-z0-9_.-]+@)(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*):(?P<path>[^-/:][^\s\x00-\x1f\x7f:]*)"
)
# Characters that git forbids in ref names, or that would make a pattern or a refspec of one.
REF_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\+]|\.\.|@\{|//|/$|\.$|\.lock(/|$)|(^|/)\.|^@$|^-")


@dataclass(frozen=True, slots=True)
class GitRules:
    """What the operator allows. Sizes in bytes, times in seconds."""

    schemes: tuple[str, ...] = ("https",)
    allow_ranges: tuple[str, ...] = ()  # private ranges that a host may be in
    roots: tuple[Path, ...] = ()  # folders that local repos may borrow objects from
    ssh_key: Path | None = None
    max_repo_bytes: int = 1 << 30
    timeout_s: float = 600.0
    probe_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Source:
    """A checked target: where git fetches from and which protocol that needs."""

    where: str
    protocol: str
    local: git_local.LocalRepo | None = None


def checked(target: str, rules: GitRules) -> Source:
    """Where git will fetch from. Raises `UnreachableRepo` saying what is accepted."""
    shown = printable(target, 300)
    schemes = ", ".join(f"{scheme}://" for scheme in rules.schemes)
    accepted = f"Accepted are {schemes} URLs and absolute folders on this machine."
    if not target or target.startswith("-") or any(ord(c) < 32 or ord(c) == 127 for c in target):
        raise UnreachableRepo(
            f'"{shown}" is not accepted as a repo: it is empty, starts with "-" or holds control characters. {accepted}'
        )
    if target.startswith("/"):
        return Source(target, "file", git_local.look_at(target, rules.roots))
    if scp := SCP_SHAPE.fullmatch(target):
        return checked(f"ssh://{scp['user']}{scp['host']}/{scp['path']}", rules)
    shape = URL_SHAPE.fullmatch(target)
    if shape is None or re.match(r"[A-Za-z0-9+.-]+::", target):
        raise UnreachableRepo(f'"{shown}" is not accepted as a repo. {accepted}')
    if shape["scheme"] not in rules.schemes:
        raise UnreachableRepo(f'"{shown}" is not accepted: {shape["scheme"]}:// is not allowed here. {accepted}')
    _check_host(target, shown)
    return Source(target, shape["scheme"])


def _check_host(target: str, shown: str) -> None:
    try:
        parts = urlsplit(target)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise UnreachableRepo(f'"{shown}" is not accepted: its host or port is malformed.') from None
    if not host or host.startswith("-") or not re.fullmatch(r"[A-Za-z0-9._:-]+", host):
        raise UnreachableRepo(f'"{shown}" is not accepted: its host is missing or malformed.')
    if parts.password is not None or (parts.username is not None and parts.scheme != "ssh"):
        raise UnreachableRepo(
            f'"{parts.scheme}://...@{host}" carries credentials. Give the URL without them; '
            "for private repos set up an ssh key (LAMPLIGHTER_GIT_SSH_KEY)."
        )
    if parts.username is not None and not re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*", parts.username):
        raise UnreachableRepo(f'"{shown}" is not accepted: its user name is malformed.')


def check_ref(ref: str) -> None:
    """Raise `UnknownRef` for what cannot be a branch, tag or commit id."""
    if len(ref) > 250 or REF_FORBIDDEN.search(ref):
        raise UnknownRef(f'"{printable(ref, 300)}" cannot be a branch, tag or commit id.')
