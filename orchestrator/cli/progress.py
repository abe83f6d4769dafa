"""A review while it runs, on stderr: a live list of steps on a terminal, a line per step elsewhere; and its result."""

import sys
from types import TracebackType
from uuid import UUID

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from orchestrator.cli.console import counted, err, out, plain, plain_lines, seconds, words
from orchestrator.services import reviews
from orchestrator.services.views import FindingRow, Progress, ReviewPage, StepRow, StepState
from orchestrator.services.workshop import Workshop
from review_agents.records import Lifecycle, VerificationState

MARKS = {
    StepState.PENDING: " ",
    StepState.RUNNING: ">",
    StepState.WAITING_FOR_NODE: "~",
    StepState.DONE: "+",
    StepState.FAILED: "x",
    StepState.SKIPPED: "-",
}
ENDED = (StepState.DONE, StepState.FAILED, StepState.SKIPPED)
TAIL_LINES = 4


class Follower:
    """Shows the review as the tables tell it. A context manager; call `look` a few times a second."""

    def __init__(self, shop: Workshop, review_id: UUID):
        self._shop = shop
        self._review_id = review_id
        self._console = err()
        self._live = (
            Live(console=self._console, refresh_per_second=8, transient=True) if self._console.is_terminal else None
        )
        self._seq = 0
        self._said: set[tuple[str, int, str]] = set()
        self._tail: list[str] = []

    def __enter__(self) -> "Follower":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(plain(text), markup=False)

    def look(self) -> Progress:
        """Read and show where the review is now."""
        progress = reviews.progress(self._shop, self._review_id, self._seq)
        self._seq = progress.last_seq
        self._remember("".join(line.text for line in progress.lines))
        for step in progress.steps:
            key = (step.name, step.attempt, str(step.state))
            if step.state in ENDED and key not in self._said and step.started_at:
                self._said.add(key)
                self._console.print(one_line(step), markup=False)
        if self._live:
            self._live.update(self._picture(progress))
        return progress

    def _remember(self, text: str) -> None:
        lines = [plain(line) for line in text.splitlines() if line.strip()]
        self._tail = (self._tail + lines)[-TAIL_LINES:]

    def _picture(self, progress: Progress) -> Group:
        table = Table(box=None, show_header=False, pad_edge=False)
        done = sum(step.state in ENDED for step in progress.steps)
        if progress.current is not None:
            place = f"step {done + 1} of {len(progress.steps)}, {seconds(progress.elapsed_s)}"
            what = f"{plain(progress.current.name)}   {place}"
        else:
            ahead = f", {progress.ahead} before it" if progress.ahead else ""
            what = f"{words(progress.state)}{ahead}"
        table.add_row(Spinner("dots", text=Text(what)))
        tail = [Text(f"  {line}", style="dim", no_wrap=True, overflow="ellipsis") for line in self._tail]
        return Group(table, *tail)


def one_line(step: StepRow) -> str:
    """ "+ probe:readme  3.2 s  12 of 14 examples right"."""
    said = plain(step.summary or step.reason)
    if step.state is StepState.WAITING_FOR_NODE:
        said = f"{words(step.state)}: {said}"
    if step.reason and step.summary:
        said = f"{plain(step.summary)}: {plain(step.reason)}"
    return f"{MARKS[step.state]} {plain(step.name):<28} {seconds(step.seconds):>9}  {said}".rstrip()


# The result --------------------------------------------------------------------------------


def show_result(page: ReviewPage) -> None:
    """The review on stdout, for a person."""
    console = out()
    row = page.row
    console.print(f"[bold]{escape(plain(row.repo_name))}[/bold] {escape(plain(row.ref))} at {row.commit[:12]}")
    console.print(f"{counted(row.counts)}. {escape(plain(row.outcome_note))}".rstrip())
    for one in page.checks.unable:
        console.print(f"not checked: {escape(plain(', '.join(one.probes)))}: {escape(plain(one.reason))}")
    for finding in page.findings:
        show_finding(finding)
    console.print(f"\n{escape(plain(outcome(page)))}")


def outcome(page: ReviewPage) -> str:
    """The last line: how far it looked, also where it found something."""
    number = len(page.findings)
    found = f"{number} {'finding' if number == 1 else 'findings'}; {page.checks.tally}"
    said = page.checks.nothing_found if page.checks.barred or not number else found
    return f"{said.rstrip('.')}."


def show_finding(finding: FindingRow) -> None:
    console = out()
    state = str(finding.verification_state)
    if finding.verification_reason:
        state += f" ({plain(finding.verification_reason)})"
    lifecycle = f"{finding.lifecycle}, seen late" if finding.seen_late else str(finding.lifecycle)
    faded = finding.lifecycle in (Lifecycle.FIXED, Lifecycle.IGNORED)
    proved = finding.verification_state is VerificationState.CONFIRMED
    style = "dim" if faded else "bold" if proved else ""
    console.print()
    console.print(Text(f"{finding.severity.upper()}  {plain(finding.title)}", style=style))
    console.print(Text(f"  {finding.kind}, {lifecycle}, {state}  [{finding.fingerprint}]", style="dim"))
    for place in finding.places[:5]:
        line = f":{place.line}" if place.line else ""
        console.print(Text(f"  {plain(place.file)}{line} {plain(place.symbol)}".rstrip()))
    if faded:
        return
    for line in plain_lines(finding.description).splitlines():
        console.print(Text(f"  {line}"))
    if finding.reproduction is not None:
        for line in plain_lines(finding.reproduction.command).splitlines():
            console.print(Text(f"    {line}", style="cyan" if sys.stdout.isatty() else ""))
