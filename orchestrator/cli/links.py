"""The ways between the parts, each tried to its end, and what is wrong with one in words that say what to do."""

import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpx
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from orchestrator import wiring
from orchestrator.settings import Settings
from orchestrator.store import machines, migrate
from orchestrator.store.session import Sessions, make_engine

CONNECT_S, TOKEN_S = 4.0, 90.0
CLOCKS_APART_S = 30.0


@dataclass(frozen=True, slots=True)
class Checked:
    """One look. `ok` is None where it is only worth knowing."""

    thing: str
    ok: bool | None
    said: str


def way_to(url: str) -> str:
    """Why there is no connection to the URL's host and port, or empty."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or {"https": 443, "redis": 6379, "rediss": 6379}.get(parts.scheme, 80)
    try:
        socket.getaddrinfo(host, port)
    except (OSError, UnicodeError):
        return f"the name {host!r} is not known here. Look for a mistyped name, or use the machine's address."
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except ConnectionRefusedError:
        return (
            f"{host} is there, but nothing listens on port {port}. Is the service started, and does it listen on an "
            "address that this machine reaches (not on 127.0.0.1)?"
        )
    except TimeoutError:
        return f"{host} port {port} does not answer: a firewall, another network, or the machine is off."
    except OSError as error:
        return f"there is no way to {host} port {port}: {error.strerror or error}."
    return ""


# Database ----------------------------------------------------------------------------------


def check_database(settings: Settings) -> Iterator[Checked]:
    """That it answers, is at our revision, takes rows, and has our time."""
    kind = "SQLite" if settings.database.startswith("sqlite") else "PostgreSQL"
    sessions = Sessions(make_engine(settings.database))
    try:
        migrate.require_current(sessions.engine)
        with sessions.begin() as db:
            machines.report(db, "doctor", datetime.now(UTC))
            db.flush()
            there = None if kind == "SQLite" else db.execute(text("SELECT now()")).scalar()
            db.rollback()
    except migrate.SchemaError as error:
        yield Checked("database", None if kind == "SQLite" else False, f"{kind}: {error}")
        return
    except SQLAlchemyError as error:
        said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        yield Checked("database", False, f"{kind} does not answer: {said}{database_hint(said)}")
        return
    finally:
        sessions.close()
    yield Checked("database", True, f"{kind}, up to date")
    if isinstance(there, datetime):
        yield from clocks("the database's machine", there)


def database_hint(said: str) -> str:
    for sign, hint in (
        ("password authentication failed", "The password in LAMPLIGHTER_DATABASE_PASSWORD_FILE is not the server's."),
        ("no password supplied", "Set LAMPLIGHTER_DATABASE_PASSWORD_FILE."),
        ("translate host name", "The host's name in LAMPLIGHTER_DATABASE_URL is not known here."),
        ("resolve host", "The host's name in LAMPLIGHTER_DATABASE_URL is not known here."),
        ("refused", "Is the server started, and does it listen on an address that this machine reaches?"),
        ("timeout", "A firewall, another network, or the machine is off."),
        ("no pg_hba.conf entry", "The server does not let this machine in: add it to pg_hba.conf."),
        ("does not exist", "Make the database and its user, or correct LAMPLIGHTER_DATABASE_URL."),
    ):
        if sign in said:
            return f". {hint}"
    return ". Look at LAMPLIGHTER_DATABASE_URL."


def clocks(whose: str, there: datetime) -> Iterator[Checked]:
    apart = abs((datetime.now(UTC) - there.astimezone(UTC)).total_seconds())
    if apart > CLOCKS_APART_S:
        words = f"the clock of {whose} and this one are {apart:.0f} s apart. Let both be set by NTP."
        yield Checked("clock", False, words)


# Broker ------------------------------------------------------------------------------------


def check_broker(settings: Settings) -> Iterator[Checked]:
    """That it answers, takes our password, and never throws messages away to save memory."""
    if settings.broker.startswith("filesystem:"):
        yield Checked("broker", True, "files in the data folder")
        return
    shown = urlsplit(settings.broker)
    if problem := way_to(settings.broker):
        yield Checked("broker", False, problem)
        return
    if shown.scheme not in ("redis", "rediss"):
        yield Checked("broker", True, f"{shown.scheme} at {shown.hostname} listens")
        return
    import redis

    client = redis.Redis.from_url(settings.broker, socket_timeout=CONNECT_S, socket_connect_timeout=CONNECT_S)
    try:
        client.ping()
        policy = client.info("memory").get("maxmemory_policy", "noeviction")  # type: ignore[union-attr]
    except redis.AuthenticationError as error:
        words = f"Redis does not take the password ({error}). Look at LAMPLIGHTER_BROKER_PASSWORD_FILE."
        yield Checked("broker", False, words)
        return
    except redis.RedisError as error:
        yield Checked("broker", False, f"Redis does not answer: {error}. Look at LAMPLIGHTER_BROKER_URL.")
        return
    finally:
        client.close()
    if policy != "noeviction":
        words = f"Redis may throw messages away (maxmemory-policy {policy}); set it to noeviction."
        yield Checked("broker", False, words)
        return
    yield Checked("broker", True, "Redis answers and keeps what it is given")


# Engine and worker -------------------------------------------------------------------------


def check_engine(settings: Settings) -> Iterator[Checked]:
    """That the container engine answers this process, by whatever stands between."""
    url = settings.docker_url or "unix:///var/run/docker.sock"
    if not url.startswith("unix://"):
        problem = way_to(url.replace("tcp://", "http://", 1))
        yield Checked("engine", not problem, problem or f"{url} listens")
        return
    path = url.removeprefix("unix://")
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), timeout=CONNECT_S) as http:
            answer = http.get("http://engine/version")
    except httpx.HTTPError as error:
        yield Checked("engine", False, f"nothing answers at {path}: {error}. {engine_hint(str(error))}")
        return
    if answer.status_code != 200:
        yield Checked("engine", False, f"{path} answered {answer.status_code}: {answer.text[:200].strip()}")
        return
    yield Checked("engine", True, f"version {answer.json().get('Version', 'unknown')} at {path}")


def engine_hint(said: str) -> str:
    if "Permission denied" in said:
        return (
            "This user may not use it. Better than adding it to the engine's group: a rootless engine or engine-proxy."
        )
    return "Is the engine (or engine-proxy) started?"


def check_alive(settings: Settings) -> Iterator[Checked]:
    """For the worker's health check: this machine's worker has reported of late."""
    machine = wiring.machine_id(settings)
    sessions = Sessions(make_engine(settings.database))
    try:
        with sessions.reading() as db:
            alive = machine in machines.heard_of_since(db, datetime.now(UTC) - machines.SILENT_AFTER)
    except SQLAlchemyError as error:
        yield Checked("worker", False, f"the database does not say: {error}")
        return
    finally:
        sessions.close()
    words = f"has {'reported within' if alive else 'not reported for'} {machines.SILENT_AFTER.seconds // 60} minutes"
    yield Checked("worker", alive, f"machine {machine} {words}")


# Web ---------------------------------------------------------------------------------------


def check_web(settings: Settings) -> Iterator[Checked]:
    """What the pages answer here. That nobody serves any is no fault: they may be another machine's."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    url = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}/health/ready"
    try:
        answer = httpx.get(url, timeout=CONNECT_S, trust_env=False)
    except httpx.ConnectError:
        yield Checked("web", None, f"nobody serves pages at {host} port {settings.port}")
        return
    except httpx.HTTPError as error:
        yield Checked("web", False, f"{url} does not answer: {error or type(error).__name__}")
        return
    try:
        problem = str(answer.json().get("problem", ""))
        status = str(answer.json()["status"])
    except (ValueError, KeyError, AttributeError):
        yield Checked("web", False, f"something else than Lamplighter listens at {host} port {settings.port}")
        return
    yield Checked(
        "web", status == "ok", problem or f"answers at {host} port {settings.port}, and its database answers it"
    )


