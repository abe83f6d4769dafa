"""Whether installations can reach the package index from a sandbox, and which settings would make it so.

A machine behind a mirror or a company's CA installs happily itself, because its own pip is configured
for that. Sandboxes have none of it: with the defaults every installation is refused by the egress
proxy, or meets a certificate that it does not trust. So the way is tried once, under the very rules of
the egress proxy, and where it is barred this host's own pip configuration is translated into settings.
"""

import ast
import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests

from orchestrator.sandbox import egress
from orchestrator.sandbox.contract import SandboxError
from orchestrator.settings import Settings

PUBLIC_INDEX = "https://pypi.org/simple"
ASKED_FOR = "pip"  # the project whose page shows where an index keeps its files
PATIENCE_S = 10.0
LARGEST_PAGE = 1 << 20
SYSTEM_CERTIFICATES = (  # where distributions keep those that the administrator trusts
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
# pip's options that say where packages come from, and which of them it may take; handed on as PIP_ variables.
PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]*@")
HANDED_ON = ("extra-index-url", "find-links", "default-timeout", "constraint")


@dataclass(frozen=True, slots=True)
class Way:
    """How far the way to the package index goes."""

    index: str
    problem: str = ""  # why it ends before the index; empty: it is open
    untrusted: bool = False  # it ends at a certificate

    @property
    def open(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True)
class Advice:
    """Settings with which this host's own pip works, where they differ from what is set."""

    settings: dict[str, Any]  # by name, as config.toml takes them
    notes: tuple[str, ...] = ()  # what could not be taken over

    @property
    def lines(self) -> tuple[str, ...]:
        """As lines of config.toml."""
        return tuple(f"{name} = {as_toml(value)}" for name, value in self.settings.items())


# Trying the way ----------------------------------------------------------------------------


def try_way(settings: Settings) -> Way:
    """Ask the index for one page, and look where its files are kept; takes some seconds at most. Never raises."""
    index = settings.pip_index or PUBLIC_INDEX
    try:
        rules = egress.rules(settings.egress_hosts, settings.egress_allow_ranges, settings.pip_index)
        proxy = egress.Proxy(rules, most_bytes=LARGEST_PAGE)
        authority = trusted(settings)
        page = fetch(proxy, f"{index.rstrip('/')}/{ASKED_FOR}/", authority)
        for host, port in file_hosts(index, page):
            connect(proxy, host, port, authority).close()
    except Untrusted as problem:
        return Way(index, str(problem), untrusted=True)
    except (egress.Refused, Unreached, SandboxError) as problem:
        return Way(index, str(problem))
    except ValueError as error:
        return Way(index, f"LAMPLIGHTER_PIP_INDEX: {index!r} is no address of a package index: {error}")
    return Way(index)


class Unreached(Exception):
    """The way ends somewhere; the text says where."""


class Untrusted(Unreached):
    """It ends at a certificate."""


def trusted(settings: Settings) -> ssl.SSLContext:
    """What programs in a sandbox trust: the configured file, else what pip brings along."""
    file = settings.sandbox_ca_file or requests.certs.where()
    try:
        return ssl.create_default_context(cafile=str(file))
    except OSError as error:
        raise Unreached(f"LAMPLIGHTER_SANDBOX_CA_FILE: {file} cannot be used: {error}") from None


def fetch(proxy: egress.Proxy, url: str, authority: ssl.SSLContext, *, redirects: int = 3) -> str:
    """The page's text; nothing where the index lacks the page. Raises `Refused`, `Unreached`."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise Unreached(f"the package index {url} has no https address, and the egress proxy carries nothing else")
    lines = (
        f"GET {parts.path or '/'}{'?' if parts.query else ''}{parts.query} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "Accept: text/html",
        "Connection: close",
    )
    with connect(proxy, parts.hostname, parts.port or egress.HTTPS, authority) as connection:
        try:
            connection.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode())
            answer = HTTPResponse(connection)
            answer.begin()
            body = answer.read(LARGEST_PAGE)
        except (OSError, HTTPException) as error:
            raise Unreached(f"{parts.hostname} does not answer: {error}") from None
    if answer.status in (301, 302, 303, 307, 308) and redirects:
        return fetch(proxy, urljoin(url, answer.headers.get("Location", "")), authority, redirects=redirects - 1)
    if answer.status in (401, 403, 407) or answer.status >= 500:
        raise Unreached(f"{parts.hostname} answers {answer.status} {answer.reason} for {parts.path}")
    return body.decode(errors="replace") if answer.status == 200 else ""


def connect(proxy: egress.Proxy, host: str, port: int, authority: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection as a sandbox would get it. Raises `Refused`, `Unreached`."""
    proxy.rules.check_name(host, port)
    try:
        plain = proxy.connect(host, port, timeout_s=PATIENCE_S)
    except OSError as error:
        raise Unreached(f"{host}:{port} cannot be reached directly: {error}") from None
    plain.settimeout(PATIENCE_S)
    try:
        return authority.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise Untrusted(
            f"{host} shows a certificate that nobody trusts in a sandbox: {error.verify_message} "
            "(name your CA's file by LAMPLIGHTER_SANDBOX_CA_FILE)"
        ) from None
    except OSError as error:
        plain.close()
        raise Unreached(f"{host}:{port} does not speak TLS: {error}") from None


