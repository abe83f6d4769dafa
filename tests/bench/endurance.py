"""One review after another in real sandboxes: memory and descriptors stay flat, and nothing is left over.

    python -m tests.bench endurance                              all 500
    python -m tests.bench endurance --minutes 25 --keep FILE     a part; the next one goes on, also days later

A review has no dependencies, three checks and one scripted focus. A run that was interrupted goes on where it stopped,
at the same commit (from a clone that stands still, where the parts are days apart). Each stretch begins with processes
of its own, whose memory is looked at from its tenth review on. A review that does not end is counted, and its stretch
is over.
"""

import json
import math
import statistics
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from orchestrator.services.views import ReviewState
from orchestrator.store.logs import Log, LogChunk
from orchestrator.store.reviews import Review
from orchestrator.store.steps import CandidateRow, Step
from tests.bench.faults import prepared, wrong_in
from tests.bench.figures import commit, of_this_commit, record
from tests.support.stage import Stage, children_of
from tests.support.waiting import wait_for

REVIEWS = 500
PATIENCE_S = 60.0
SETTLED_AFTER = 10  # reviews of a stretch: imports, pools and caches are filled by then
MOST_GROWTH_MIB = 24.0  # from there to the end of a stretch
MOST_DESCRIPTORS = 12  # more than there were
KEPT = Path(tempfile.gettempdir()) / "lamplighter-endurance.json"
WATCHED = ("worker", "web", "beat")


@dataclass(frozen=True)
class Reading:
    """Of the service's own processes with their children."""

    memory_mib: float
    descriptors: int
    threads: int


def run(
    number: int = REVIEWS, *, minutes: float = math.inf, kept: Path = KEPT, keep_figures: bool = True
) -> dict[str, float]:
    """Writes docs/figures/endurance.json once all are done; begins no review after so many minutes."""
    until = time.monotonic() + minutes * 60
    done = of_this_commit(json.loads(kept.read_text())["stretches"]) if kept.exists() else []
    while (missing := number - sum(stretch["reviews"] for stretch in done)) > 0 and time.monotonic() < until:
        with prepared("bubblewrap") as one:
            stretch = Stretch(one)
            while missing and not stretch.hung and time.monotonic() < until:
                stretch.review()
                missing -= 1
                kept.write_text(json.dumps({"stretches": [*done, stretch.told()]}, indent=1))
            if stretch.seconds:
                stretch.end()
                done.append(stretch.told())
                kept.write_text(json.dumps({"stretches": done}, indent=1))
    if missing > 0:
        print(f"Nothing is recorded: {number - missing} of {number} reviews are done.")
    figures = figures_of(done)
    if keep_figures and len(of_this_commit(done)) < len(done):
        print("Nothing is recorded: the commit changed on the way. Run it again.")
    elif keep_figures and figures["reviews"] >= REVIEWS:
        record("endurance", figures, libraries=("celery", "sqlalchemy", "psycopg"))
    return figures


def figures_of(stretches: list[dict[str, Any]]) -> dict[str, float]:
    if not stretches:
        return {"reviews": 0}
    return {
        "reviews": sum(one["reviews"] for one in stretches),
        "hung": sum(one["hung"] for one in stretches),
        "leaked": sum(len(one["leaked"]) for one in stretches),
        "wrong": sum(len(one["wrong"]) for one in stretches),
        "stretches": len(stretches),
        "median_s": round(statistics.median(one["median_s"] for one in stretches), 2),
        "memory_growth_mib": round(max(one["memory_growth_mib"] for one in stretches), 1),
        "descriptors_more": max(one["descriptors_more"] for one in stretches),
    }


class Stretch:
    """Reviews that the same processes did."""

    def __init__(self, one: Stage):
        self.one = one
        self.commit = commit()
        self.hung = False  # its last review did not end
        self.seconds: list[float] = []
        self.wrong: list[str] = []
        self.leaked: list[str] = []
        self.readings: list[Reading] = []

    def review(self) -> None:
        """One more, from its repo to nothing left."""
        began = time.monotonic()
        review_id = self.one.submit(self.one.new_repo())
        try:
            wait_for(lambda: self.one.page(review_id).row.state.ended, PATIENCE_S)
        except AssertionError:
            self.hung = True
        self.seconds.append(time.monotonic() - began)
        self.wrong += [f"review {len(self.seconds)}: {words}" for words in wrong_in(self.one.page(review_id))]
        with suppress(AssertionError):
            wait_for(lambda: not self.one.left_over(), 5, "left over")
        self.leaked += self.one.left_over()
        self.readings.append(reading_of(self.one))
        if len(self.seconds) % 10 == 0:
            last = self.readings[-1]
            print(
                f"{len(self.seconds):4} reviews, {self.seconds[-1]:.1f} s, {last.memory_mib:.0f} MiB, "
                f"{last.descriptors} descriptors, wrong {len(self.wrong)}, leaked {len(self.leaked)}",
                flush=True,
            )

    def end(self) -> None:
        """Rows that belong to nothing, files of no use."""
        with self.one.shop.sessions.reading() as db:
            unfinished = db.scalar(select(func.count()).where(Review.state != ReviewState.DONE)) or 0
            orphans = [
                db.scalar(select(func.count()).select_from(table).where(table.step_id.not_in(select(Step.id)))) or 0
                for table in (LogChunk, Log, CandidateRow)
            ]
        if unfinished or any(orphans):
            self.leaked.append(f"{unfinished} unfinished reviews, {orphans} rows of no step")
        queue = self.one.redis.client()
        waiting = sum(queue.llen(key) for key in queue.keys("*") if queue.type(key) == b"list")
        if waiting > 1:
            self.leaked.append(f"{waiting} messages that nobody reads")

    def told(self) -> dict[str, Any]:
        settled = self.readings[SETTLED_AFTER:] or self.readings[-1:]
        tenth = max(1, len(settled) // 10)
        first, last = settled[:tenth], settled[-tenth:]
        growth = statistics.median(one.memory_mib for one in last) - statistics.median(one.memory_mib for one in first)
        return {
            "commit": self.commit,
            "reviews": len(self.seconds),
            "hung": self.hung,
            "median_s": round(statistics.median(self.seconds), 2),
            "wrong": self.wrong,
            "leaked": [*self.leaked, *self.not_flat(growth, last[-1].descriptors - first[0].descriptors)],
            "memory_growth_mib": round(growth, 1),
            "descriptors_more": last[-1].descriptors - first[0].descriptors,
        }

    def not_flat(self, growth: float, descriptors: int) -> list[str]:
        found = [f"memory grew by {growth:.0f} MiB"] if growth > MOST_GROWTH_MIB else []
        return [*found, *([f"{descriptors} descriptors more"] if descriptors > MOST_DESCRIPTORS else [])]


def reading_of(one: Stage) -> Reading:
    family = [pid for name in WATCHED for pid in with_children(one.processes[name].pid)]
    memory = descriptors = threads = 0
    for pid in family:
        with suppress(OSError, IndexError):
            status = Path(f"/proc/{pid}/status").read_text()
            memory += int(status.partition("VmRSS:")[2].split()[0])
            threads += int(status.partition("Threads:")[2].split()[0])
            descriptors += len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Reading(memory / 1024, descriptors, threads)


def with_children(pid: int) -> list[int]:
    return [pid, *children_of(pid)]
