"""What the bodies of requests may say. Each function returns a body made anew of what it understood.

Two readers of one JSON text can disagree: Go takes the last of two equal keys and ignores their case.
So keys that are equal but for their case are refused, as is every key that is not listed here with a
value; a listed key without one (null, false, 0, empty) is left out, which is the engine's default.
What must hold (no network, no capabilities, limits) is required, not only allowed.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.sandbox.box import BASE, INSIDE, JOB, OPEN_FILES, STEP_UID, VENV, operator_mounts
from orchestrator.sandbox.docker import ATTEMPT, INSTANCE, REVIEW, SLEEPER_UID, STEP, STEP_USER
from orchestrator.sandbox.engine_proxy.wire import Refused
from orchestrator.settings import Settings

OWNER = "lamplighter.engine-proxy"  # the label that only the proxy sets: made through it, so ours to touch
NAME = re.compile(r"lamplighter\.[A-Za-z0-9][A-Za-z0-9_.-]{0,200}")
LABEL_VALUE = re.compile(r"[A-Za-z0-9_.:/@-]{1,200}")
TMPFS_PLACES = (JOB, "/tmp", "/home", INSIDE)
TMPFS_OPTIONS = re.compile(rf"rw,exec,nosuid,nodev,size=(\d{{1,14}}),(?:uid={STEP_UID},gid={STEP_UID}|mode=1777)")
CPUS = re.compile(r"\d{1,4}(?:[,-]\d{1,4})*")
ULIMITS = {"core": 0, "nofile": OPEN_FILES, "nproc": OPEN_FILES}
Check = Callable[[Any], Any]


@dataclass(frozen=True)
class Policy:
    """What the operator's settings allow."""

    owner: str
    images: frozenset[str]
    runtime: str
    mounts: frozenset[tuple[str, str]]  # the operator's own, (host, inside), read-only
    memory_bytes: int
    pids: int
    scratch_bytes: int
    archive_bytes: int


def policy_of(settings: Settings, owner: str) -> Policy:
    return Policy(
        owner=owner,
        images=frozenset((settings.sandbox_image, *settings.sandbox_images)),
        runtime=settings.sandbox_runtime,
        mounts=frozenset(operator_mounts(settings)),
        memory_bytes=settings.sandbox_memory_bytes,
        pids=settings.sandbox_pids,
        scratch_bytes=settings.sandbox_scratch_bytes,
        archive_bytes=2 * settings.max_repo_bytes,
    )


def container(policy: Policy, body: bytes) -> dict[str, Any]:
    """The body of a container's creation."""
    return fitted(
        "the container",
        parsed(body),
        {
            "Hostname": equal("sandbox"),
            "User": equal(f"{SLEEPER_UID}:{SLEEPER_UID}"),
            "Entrypoint": equal(["/bin/sleep"]),
            "Cmd": equal(["infinity"]),
            "Image": one_of(policy.images),
            "WorkingDir": equal("/"),
            "AttachStdout": equal(True),
            "AttachStderr": equal(True),
            "Labels": lambda value: labels(policy, value),
            "HostConfig": lambda value: host_config(policy, value),
        },
        required=("User", "Entrypoint", "Cmd", "Image", "Labels", "HostConfig"),
    )


