"""Attacks on the proxy in front of a real engine: what a worker that was taken over would try. None may pass."""

import copy
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.sandbox.contract import BoxOrder
from orchestrator.sandbox.docker import ATTEMPT, INSTANCE, REVIEW, STEP, STEP_USER
from orchestrator.sandbox.engine_proxy.schema import OWNER
from orchestrator.sandbox.limits import configured
from orchestrator.settings import Settings
from tests.orchestrator.sandbox.engine_proxy.conftest import REVIEW as GUARDED
from tests.orchestrator.sandbox.engine_proxy.conftest import Gate, proxied

pytestmark = pytest.mark.docker
Change = Callable[[dict[str, Any]], Any]


def test_a_review_is_prepared_and_commands_run_and_are_swept_through_the_proxy(gate: Gate) -> None:
    limits = configured(gate.settings)
    box = gate.sandbox.open(BoxOrder(GUARDED, "probe:look", 1, limits=limits))
    try:
        ran = box.run("cat readme.txt; id -u; ls /zones | head -1; kill -9 $PPID", timeout_s=30)
        assert ran.output.splitlines()[:2] == ["hello", "70606"], ran.output
        assert box.run("echo still here", timeout_s=30).output == "still here\n"  # a second runner, by a second exec
        assert gate.sandbox.describe().python
    finally:
        box.destroy()
    assert gate.sandbox.sweep([GUARDED]) == ()
    assert gate.sandbox.prepared(GUARDED)


def good_body(gate: Gate) -> dict[str, Any]:
    """What the backend sends for a box, taken from the backend itself."""
    if not gate.bodies:
        api = gate.sandbox.engine.api
        sent: dict[str, Any] = {}
        kept = api._post_json
        api._post_json = lambda url, data=None, **options: sent.update(data) or kept(url, data=data, **options)
        try:
            made = gate.sandbox.create(
                "lamplighter.x.y.z.1", BoxOrder(GUARDED, "z", 1, limits=configured(gate.settings))
            )
        finally:
            del api._post_json
        gate.sandbox.remove_container(made)
        gate.bodies.update(json.loads(json.dumps(sent)))
    return copy.deepcopy(gate.bodies)


def host(**values: Any) -> Change:
    return lambda body: body["HostConfig"].update(values)


def top(**values: Any) -> Change:
    return lambda body: body.update(values)


def mounts(**values: Any) -> Change:
    given = {"Type": "bind", "Source": "/", "Target": "/base", "ReadOnly": True, **values}
    return lambda body: body["HostConfig"]["Mounts"].append(given)


def without(name: str) -> Change:
    return lambda body: body["HostConfig"].pop(name)


