"""One review being worked on: its steps, each a row that is done once, and the boxes that they open."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from orchestrator.sandbox.contract import Box, BoxOrder, Cancelled, Limits, Patience, Role, Sandbox, SandboxError
from orchestrator.services.claiming import Hold, Interrupted
from orchestrator.services.step_log import StepLog
from orchestrator.services.workshop import Workshop
from orchestrator.store import logs, steps
from orchestrator.store.claims import LostClaim
from orchestrator.store.repos import Repo as RepoRow
from orchestrator.store.repos import RepoKind
from orchestrator.store.reviews import Review
from orchestrator.store.steps import StepState
from review_agents.ports import NodeAway, Stopped
from review_agents.records import Environment, Network, Ran

log = structlog.get_logger(__name__)

SHOWN_COMMAND_CHARS = 2000  # of a command in the log
UNWANTED = (Cancelled, LostClaim, Interrupted, Stopped)  # the work is no longer wanted; says nothing about the step


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step ended, and what else is written in the transaction that ends it."""

    result: Any = None  # JSON
    summary: str = ""
    reason: str = ""
    also: Callable[[Session], None] = lambda db: None
    failed: bool = False  # the step is shown as failed, and the review goes on with its result all the same


@dataclass(frozen=True, slots=True)
class Assignment:
    """What was asked for, read when the review was claimed."""

    review_id: UUID
    repo_id: UUID
    repo_name: str
    url: str
    is_path: bool
    ref: str
    commit: str  # "" until it was fetched
    force: bool
    agents: bool
    budget_minutes: int
    focuses: tuple[str, ...]
    profile: str
    flavour: str
    budget_tokens: int | None


@dataclass
class StepRun:
    """One attempt of a step while it runs."""

    job: "Job"
    id: UUID
    name: str
    attempt: int
    log: StepLog
    boxes: list["WatchedBox"] = field(default_factory=list)

    def open(
        self,
        *,
        part: str = "",
        role: Role = Role.STEP,
        egress: bool = False,
        requires_python: str = "",
        volumes: str = "",
        cpus: tuple[int, ...] = (),
    ) -> Box:
        """A fresh box of this step.

        part        tells several of one step apart
        volumes     whose; empty: the review's own
        cpus        to pin it to; empty: as the operator has it
        """
        self.job.hold.check()
        limits = self.job.limits()
        order = BoxOrder(
            review=volumes or str(self.job.review_id),
            step=f"{self.name}:{part}" if part else self.name,
            attempt=self.attempt,
            role=role,
            egress=egress,
            limits=replace(limits, cpus=cpus) if cpus else limits,
            requires_python=requires_python,
        )
        self.job.hold.write(lambda db: steps.name_box(db, self.id, f"{order.review}/{order.step}/{order.attempt}"))
        box = WatchedBox(self.job.sandbox.open(order), self)
        self.boxes.append(box)
        return box

    def spend(self, seconds: float) -> None:
        spent = self.job.spent
        if self.name.startswith("verify:"):
            spent.verify_commands_s += seconds
        else:
            spent.commands_s += seconds

    def close(self) -> None:
        """Destroy whatever is still open; a box that cannot be destroyed is the sweep's business."""
        for box in self.boxes:
            try:
                box.destroy()
            except SandboxError as error:
                log.warning("a box could not be destroyed", box=box.name, error=str(error))

    @property
    def trouble(self) -> BaseException | None:
        """What went wrong with its boxes, also where a probe has swallowed it."""
        return next((box.trouble for box in self.boxes if box.trouble is not None), None)


@dataclass
class Spent:
    """Where the wall time of this attempt went; what is in neither is the service's own."""

    commands_s: float = 0.0  # as timed in boxes, outside of verification
    verify_s: float = 0.0  # verification, whole
    verify_commands_s: float = 0.0  # of that in boxes
    verify_boxes: int = 0


