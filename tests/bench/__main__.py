"""`make bench`: figures that anybody can measure again. Each part writes docs/figures/NAME.json."""

import math
import signal
import tempfile
from pathlib import Path
from types import FrameType
from typing import Annotated

import pytest
import typer

from tests.bench import (
    attacks,
    beside,
    endurance,
    faults,
    field,
    history,
    injection,
    overhead,
    pages,
    power,
    prefix,
    replay,
    reviewing,
    scale,
    slowdowns,
    thinking,
    weak_models,
    web_attacks,
)
from tests.bench.figures import ROOT

app = typer.Typer(help=__doc__, no_args_is_help=False, add_completion=False)
Bench = Annotated[Path, typer.Option("--repos", help="The folder with the repos that have planted faults.")]
KEPT = Path(tempfile.gettempdir()) / "lamplighter-field"
KEPT_TALKS = Path(tempfile.gettempdir()) / "lamplighter-weak-models"
KEPT_POWER = Path(tempfile.gettempdir()) / "lamplighter-power"
KEPT_SLOWDOWNS = Path(tempfile.gettempdir()) / "lamplighter-slowdowns"
KEPT_HISTORY = Path(tempfile.gettempdir()) / "lamplighter-history"
DEFAULT_BENCH = ROOT.parent / "shared" / "review-bench"


@app.callback(invoke_without_command=True)
def everything(context: typer.Context) -> None:
    """Without a command: all of them."""
    if context.invoked_subcommand is None:
        show("review-bench-evidence", reviewing.run(checked(DEFAULT_BENCH)))
        show("overhead", overhead.run(checked(DEFAULT_BENCH)))


@app.command()
def review(
    repos: Bench = DEFAULT_BENCH,
    only: Annotated[str, typer.Option(help="Repos, separated by commas; then nothing is recorded.")] = "",
    keep: Annotated[Path | None, typer.Option(help="Keep exports and data here.")] = None,
) -> None:
    """Evidence-only reviews of the repos with planted faults: recall, precision, decoys, new on the second run."""
    named = [name for name in only.split(",") if name]
    show("review-bench-evidence", reviewing.run(checked(repos), only=named, keep=keep))


@app.command("agents")
def review_with_agents(
    node: Annotated[str, typer.Option(help="OpenAI-compatible endpoint.")] = "",
    model: Annotated[str, typer.Option(help="Model to ask for.")] = "",
    focus: Annotated[str, typer.Option(help="Focuses, separated by commas.")] = "",
    only: Annotated[str, typer.Option(help="Repos, separated by commas; then nothing is recorded.")] = "",
    repos: Bench = DEFAULT_BENCH,
    keep: Annotated[Path | None, typer.Option(help="Keep exports and data here.")] = None,
    recordings: Annotated[Path | None, typer.Option(help="Play NAME.json of this folder instead of a node.")] = None,
    recount: Annotated[
        bool, typer.Option("--recount", help="Only score what is recorded, by today's judgements.")
    ] = False,
) -> None:
    """Reviews with agents of the repos with planted faults: recall by kind, precision, decoys, tokens.

    What was recorded is in docs/figures/review-bench-agents; who gave the answers of a recording is told by --model.
    """
    if recordings is not None and not model:
        raise SystemExit("--recordings needs --model: who gave the recorded answers, for example hand-played.")
    named = [name for name in only.split(",") if name]
    figures = (
        thinking.recount(checked(repos))
        if recount
        else thinking.run(checked(repos), node, model, focuses=focus, only=named, keep=keep, recordings=recordings)
    )
    show("review-bench-agents", figures)


@app.command("replay")
def replay_recordings(
    recordings: Annotated[Path, typer.Option(help="Folder with a NAME.json for each repo.")] = replay.RECORDINGS,
    only: Annotated[str, typer.Option(help="Repos, separated by commas; then nothing is recorded.")] = "",
    repos: Bench = DEFAULT_BENCH,
    keep: Annotated[Path | None, typer.Option(help="Keep exports and data here, and go on from what is there.")] = None,
) -> None:
    """Nights with recorded minds: nothing new on an unchanged commit, nothing filed twice, fixed only by proof."""
    named = [name for name in only.split(",") if name]
    show("replay", replay.run(checked(repos), recordings=recordings, only=named, keep=keep))