CREATIONS: dict[str, Change] = {
    "privileged": host(Privileged=True),
    "privileged in lower case": host(privileged=True),
    "privileged as a number": host(Privileged=1),
    "binds": host(Binds=["/:/host"]),
    "binds of the engine's socket": host(Binds=["/var/run/docker.sock:/s"]),
    "mount of the host's root": mounts(),
    "mount of the host's root over a place of ours, writable": mounts(ReadOnly=False),
    "the operator's mount, writable": mounts(Source="/usr/share/zoneinfo", Target="/zones", ReadOnly=False),
    "the operator's mount, at another place": mounts(Source="/usr/share/zoneinfo", Target="/usr"),
    "a path just beside the operator's mount": mounts(Source="/usr/share/zoneinfo/..", Target="/zones"),
    "a mount of type tmpfs": mounts(Type="tmpfs", Source="", Target="/x"),
    "a mount of type npipe": mounts(Type="npipe"),
    "a volume with driver options": mounts(
        Type="volume", Source="lamplighter.v", VolumeOptions={"DriverConfig": {"Options": {"device": "/"}}}
    ),
    "a volume that is a path": mounts(Type="volume", Source="/etc"),
    "a volume of somebody else": mounts(Type="volume", Source="postgres"),
    "a volume of ours by name only": mounts(Type="volume", Source="lamplighter.not.made.here"),
    "bind propagation": mounts(Source="/usr/share/zoneinfo", Target="/zones", BindOptions={"Propagation": "shared"}),
    "volumes from another container": host(VolumesFrom=["stranger"]),
    "anonymous volumes at any place": top(Volumes={"/etc": {}}),
    "the host's network": host(NetworkMode="host"),
    "the default network": host(NetworkMode="bridge"),
    "another container's network": host(NetworkMode="container:stranger"),
    "no word on the network": without("NetworkMode"),
    "an empty network mode": host(NetworkMode=""),
    "networking config": top(NetworkingConfig={"EndpointsConfig": {"bridge": {}}}),
    "the host's processes": host(PidMode="host"),
    "another container's processes": host(PidMode="container:stranger"),
    "the host's IPC": host(IpcMode="host"),
    "the host's UTS": host(UTSMode="host"),
    "the host's users": host(UsernsMode="host"),
    "the host's cgroups": host(CgroupnsMode="host"),
    "another cgroup parent": host(CgroupParent="/"),
    "a capability": host(CapAdd=["SYS_ADMIN"]),
    "capabilities kept": host(CapDrop=["NET_RAW"]),
    "no word on capabilities": without("CapDrop"),
    "the old list of capabilities": host(Capabilities=["CAP_SYS_ADMIN"]),
    "no seccomp": host(SecurityOpt=["no-new-privileges", "seccomp=unconfined"]),
    "no AppArmor": host(SecurityOpt=["apparmor=unconfined"]),
    "new privileges": without("SecurityOpt"),
    "devices": host(Devices=[{"PathOnHost": "/dev/sda", "PathInContainer": "/dev/sda", "CgroupPermissions": "rwm"}]),
    "device rules": host(DeviceCgroupRules=["a *:* rwm"]),
    "device requests": host(DeviceRequests=[{"Count": -1, "Capabilities": [["gpu"]]}]),
    "sysctls": host(Sysctls={"kernel.core_pattern": "|/bin/sh"}),
    "unmasked paths": host(MaskedPaths=["/proc/nothing"]),
    "writable kernel paths": host(ReadonlyPaths=["/proc/nothing"]),
    "a writable root": host(ReadonlyRootfs=False),
    "another runtime": host(Runtime="runsc"),
    "another runtime at the top": top(Runtime="runsc"),
    "a log driver": host(LogConfig={"Type": "syslog", "Config": {"syslog-address": "tcp://10.0.0.1:1"}}),
    "no limit of memory": without("Memory"),
    "too much memory": host(Memory=1 << 40, MemorySwap=1 << 40),
    "swap without end": host(MemorySwap=-1),
    "no limit of processes": host(PidsLimit=-1),
    "processes as a text": host(PidsLimit="64"),
    "never killed for memory": host(OomKillDisable=True),
    "first spared of memory": host(OomScoreAdj=-1000),
    "ulimits of one's own": host(Ulimits=[{"Name": "nofile", "Soft": 1 << 30, "Hard": 1 << 30}]),
    "a tmpfs over the system": host(Tmpfs={"/etc": "rw,exec,nosuid,nodev,size=1,mode=1777"}),
    "a tmpfs with devices": host(Tmpfs={"/tmp": "rw,exec,suid,dev,size=1,mode=1777"}),
    "a tmpfs larger than all": host(Tmpfs={"/tmp": f"rw,exec,nosuid,nodev,size={1 << 45},mode=1777"}),
    "published ports": host(PortBindings={"22/tcp": [{"HostPort": "22"}]}),
    "restarts for ever": host(RestartPolicy={"Name": "always"}),
    "links": host(Links=["stranger:x"]),
    "another name server": host(Dns=["10.0.0.1"]),
    "additional groups": host(GroupAdd=["docker"]),
    "a file for the id": host(ContainerIDFile="/etc/cron.d/x"),
    "root inside": top(User="0:0"),
    "no user": top(User=""),
    "another program": top(Entrypoint=["/bin/sh", "-c", "id"]),
    "another command": top(Cmd=["1"]),
    "an environment": top(Env=["LD_PRELOAD=/x"]),
    "another image": top(Image="debian:bookworm"),
    "a health check": top(Healthcheck={"Test": ["CMD", "id"]}),
    "run on build": top(OnBuild=["RUN id"]),
    "a label of the proxy's": lambda body: body["Labels"].update({OWNER: "0" * 16}),
    "a label of compose's": lambda body: body["Labels"].update({"com.docker.compose.project": "x"}),
    "no labels": top(Labels={}),
    "a host config that is a list": top(HostConfig=[]),
}  # fmt: skip