class Job:
    """A claimed review on this machine."""

    def __init__(self, hold: Hold, sandbox: Sandbox):
        self.hold = hold
        self.shop: Workshop = hold.shop
        self.sandbox = sandbox
        self.review_id = hold.review_id
        with self.shop.sessions.reading() as db:
            row, repo = read(db, self.review_id)
        self.asked = Assignment(
            review_id=row.id,
            repo_id=row.repo_id,
            repo_name=repo.name,
            url=repo.url,
            is_path=repo.kind is RepoKind.PATH,
            ref=row.ref,
            commit=row.commit,
            force=row.force,
            agents=row.agents,
            budget_minutes=row.budget_minutes,
            focuses=tuple(row.focuses),
            profile=row.profile,
            flavour=row.flavour,
            budget_tokens=row.budget_tokens,
        )
        self.deadline = time.monotonic() + row.budget_minutes * 60
        self.started = time.monotonic()
        self.spent = Spent()
        self.patience = Patience(self.shop.settings.measure_patience_s)

    def time_left(self) -> float:
        """Seconds of the budget, counted from this attempt's start."""
        return self.deadline - time.monotonic()

    def lower_budget(self, minutes: int | None) -> None:
        """The repo's own wish, which may only lower what the operator allows."""
        if minutes is not None and 0 < minutes < self.asked.budget_minutes:
            self.deadline -= (self.asked.budget_minutes - minutes) * 60

    def limits(self) -> Limits:
        return self.shop.limits(max(self.time_left(), 60.0))

    def done(self, name: str) -> bool:
        with self.shop.sessions.reading() as db:
            row = steps.named(db, self.review_id, name)
        return row is not None and row.state is StepState.DONE

    def result(self, name: str) -> Any:
        """What a step that is done produced."""
        with self.shop.sessions.reading() as db:
            row = steps.named(db, self.review_id, name)
        return row.result if row else None

    def plan(self, *named: tuple[str, int]) -> None:
        """Show steps as still to come."""
        self.hold.write(lambda db: steps.plan(db, self.review_id, named))

    def step(self, name: str, work: Callable[[StepRun], Outcome], *, redo: bool = False) -> Any:
        """Do the step unless it is done, and return its result. What `work` raises ends the step as failed;
        a node that is away leaves it waiting, to be gone on with."""
        self.hold.check()
        if not redo:
            with self.shop.sessions.reading() as db:
                row = steps.named(db, self.review_id, name)
            if row is not None and row.settled:
                return row.result
        row = self.hold.write(lambda db: steps.start(db, self.review_id, name, self.shop.clock()))
        run = StepRun(self, row.id, name, row.attempt, StepLog(self.hold, row.id, row.attempt))
        self.hold.each_second(run.log.flush)
        log.info("step", step=name, attempt=row.attempt)
        started = time.monotonic()
        try:
            outcome = work(run)
            run.close()
            self.hold.check()
        except UNWANTED:
            run.close()
            raise
        except NodeAway as error:
            run.close()
            self._wait(run, error)
            raise
        except Exception as error:
            run.close()
            self._fail(run, error)
            raise
        finally:
            self.hold.each_second(lambda: None)
        self._end(run, outcome)
        if name.startswith("verify:"):
            self.spent.verify_s += time.monotonic() - started
            self.spent.verify_boxes += len(run.boxes)
        return outcome.result

    def _end(self, run: StepRun, outcome: Outcome) -> None:
        def end(db: Session) -> None:
            outcome.also(db)
            steps.end(
                db,
                run.id,
                self.shop.clock(),
                state=StepState.FAILED if outcome.failed else StepState.DONE,
                summary=outcome.summary,
                reason=outcome.reason,
                result=outcome.result,
            )
            logs.pack(db, run.id)

        run.log.flush()
        self.hold.write(end)

    def _wait(self, run: StepRun, error: NodeAway) -> None:
        run.log.write(f"[waiting for the node: {error}]\n")
        run.log.flush()
        self.hold.write(lambda db: steps.wait(db, run.id, str(error)[:2000]))

    def _fail(self, run: StepRun, error: Exception) -> None:
        run.log.write(f"\n{error}\n")
        run.log.flush()

        def fail(db: Session) -> None:
            steps.end(db, run.id, self.shop.clock(), state=StepState.FAILED, reason=str(error)[:2000])
            logs.pack(db, run.id)

        self.hold.write(fail)


class WatchedBox:
    """A box whose commands are logged, end when the review is cancelled, and never outlast its budget."""

    def __init__(self, box: Box, run: StepRun):
        self._box = box
        self._run = run
        self.name = box.name
        self.trouble: BaseException | None = None

    def run(
        self,
        command: str,
        *,
        environment: Environment = Environment.PLAIN,
        network: Network = Network.NONE,
        timeout_s: float = 120.0,
        stdin: str = "",
        on_output: Callable[[str], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Ran:
        job, say = self._run.job, self._run.log.write
        say(f"$ {shortened(command)}\n")
        try:
            job.hold.check()
            ran = self._box.run(
                command,
                environment=environment,
                network=network,
                timeout_s=max(min(timeout_s, job.shop.settings.command_timeout_s, job.time_left()), 1.0),
                stdin=stdin,
                on_output=both(say, on_output),
                cancelled=either(job.hold.stop_wanted, cancelled),
            )
        except UNWANTED as error:
            self.trouble = job.hold.why_stop() or error
            raise self.trouble from None
        except SandboxError as error:
            self.trouble = error
            say(f"[{error}]\n")
            raise
        self._run.spend(ran.seconds)
        say(f"[{ran.ending}, {ran.seconds:.2f} s]\n")
        return ran

    def read(self, path: str, *, limit_bytes: int) -> bytes:
        return self._watched(lambda: self._box.read(path, limit_bytes=limit_bytes))

    def write(self, path: str, content: bytes) -> None:
        self._watched(lambda: self._box.write(path, content))

    def list(self, folder: str) -> tuple[str, ...]:
        return self._watched(lambda: self._box.list(folder))

    def changed(self, files: Sequence[str]) -> tuple[str, ...]:
        found: tuple[str, ...] = self._watched(lambda: self._box.changed(files))
        return found

    def destroy(self) -> None:
        self._box.destroy()

    def _watched(self, do: Callable[[], Any]) -> Any:
        try:
            self._run.job.hold.check()
            return do()
        except (SandboxError, *UNWANTED) as error:
            self.trouble = error
            raise


def read(db: Session, review_id: UUID) -> tuple[Review, RepoRow]:
    row = db.get_one(Review, review_id)
    return row, db.get_one(RepoRow, row.repo_id)


def shortened(command: str) -> str:
    if len(command) <= SHOWN_COMMAND_CHARS:
        return command
    return f"{command[:SHOWN_COMMAND_CHARS]} [... {len(command) - SHOWN_COMMAND_CHARS} characters more]"


def both(one: Callable[[str], None], other: Callable[[str], None] | None) -> Callable[[str], None]:
    if other is None:
        return one

    def tell(text: str) -> None:
        one(text)
        other(text)

    return tell


def either(one: Callable[[], bool], other: Callable[[], bool] | None) -> Callable[[], bool]:
    return one if other is None else lambda: one() or other()