@app.command("injection")
def count_attacks() -> None:
    """Attacks on the agents, and how many got anywhere."""
    show("injection", injection.run())


@app.command("weak-models")
def try_weak_models(
    node: Annotated[str, typer.Option(help="OpenAI-compatible endpoint; without one, servers are started here.")] = "",
    model: Annotated[str, typer.Option(help="Model to ask for.")] = "",
    turns: Annotated[int, typer.Option(help="Turns to take in all.")] = 1010,
    tools: Annotated[str, typer.Option(help="auto, native or text.")] = "auto",
    keep: Annotated[Path, typer.Option(help="Conversations done so far; a run goes on from there.")] = KEPT_TALKS,
) -> None:
    """The agents' loop against whatever a weak model writes: every conversation ends, every turn is counted."""
    show("weak-models", weak_models.run(turns, keep, node=node, model=model, tools=tools))


@app.command("prefix")
def measure_prefix() -> None:
    """A review of thirty turns against our node: the share of its prompts that the node knew already."""
    show("prefix", prefix.run())


@app.command("overhead")
def measure_overhead(repos: Bench = DEFAULT_BENCH) -> None:
    """What a review costs beside the repo's own commands."""
    show("overhead", overhead.run(checked(repos)))


@app.command("pages")
def measure_pages(
    measurements: Annotated[bool, typer.Option(help="Only theirs; then nothing is recorded.")] = False,
) -> None:
    """Render times: a review of 500 findings, a list of 10,000 reviews, 10,000 measurements (scrolled, too)."""
    show("pages", pages.of_measurements() if measurements else pages.run())


@app.command("field")
def review_in_the_field(
    mirrors: Annotated[Path, typer.Argument(help="Folder with a clone of each repo, OWNER+NAME.")],
    keep: Annotated[Path, typer.Option(help="Keep exports and data here, and go on from what is there.")] = KEPT,
    only: Annotated[str, typer.Option(help="These repos only, separated by commas.")] = "",
    again: Annotated[bool, typer.Option(help="Review them again.")] = False,
) -> None:
    """Reviews of real repos, whose findings are judged by hand: docs/field-tests.toml."""
    show("field-tests", field.run(mirrors, keep, only=tuple(filter(None, only.split(","))), again=again))


@app.command("faults")
def fault_matrix(
    only: Annotated[
        str, typer.Option(help="Cases whose names contain one of these words; then nothing is recorded.")
    ] = "",
    keep: Annotated[Path, typer.Option(help="Keep results here, and go on from what is there.")] = faults.KEPT,
    again: Annotated[bool, typer.Option(help="Do all of them again.")] = False,
) -> None:
    """Real processes killed, cut off, filled up and set back at each step of a review: ends, doubles, losses, leaks."""
    words = [word for word in only.split(",") if word]
    cases = [case for case in faults.ALL if not words or any(word in case.name for word in words)]
    show("faults", faults.run(cases, kept=keep, again=again))


@app.command("attacks")
def attack_sandboxes() -> None:
    """Attacks on both sandboxes, and how many got anywhere."""
    show("attacks", attacks.run())


@app.command("web-attacks")
def attack_web(every: Annotated[int, typer.Option(help="One text in so many; then nothing is recorded.")] = 1) -> None:
    """Texts that would be markup, targets that lead inside, foreign forms, paths, logins, bodies: what gets through."""
    show("web-attacks", web_attacks.run(every=every))


@app.command("endurance")
def many_reviews(
    number: Annotated[int, typer.Option(help="Reviews in all.")] = endurance.REVIEWS,
    keep: Annotated[Path, typer.Option(help="Keep results here, and go on from what is there.")] = endurance.KEPT,
    minutes: Annotated[float, typer.Option(help="Begin none after so many; the next run goes on.")] = math.inf,
) -> None:
    """One review after another in real sandboxes: memory and descriptors stay flat, nothing is left over."""
    show("endurance", endurance.run(number, minutes=minutes, kept=keep))