@pytest.mark.parametrize("name", CREATIONS)
def test_no_container_is_made_with(gate: Gate, name: str) -> None:
    body, before = good_body(gate), gate.containers()
    CREATIONS[name](body)
    status, said = gate.call("POST", "/v1.41/containers/create?name=lamplighter.a.b.c.1", body)
    assert status in (400, 403, 404), (status, said)
    assert "engine-proxy" in said
    assert gate.containers() == before


def test_the_same_body_unchanged_passes_and_what_the_engine_got_is_what_was_checked(gate: Gate) -> None:
    status, said = gate.call("POST", "/v1.41/containers/create?name=lamplighter.a.b.c.1", good_body(gate))
    assert status == 201, said
    made = json.loads(said)["Id"]
    try:
        found = json.loads(gate.engine.command("inspect", made))[0]
        assert found["Config"]["Labels"][OWNER]
        assert (found["HostConfig"]["Privileged"], found["HostConfig"]["CapAdd"]) == (False, None)
        assert found["HostConfig"]["NetworkMode"] == "none"
    finally:
        assert gate.call("DELETE", f"/v1.41/containers/{made}?v=True&link=False&force=True")[0] == 204


AMBIGUOUS: dict[str, Callable[[str], str]] = {
    "a key twice": lambda text: text.replace(
        '"HostConfig": {', '"HostConfig": {"Privileged": true}, "HostConfig": {', 1
    ),
    "a key twice in other case": lambda text: text.replace(
        '"HostConfig": {', '"hostconfig": {"Privileged": true}, "HostConfig": {', 1
    ),
    "a key twice, one escaped": lambda text: text.replace('"Init": true', r'"Init": true, "\u0049nit": true', 1),
    "a key with a letter that folds to another": lambda text: text.replace(
        '"HostConfig": {', '"HoſtConfig": {"Privileged": true}, "HostConfig": {', 1
    ),
    "a second object after the first": lambda text: text + '{"HostConfig": {"Privileged": true}}',
    "no number": lambda text: text.replace('"Init": true', '"Init": NaN', 1),
    "nested without end": lambda text: "[" * 100_000,
    "a list of bodies": lambda text: f"[{text}]",
    "no JSON": lambda text: "HostConfig=1",
    "UTF-16": lambda text: text,
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_a_body_that_two_readers_could_read_differently_is_refused(gate: Gate, name: str) -> None:
    text = AMBIGUOUS[name](json.dumps(good_body(gate)))
    body, before = text.encode("utf-16" if name == "UTF-16" else "utf-8"), gate.containers()
    assert gate.call("POST", "/v1.41/containers/create?name=lamplighter.a.b.c.1", body)[0] in (400, 403)
    assert gate.containers() == before


HEAD = "POST /v1.41/containers/create?name=lamplighter.a.b.c.1 HTTP/1.1\r\nHost: e\r\n"
FRAMINGS = {
    "chunks": HEAD + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "length and chunks": HEAD + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    "two lengths": HEAD + "Content-Length: 2\r\nContent-Length: 90\r\n\r\n{}",
    "a length with a sign": HEAD + "Content-Length: +2\r\n\r\n{}",
    "two lengths in one": HEAD + "Content-Length: 2, 2\r\n\r\n{}",
    "an encoding in disguise": HEAD + "Transfer-Encoding: xchunked\r\n\r\n{}",
    "a space before the colon": HEAD + "Content-Length : 2\r\n\r\n{}",
    "a folded line": HEAD + "X: 1\r\n Content-Length: 2\r\n\r\n{}",
    "bare line feeds": HEAD.replace("\r\n", "\n") + "Content-Length: 2\n\n{}" + "\r\n\r\n",
    "an absolute target": "GET http://engine/containers/json HTTP/1.1\r\nHost: e\r\n\r\n",
    "HTTP/1.0": "GET /version HTTP/1.0\r\n\r\n",
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "CONNECT": "CONNECT engine:1 HTTP/1.1\r\nHost: e\r\n\r\n",
    "a body without end": HEAD + f"Content-Length: {1 << 30}\r\n\r\n",
    "a head without end": "GET /version HTTP/1.1\r\n" + "X: y\r\n" * 9000 + "\r\n",
}


@pytest.mark.parametrize("name", FRAMINGS)
def test_a_request_whose_end_is_in_doubt_is_refused(gate: Gate, name: str) -> None:
    assert gate.raw(FRAMINGS[name].encode())[0] in (400, 403, 411, 413, 431)


PATHS = {
    "exec in a stranger": ("POST", "/containers/stranger/exec"),
    "start of a stranger": ("POST", "/containers/stranger/start"),
    "end of a stranger": ("DELETE", "/containers/stranger?force=1"),
    "a stranger's details": ("GET", "/containers/stranger/json"),
    "a stranger's files": ("GET", "/containers/stranger/archive?path=/"),
    "files into a stranger": ("PUT", "/containers/stranger/archive?path=/base"),
    "a stranger's logs": ("GET", "/containers/stranger/logs?stdout=1"),
    "a stranger attached": ("POST", "/containers/stranger/attach?stream=1"),
    "a stranger attached by WebSocket": ("GET", "/containers/stranger/attach/ws?stream=1"),
    "a stranger changed": ("POST", "/containers/stranger/update"),
    "a stranger renamed": ("POST", "/containers/stranger/rename?name=x"),
    "a stranger as an image": ("POST", "/commit?container=stranger"),
    "a stranger exported": ("GET", "/containers/stranger/export"),
    "another's volume": ("DELETE", "/volumes/postgres"),
    "an exec that is not there": ("POST", f"/exec/{'0' * 64}/start"),
    "a build": ("POST", "/build?remote=https://example.org/x.tar"),
    "a pull": ("POST", "/images/create?fromImage=evil"),
    "an import": ("POST", "/images/create?fromSrc=-"),
    "a load": ("POST", "/images/load"),
    "an image's removal": ("DELETE", "/images/lamplighter-sandbox"),
    "an image tagged as ours": ("POST", "/images/evil/tag?repo=lamplighter-sandbox"),
    "all images": ("GET", "/images/json"),
    "another image": ("GET", "/images/debian/json"),
    "a prune": ("POST", "/containers/prune"),
    "a prune of volumes": ("POST", "/volumes/prune"),
    "a network": ("POST", "/networks/create"),
    "a network joined": ("POST", "/networks/bridge/connect"),
    "a plugin": ("POST", "/plugins/pull?remote=x"),
    "a swarm": ("POST", "/swarm/init"),
    "a service": ("POST", "/services/create"),
    "secrets": ("GET", "/secrets"),
    "events": ("GET", "/events"),
    "the engine's details": ("GET", "/info"),
    "a session": ("POST", "/session"),
    "gRPC": ("POST", "/grpc"),
    "credentials": ("POST", "/auth"),
    "dots in the path": ("GET", "/containers/json/../../images/json"),
    "an escaped path": ("GET", "/containers/%73tranger/json"),
    "an escaped slash": ("GET", "/images/x%2f..%2f..%2finfo/json"),
    "two slashes": ("GET", "//info"),
    "a version with more": ("GET", "/v1.41/../info"),
    "a query twice": ("POST", "/containers/create?name=lamplighter.a&name=x"),
    "a query in other case": ("POST", "/containers/create?name=lamplighter.a&Name=x"),
    "a platform": ("POST", "/containers/create?name=lamplighter.a&platform=windows"),
    "a name of somebody else": ("POST", "/containers/create?name=postgres"),
    "a fragment": ("GET", "/version#/info"),
}  # fmt: skip


@pytest.mark.parametrize("name", PATHS)
def test_nothing_else_of_the_engine_is_reached(gate: Gate, name: str) -> None:
    method, path = PATHS[name]
    for prefix in ("", "/v1.41"):
        status, said = gate.call(method, prefix + path, {} if method in ("POST", "PUT") else None)
        assert status in (400, 403, 404), (status, said)
        assert "engine-proxy" in said, "the engine itself answered"
    assert json.loads(gate.engine.command("inspect", gate.stranger))[0]["State"]["Running"]


def test_lists_show_only_what_was_made_through_the_proxy(gate: Gate) -> None:
    for query in ("", "?all=1", "?all=1&filters={}", '?all=1&filters={"label":[]}'):
        status, said = gate.call("GET", f"/v1.41/containers/json{query}".replace('"', "%22"))
        assert (status, gate.stranger in said) == (200, False)
    wider = '?filters={"name":["stranger"]}'.replace('"', "%22")
    assert gate.call("GET", f"/v1.41/containers/json{wider}")[0] == 403
    gate.engine.command("volume", "create", "--label", f"{INSTANCE}={gate.sandbox.instance}", "theirs")
    try:
        assert "theirs" not in gate.call("GET", "/v1.41/volumes")[1]
        assert gate.call("DELETE", "/v1.41/volumes/theirs?force=1")[0] == 403
    finally:
        gate.engine.command("volume", "rm", "theirs")


VOLUMES = {
    "the host's folder as a volume": {"DriverOpts": {"type": "none", "o": "bind", "device": "/"}},
    "another driver": {"Driver": "vieux/sshfs"},
    "another name": {"Name": "postgres"},
    "other labels": {"Labels": {"com.docker.compose.project": "x"}},
}


@pytest.mark.parametrize("name", VOLUMES)
def test_no_volume_is_made_with(gate: Gate, name: str) -> None:
    good = {"Name": "lamplighter.v", "Driver": "local", "Labels": {INSTANCE: "01234567", REVIEW: "r"}}
    assert gate.call("POST", "/v1.41/volumes/create", {**good, **VOLUMES[name]})[0] == 403
    assert "lamplighter.v" not in gate.engine.command("volume", "ls", "-q").split()


EXECS = {
    "as root": {"User": "0:0"},
    "as whoever the image says": {"User": ""},
    "privileged": {"Privileged": True},
    "with an environment": {"Env": ["LD_PRELOAD=/x"]},
    "in another folder": {"WorkingDir": "/proc/1/root"},
    "with keys to leave": {"DetachKeys": "a"},
}


def test_execs_are_of_ones_own_box_and_as_the_steps_user(gate: Gate) -> None:
    box = gate.sandbox.open(BoxOrder(GUARDED, "probe:exec", 1, limits=configured(gate.settings)))
    try:
        path = f"/v1.41/containers/{box.container}"
        good = {"User": STEP_USER, "Cmd": ["id", "-u"], "AttachStdout": True}
        for name, change in EXECS.items():
            assert gate.call("POST", f"{path}/exec", {**good, **change})[0] == 403, name
        # An archive into a box that runs could follow a link that a command laid there.
        assert gate.call("PUT", f"{path}/archive?path=/base", b"x")[0] == 403

        status, said = gate.call("POST", f"{path}/exec", good)
        assert status == 201, said
        start = f"/v1.41/exec/{json.loads(said)['Id']}/start"
        assert gate.call("POST", start, {"Detach": False, "Tty": False})[0] == 403  # no upgrade
        assert gate.call("POST", start, {"Detach": True}, {"Connection": "Upgrade", "Upgrade": "tcp"})[0] == 403
        status, said = gate.call("POST", start, {}, {"Connection": "Upgrade", "Upgrade": "tcp"})
        assert (status, said[8:]) == (101, "70606\n")
    finally:
        box.destroy()


def test_what_follows_an_exec_that_the_engine_did_not_start_never_reaches_the_engine(tmp_path: Path) -> None:
    """With a stream refused (409 on newer engines) the connection still speaks HTTP: more would be a second request."""
    settings = Settings(data=tmp_path / "data")
    got: list[bytes] = []
    with (
        serving_unix(tmp_path / "real.sock", got),
        proxied(settings, tmp_path / "gate.sock", str(tmp_path / "real.sock")) as proxy,
    ):
        found = {"ContainerID": "c" * 64, "Labels": {OWNER: proxy.policy.owner}}
        got.append(json.dumps(found).encode())
        lone = Gate(str(tmp_path / "gate.sock"), None, settings, None, "")  # type: ignore[arg-type]
        head = f"POST /exec/{'0' * 64}/start HTTP/1.1\r\nHost: e\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        smuggled = "GET /containers/json?all=1 HTTP/1.1\r\nHost: e\r\n\r\n"
        status, said = lone.raw(f"{head}Content-Length: 2\r\n\r\n{{}}{smuggled}".encode())
    assert (status, said) == (409, "over")
    assert b"".join(got).count(b"HTTP/1.") == 3  # the proxy's two questions and the start
    assert b"/start HTTP/1.1" in got[-1]
    assert b"containers/json" not in b"".join(got)


@contextmanager
def serving_unix(path: Path, got: list[bytes]) -> Iterator[None]:
    """An engine that knows every thing as `got[0]` and has started every exec before. Keeps what it was sent."""

    def serve(server: socket.socket) -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.settimeout(0.3)
                asked = b""
                with suppress(TimeoutError):
                    while piece := client.recv(65536):
                        asked += piece
                        if asked.startswith(b"GET"):
                            break
                got.append(asked)
                if asked.startswith(b"GET"):
                    client.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + got[0])
                else:
                    client.sendall(b"HTTP/1.1 409 Conflict\r\nContent-Length: 4\r\nConnection: close\r\n\r\nover")

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield
        server.shutdown(socket.SHUT_RDWR)


