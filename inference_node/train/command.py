"""`lamplighter-node train`: its commands. What they need is imported when one runs."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from inference_node.train.run import Line
    from inference_node.train.statistics import Cost

app = typer.Typer(no_args_is_help=True, help="Train drafters, and measure them.")

Model = Annotated[str, typer.Option("--model", help="The target: a directory, a .gguf file, package:NAME, a hub id.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1; default: the first accelerator.")]
Weights = Annotated[str, typer.Option("--weights", help="The target's: fp32, bf16 or fp16.")]
MaskId = Annotated[
    int | None, typer.Option("--mask-id", help="Id that stands for a token to draft; default: one that no text uses.")
]
CostCurve = Annotated[Path | None, typer.Option("--cost", help="A machine's cost curve; eta is expected from it.")]
KeyFile = Annotated[Path | None, typer.Option("--api-key-file", help="With that node's key.")]


@app.command()
def collect(
    prompts: Annotated[Path, typer.Argument(help="JSON lines with messages, prompt or text.")],
    out: Annotated[Path, typer.Option("--out", help="Samples; what is there already is not asked for again.")],
    model: Model,
    most: Annotated[int, typer.Option("--max-tokens", min=16, help="Of an answer.")] = 256,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", min=0.0, max=1.0)] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", min=0, help="0 is off.")] = 0,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Answers at a time.")] = 64,
    device: Device = "",
    weights: Weights = "fp32",
    node: Annotated[str, typer.Option("--node", help="Answers come from this OpenAI-compatible node.")] = "",
    key_file: KeyFile = None,
    at_once: Annotated[int, typer.Option("--at-once", min=1, help="Requests under way at the node.")] = 8,
) -> None:
    """Let the target answer prompts: the texts that a drafter is trained on."""
    from inference_node.models import files as model_files
    from inference_node.models.errors import NodeError
    from inference_node.train import collect as collecting
    from inference_node.train import prompts as asked
    from inference_node.train.over_http import from_node
    from inference_node.train.target import open_target, usual_device

    wanted = asked.read(prompts)
    how = collecting.Wanted(most, temperature, top_p, top_k, seed)
    tokenizer = model_files.find(model).tokenizer
    if tokenizer is None:
        raise NodeError(f"{model} has no tokenizer files, so prompts cannot be turned into tokens.")
    if node:
        answers = from_node(node, tokenizer, how, key=_key(key_file), at_once=at_once)
    else:
        target = open_target(model, device=usual_device(device), weights=weights)
        answers = collecting.here(target, tokenizer, how, batch=batch)
    with typer.progressbar(length=len(wanted), label="answers") as bar:

        def told(done: int, of: int) -> None:
            bar.update(done - bar.pos)

        found = collecting.collect(wanted, answers, out, told=told)
    typer.echo(
        f"{found.written} answers with {found.tokens} tokens written to {out}; {found.cut} were cut where they began "
        f"to loop, {found.short} were too short to keep."
    )


@app.command()
def run(
    arm: Annotated[Path, typer.Argument(help="A TOML file that says how; see docs/drafters.md.")],
    data: Annotated[Path, typer.Option("--data", help="Samples from `train collect`.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the run: log, checkpoint, drafter.")],
    model: Model,
    held_out: Annotated[int, typer.Option("--held-out", min=0, help="Samples kept back to look at tau with.")] = 16,
    look_every: Annotated[int, typer.Option("--look-every", min=0, help="Steps between looks; 0: at the end.")] = 0,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Instead of the arm's.")] = None,
    form: Annotated[str, typer.Option("--format", help="Of the drafter's files: zlab or speculators.")] = "zlab",
    device: Device = "",
    weights: Weights = "bf16",
    mask_id: MaskId = None,
    states: Annotated[str, typer.Option("--states", help="A node that serves states: `train states` there.")] = "",
    key_file: KeyFile = None,
    fp8: Annotated[bool, typer.Option("--fp8", help="Half the bytes of states, with a scale per row.")] = False,
    memory_gb: Annotated[float, typer.Option("--memory-gb", min=0.0, help="Of the trainer's device, at most.")] = 0.0,
) -> None:
    """Train a drafter. Stopped, it goes on where it was when it is called again."""
    from inference_node.train import arm as arms
    from inference_node.train import sample as samples
    from inference_node.train.session import Session

    chosen = arms.read(arm, **({} if seed is None else {"seed": seed}))
    texts = samples.read(data)
    if states:
        session = Session.remote(
            chosen, texts[held_out:], model, states, device=device, mask_id=mask_id, memory_gb=memory_gb,
            kind="fp8" if fp8 else "bf16", key=_key(key_file), told=typer.echo,
        )  # fmt: skip
    else:
        session = Session.open(chosen, texts, model, device=device, weights=weights, mask_id=mask_id, held_out=held_out)
    with closing(session):
        typer.echo(session.told())
        last = session.train(out, look_every=look_every, told=lambda line: typer.echo(_line(line)))
        folder = session.export(out / "drafter", form, last)
    typer.echo(f"drafter: {folder}")


def _line(line: Line) -> str:
    accuracy = " ".join(f"{value:.3f}" for value in line.accuracy)
    looked = "" if line.tau is None else f"  tau {line.tau:.2f}"
    return (
        f"step {line.step:6d}  loss {line.loss:7.4f}  slots {accuracy}  forced tau {line.tau_teacher_forced:.2f}"
        f"{looked}  {line.tokens_per_s:,.0f} tokens/s"
    )


@app.command("evaluate")
def evaluate_(
    drafters: Annotated[list[str], typer.Argument(help="Folders of drafters; all are compared with the first.")],
    data: Annotated[Path, typer.Option("--data", help="Texts by the target, greedy, that nothing was trained on.")],
    model: Model,
    out: Annotated[Path, typer.Option("--out", help="A JSON file.")],
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="The first so many texts.")] = 128,
    loop: Annotated[int, typer.Option("--loop", min=0, help="Of these, answered in the real loop.")] = 16,
    identical: Annotated[int, typer.Option("--identical", min=0, help="Of these, answered without drafts too.")] = 4,
    cost: CostCurve = None,
    device: Device = "",
    weights: Weights = "fp32",
    mask_id: MaskId = None,
) -> None:
    """Judge drafters on their target's texts: by slot, in the decoding loop, with intervals."""
    from inference_node.train import judge, sample
    from inference_node.train.target import open_target, usual_device

    texts = sample.read(data)[:prompts]
    target = open_target(model, device=usual_device(device), weights=weights, mask_id=mask_id)
    curve = _cost(cost)
    judged = [
        judge.judge(
            judge.learner_from(folder, target), target, texts, name=folder, loop=loop, identical=identical,
            told=typer.echo,
        )
        for folder in drafters
    ]  # fmt: skip
    judge.write(out, judged, target, texts, curve)
    typer.echo(f"written: {out}")


