"""`lamplighter review` as a process: what it prints where, how it ends, who does the work, how it is cancelled."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from orchestrator.services import host_lock, nodes, reviews
from orchestrator.services.views import ReviewState
from tests.orchestrator.jobs.conftest import ROOT, Service
from tests.support.boxes import git
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


def command(service: Service, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "tests.support.tiny_command",
        "review",
        *arguments,
        "--data",
        str(service.settings.data),
    ]


def review(service: Service, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    given = (str(service.repo), "--no-agents", *arguments) if "--help" not in arguments else arguments
    return subprocess.run(
        command(service, *given),
        cwd=ROOT,
        env={**service.environment(), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


def started(service: Service, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command(service, str(service.repo), "--no-agents", *arguments),
        cwd=ROOT,
        env=service.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    service.processes.append(process)  # type: ignore[arg-type]
    return process


def only(service: Service) -> UUID:
    found = reviews.listed(service.shop).items
    return found[0].id if found else UUID(int=0)


def runs(service: Service, step: str) -> bool:
    progress = reviews.progress(service.shop, only(service)) if only(service).int else None
    return progress is not None and progress.current is not None and progress.current.name == step


def slow_down(service: Service) -> None:
    (service.repo / "greet.sh").write_text("sleep 300\n")
    git(service.repo, "commit", "-qam", "slow")


def test_the_result_is_on_stdout_and_the_progress_on_stderr(embedded: Service) -> None:
    (embedded.repo / "greet.sh").write_text("echo hello\n")  # not committed, so not reviewed
    done = review(embedded, "--format", "json", "--fail-on", "high")
    assert done.returncode == 0, done.stderr
    export = json.loads(done.stdout)
    assert (export["lamplighter"], export["state"]) == (1, "done")
    assert [one["title"] for one in export["findings"]] == ["greet does not say hello"]
    assert "+ probe:greets" in done.stderr and "not reviewed, because not committed: greet.sh" in done.stderr
    assert "\x1b" not in done.stderr and "Traceback" not in done.stderr
    assert embedded.boxes() == []
    again = review(embedded, "--fail-on", "medium")
    assert again.returncode == 1
    assert "MEDIUM  greet does not say hello" in again.stdout and "persisting" in again.stdout
    assert again.stdout.splitlines()[-1] == "1 finding; 3 checks ran."


@pytest.mark.parametrize("format", ["markdown", "sarif", "text"])
def test_the_result_can_go_to_a_file(embedded: Service, tmp_path: Path, format: str) -> None:
    done = review(embedded, "--format", format, "--out", str(tmp_path / "result"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "greet does not say hello" in (tmp_path / "result").read_text()
    assert f"Written to {tmp_path / 'result'}" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("--ref", "nope"), ("--ref", "-x"), ("--focus", "A B"), ("--budget-minutes", "0")]
)
def test_what_was_asked_wrongly_leaves_no_row(embedded: Service, arguments: tuple[str, str]) -> None:
    done = review(embedded, *arguments)
    assert (done.returncode, done.stdout) == (2, "") and "Traceback" not in done.stderr
    assert reviews.listed(embedded.shop).total == 0


def test_without_a_sandbox_nothing_is_queued(embedded: Service) -> None:
    done = review(embedded, LAMPLIGHTER_SANDBOX="docker", LAMPLIGHTER_DOCKER_URL="unix:///no/such/socket")
    assert (done.returncode, done.stdout) == (3, "") and "No sandbox works here" in done.stderr
    assert reviews.listed(embedded.shop).total == 0


def test_a_review_that_fails_says_why_with_status_3(embedded: Service) -> None:
    done = review(embedded, LAMPLIGHTER_MAX_REPO_BYTES="10")
    assert done.returncode == 3 and "LAMPLIGHTER_MAX_REPO_BYTES" in done.stderr and "Traceback" not in done.stderr


def test_where_nothing_could_be_checked_a_gate_is_not_green(embedded: Service, tmp_path: Path) -> None:
    (embedded.repo / "pyproject.toml").write_text('[project]\nname = "greet"\nrequires-python = ">=3.99"\n')
    git(embedded.repo, "add", "pyproject.toml")
    git(embedded.repo, "commit", "-qm", "a Python that nobody has")
    done = review(embedded, "--fail-on", "info")
    assert done.returncode == 3, done.stderr
    (lacking,) = (line for line in done.stdout.splitlines() if line.startswith("not checked: "))
    assert lacking.startswith("not checked: install, greets, counts: ") and "3.99" in lacking
    assert done.stdout.splitlines()[-1].startswith("Nothing could be checked: ")
    listed = reviews.listed(embedded.shop).items[0]
    assert (listed.state, listed.unchecked) == (ReviewState.DONE, "nothing could be checked")
    written = review(embedded, "--format", "json", "--out", str(tmp_path / "result"))
    assert written.returncode == 3 and "Nothing could be checked: " in written.stderr.splitlines()[-1]
    assert json.loads((tmp_path / "result").read_text())["state"] == "done"


def test_a_full_disk_is_said_with_status_3(embedded: Service) -> None:
    done = review(embedded, LAMPLIGHTER_FREE_DISK_BYTES=str(1 << 60))
    assert done.returncode == 3 and "LAMPLIGHTER_FREE_DISK_BYTES" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_ctrl_c_cancels_the_review_and_leaves_nothing(embedded: Service, number: signal.Signals) -> None:
    slow_down(embedded)
    process = started(embedded)
    wait_for(lambda: runs(embedded, "probe:greets"), 40)
    os.killpg(process.pid, number)  # as a terminal does, to all of the group
    out, said = process.communicate(timeout=15)
    assert (process.returncode, out) == (130, "") and "Traceback" not in said
    assert embedded.page(only(embedded)).row.state is ReviewState.CANCELLED
    assert embedded.boxes() == []


def test_what_a_killed_command_left_is_swept_by_the_next(embedded: Service) -> None:
    slow_down(embedded)
    process = started(embedded)
    wait_for(lambda: runs(embedded, "probe:greets"), 40)
    process.kill()
    process.communicate()
    wait_for(lambda: not any("step_runner" in line for line in embedded.boxes()))
    (embedded.repo / "greet.sh").write_text("echo good morning\n")
    git(embedded.repo, "commit", "-qam", "quick")
    done = review(embedded)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: reviews.listed(embedded.shop, state=ReviewState.RUNNING).total == 0)


def test_a_living_worker_does_the_review_and_the_command_follows(embedded: Service) -> None:
    embedded.start()
    wait_for(lambda: "worker starts" in read(embedded.log), 40)
    wait_for(lambda: bool(alive(embedded)), 40)
    done = review(embedded, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert "+ record" in done.stderr and json.loads(done.stdout)["findings"]
    assert read(embedded.log).count("review starts") == 1


def test_when_the_worker_dies_the_command_goes_on_itself(embedded: Service) -> None:
    worker = embedded.start("probe:greets", "before")
    wait_for(lambda: bool(alive(embedded)), 40)
    process = started(embedded)
    embedded.held_up()
    embedded.kill(worker)
    out, said = process.communicate(timeout=90)
    assert process.returncode == 0, said
    assert "greet does not say hello" in out
    assert embedded.page(only(embedded)).attempt == 2


def test_while_another_installation_reviews_the_command_waits_and_says_for_whom(embedded: Service) -> None:
    with host_lock.held(embedded.settings.host_lock, "lamplighter, process 1, data in /elsewhere"):
        process = started(embedded)
        assert process.stderr is not None
        waits = next(line for line in process.stderr if "waiting" in line)
        assert "waiting: this machine is reviewing for lamplighter, process 1, data in /elsewhere" in waits
        assert embedded.page(only(embedded)).row.state is ReviewState.QUEUED
    process.communicate(timeout=60)
    assert process.returncode == 0


def alive(service: Service) -> list[str]:
    return [machine.id for machine in nodes.status(service.shop).machines if machine.alive]


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
