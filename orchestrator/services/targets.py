"""What may be reviewed: a git URL or a local folder, checked before anything is asked of the outside."""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from orchestrator.services.errors import BadInput, BadTarget
from orchestrator.settings import Settings
from orchestrator.store.repos import RepoKind

LONGEST_TARGET = 2000  # characters; also keeps it below what an index of PostgreSQL can hold
LONGEST_REF = 250
LONGEST_LABEL = 63  # of a host name, says DNS
DEFAULT_PORTS = {"https": 443, "http": 80, "ssh": 22}
PATH_SAFE = "/%:@!$&'()*+,;=~"  # what may stand in a path as it is, and what was encoded already
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
HELPER = re.compile(r"[A-Za-z0-9+.-]*::")  # git runs a program of that name
# user@host:path, as git writes ssh addresses; host:path alone is a file name as often.
SCP_LIKE = re.compile(r"(?P<user>[A-Za-z0-9_][A-Za-z0-9_.-]*)@(?P<host>[^/:@\[\]]+):(?P<path>[^:].*)")
HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_.])?")
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# What git itself forbids in a ref, and a leading dash, which would be an option.
BAD_REF = re.compile(r"^-|[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^/|/$|\.$|(?:^|/)\.|\.lock(?:/|$)|^@$")


@dataclass(frozen=True, slots=True)
class Target:
    """A checked target, written in one way however it was typed."""

    url: str  # https or ssh URL, or an absolute folder
    kind: RepoKind
    name: str

    @property
    def spellings(self) -> tuple[str, ...]:
        """URLs that name the same repo: with and without `.git`."""
        if self.kind is RepoKind.PATH:
            return (self.url,)
        return (self.url, self.url.removesuffix(".git") if self.url.endswith(".git") else f"{self.url}.git")


def parse_target(text: str, *, settings: Settings, from_cli: bool, resolve: Callable[[str], tuple[str, ...]]) -> Target:
    """The target that the text names. Raises `BadTarget` with what is accepted instead."""
    text = text.strip(" \t\r\n")
    accepted = f"Give {in_words(settings)}."
    if not text:
        raise BadTarget("target", f"No repository was named. {accepted}")
    if len(text) > LONGEST_TARGET:
        raise BadTarget("target", f"The target has {len(text)} characters; at most {LONGEST_TARGET} are accepted.")
    if CONTROL.search(text) or not encodable(text):
        raise BadTarget("target", f"The target holds control characters or bytes that are no text. {accepted}")
    if text.startswith("-"):
        raise BadTarget("target", f"“{text}” looks like an option, not like a repository. {accepted}")
    if HELPER.match(text):
        raise BadTarget("target", f"“{text}” would make git run a helper program, which is never done. {accepted}")
    if (scp := SCP_LIKE.fullmatch(text)) and "://" not in text:
        text = f"ssh://{scp['user']}@{scp['host']}/{scp['path'].lstrip('/')}"
    if SCHEME.match(text):
        return parse_url(text, settings, resolve, accepted)
    return parse_folder(text, settings, from_cli, accepted)


def in_words(settings: Settings) -> str:
    """What is accepted here."""
    schemes = " or ".join(f"{scheme}://" for scheme in settings.git_schemes)
    return f"a URL that begins with {schemes}, or the full path of a folder on this machine"


def parse_url(text: str, settings: Settings, resolve: Callable[[str], tuple[str, ...]], accepted: str) -> Target:
    scheme = text.partition("://")[0].lower()
    allowed = {one.lower() for one in settings.git_schemes} - {"file", "ext"}
    try:
        parts = urlsplit(text)
        host, port = ascii_host(parts.hostname or ""), parts.port
    except ValueError:
        raise BadTarget("target", f"“{without_credentials(text)}” is not a URL that can be read. {accepted}") from None
    if parts.password is not None or (parts.username is not None and scheme != "ssh"):
        raise BadTarget(
            "target",
            f"The URL of {host or 'the repository'} carries a user name or password, which would be stored and shown. "
            "Use the URL without them, and for private repositories ssh with a key (LAMPLIGHTER_GIT_SSH_KEY, "
            "LAMPLIGHTER_GIT_SCHEMES).",
        )
    if scheme not in allowed:
        hint = " (LAMPLIGHTER_GIT_SCHEMES=https,ssh accepts it)" if scheme == "ssh" else ""
        raise BadTarget("target", f"URLs with {scheme}:// are not accepted here{hint}. {accepted}")
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise BadTarget("target", "The URL has a “?” or “#” part, which no repository needs. Use the URL without it.")
    if not (HOST.fullmatch(host) and max(map(len, host.split("."))) <= LONGEST_LABEL) and not is_address(host):
        raise BadTarget("target", f"The URL names no proper host (found “{host}”). {accepted}")
    if parts.username is not None and not USER.fullmatch(parts.username):
        raise BadTarget("target", f"The user name of the URL is malformed (found “{parts.username}”). {accepted}")
    if CONTROL.search(unquote(parts.path)) or not parts.path.strip("/"):
        raise BadTarget("target", f"The URL names no repository on {host}. {accepted}")
    refuse_private(host, settings, resolve)
    place = f"[{host}]" if ":" in host else host
    if port not in (None, DEFAULT_PORTS.get(scheme)):
        place = f"{place}:{port}"
    if parts.username:
        place = f"{parts.username}@{place}"
    path = quote(parts.path.rstrip("/"), safe=PATH_SAFE)
    return Target(urlunsplit((scheme, place, path, "", "")), RepoKind.GIT, name_of(path))