@app.command()
def arms(
    folder: Annotated[Path, typer.Argument(help="With a TOML file per arm; the first by name is compared with.")],
    data: Annotated[Path, typer.Option("--data", help="Samples from `train collect`.")],
    model: Model,
    out: Annotated[Path, typer.Option("--out", help="Runs, results and report.html; what is there is not run again.")],
    seeds: Annotated[int, typer.Option("--seeds", min=1)] = 3,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="key=value for all arms, such as steps=2000.")
    ] = None,
    held_out: Annotated[int, typer.Option("--held-out", min=1, help="Texts to judge on.")] = 128,
    loop: Annotated[int, typer.Option("--loop", min=0, help="Of these, answered in the real loop too.")] = 8,
    looks: Annotated[int, typer.Option("--looks", min=1, help="At tau during a run, evenly.")] = 8,
    minutes: Annotated[float, typer.Option("--minutes", min=0.0, help="Begin nothing after these; 0: no end.")] = 0.0,
    cost: CostCurve = None,
    device: Device = "",
    weights: Weights = "bf16",
    mask_id: MaskId = None,
) -> None:
    """Train a grid of arms and seeds, and write one page that compares them."""
    import time

    from inference_node.train import arm as reading
    from inference_node.train import grid, sample
    from inference_node.train.target import open_target, usual_device

    chosen = reading.grid(folder, **_changes(change or []))
    texts = sample.read(data)
    target = open_target(model, device=usual_device(device), weights=weights, mask_id=mask_id)
    until = time.monotonic() + 60 * minutes if minutes else None
    results = grid.run_grid(
        target, chosen, seeds, texts[held_out:], texts[:held_out], out, loop=loop, looks=looks, until=until,
        told=typer.echo,
    )  # fmt: skip
    page = grid.write_report(out, results, f"Arms on {target.files.name}", _cost(cost))
    typer.echo(f"report: {page}")


@app.command("report")
def report_page(
    folder: Annotated[Path, typer.Argument(help="Where `train arms` left its runs, in one process or several.")],
    cost: CostCurve = None,
) -> None:
    """Write the page that compares arms anew, over all results that are in a folder."""
    from inference_node.train import grid

    results = grid.done(folder)
    page = grid.write_report(folder, results, f"Arms in {folder.name}", _cost(cost))
    typer.echo(f"report: {page} ({len(results)} results)")


def _key(path: Path | None) -> str:
    from inference_node.models.errors import NodeError

    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").split()[0]
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise NodeError(f"The API key file {path} cannot be read: {error}. Put the node's key into it.") from None


def _cost(path: Path | None) -> Cost | None:
    from inference_node.models.errors import NodeError
    from inference_node.train.statistics import Cost

    if path is None:
        return None
    try:
        return Cost.of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise NodeError(f"The cost curve {path} cannot be read: {error}.") from None


def _changes(given: list[str]) -> dict[str, Any]:
    """key=value pairs, each value as TOML would read it."""
    import tomllib

    from inference_node.models.errors import NodeError

    found: dict[str, Any] = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals:
            raise NodeError(f"--set {one}: expected key=value, such as --set steps=2000 or --set kind=dflash2.")
        try:
            found[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = value  # a word without its quotes
    return found
