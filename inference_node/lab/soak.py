"""Half an hour of bad company: clients that cancel, leave, hang and send nonsense, and a look at what stays of it.

The node runs in a process of its own. Between storms, with nothing else running in it, the same probe is asked. Speed
is its tokens per second of the node's CPU time, over what this machine does at that moment in a second of CPU time:
other work on a shared machine takes time, caches and half a core's units away from both, and none of that is the
node's. The same figures without that division, and by the clock, are recorded beside it. Memory is the resident set.
The first tenth is compared with the last one; memory from the second tenth on, when every cache has been filled once.

    python -m inference_node.lab.soak --minutes 30 --out docs/figures
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch

from inference_node.lab import figures
from inference_node.lab.fabricate import fabricate_pair
from inference_node.models.errors import NodeError

TICK = os.sysconf("SC_CLK_TCK")
PROBES = 4
CLIENTS, REQUESTS = 4, 20  # of a storm; so many of each client
EXPECTED = {200, 400, 404, 413, 429}
MALFORMED: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[" * 5000,
    b"\xff\xfe\x00",
    b'{"messages": 5}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": "hot"}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "model": "another"}',
    b'{"messages": [{"role": "user", "content": "x"}], "unheard_of": 1}',
    b'{"messages": [{"role": "user", "content": "' + b"too long " * 4000 + b'"}]}',
)
TOOL = {
    "type": "function",
    "function": {
        "name": "count",
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "up": {"type": "boolean"}},
            "required": ["n", "up"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Probe:
    """One look at the node while it does nothing else."""

    at_s: float
    speed: float  # tokens per unit of work that this machine does in the same CPU time
    tokens_per_cpu_s: float
    tokens_per_s: float
    resident_mib: float


class Process:
    """A serving node, and what the kernel says about it."""

    def __init__(self, process: subprocess.Popen[str], url: str, said: list[str]) -> None:
        self._process = process
        self.url = url
        self.said = said  # its lines on standard error, growing

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


@contextmanager
def node(model: Path, drafter: Path) -> Iterator[Process]:
    """Serve a pair in a process of its own, with small caches so that they are full early."""
    command = [sys.executable, "-m", "inference_node", "serve", "--model", str(model), "--draft", str(drafter)]
    command += ["--weights", "fp32", "--device", "cpu", "--prefix-bytes", str(16 << 20), "--port", "0", "--queue", "12"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables)
    said: list[str] = []
    assert process.stderr is not None, "asked for"
    reader = threading.Thread(target=_gather, args=(process.stderr, said), daemon=True)
    reader.start()
    try:
        deadline = time.monotonic() + 300
        while not (found := re.search(r"figures: (http://\S+)/\n", "".join(said))):
            if process.poll() is not None or time.monotonic() > deadline:
                raise NodeError(f"The node did not start: {''.join(said)}")
            time.sleep(0.1)
        yield Process(process, found[1], said)
    finally:
        process.terminate()
        process.wait(60)


def _gather(pipe: Iterable[str], said: list[str]) -> None:
    for line in pipe:
        said.append(line)


def soak(
    process: Process, seconds: float, seed: int = 0, told: Callable[[str], None] = print, *, storms: int = 1
) -> dict[str, float]:
    """Storms and probes until the time is over, and so many storms at least."""
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    probes: list[Probe] = []
    began = time.monotonic()
    with httpx.Client(base_url=process.url, timeout=120) as http:
        _probe(http, process, 0.0)  # the first one pays for what is made once
        while (now := time.monotonic() - began) < seconds or len(probes) < storms:
            _storm(process, rng.randrange(2**32), outcomes)
            _wait_until_idle(http)
            probes.append(_probe(http, process, now))
            if len(probes) % 10 == 1:
                last = probes[-1]
                speed = f"{last.tokens_per_cpu_s:.1f} tokens per CPU second"
                told(f"{now:5.0f} s: {speed}, {last.resident_mib:.0f} MiB, {dict(outcomes)}")
        health = http.get("/health").json()
        stats = http.get("/stats").json()
    if health["status"] != "ok":
        outcomes[f"unexpected: health {health['status']}"] += 1
    unexpected = sum(count for name, count in outcomes.items() if name.startswith("unexpected"))
    return {
        **_compared(probes),
        "minutes": round(seconds / 60, 2),
        "requests": sum(outcomes.values()),
        "left_by_client": outcomes["left"],
        "refused": sum(count for name, count in outcomes.items() if name.startswith("4")),
        "cancelled_by_engine": stats["requests"]["by_ending"].get("cancelled", 0),
        "failed_in_engine": stats["requests"]["by_ending"].get("failed", 0),
        "checkpoints_given_up": sum(stats["prefix"]["given_up"].values()),
        "unexpected": unexpected,
    }


def _compared(probes: Sequence[Probe]) -> dict[str, float]:
    """The last tenth against the first (memory: the second) by medians."""
    tenth = max(1, len(probes) // 10)
    first, settled, last = probes[:tenth], probes[tenth : 2 * tenth] or probes[:tenth], probes[-tenth:]

    def ratio(name: str) -> float:
        return statistics.median(getattr(p, name) for p in last) / statistics.median(getattr(p, name) for p in first)

    resident = [statistics.median(probe.resident_mib for probe in part) for part in (settled, last)]
    return {
        "last_tenth_ratio": round(ratio("speed"), 4),
        "last_tenth_ratio_cpu": round(ratio("tokens_per_cpu_s"), 4),
        "last_tenth_ratio_wall": round(ratio("tokens_per_s"), 4),
        "memory_growth_mib": round(resident[1] - resident[0], 2),
        "memory_mib": round(resident[1], 1),
        "probes": len(probes),
    }


def _probe(http: httpx.Client, process: Process, at_s: float) -> Probe:
    """The same requests each time; their prompts are too short for the store, so each is computed whole."""
    cpu, wall, tokens = process.cpu_s(), time.monotonic(), 0
    machine = [_machine_speed()]
    waited = time.monotonic() - wall
    for number in range(PROBES):
        body = {"prompt": f"Probe {number}.", "max_tokens": 48, "temperature": 0.7, "seed": number, "ignore_eos": True}
        tokens += http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"]
        between = time.monotonic()
        machine.append(_machine_speed())
        waited += time.monotonic() - between
    per_cpu_s = tokens / max(process.cpu_s() - cpu, 1 / TICK)
    per_s = tokens / (time.monotonic() - wall - waited)
    return Probe(at_s, per_cpu_s / statistics.median(machine), per_cpu_s, per_s, process.resident_mib())


def _machine_speed() -> float:
    """Units of work like a small model's, small products called from Python, per second of this process's CPU time."""
    began, rows, weights = time.process_time(), torch.ones(8, 64), torch.ones(64, 64)
    for _ in range(1500):
        rows = torch.nn.functional.linear(rows, weights).softmax(-1)
    return 1.0 / (time.process_time() - began)


def _wait_until_idle(http: httpx.Client) -> None:
    deadline = time.monotonic() + 120
    while (health := http.get("/health").json())["running"] or health["waiting"]:
        if time.monotonic() > deadline:
            raise NodeError(f"The node is still busy two minutes after its clients have gone: {health}")
        time.sleep(0.02)


def _storm(process: Process, seed: int, outcomes: Counter[str]) -> None:
    """Several clients at once, each doing one bad or good thing after another."""
    lock = threading.Lock()

    def client(number: int) -> None:
        rng = random.Random(seed + number)
        with httpx.Client(base_url=process.url, timeout=60) as http:
            for _ in range(REQUESTS):
                try:
                    outcome = rng.choice(ACTIONS)(http, rng)
                except (httpx.HTTPError, OSError) as error:
                    outcome = f"unexpected: {type(error).__name__}"
                with lock:
                    outcomes[outcome] += 1

    clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()


def _body(rng: random.Random) -> dict[str, Any]:
    """A request in one of many shapes; conversations come from a few, so that prefixes are shared and evicted."""
    talk = rng.randrange(6)
    messages: list[dict[str, Any]] = [{"role": "system", "content": f"Conversation {talk}. " + "Be exact. " * 20}]
    for turn in range(rng.randrange(1, 4)):
        odd = "é漢🙂 <|im_end|> " * rng.randrange(3)
        messages.append({"role": "user", "content": f"Question {turn} of {talk}? {odd}"})
        if turn:
            messages.append({"role": "assistant", "content": f"Answer {turn}."})
    body: dict[str, Any] = {"messages": messages, "max_tokens": rng.choice([1, 5, 20, 60]), "seed": rng.randrange(100)}
    body["temperature"] = rng.choice([0, 0.7, 1.5])
    body["stream"] = rng.random() < 0.5
    if rng.random() < 0.3:
        body |= {"tools": [TOOL], "tool_choice": rng.choice(["auto", "required"])}
    if rng.random() < 0.3:
        body["stop"] = rng.choice([["e"], ["the", "a "], ["\n\n", "é"]])
    if rng.random() < 0.2:
        body |= {"logprobs": True, "top_logprobs": 2}
    if rng.random() < 0.1:
        body["n"] = 2
    return body


def _ask(http: httpx.Client, rng: random.Random) -> str:
    return _judged(http.post("/v1/chat/completions", json=_body(rng)))


def _malformed(http: httpx.Client, rng: random.Random) -> str:
    path = rng.choice(["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
    headers = {"Content-Type": rng.choice(["application/json", "application/json", "text/plain"])}
    return _judged(http.post(path, content=rng.choice(MALFORMED), headers=headers))


def _leave_a_stream(http: httpx.Client, rng: random.Random) -> str:
    """Read a few events and close the connection."""
    body = {**_body(rng), "stream": True, "max_tokens": 200}
    left = rng.randrange(1, 8)
    with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        if reply.status_code != 200:
            reply.read()
            return _judged(reply)
        for number, _ in enumerate(reply.iter_lines()):
            if number >= left:
                break
    return "left"


def _leave_at_once(http: httpx.Client, rng: random.Random) -> str:
    """Send a request, or half of one, and close the socket soon after."""
    url = http.base_url
    text = json.dumps({**_body(rng), "max_tokens": 200}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    whole = f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text
    with socket.create_connection((url.host, url.port or 80), timeout=20) as connection:
        connection.sendall(whole if rng.random() < 0.7 else whole[: rng.randrange(len(whole))])
        time.sleep(rng.random() * 0.2)
        if rng.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    return "left"


def _look(http: httpx.Client, rng: random.Random) -> str:
    return _judged(http.get(rng.choice(["/health", "/metrics", "/stats", "/v1/models", "/", "/nothing"])))


ACTIONS = (_ask, _ask, _malformed, _leave_a_stream, _leave_a_stream, _leave_at_once, _leave_at_once, _look)


def _judged(reply: httpx.Response) -> str:
    if reply.status_code not in EXPECTED:
        return f"unexpected: {reply.status_code}"
    if "internal_error" in reply.text:
        return "unexpected: internal_error"
    return str(reply.status_code)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Keep a node in bad company and see what stays of it.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder to write soak.json into")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the node is ended with us
    with tempfile.TemporaryDirectory() as folder:
        pair = fabricate_pair(Path(folder), "qwen3_5_moe")
        with node(pair.target, pair.drafter) as process:
            found = soak(process, options.minutes * 60, options.seed, lambda line: print(line, flush=True))
            if found["failed_in_engine"]:
                print("".join(process.said)[-20_000:])
    print(json.dumps(found, indent=1))
    if options.out is not None:
        command = figures.command("soak", parser, options)
        model = "fabricated hybrid MoE with its dflash drafter"
        print(figures.record(options.out, "soak", command, found, model=model))
    sound = found["unexpected"] == found["failed_in_engine"] == 0
    return 0 if sound and found["last_tenth_ratio"] >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
