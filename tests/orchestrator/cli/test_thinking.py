"""`lamplighter review --node URL --model M` as a process: a real endpoint, a real sandbox, tiny reviews."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from orchestrator.services import reviews, transcripts
from orchestrator.services.views import ReviewState
from tests.orchestrator.cli.test_reviewing import command
from tests.orchestrator.jobs.conftest import ROOT, Service
from tests.support.endpoint import Endpoint, Reply, tool_call
from tests.support.tiny_agents import finding
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow
REPORT = {"summary": "I looked at the one script there is.", "scores": {"overall": 5}}
PROVE = "set -e\nbash greet.sh | tr a-z A-Z"


def thinks(service: Service, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(service, str(service.repo), "--focus", "correctness", *arguments),
        cwd=ROOT,
        env={**service.environment(), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


def answers() -> list[Reply]:
    return [
        tool_call("ready", {"word": "yes"}),
        tool_call("run", {"command": "env; bash greet.sh"}),
        tool_call("record_finding", finding(command=PROVE, output_contains=["GOOD MORNING"])),
        tool_call("finish", REPORT),
    ]


def test_agents_find_prove_and_report_and_their_recording_finds_nothing_new(embedded: Service, tmp_path: Path) -> None:
    with Endpoint(answers()) as endpoint:
        done = thinks(embedded, "--node", endpoint.url, "--model", "test-model", "--format", "json",
                      DATABASE_SECRET="s3cret-environment")  # fmt: skip
    assert done.returncode == 0, done.stderr
    export = json.loads(done.stdout)
    assert (export["state"], export["model"]) == ("done", "test-model")
    (found,) = [one for one in export["findings"] if one["source"] == "agent"]
    assert found["verification"]["state"] == "confirmed" and found["places"][0]["line"] == 1
    assert "+ focus:correctness" in done.stderr and "1 finding recorded in 3 turns" in done.stderr
    sent = json.dumps(endpoint.bodies)
    assert "PATH=" in sent, "the agent saw the environment of its box"
    assert "s3cret-environment" not in sent and "LAMPLIGHTER" not in sent and str(embedded.settings.data) not in sent
    assert all(body["max_tokens"] for body in endpoint.bodies) and embedded.boxes() == []

    recording = tmp_path / "recording.json"
    made = reviews.listed(embedded.shop).items[0].id
    recording.write_text(transcripts.recording(embedded.shop, made), encoding="utf-8")
    again = thinks(embedded, "--node", f"recording:{recording}", "--format", "json")
    assert again.returncode == 0, again.stderr
    assert [one["lifecycle"] for one in json.loads(again.stdout)["findings"]] == ["persisting", "persisting"]


def test_a_node_that_is_not_there_leaves_a_review_that_waits_and_can_be_cancelled(
    embedded: Service, tmp_path: Path
) -> None:
    with Endpoint() as endpoint:
        pass  # its port is nobody's now
    said = tmp_path / "stderr"
    with said.open("w") as stderr:
        process = subprocess.Popen(
            command(embedded, str(embedded.repo), "--node", endpoint.url, "--model", "m"),
            cwd=ROOT,
            env=embedded.environment(),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    embedded.processes.append(process)  # type: ignore[arg-type]
    wait_for(lambda: "waits for the node: the node at http://127.0.0.1" in said.read_text(), 60)
    assert reviews.listed(embedded.shop).items[0].state is ReviewState.WAITING_FOR_NODE
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert reviews.listed(embedded.shop).items[0].state is ReviewState.CANCELLED


def test_a_focus_or_a_recording_that_does_not_exist_is_wrong_use(embedded: Service, tmp_path: Path) -> None:
    wrong = thinks(embedded, "--focus", "beauty", "--node", "http://127.0.0.1:9/v1")
    assert wrong.returncode == 2 and "There is no focus “beauty”" in wrong.stderr
    missing = thinks(embedded, "--node", f"recording:{tmp_path / 'none.json'}")
    assert missing.returncode == 2 and "cannot be played" in missing.stderr and "Traceback" not in missing.stderr


ESCAPES = {
    "the environment": "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -ai secret; echo looked",
    "the node": 'python3 -c \'import socket; socket.create_connection(("127.0.0.1", PORT), 3); print("rea" + "ched")\'',
    "the world": 'python3 -c \'import socket; socket.create_connection(("1.1.1.1", 53), 3); print("rea" + "ched")\'',
    "names": 'python3 -c \'import socket; print(socket.getaddrinfo("example.org", 80)); print("rea" + "ched")\'',
    "the host's files": "cat /etc/shadow DATA/lamplighter.sqlite3 && echo reached",
    "the base copy": "echo x > /base/repo/README.md && echo reached",
    "root": "id -u; su -c id 2>&1; unshare -Ur id 2>&1; mount -t tmpfs x /mnt && echo reached",
    "many processes": "for n in $(seq 700); do sleep 30 & done 2>&-; test $(jobs -pr | wc -l) -ge 700 && echo reached",
    "the clock": "sleep 300",
    "everybody": "kill -9 -1; echo killed",
    "much output": "yes spam | head -c 3000000",
    "the disk": "for place in /tmp ~ /job /job/repo /dev/shm /var/tmp; do"
    " head -c 20G /dev/zero > $place/full && echo reached; rm -f $place/full; done 2>&1",
}


def test_an_agent_that_tries_to_get_out_of_its_box_does_not(embedded: Service) -> None:
    with Endpoint(answers()) as endpoint:
        port = endpoint.url.rpartition(":")[2].removesuffix("/v1")
        tried = [
            tool_call(
                "run",
                {
                    "command": command.replace("PORT", port).replace("DATA", str(embedded.settings.data)),
                    "timeout_s": 8 if what != "the clock" else 1,
                },
            )
            for what, command in ESCAPES.items()
        ]
        endpoint.give([answers()[0], *tried, tool_call("finish", REPORT)])
        done = thinks(embedded, "--node", endpoint.url, "--model", "m", "--format", "json", OPERATOR_SECRET="s3cret")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"]["by_focus"]["correctness"]["state"] == "finished", done.stderr
    results = [message["content"] for message in endpoint.bodies[-1]["messages"] if message["role"] == "tool"]
    assert len(results) == len(ESCAPES)
    for what, result in zip(ESCAPES, results, strict=True):
        assert "reached" not in result, what
        assert "s3cret" not in result and "root:" not in result, what
        assert len(result) < 11_000, what
    assert "uid=0" not in results[6] and results[6].splitlines()[2] != "0"
    assert results[8].startswith("Timed out after 1 s")
    assert "spam" in results[10], "the box outlives a command that kills everybody"
    assert embedded.boxes() == [], "nothing is left of it"
