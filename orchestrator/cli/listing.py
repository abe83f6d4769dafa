"""Reading and changing what the service remembers: repos, reviews, schedules."""

import sys
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from orchestrator.cli.console import (
    Format,
    as_json,
    counted,
    err,
    plain,
    print_json,
    print_or_write,
    print_table,
    seconds,
    when,
    words,
)
from orchestrator.cli.progress import one_line, show_result
from orchestrator.cli.start import Data, opened, settings_of
from orchestrator.services import comparing, exporting, memos, repos, reviews, schedules, transcripts
from orchestrator.services.errors import BadInput
from orchestrator.services.schedules import Plan
from orchestrator.services.views import Comparison, RepoRow, ReviewRow, ReviewState, ScheduleKind, ScheduleRow
from orchestrator.services.workshop import Workshop

As = Annotated[Format, typer.Option("--format", help="text for people, json for programs.")]
Review = Annotated[str, typer.Argument(help="The review's id, or the beginning of it.", show_default=False)]
Repo = Annotated[str, typer.Option("--repo", help="The repo's name, URL or id.", show_default=False)]
EXPORTS = ("json", "markdown", "sarif")

reviews_app = typer.Typer(help="List, show, compare, export and cancel reviews.", no_args_is_help=True)
schedules_app = typer.Typer(help="When repos come round by themselves.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    app.command("repos")(list_repos)
    app.add_typer(reviews_app, name="reviews")
    app.add_typer(schedules_app, name="schedules")


def shop_of(data: Path | None) -> Workshop:
    return opened(settings_of(data), "cli")


def list_repos(format: As = Format.TEXT, data: Data = None) -> None:
    """All repos with their last review and what is open."""
    found = repos.listed(shop_of(data))
    if format is Format.JSON:
        print_json(list(map(as_json, found)))
        return
    rows = [
        (
            one.name,
            *last_of(one),
            counted(one.counts, one.last.unchecked if one.last else ""),
            when(one.next_at),
            one.url,
        )
        for one in found
    ]
    print_table(
        ("REPO", "LAST", "AT", "OPEN", "NEXT", "URL"), rows, empty="No repos yet. `lamplighter review TARGET` adds one."
    )


def last_of(repo: RepoRow) -> tuple[str, str]:
    return (words(repo.last.state), when(repo.last.created_at)) if repo.last else ("", "")


# Reviews -----------------------------------------------------------------------------------


@reviews_app.command("list")
def list_reviews(
    repo: Repo = "",
    state: Annotated[ReviewState | None, typer.Option(help="Only those in this state.")] = None,
    page: Annotated[int, typer.Option(help="Counted from 1; 50 reviews a page.")] = 1,
    format: As = Format.TEXT,
    data: Data = None,
) -> None:
    """Reviews, newest first."""
    shop = shop_of(data)
    found = reviews.listed(shop, repo=repo_id(shop, repo) if repo else None, state=state, page=page)
    if format is Format.JSON:
        print_json(list(map(as_json, found.items)))
        return
    headings = ("ID", "REPO", "REF", "COMMIT", "STATE", "ASKED", "TOOK", "FOUND")
    print_table(headings, map(review_line, found.items), empty="No such reviews.")
    if found.pages > 1:
        err().print(f"Page {found.page} of {found.pages}, {found.total} reviews.")


def review_line(one: ReviewRow) -> tuple[str, ...]:
    said = counted(one.counts, one.unchecked) if one.state is ReviewState.DONE else one.error
    asked, took = when(one.created_at), seconds(one.seconds)
    return (str(one.id)[:8], one.repo_name, one.ref, one.commit[:10], words(one.state), asked, took, said)


@reviews_app.command("show")
def show_review(review: Review, format: As = Format.TEXT, data: Data = None) -> None:
    """One review: its steps while it runs, its findings when it is done."""
    shop = shop_of(data)
    page = reviews.get(shop, review_id(shop, review))
    if format is Format.JSON:
        print_json(as_json(page))
        return
    if page.row.state is ReviewState.DONE:
        show_result(page)
        return
    sys.stdout.write(f"{words(page.row.state)} {plain(page.row.error or page.row.outcome_note)}".rstrip() + "\n")
    for step in page.steps:
        sys.stdout.write(one_line(step) + "\n")


@reviews_app.command("compare")
def compare_reviews(one: Review, other: Review, format: As = Format.TEXT, data: Data = None) -> None:
    """What differs between two reviews of a repo."""
    shop = shop_of(data)
    found = comparing.compare(shop, review_id(shop, one), review_id(shop, other))
    if format is Format.JSON:
        print_json(as_json(found))
        return
    show_comparison(found)


def show_comparison(found: Comparison) -> None:
    for heading, group in (
        ("new", found.appeared),
        ("seen late", found.seen_late),
        ("regressed", found.regressed),
        ("fixed", found.fixed),
        ("no longer seen, not proved fixed", found.not_seen),
        ("persisting", found.stayed),
        ("ignored", found.ignored),
    ):
        for finding in group:
            sys.stdout.write(f"{heading}: {finding.severity} {plain(finding.title)} [{finding.fingerprint}]\n")
    for probe in found.probes:
        before, after = (str(side.state) if side else "not there" for side in (probe.one, probe.other))
        sys.stdout.write(f"{plain(probe.probe)}: {before} before, {after} after\n")
    for measured in found.measurements:
        if measured.ratio is not None:
            sys.stdout.write(f"{plain(measured.name)}: {measured.ratio:.3f} times as long\n")


@reviews_app.command("export")
def export_review(
    review: Review,
    format: Annotated[str, typer.Option("--format", help="json, markdown or sarif.")] = "json",
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.")] = None,
    data: Data = None,
) -> None:
    """One review for other tools."""
    if format not in EXPORTS:
        raise BadInput("format", f"--format: found {format!r}, expected {', '.join(EXPORTS)}.")
    shop = shop_of(data)
    print_or_write(exporting.export(shop, review_id(shop, review), format), out)


@reviews_app.command("memo")
def show_memo(
    review: Review,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.")] = None,
    data: Data = None,
) -> None:
    """The verdict of one review as Markdown: scores, what to repair first, what was not looked at."""
    shop = shop_of(data)
    print_or_write(memos.markdown(shop, review_id(shop, review)), out)


@reviews_app.command("transcripts")
def show_transcripts(
    review: Review,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.")] = None,
    data: Data = None,
) -> None:
    """What the agents of one review said and did, as a recording that `review --node recording:FILE` plays again."""
    shop = shop_of(data)
    print_or_write(transcripts.recording(shop, review_id(shop, review)), out)


@reviews_app.command("cancel")
def cancel_review(review: Review, data: Data = None) -> None:
    """End a review that waits or runs."""
    shop = shop_of(data)
    found = review_id(shop, review)
    reviews.cancel(shop, found)
    err().print(f"Review {found} is being cancelled.")


# Schedules ---------------------------------------------------------------------------------


@schedules_app.command("list")
def list_schedules(format: As = Format.TEXT, data: Data = None) -> None:
    """All schedules, the next one first."""
    found = schedules.listed(shop_of(data))
    if format is Format.JSON:
        print_json(list(map(as_json, found)))
        return
    print_table(
        ("ID", "REPO", "REF", "WHEN", "NEXT", "NOTE"),
        map(schedule_line, found),
        empty="No schedules. `lamplighter schedules add` makes one.",
    )


def schedule_line(one: ScheduleRow) -> tuple[str, ...]:
    nightly = one.kind is ScheduleKind.NIGHTLY
    planned = f"nightly at {one.at} {one.zone}" if nightly else f"{one.pause_minutes} min after the last"
    coming = one.next_local if one.enabled else "off"
    return (str(one.id)[:8], one.repo_name, one.ref, planned, coming, one.last_note)


@schedules_app.command("add")
def add_schedule(
    repo: Annotated[str, typer.Argument(help="The repo's name, URL or id.")],
    at: Annotated[str | None, typer.Option(help="Nightly at this time, HH:MM.")] = None,
    zone: Annotated[str, typer.Option(help="Time zone of --at, for example Europe/Vienna.")] = "UTC",
    loop: Annotated[int | None, typer.Option(help="Instead: again so many minutes after each review.", min=0)] = None,
    ref: Annotated[str, typer.Option(help="Branch or tag.", show_default="the default branch")] = "",
    focus: Annotated[str, typer.Option(help="Focuses for agents, separated by commas.", show_default="all")] = "",
    profile: Annotated[str, typer.Option(help="For whom agents judge.", show_default="as the repo is")] = "",
    flavour: Annotated[str, typer.Option(help="What it means to be.", show_default="as the repo is")] = "",
    always: Annotated[bool, typer.Option("--always", help="Also when the commit was reviewed before.")] = False,
    budget_minutes: Annotated[int | None, typer.Option(help="Time budget of each review.")] = None,
    data: Data = None,
) -> None:
    """Have a repo come round every night, or in a loop."""
    if (at is None) == (loop is None):
        raise typer.BadParameter("Give either --at HH:MM or --loop MINUTES.")
    shop = shop_of(data)
    kind = ScheduleKind.NIGHTLY if at is not None else ScheduleKind.LOOP
    plan = Plan(
        kind=kind, at=at or "02:00", zone=zone, pause_minutes=loop or 0, ref=ref, skip_unchanged=not always,
        budget_minutes=budget_minutes, profile=profile, flavour=flavour,
        focuses=tuple(name.strip() for name in focus.split(",") if name.strip()),
    )  # fmt: skip
    made = schedules.create(shop, repo_id(shop, repo), plan)
    err().print(f"Schedule {made}: next at {schedules.get(shop, made).next_local}.")


@schedules_app.command("remove")
def remove_schedule(
    schedule: Annotated[str, typer.Argument(help="The schedule's id, or the beginning of it.")], data: Data = None
) -> None:
    """Take a schedule away; its reviews stay."""
    shop = shop_of(data)
    schedules.delete(shop, one_of(schedule, [one.id for one in schedules.listed(shop)], "schedule"))
    err().print("Removed.")


@schedules_app.command("tonight")
def show_tonight(format: As = Format.TEXT, data: Data = None) -> None:
    """What comes in the next 24 hours, what waits, and what came in the last."""
    found = schedules.tonight(shop_of(data))
    if format is Format.JSON:
        print_json(as_json(found))
        return
    rows = [("comes", one.local, one.schedule.repo_name, one.schedule.ref, "") for one in found.coming]
    rows += [(words(one.state), when(one.created_at), one.repo_name, one.ref, "") for one in found.waiting]
    rows += [
        (
            "came",
            when(one.slot),
            one.repo_name,
            one.ref,
            counted(one.counts, one.unchecked) if not one.error else one.error,
        )
        for one in found.last_night
    ]
    print_table(("", "AT", "REPO", "REF", "FOUND"), rows, empty="Nothing is scheduled.")


# Names on the command line -----------------------------------------------------------------


def review_id(shop: Workshop, given: str) -> UUID:
    """The review that the text names: a whole id, or the beginning of that of a recent one."""
    try:
        return UUID(given)
    except ValueError:
        return one_of(given, [one.id for one in reviews.listed(shop, per_page=500).items], "review")


def repo_id(shop: Workshop, given: str) -> UUID:
    found = [one.id for one in repos.listed(shop) if given in (one.name, one.url, str(one.id))]
    folder = str(Path(given).expanduser().resolve())
    found = found or [one.id for one in repos.listed(shop) if one.url == folder]
    if len(found) == 1:
        return found[0]
    problem = (
        "several repos are called so; give the URL"
        if found
        else "there is no such repo; `lamplighter repos` lists them"
    )
    raise BadInput("repo", f"{plain(given)}: {problem}.")


def one_of(given: str, ids: list[UUID], thing: str) -> UUID:
    wanted = given.lower()
    found = [one for one in ids if wanted and (str(one).startswith(wanted) or one.hex.startswith(wanted))]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} {thing}s begin so; give more of the id" if found else f"no {thing} begins so"
    raise BadInput(thing, f"{plain(given)}: {problem}.")
