"""`lamplighter review TARGET`: one review in the foreground, through the same code and tables as the service.

If a worker on this database is alive, it does the review and this command follows; else the command does it itself.
Either way the review is a row, and what is shown is read from the tables.
"""

import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated
from uuid import UUID

import typer

from orchestrator import wiring
from orchestrator.cli.console import err, plain, print_or_write
from orchestrator.cli.progress import Follower, outcome, show_result
from orchestrator.cli.start import Data, opened, settings_of
from orchestrator.sandbox import select
from orchestrator.services import exporting, reviews, submitting, working
from orchestrator.services.errors import NotNow, OutsideError
from orchestrator.services.submitting import Submission
from orchestrator.services.views import FindingRow, ReviewPage, ReviewState
from orchestrator.services.workshop import Workshop
from orchestrator.store import machines
from review_agents.records import Lifecycle, Severity, VerificationState

LOOK_EVERY_S = 0.5
ALIVE_WITHIN = timedelta(seconds=45)  # a worker reports every ten seconds
COUNTS = (Lifecycle.NEW, Lifecycle.PERSISTING, Lifecycle.REGRESSED)


class ReviewFormat(StrEnum):
    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    SARIF = "sarif"


def add_to(app: typer.Typer) -> None:
    app.command()(review)


def review(
    target: Annotated[
        str, typer.Argument(help="Git URL, or a folder with a git repo. Its HEAD is reviewed, not uncommitted changes.")
    ],
    ref: Annotated[str, typer.Option(help="Branch, tag or commit.", show_default="the default branch")] = "",
    focus: Annotated[str, typer.Option(help="Focuses for agents, separated by commas.", show_default="all")] = "",
    node: Annotated[str | None, typer.Option(help="URL of an inference node.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to ask for.")] = None,
    profile: Annotated[
        str,
        typer.Option(
            help="For whom agents judge: general, adoption, application or student.", show_default="as before"
        ),
    ] = "",
    flavour: Annotated[
        str,
        typer.Option(help="What it is: production, research, performance or personal.", show_default="told from files"),
    ] = "",
    no_agents: Annotated[bool, typer.Option("--no-agents", help="Evidence only: no model takes part.")] = False,
    budget_minutes: Annotated[
        int | None, typer.Option(help="End after so many minutes with what was found by then.")
    ] = None,
    format: Annotated[ReviewFormat, typer.Option("--format", help="How the result is printed.")] = ReviewFormat.TEXT,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file instead of stdout.")] = None,
    fail_on: Annotated[
        Severity | None, typer.Option(help="Exit with 1 if there is a confirmed finding of this severity or worse.")
    ] = None,
    data: Data = None,
) -> int:
    """Review one repo now, with progress, and print what was found.

    Exit status: 0 done, 1 findings at or above --fail-on, 2 wrong use, 3 something outside failed; also when for that
    nothing could be checked. Single checks that could not run leave it as it is; the last line counts them.
    """
    if out is not None and not out.absolute().parent.is_dir():
        raise typer.BadParameter(f"There is no folder {out.absolute().parent}.", param_hint="--out")
    if out is not None and out.is_dir():
        raise typer.BadParameter(f"{out} is a folder. Name a file in it.", param_hint="--out")
    settings = settings_of(data, model_url=node, model_name=model)
    shop = opened(settings, "review")
    busy = somebody_works(shop)
    ours = None if busy else wiring.with_sandbox(shop, select.choose(settings))
    if busy and (node is not None or model is not None):
        err().print("A worker on this data folder does the review, with the node and model of its own settings.")
    asked = Submission(
        target=target,
        ref=ref,
        focuses=tuple(name.strip() for name in focus.split(",") if name.strip()),
        budget_minutes=budget_minutes,
        agents=not no_agents,
        profile=profile,
        flavour=flavour,
        from_cli=True,
    )
    review_id = submitting.submit(shop, asked)
    with cancelled_by_signals(shop, review_id):
        see_through(shop, ours, review_id)
    page = reviews.get(shop, review_id)
    if page.row.state is ReviewState.CANCELLED:
        raise KeyboardInterrupt
    if page.row.state is ReviewState.FAILED:
        raise OutsideError(f"The review failed: {page.row.error}", retry=False)
    give(shop, page, format, out)
    if fail_on is not None and any(is_at_least(one, fail_on) for one in page.findings):
        return 1
    return 3 if page.checks.barred else 0