def file_hosts(index: str, page: str) -> list[tuple[str, int]]:
    """Where else than at the index itself its files are kept."""
    places = (urlsplit(link) for link in re.findall(r'href="(https://[^"]+)"', page))
    found = {(place.hostname, place.port or egress.HTTPS) for place in places if place.hostname}
    return sorted(place for place in found if place[0] != urlsplit(index).hostname)


# This host's own pip -----------------------------------------------------------------------


def advise(settings: Settings) -> Advice:
    """This host's own pip configuration as settings, as far as they are not set that way yet."""
    wanted, notes = translated(pip_configuration(), settings)
    advice = Advice(
        {name: value for name, value in wanted.items() if value != as_given(getattr(settings, name))}, notes
    )
    if settings.sandbox_ca_file or "sandbox_ca_file" in wanted or not try_way(with_advice(settings, advice)).untrusted:
        return advice
    # A recent pip trusts what the system trusts, without being told.
    file = next((file for file in SYSTEM_CERTIFICATES if Path(file).is_file()), "")
    return Advice({**advice.settings, **({"sandbox_ca_file": file} if file else {})}, notes)


def with_advice(settings: Settings, advice: Advice) -> Settings:
    """The settings that would result."""
    return Settings(**(settings.model_dump() | advice.settings))


def translated(config: dict[str, str], settings: Settings) -> tuple[dict[str, Any], tuple[str, ...]]:
    """pip's options as settings of ours, and what cannot be taken over."""
    found: dict[str, Any] = {}
    shared = {name: value for name, value in config.items() if not PASSWORD.search(value)}
    notes = [
        f"{name} of pip carries a password, which reviewed code could read: it is left out"
        for name in ("index-url", *HANDED_ON)
        if name in config and name not in shared
    ]
    if "proxy" in config:
        notes.append("pip goes through an HTTP proxy; the egress proxy of reviews connects directly")
    if "index-url" in shared:
        found["pip_index"] = shared["index-url"]
    if authority := certificate_file(config):
        found["sandbox_ca_file"] = authority
    handed_on = {name: shared[name] for name in HANDED_ON if name in shared}
    taken = {pair.partition("=")[0] for pair in settings.sandbox_env}
    variables = {f"PIP_{name.upper().replace('-', '_')}": value for name, value in handed_on.items()}
    found["sandbox_env"] = merged(
        settings.sandbox_env, (f"{name}={value}" for name, value in variables.items() if name not in taken)
    )
    words = [word for value in handed_on.values() for word in value.split()]
    found["sandbox_mounts"] = merged(settings.sandbox_mounts, (f"{place}:{place}" for place in local_places(words)))
    index = urlsplit(shared.get("index-url") or settings.pip_index or PUBLIC_INDEX).hostname or ""
    others = [urlsplit(word).hostname or "" for word in words if word.startswith("https://")]
    hosts = merged(settings.egress_hosts, (host for host in others if host and host != index))
    found["egress_hosts"] = hosts
    found["egress_allow_ranges"] = merged(settings.egress_allow_ranges, not_public((index, *hosts), settings))
    return found, tuple(notes)


def pip_configuration() -> dict[str, str]:
    """pip's own options for this user on this machine; several values of one are parted by spaces."""
    command = [sys.executable, "-m", "pip", "config", "list", "--disable-pip-version-check"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}  # later ones win
    for line in said.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in sections:
            sections[section][option] = " ".join(str(literal(value)).split())
    return sections["global"] | sections["install"] | sections[":env:"]


def literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def certificate_file(config: dict[str, str]) -> str:
    """The file of certificates that pip was told to trust here; "" for none."""
    named = config.get("cert") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or ""
    return named if Path(named).is_file() else ""


def local_places(words: Iterable[str]) -> list[str]:
    """Folders and files that pip reads here. An index's files lie beside it, so its parent folder is meant."""
    found = [str(Path(urlsplit(word).path).parent) if word.startswith("file://") else word for word in words]
    return [place for place in dict.fromkeys(found) if place.startswith("/") and Path(place).exists()]


def not_public(hosts: Iterable[str], settings: Settings) -> list[str]:
    """Addresses of these hosts that the egress proxy refuses so far."""
    rules = egress.rules((), settings.egress_allow_ranges)
    refused = []
    for host in dict.fromkeys(hosts):
        with suppress(OSError):
            for address in egress.addresses(host.partition(":")[0], egress.HTTPS):
                try:
                    rules.check_address(host, address)
                except egress.Refused:
                    refused.append(address.partition("%")[0])
    return sorted(set(refused))


def merged(have: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*have, *more)))


def as_given(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def as_toml(value: Any) -> str:
    """A string or a list of strings; JSON's escapes are TOML's, too."""
    return json.dumps(list(value) if isinstance(value, tuple) else str(value))