def parse_folder(text: str, settings: Settings, from_cli: bool, accepted: str) -> Target:
    if not from_cli and not text.startswith("/"):
        raise BadTarget("target", f"“{text}” is neither a URL nor a full path. {accepted}")
    try:
        folder = (Path(text).expanduser() if from_cli else Path(text)).resolve()
        folder = folder.parent if folder.name == ".git" else folder  # what people mean by it
        if not from_cli:
            refuse_outside(folder, settings)
        is_folder, is_file = folder.is_dir(), folder.is_file()
    except (OSError, RuntimeError):  # a loop of links, a name too long, no such user for ~
        raise BadTarget("target", f"The path “{text}” cannot be followed to a folder.") from None
    if not is_folder:
        hint = "" if from_cli and text.startswith(("/", ".", "~")) else f" {accepted}"
        what = f"“{folder}” is a file; name the folder of its repo." if is_file else f"There is no folder “{folder}”."
        raise BadTarget("target", f"{what}{hint}")
    if CONTROL.search(str(folder)) or not encodable(str(folder)) or len(str(folder)) > LONGEST_TARGET:
        raise BadTarget(
            "target", "The folder's path holds control characters or bytes that are no text, or is too long."
        )
    return Target(str(folder), RepoKind.PATH, folder.name or "root")


def refuse_outside(folder: Path, settings: Settings) -> None:
    """The same message whether it exists or not, so that nobody can feel their way through the disk."""
    roots = [Path(root).resolve() for root in settings.allowed_roots]
    if not any(folder.is_relative_to(root) for root in roots):
        below = ", ".join(settings.allowed_roots) or "none is configured (LAMPLIGHTER_ALLOWED_ROOTS)"
        raise BadTarget("target", f"“{folder}” is not below a folder that reviews may be asked for here: {below}.")


def refuse_private(host: str, settings: Settings, resolve: Callable[[str], tuple[str, ...]]) -> None:
    """Refuse hosts inside the operator's network, or the form would be a way into it.

    What connects later resolves again and checks again; this is for the message, and for clients
    that do not go through the proxy.
    """
    allowed = [ipaddress.ip_network(one, strict=False) for one in settings.egress_allow_ranges]
    for found in (host,) if is_address(host) else resolve(host):
        address = ipaddress.ip_address(found.partition("%")[0])
        inner = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None) or address
        public = inner.is_global and not inner.is_multicast and not inner.is_reserved
        if not public and not any(one in network for one in {address, inner} for network in allowed):
            raise BadTarget(
                "target",
                f"{host} is in a private or reserved range ({inner}), which is refused. "
                "The operator can allow the range with LAMPLIGHTER_EGRESS_ALLOW_RANGES.",
            )


def parse_ref(text: str) -> str:
    """A branch, tag or commit; empty for the default branch."""
    ref = text.strip(" \t\r\n")
    if ref and (BAD_REF.search(ref) or CONTROL.search(ref) or not encodable(ref) or len(ref) > LONGEST_REF):
        shown = CONTROL.sub("?", ref[:80]).encode("utf-8", "replace").decode()
        raise BadInput("ref", f"“{shown}” cannot be the name of a branch, tag or commit.")
    return ref


def ascii_host(host: str) -> str:
    """The host as it is looked up. Raises `ValueError` (as `UnicodeError`) for what has no such form."""
    return host if host.isascii() else host.encode("idna").decode("ascii")


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def without_credentials(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def name_of(path: str) -> str:
    return unquote(path).rstrip("/").rpartition("/")[2].removesuffix(".git") or "repository"


def encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