# Node --------------------------------------------------------------------------------------


def check_node(settings: Settings) -> Iterator[Checked]:
    """From its name to its first token: what each look needs is looked at before."""
    url = settings.model_url
    if not url or url.startswith(wiring.RECORDING):
        said = "is a recording" if url else "none is configured: reviews are evidence only (LAMPLIGHTER_MODEL_URL)"
        yield Checked("node", None, said)
        return
    if problem := way_to(url):
        yield Checked("node", False, f"{url}: {problem}")
        return
    base = url.rstrip("/").removesuffix("/v1").rstrip("/")
    key = wiring.model_key(settings)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=base, headers=headers, timeout=CONNECT_S, trust_env=False) as http:
        try:
            listed = http.get("/v1/models")
        except httpx.HTTPError as error:
            yield Checked("node", False, f"{url}: {tls_words(error)}")
            return
        if listed.status_code in (401, 403):
            have = "does not take the key in" if key else "wants a key; set"
            yield Checked("node key", False, f"{url} {have} LAMPLIGHTER_MODEL_KEY_FILE ({listed.status_code}).")
            return
        try:
            models = [str(one["id"]) for one in listed.raise_for_status().json()["data"]]
        except (httpx.HTTPStatusError, ValueError, KeyError, TypeError):
            words = f"{base}/v1/models answered {listed.status_code} and no list of models."
            yield Checked("node", False, f"{words} Is that the right port and path?")
            return
        yield Checked("node", True, f"{url} answers, with models {', '.join(models[:5]) or '(none)'}")
        if date := listed.headers.get("date"):
            yield from clocks("the node", parsedate_to_datetime(date))
        wanted = settings.model_name or (models[0] if models else "")
        if wanted not in models:
            yield Checked(
                "model", False, f"LAMPLIGHTER_MODEL_NAME is {wanted!r}, the node has {', '.join(models) or 'none'}."
            )
            return
        yield first_token(http, wanted)


