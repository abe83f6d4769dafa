"""Real worker processes: killed in every step, robbed of messages, doubled, cancelled; nothing lost or done twice."""

import os
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import func, select

from orchestrator.services import host_lock, nodes, reviews, sweeping
from orchestrator.services.views import ReviewPage, ReviewState, StepState
from orchestrator.store.findings import FindingRow, Sighting
from orchestrator.store.measurements import MeasurementRow
from orchestrator.store.repos import RepoKind
from tests.factories import make_repo, make_review
from tests.orchestrator.jobs.conftest import Service, running
from tests.support.boxes import git
from tests.support.redis import RedisServer
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

STEPS = ["checkout", "prepare", "probe:greets", "probe:counts", "verify", "merge", "record"]


def whole(service: Service, page: ReviewPage) -> None:
    """The review is done, and everything is there exactly once."""
    assert (page.row.state, page.row.error) == (ReviewState.DONE, "")
    assert all(step.state is StepState.DONE for step in page.steps)
    assert [finding.title for finding in page.findings] == ["greet does not say hello"]
    with service.shop.sessions.reading() as db:
        for table, expected in ((FindingRow, 1), (Sighting, 1), (MeasurementRow, 1)):
            assert db.scalar(select(func.count()).select_from(table)) == expected
    wait_for(lambda: service.boxes() == [])


@pytest.mark.parametrize("step", STEPS)
def test_a_worker_killed_in_a_step_is_succeeded_by_one_that_goes_on_there(service: Service, step: str) -> None:
    """On one queue with the step's work undone, on the other with the work done and nothing of it written."""
    when = "before" if service.settings.broker_url else "after"
    review_id = service.submit()
    first = service.start(step, when)
    service.held_up()
    service.kill(first)
    wait_for(lambda: host_lock.is_free(service.settings.host_lock))  # its child is gone, too
    service.start()
    page = service.ended(review_id)
    whole(service, page)
    assert page.attempt == 2
    repeated = {one.name for one in page.steps if one.attempt > 1 and not one.name.startswith(("probe:install",))}
    assert all(name.startswith(step) for name in repeated), repeated


@pytest.mark.docker
@pytest.mark.parametrize("step", ["prepare", "probe:greets"])
def test_a_worker_killed_over_docker_leaves_no_container(with_docker: Service, step: str) -> None:
    """A container does not die with the process that asked for it, unlike a box of bubblewrap."""
    review_id = with_docker.submit()
    first = with_docker.start(step, "box")
    with_docker.held_up()
    assert any(str(review_id) in name for name in with_docker.boxes())
    with_docker.kill(first)
    with_docker.start()
    whole(with_docker, with_docker.ended(review_id, 120))


def test_a_child_that_is_killed_alone_is_replaced_and_the_review_goes_on(service: Service) -> None:
    """As by the kernel when memory runs out."""
    review_id = service.submit()
    worker = service.start("probe:greets", "before")
    service.held_up()
    (service.settings.data / "held").write_text("")
    for child in children(worker.pid):
        os.kill(child, signal.SIGKILL)
    whole(service, service.ended(review_id))


def test_a_waiting_review_is_done_although_no_message_says_so(service: Service) -> None:
    service.start()
    wait_for(lambda: service.shop.machine in workers(service), 60)
    with service.shop.sessions.begin() as db:
        repo = make_repo(db, url=str(service.repo), kind=RepoKind.PATH)
        review_id = make_review(db, repo, commit="").id
    sweeping.sweep(service.shop)  # as the beat does each minute
    assert service.ended(review_id).row.state is ReviewState.DONE


def test_a_second_message_for_the_same_review_does_nothing(service: Service) -> None:
    review_id = service.submit()
    for _ in range(3):
        service.shop.nudge(review_id)
    service.start()
    page = service.ended(review_id)
    whole(service, page)
    service.ended(service.submit(force=True))  # its message stands behind the others
    assert (page.attempt, service.page(review_id).attempt) == (1, 1)
    assert service.log.read_text().count("review starts") == 2  # what the child says is to be read, too


def test_reviews_of_one_machine_never_overlap(service: Service) -> None:
    service.start()
    with service.shop.sessions.begin() as db:
        repo = make_repo(db, url=str(service.repo), kind=RepoKind.PATH)
        ids = [make_review(db, repo, ref=ref, commit="").id for ref in ("main", "refs/heads/main", "HEAD")]
    for review_id in ids:
        service.shop.nudge(review_id)
    times = sorted((row.started_at, row.finished_at) for row in (service.ended(one, 120).row for one in ids))  # type: ignore[type-var]
    assert all(before[1] <= after[0] for before, after in pairwise(times))  # type: ignore[operator]


def test_a_running_review_is_cancelled_within_seconds_and_leaves_nothing(service: Service) -> None:
    slow_down(service)
    review_id = service.submit()
    service.start()
    wait_for(lambda: runs(service, review_id, "probe:greets"), 30)
    asked = time.monotonic()
    reviews.cancel(service.shop, review_id)
    wait_for(lambda: service.page(review_id).row.state.ended, 10)
    assert time.monotonic() - asked < 2.5
    assert service.page(review_id).row.state is ReviewState.CANCELLED
    wait_for(lambda: service.boxes() == [])


def test_a_worker_that_is_told_to_end_gives_its_review_back_and_ends(service: Service) -> None:
    slow_down(service)
    review_id = service.submit()
    worker = service.start()
    wait_for(lambda: runs(service, review_id, "probe:greets"), 30)
    worker.terminate()
    assert worker.wait(timeout=10) == 0
    page = service.page(review_id)
    assert (page.row.state, page.attempt) == (ReviewState.QUEUED, 0)
    assert not any("step_runner" in line for line in service.boxes())


def test_a_second_worker_of_a_machine_refuses_to_start(embedded: Service) -> None:
    embedded.start()
    wait_for(lambda: embedded.shop.machine in workers(embedded), 60)
    second = embedded.start()
    assert second.wait(timeout=20) != 0


@pytest.mark.redis
def test_a_restarted_broker_loses_no_review(redis_server: RedisServer, tmp_path: Path) -> None:
    redis_server.client().flushdb()
    for service in running(tmp_path, redis_server.url()):
        service.start()
        wait_for(lambda: service.shop.machine in workers(service), 60)  # noqa: B023
        redis_server.stop()
        review_id = service.submit()  # its message cannot be sent
        redis_server.start()
        sweeping.sweep(service.shop)  # as the beat does each minute
        whole(service, service.ended(review_id, 90))


def slow_down(service: Service) -> None:
    """The first probe's command takes five minutes."""
    (service.repo / "greet.sh").write_text("sleep 300\n")
    git(service.repo, "commit", "-qam", "slow")


def runs(service: Service, review_id: UUID, step: str) -> bool:
    return any(one.name == step and one.state is StepState.RUNNING for one in service.page(review_id).steps)


def workers(service: Service) -> set[str]:
    return {machine.id for machine in nodes.status(service.shop).machines if machine.alive}


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(word) for word in found.split()]
