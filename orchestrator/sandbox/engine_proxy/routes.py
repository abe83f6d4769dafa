"""Which requests there are: a method, a path, a query, and what must be true of the thing that the path names."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode

from orchestrator.sandbox.box import BASE, VENV
from orchestrator.sandbox.engine_proxy import schema
from orchestrator.sandbox.engine_proxy.schema import Policy
from orchestrator.sandbox.engine_proxy.wire import Head, Refused, query_of

VERSION = re.compile(r"/v1\.\d{1,3}(?=/)")
THING = r"([A-Za-z0-9][A-Za-z0-9_.-]{0,254})"
Body = Callable[[Policy, bytes], dict[str, Any] | None]
Query = Callable[[Policy, Mapping[str, str]], dict[str, str]]


class Owned(StrEnum):
    """What kind of thing the path names; it must have been made through this proxy."""

    NOTHING = "nothing"
    CONTAINER = "container"
    UNSTARTED = "container that has not started"  # nothing inside can lay a link where an archive goes
    VOLUME = "volume"
    EXEC = "exec"
    IMAGE = "image"  # not made, but named by the settings


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    owned: Owned = Owned.NOTHING
    body: Body = schema.nothing
    query: Query = field(default=lambda policy, given: no_query(given))
    streams: bool = False  # the body is an archive, passed on piece by piece
    upgrades: bool = False  # the connection becomes the command's stdin and stdout


@dataclass(frozen=True)
class Matched:
    route: Route
    version: str  # "/v1.41", or empty
    path: str
    query: str  # made anew, with its question mark
    name: str  # of the thing


def no_query(given: Mapping[str, str]) -> dict[str, str]:
    if given:
        raise Refused(f"the query has {', '.join(given)}, which this request does not take")
    return {}


def create_query(_policy: Policy, given: Mapping[str, str]) -> dict[str, str]:
    if list(given) != ["name"] or not schema.NAME.fullmatch(given["name"]):
        raise Refused("a container must have a name of ours, and no platform")
    return {"name": given["name"]}


def list_query(policy: Policy, given: Mapping[str, str]) -> dict[str, str]:
    """All of ours, in the engine's order: limits and sizes are not needed."""
    unknown = given.keys() - {"all", "limit", "size", "trunc_cmd", "filters"}
    if unknown:
        raise Refused(f"the query has {', '.join(sorted(unknown))}, which this request does not take")
    all_of_them = {"all": "1"} if "all" in given else {}
    return {**all_of_them, "filters": schema.own_filters(policy, given.get("filters", ""))}


def volumes_query(policy: Policy, given: Mapping[str, str]) -> dict[str, str]:
    if given.keys() - {"filters"}:
        raise Refused("the query may have filters only")
    return {"filters": schema.own_filters(policy, given.get("filters", ""))}


def remove_query(_policy: Policy, given: Mapping[str, str]) -> dict[str, str]:
    """With its anonymous volumes and at once; never a link between containers."""
    if given.keys() - {"v", "force", "link"} or given.get("link", "False") not in ("False", "false", "0"):
        raise Refused("the query may have v and force only")
    return {"v": "1", "force": "1"}


def force_query(_policy: Policy, given: Mapping[str, str]) -> dict[str, str]:
    if given.keys() - {"force"}:
        raise Refused("the query may have force only")
    return {"force": "1"}


def archive_query(_policy: Policy, given: Mapping[str, str]) -> dict[str, str]:
    if list(given) != ["path"] or given["path"] not in (BASE, VENV):
        raise Refused(f"archives go to {BASE} and {VENV} only")
    return {"path": given["path"]}


ROUTES = (
    Route("GET", "/_ping"),
    Route("HEAD", "/_ping"),
    Route("GET", "/version"),
    Route("GET", r"/images/([A-Za-z0-9][A-Za-z0-9._/:@-]{0,254})/json", Owned.IMAGE),
    Route("GET", "/containers/json", query=list_query),
    Route("POST", "/containers/create", body=schema.container, query=create_query),
    Route("GET", f"/containers/{THING}/json", Owned.CONTAINER),
    Route("POST", f"/containers/{THING}/start", Owned.CONTAINER),
    Route("DELETE", f"/containers/{THING}", Owned.CONTAINER, query=remove_query),
    Route("PUT", f"/containers/{THING}/archive", Owned.UNSTARTED, query=archive_query, streams=True),
    Route("POST", f"/containers/{THING}/exec", Owned.CONTAINER, body=schema.exec_create),
    Route("POST", r"/exec/([0-9a-f]{64})/start", Owned.EXEC, body=schema.exec_start, upgrades=True),
    Route("GET", r"/exec/([0-9a-f]{64})/json", Owned.EXEC),
    Route("GET", "/volumes", query=volumes_query),
    Route("POST", "/volumes/create", body=schema.volume),
    Route("GET", f"/volumes/{THING}", Owned.VOLUME),
    Route("DELETE", f"/volumes/{THING}", Owned.VOLUME, query=force_query),
)


def match(policy: Policy, head: Head) -> Matched:
    """The route of a request. Raises `Refused` when there is none, or when its query is not one of it."""
    path, given = query_of(head.target)
    version = VERSION.match(path)
    prefix = version[0] if version else ""
    path = path.removeprefix(prefix)
    for route in ROUTES:
        found = re.fullmatch(route.path, path)
        if found and route.method == head.method:
            made = urlencode(route.query(policy, given))
            return Matched(route, prefix, path, f"?{made}" if made else "", found[1] if found.groups() else "")
    raise Refused(f"{head.method} {path} is nothing that a sandbox needs")