def first_token(http: httpx.Client, model: str) -> Checked:
    """A list of models is no proof: it is there while weights load, and while the only slot is taken."""
    asked = {"model": model, "messages": [{"role": "user", "content": "Say: yes"}], "max_tokens": 1, "stream": False}
    began = time.monotonic()
    try:
        answer = http.post("/v1/chat/completions", json=asked, timeout=TOKEN_S)
    except httpx.TimeoutException:
        return Checked("model", False, f"{model} gave no token within {TOKEN_S:.0f} s: it is busy, loading, or stuck.")
    except httpx.HTTPError as error:
        return Checked("model", False, f"the connection broke while {model} was asked: {tls_words(error)}")
    seconds = time.monotonic() - began
    if answer.status_code == 503:
        return Checked("model", False, f"{model} is not ready yet (503): {answer.text[:200].strip()}")
    if answer.status_code != 200 or "choices" not in answer.text:
        return Checked("model", False, f"{model} answered {answer.status_code}: {answer.text[:300].strip()}")
    return Checked("model", True, f"{model} gave a token in {seconds:.1f} s")


def tls_words(error: Exception) -> str:
    said = str(error) or type(error).__name__
    if isinstance(error.__cause__, ssl.SSLError) or "SSL" in said or "CERTIFICATE" in said:
        if "CERTIFICATE_VERIFY_FAILED" in said:
            return f"its certificate is not trusted here ({said}). Trust its CA (SSL_CERT_FILE), or use its own name."
        return f"no TLS is spoken there ({said}). Should the address begin with http:// ?"
    if "disconnected" in said or "reset" in said or "protocol" in said.lower():
        return f"it closed the connection ({said}). Should the address begin with https:// ?"
    return f"it does not answer: {said}"