def host_config(policy: Policy, value: Any) -> dict[str, Any]:
    config = fitted(
        "HostConfig",
        value,
        {
            "Init": equal(True),
            "NetworkMode": equal("none"),
            "IpcMode": equal("private"),
            "ReadonlyRootfs": equal(True),
            "CapDrop": equal(["ALL"]),
            "SecurityOpt": equal(["no-new-privileges"]),
            "PidsLimit": up_to(policy.pids),
            "Memory": up_to(policy.memory_bytes),
            "MemorySwap": up_to(policy.memory_bytes),
            "ShmSize": up_to(policy.scratch_bytes),
            "CpusetCpus": matching(CPUS),
            "Ulimits": ulimits,
            "LogConfig": equal({"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}}),
            "Runtime": one_of({policy.runtime} - {""}),
            "Tmpfs": lambda places: tmpfs(policy, places),
            "Mounts": lambda found: [mount(policy, one) for one in a_list(found, most=40)],
        },
        required=(
            "NetworkMode", "IpcMode", "ReadonlyRootfs", "CapDrop", "SecurityOpt", "PidsLimit", "Memory", "MemorySwap",
            "Ulimits", "LogConfig",
        ),
    )  # fmt: skip
    if config["MemorySwap"] != config["Memory"]:
        raise Refused("MemorySwap is not Memory, so the container could swap")
    if policy.runtime and config.get("Runtime") != policy.runtime:
        raise Refused(f"the runtime is not {policy.runtime}")
    return config


def mount(policy: Policy, value: Any) -> dict[str, Any]:
    """A named volume at a place of ours, or one of the operator's own read-only folders."""
    found = fitted(
        "a mount",
        value,
        {
            "Type": one_of({"volume", "bind"}),
            "Source": text,
            "Target": text,
            "ReadOnly": equal(True),
        },
        required=("Type", "Source", "Target"),
    )
    if found["Type"] == "bind":
        if (found["Source"], found["Target"]) not in policy.mounts or "ReadOnly" not in found:
            raise Refused(f"the host's {found['Source']} is not among LAMPLIGHTER_SANDBOX_MOUNTS, or not read-only")
        return found
    if not NAME.fullmatch(found["Source"]) or found["Target"] not in (BASE, VENV, JOB):
        raise Refused(f"the volume {found['Source']} at {found['Target']} is none of a review's")
    return found


def volumes_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The volumes that a container's body names."""
    mounts = body["HostConfig"].get("Mounts", ())
    return tuple(dict.fromkeys(one["Source"] for one in mounts if one["Type"] == "volume"))


def tmpfs(policy: Policy, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Refused("Tmpfs is no object")
    for place, options in value.items():
        sized = TMPFS_OPTIONS.fullmatch(options) if isinstance(options, str) else None
        if place not in TMPFS_PLACES or sized is None:
            raise Refused(f"a tmpfs at {place} with {options!r}")
        if int(sized[1]) > policy.scratch_bytes:
            raise Refused(f"a tmpfs of {sized[1]} bytes; at most {policy.scratch_bytes}")
    return value


def ulimits(value: Any) -> list[dict[str, Any]]:
    wanted = [{"Name": name, "Soft": most, "Hard": most} for name, most in ULIMITS.items()]
    if sorted(a_list(value, most=10), key=str) != sorted(wanted, key=str):
        raise Refused("the ulimits are not those of a sandbox")
    return wanted


def volume(policy: Policy, body: bytes) -> dict[str, Any]:
    """The body of a volume's creation. No driver and no options: with them a volume can be the host's folder."""
    return fitted(
        "the volume",
        parsed(body),
        {"Name": matching(NAME), "Driver": equal("local"), "Labels": lambda value: labels(policy, value)},
        required=("Name", "Labels"),
    )


def exec_create(_policy: Policy, body: bytes) -> dict[str, Any]:
    """The body of an exec: any command, but as the step's user and with nothing added."""
    return fitted(
        "the exec",
        parsed(body),
        {
            "Container": text,
            "User": equal(STEP_USER),
            "Cmd": lambda value: [text(word) for word in a_list(value, most=200)],
            "WorkingDir": equal("/"),
            **{name: equal(True) for name in ("AttachStdin", "AttachStdout", "AttachStderr")},
        },
        required=("User", "Cmd"),
        dropped=("Container",),
    )


def exec_start(_policy: Policy, body: bytes) -> dict[str, Any]:
    fitted("the start of the exec", parsed(body), {})
    return {"Detach": False, "Tty": False}


def nothing(_policy: Policy, body: bytes) -> None:
    if body not in (b"", b"{}", b"null"):
        raise Refused("this request takes no body")


def own_filters(policy: Policy, text_of_filters: str) -> str:
    """Filters of a list, narrowed to what was made through this proxy."""
    wanted = fitted("the filters", parsed(text_of_filters.encode() or b"{}"), {"label": lambda value: value})
    asked = wanted.get("label", [])
    if not isinstance(asked, list) or not all(isinstance(one, str) for one in asked):
        raise Refused("the filters are no list of labels")
    return json.dumps({"label": [*asked, f"{OWNER}={policy.owner}"]})


def labels(policy: Policy, value: Any) -> dict[str, str]:
    """Ours only; the owner's is added here and can be given by nobody else."""
    check = matching(LABEL_VALUE)
    known: dict[str, Check] = dict.fromkeys((INSTANCE, REVIEW, STEP, ATTEMPT), check)
    return {**fitted("the labels", value, known, required=(INSTANCE, REVIEW)), OWNER: policy.owner}


# How a body is read ------------------------------------------------------------------------


def parsed(body: bytes) -> dict[str, Any]:
    """JSON of one meaning. Raises `Refused`."""
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=unambiguous, parse_constant=no_constant)
    except (ValueError, RecursionError):
        raise Refused("the body is no JSON that all readers read alike", 400) from None
    if not isinstance(value, dict):
        raise Refused("the body is no JSON object", 400)
    return value


def unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    folded = [key.casefold() for key, _ in pairs]
    if len(set(folded)) != len(folded):
        raise Refused("a key of the body comes twice (upper and lower case count as one)")
    return dict(pairs)


def no_constant(_name: str) -> None:
    raise ValueError


def fitted(
    what: str,
    value: Any,
    known: Mapping[str, Check],
    *,
    required: Iterable[str] = (),
    dropped: Iterable[str] = (),
) -> dict[str, Any]:
    """The object's known keys, each checked; those without a value are left out, as are the `dropped` ones."""
    if not isinstance(value, dict):
        raise Refused(f"{what} is no object")
    made = {}
    for key, given in value.items():
        if is_empty(given):
            continue
        if key not in known:
            raise Refused(f"{what} has {key[:60]!r}, which no sandbox needs")
        try:
            made[key] = known[key](given)
        except Refused as refused:
            raise Refused(f"{key}: {refused}") from None
    missing = [key for key in required if key not in made]
    if missing:
        raise Refused(f"{what} lacks {', '.join(missing)}")
    return {key: given for key, given in made.items() if key not in dropped}


def is_empty(value: Any) -> bool:
    return value is None or value is False or (value == 0 and not isinstance(value, bool)) or value in ("", [], {})


def equal(wanted: Any) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not type(wanted) or value != wanted:
            raise Refused(f"{str(value)[:80]!r} where only {wanted!r} is allowed")
        return wanted

    return check


def one_of(wanted: Iterable[str]) -> Check:
    allowed = frozenset(wanted)

    def check(value: Any) -> str:
        if text(value) not in allowed:
            raise Refused(f"{value[:80]!r} is not among {', '.join(sorted(allowed)) or 'what is allowed (nothing)'}")
        return str(value)

    return check


def matching(pattern: re.Pattern[str]) -> Check:
    def check(value: Any) -> str:
        if not pattern.fullmatch(text(value)):
            raise Refused(f"{value[:80]!r} is not of the form {pattern.pattern}")
        return str(value)

    return check


def up_to(most: int) -> Check:
    def check(value: Any) -> int:
        if type(value) is not int or not 0 < value <= most:
            raise Refused(f"{str(value)[:40]} is not between 1 and {most}")
        return value

    return check


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise Refused(f"{str(value)[:80]!r} is no text")
    return value


def a_list(value: Any, *, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise Refused(f"no list of at most {most}")
    return value