@app.command("scale")
def measure_scale(
    part: Annotated[float, typer.Option(help="Of the full size; below 1 nothing is recorded.")] = 1.0,
    keep: Annotated[Path, typer.Option(help="Keep the database here, and go on filling it.")] = scale.KEPT,
) -> None:
    """Every page and search over 10,000 reviews, 200,000 findings and 1,000,000 lines of logs in PostgreSQL.

    Ends with 1 when any is over its limit.
    """
    figures = scale.run(part, keep=keep)
    show("scale", figures)
    if figures["over_limit"]:
        raise typer.Exit(1)


@app.command("power")
def measure_power(
    keep: Annotated[Path, typer.Option(help="The record; gone on with where it is incomplete.")] = KEPT_POWER,
    part: Annotated[
        str, typer.Option(help="quiet, disturbed, live, judge; separated by commas.")
    ] = "quiet,disturbed,live",
    sessions: Annotated[int, typer.Option(help="Sessions of each kind.")] = power.WANTED,
    trials: Annotated[int, typer.Option(help="Trials per injected change.")] = power.TRIALS,
    live: Annotated[int, typer.Option(help="Live trials per injected change.")] = power.LIVE,
) -> None:
    """How large a slowdown must be to be found, and how often there is a false alarm, from real sessions."""
    show("power", power.run(keep, parts=part.split(","), wanted=sessions, trials=trials, live=live))


@app.command("beside")
def ask_other_tools(
    keep: Annotated[Path, typer.Option(help="Where `power` kept its record.")] = KEPT_POWER,
) -> None:
    """Our verdicts beside pyperf's and hyperfine's on the sessions that `power` recorded; why they differ."""
    show("beside-other-tools", beside.run(keep))


@app.command("history")
def name_slow_commits(
    repos: Bench = DEFAULT_BENCH,
    only: Annotated[str, typer.Option(help="Repos, separated by commas; then nothing is recorded.")] = "",
    keep: Annotated[Path, typer.Option(help="Keep answers here, and go on from what is there.")] = KEPT_HISTORY,
    tolerant: Annotated[bool, typer.Option(help="Take disturbed sessions too; then nothing is recorded.")] = False,
) -> None:
    """Repos with a performance history: the commit that made it slow is named, and nothing else."""
    named = tuple(name for name in only.split(",") if name)
    show("performance-history", history.run(checked(repos), keep, only=named, tolerant=tolerant))


@app.command("slowdowns")
def name_known_slowdowns(
    mirrors: Annotated[Path, typer.Argument(help="Folder with a clone of each repo, OWNER+NAME.")],
    keep: Annotated[Path, typer.Option(help="Keep answers here, and go on from what is there.")] = KEPT_SLOWDOWNS,
    only: Annotated[str, typer.Option(help="These repos only, separated by commas; then nothing is recorded.")] = "",
    tolerant: Annotated[bool, typer.Option(help="Take disturbed sessions too; then nothing is recorded.")] = False,
) -> None:
    """Real public repos with a slowdown that they named themselves: found, and bisected to its commit?"""
    named = tuple(name for name in only.split(",") if name)
    show("known-slowdowns", slowdowns.run(mirrors, keep, only=named, tolerant=tolerant))


def checked(bench: Path) -> Path:
    if not (bench / "score.py").is_file():
        raise SystemExit(f"{bench} is not the review-bench folder (no score.py in it). Name it with --repos DIR.")
    return bench


def show(name: str, figures: dict[str, float]) -> None:
    for key, value in figures.items():
        print(f"{name:24} {key:36} {value:g}")


def end(number: int, frame: FrameType | None) -> None:
    """So that what was started, mounted and made is taken down on the way out."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main() -> None:
    signal.signal(signal.SIGTERM, end)
    try:
        app()
    except pytest.skip.Exception as missing:  # what a test would be skipped for
        raise SystemExit(f"Nothing is recorded: {missing}") from None


if __name__ == "__main__":
    main()
