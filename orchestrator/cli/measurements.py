"""`lamplighter measurements`: what a repo's benchmarks did over the nights, for people, programs and spreadsheets."""

import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.console import as_json, err, plain, print_json, print_table, when, words
from orchestrator.cli.listing import repo_id, shop_of
from orchestrator.cli.start import Data
from orchestrator.services import measurements
from orchestrator.services.errors import OutsideError
from orchestrator.services.exports import measurements as files
from orchestrator.services.histories import Step
from orchestrator.services.measurements import Benchmark, BenchmarkPage, Compared, Measurements
from orchestrator.web.plots import share
from orchestrator.web.text import percent, quantity


class As(StrEnum):
    TEXT = "text"
    JSON = "json"
    CSV = "csv"


def add_to(app: typer.Typer) -> None:
    app.command("measurements")(show_measurements)


def show_measurements(
    repo: Annotated[str, typer.Argument(help="The repo's name, URL or id.", show_default=False)],
    name: Annotated[str, typer.Option("--benchmark", help="Only this one, night by night.", show_default=False)] = "",
    format: Annotated[As, typer.Option("--format", help="text for people, json or csv for programs.")] = As.TEXT,
    out: Annotated[Path | None, typer.Option(help="Write the CSV table to this file instead of stdout.")] = None,
    data: Data = None,
) -> None:
    """Verdicts of the last review, steps, and every benchmark's latest night. The CSV table has all nights."""
    if format is not As.CSV and out is not None:
        raise typer.BadParameter("Only the CSV table is written to a file.", param_hint="--out")
    if format is As.CSV and name:
        raise typer.BadParameter("The CSV table has all benchmarks.", param_hint="--benchmark")
    shop = shop_of(data)
    found = repo_id(shop, repo)
    if format is As.CSV:
        write(files.as_csv(shop, found), out)
        return
    page = measurements.benchmark(shop, found, name) if name else measurements.get(shop, found)
    if format is As.JSON:
        print_json(as_json(page))
    elif isinstance(page, BenchmarkPage):
        show_nights(page)
    else:
        show_all(page)


def write(pieces: Iterable[str], out: Path | None) -> None:
    if out is None:
        for piece in pieces:
            sys.stdout.write(piece)
        return
    try:
        with out.open("w", encoding="utf-8", newline="") as file:
            file.writelines(pieces)
    except OSError as error:
        raise OutsideError(f"{out} cannot be written: {error.strerror}.", retry=False) from None
    err().print(f"Written to {plain(out)}.", markup=False)


def show_all(page: Measurements) -> None:
    if page.compared:
        headings = ("BENCHMARK", "VERDICT", "CHANGE", "BASE", "HEAD", "WHY")
        print_table(headings, map(verdict_line, measurements.by_weight(page.compared)), empty="")
        sys.stdout.write("\n")
    if page.steps:
        print_table(("STEP", "CHANGE", "SINCE", "COMMIT"), map(step_line, page.steps), empty="")
        sys.stdout.write("\n")
    print_table(
        ("BENCHMARK", "LATEST", "SPREAD", "NIGHTS", "AT"),
        map(latest_line, page.benchmarks),
        empty="No number yet: the first review that measures something starts a series.",
    )
    alarms = page.false_alarms
    if alarms.pairs:
        sys.stdout.write(
            f"\nFalse alarms: {alarms.alarms} of {alarms.pairs} pairs of equal code in 30 nights, all repos.\n"
        )


def verdict_line(one: Compared) -> tuple[str, ...]:
    change = "" if one.ratio is None else f"{share(one.ratio)} ({share(one.low)} to {share(one.high)})"
    verdict = f"{words(one.verdict)}, equal code" if one.same_code else words(one.verdict)
    return one.name, verdict, change, quantity(one.base, one.unit), quantity(one.head, one.unit), one.reason


def step_line(step: Step) -> tuple[str, ...]:
    point = step.point
    commit = step.culprit[:10] or f"after {point.from_commit[:10]}, up to {point.to_commit[:10]}"
    return point.name, share(point.ratio), when(point.to_at), commit


def latest_line(one: Benchmark) -> tuple[str, ...]:
    latest = one.latest
    return one.name, quantity(latest.median, one.unit), percent(latest.spread), str(one.nights), when(latest.at)


def show_nights(page: BenchmarkPage) -> None:
    unit = page.benchmark.unit
    rows = [
        (when(night.at), night.commit[:10], quantity(night.median, unit), percent(night.spread), night.good, night.void,
         line.machine_key)
        for line in page.benchmark.lines
        for night in line.nights
    ]  # fmt: skip
    print_table(("AT", "COMMIT", "MEDIAN", "SPREAD", "SESSIONS", "VOID", "MEASURED ON"), rows, empty="")