def test_a_second_request_behind_the_first_is_not_read(gate: Gate) -> None:
    one = "GET /v1.41/version HTTP/1.1\r\nHost: e\r\n\r\n"
    status, said = gate.raw(f"{one}GET /v1.41/info HTTP/1.1\r\nHost: e\r\n\r\n".encode())
    assert status == 200
    assert "HTTP/1.1" not in said
    assert json.loads(said)["ApiVersion"]


def test_archives_go_to_the_volumes_of_boxes_that_have_not_started(gate: Gate) -> None:
    order = BoxOrder(GUARDED, "probe:archive", 1, limits=configured(gate.settings))
    made = gate.sandbox.create("lamplighter.x.y.archive.1", order)
    try:
        for place in ("/", "/etc", "/base/../etc", "/base/repo"):
            assert gate.call("PUT", f"/v1.41/containers/{made}/archive?path={place}", b"x")[0] == 403
        path = f"/v1.41/containers/{made}/archive?path=/base"
        for chunks in (b"zz\r\n", b"5;x=1\r\nhello\r\n0\r\n\r\n", b"5\r\nhello0\r\n\r\n", b"-1\r\n\r\n", b"5\r\nhel"):
            head = f"PUT {path} HTTP/1.1\r\nHost: e\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            assert gate.raw(head + chunks)[0] == 400
    finally:
        gate.sandbox.remove_container(made)


def test_a_worker_gone_wild_cannot_fill_the_machine_with_containers(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.sandbox.engine_proxy.server.MOST_CONTAINERS", 1)
    body, made = good_body(gate), []
    body["Labels"][STEP], body["Labels"][ATTEMPT] = "flood", "1"
    for number in range(3):
        status, said = gate.call("POST", f"/v1.41/containers/create?name=lamplighter.a.b.flood.{number}", body)
        made += [json.loads(said)["Id"]] if status == 201 else []
    for one in made:
        gate.sandbox.remove_container(one)
    assert len(made) == 1
    assert status == 429