def is_at_least(finding: FindingRow, severity: Severity) -> bool:
    """What --fail-on counts: confirmed faults that are there now."""
    return (
        finding.verification_state is VerificationState.CONFIRMED
        and finding.lifecycle in COUNTS
        and finding.severity.rank <= severity.rank
    )


def give(shop: Workshop, page: ReviewPage, format: ReviewFormat, out: Path | None) -> None:
    """The result to the file or stdout."""
    if format is ReviewFormat.TEXT and out is None:
        show_result(page)
        return
    wanted = ReviewFormat.MARKDOWN if format is ReviewFormat.TEXT else format
    print_or_write(exporting.export(shop, page.row.id, str(wanted)), out)
    err().print(plain(outcome(page)), markup=False)


# Who does it -------------------------------------------------------------------------------


def somebody_works(shop: Workshop) -> bool:
    """Whether a worker on this database is alive."""
    with shop.sessions.reading() as db:
        found = machines.heard_of_since(db, shop.clock() - ALIVE_WITHIN)
    return any(one != shop.machine or working.worker_alive(shop.settings, one) for one in found)


def see_through(shop: Workshop, ours: Workshop | None, review_id: UUID) -> None:
    """Follow the review to its end, doing it here whenever nobody else would."""
    doing: Doing | None = None
    said = ""
    with Follower(shop, review_id) as follower:
        while not follower.look().ended:
            if doing is not None and doing.over:
                doing.raise_trouble()
                doing = None
            left_s, why = reviews.waits_s(shop, review_id)
            if left_s and why != said:
                said = why
                follower.say(why)
            if doing is None and not left_s and not somebody_works(shop):
                ours = ours or wiring.with_sandbox(shop, select.choose(shop.settings))
                doing = Doing(ours, review_id, follower.say)
            time.sleep(LOOK_EVERY_S)
        if doing is not None:
            doing.join()


class Doing:
    """The review being done by a thread of this process."""

    def __init__(self, shop: Workshop, review_id: UUID, say: Callable[[str], None]):
        self._shop = shop
        self._review_id = review_id
        self._say = say
        self._trouble: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="review")
        self._thread.start()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join()

    def raise_trouble(self) -> None:
        """What rose in the thread; also when the disk is too full to begin."""
        if self._trouble is not None:
            raise self._trouble
        page = reviews.get(self._shop, self._review_id)
        if page.row.state is ReviewState.QUEUED and page.row.outcome_note.startswith("waits:"):
            raise OutsideError(f"The review {page.row.outcome_note}.", retry=True)

    def _run(self) -> None:
        def waiting(holder: str) -> None:
            self._say(f"waiting: this machine is reviewing for {holder}")

        def wanted_no_more() -> bool:
            return reviews.progress(self._shop, self._review_id, 0).ended or somebody_works(self._shop)

        try:
            working.do_one(self._shop, self._review_id, waiting=waiting, give_up=wanted_no_more)
        except BaseException as error:
            self._trouble = error


class cancelled_by_signals:
    """The first Ctrl-C cancels the review and waits for its clean end; a second one ends this process at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, shop: Workshop, review_id: UUID):
        self._shop = shop
        self._review_id = review_id
        self._asked = False

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._on_signal) for number in self.SIGNALS}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            raise KeyboardInterrupt
        self._asked = True
        # Not here: a handler may interrupt a transaction of this very thread.
        threading.Thread(target=self._cancel, daemon=True).start()

    def _cancel(self) -> None:
        err().print("Cancelling ... (once more ends at once)")
        try:
            reviews.cancel(self._shop, self._review_id)
        except NotNow:
            return
