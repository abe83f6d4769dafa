"""Several arms and seeds on one target and one set of texts, so that they can be compared; stopped, it goes on.

Paired: order of texts and places of anchors follow from the seed and the step alone, so arms with one seed see the same
blocks; all are judged on the same texts, which none was trained on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inference_node.models.errors import NodeError
from inference_node.train import evaluate, report, statistics
from inference_node.train import run as running
from inference_node.train.arm import Arm
from inference_node.train.judge import judge
from inference_node.train.provenance import provenance
from inference_node.train.replay import replay
from inference_node.train.run import Line
from inference_node.train.sample import Sample, check_answers, digest
from inference_node.train.session import Session
from inference_node.train.statistics import Cost, Counts
from inference_node.train.step import Learner
from inference_node.train.target import OpenTarget

RESULT = "result.json"
Told = Callable[[str], Any]


def run_grid(
    target: OpenTarget,
    arms: Sequence[Arm],
    seeds: int,
    samples: Sequence[Sample],
    held: Sequence[Sample],
    folder: Path,
    *,
    loop: int = 8,
    looks: int = 8,
    until: float | None = None,
    told: Told = lambda text: None,
) -> list[dict[str, Any]]:
    """Results, one per arm and seed, seeds outermost: what is done when time ends is whole comparisons.

    until: a time.monotonic() after which nothing more is begun. looks: at tau, evenly over a run.
    """
    check_answers(held)
    found = []
    for seed in range(seeds):
        for arm in arms:
            chosen = arm.model_copy(update={"seed": arm.seed + seed})
            place = folder / f"{arm.name}-{chosen.seed}"
            there = _held(place, chosen, samples, held)
            if there is None:
                if until is not None and time.monotonic() > until:
                    told(f"no time is left for {place.name}")
                    continue
                there = _run(target, chosen, samples, held, place, loop, looks, told)
            found.append(there)
    return found


def _run(
    target: OpenTarget, arm: Arm, samples: Sequence[Sample], held: Sequence[Sample], place: Path,
    loop: int, looks: int, told: Told,
) -> dict[str, Any]:  # fmt: skip
    began = time.monotonic()
    session = Session.over(target, arm, samples)
    every = max(1, arm.steps // looks)

    def look(learner: Learner) -> float:
        return evaluate.tau(replay(learner, session.source, held))

    def line(one: Line) -> None:
        told(
            f"{place.name} step {one.step}/{arm.steps} loss {one.loss:.4f} forced tau {one.tau_teacher_forced:.2f}"
            + (f" tau {one.tau:.3f}" if one.tau is not None else "")
            + f" {one.tokens_per_s:,.0f} tokens/s"
        )

    last = session.train(place, told=line, log_every=every, look_every=every, look=look)
    judged = judge(session.learner, target, held, name=place.name, loop=loop, identical=min(2, loop), told=told)
    body = {
        "arm": arm.model_dump(),
        "texts": _texts(samples, held),
        "seconds": time.monotonic() - began,
        "curve": [(one.seen, one.tau, one.loss) for one in running.read_log(place) if one.tau is not None],
        **judged.body(),
        "provenance": provenance(target=target.files.name, model=session.fingerprint),
    }
    part = place / f"{RESULT}.part"
    part.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    session.export(place / "drafter", "speculators" if arm.vocabulary else "zlab", last)
    part.replace(place / RESULT)
    return body


def _held(place: Path, arm: Arm, samples: Sequence[Sample], held: Sequence[Sample]) -> dict[str, Any] | None:
    """A result that is there already. Raises NodeError when it is another arm's or of other texts."""
    path = place / RESULT
    if not path.exists():
        return None
    body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if Arm.model_validate(body["arm"]) != arm or body["texts"] != _texts(samples, held):
        raise NodeError(f"{path} is the result of another arm or other texts. Name another folder, or remove it.")
    return body


def _texts(samples: Sequence[Sample], held: Sequence[Sample]) -> dict[str, str]:
    return {"trained_on": digest(samples), "judged_on": digest(held)}


def done(folder: Path) -> list[dict[str, Any]]:
    """All results in the folder, of however many processes. NodeError when there are none, or of unlike texts."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"*/{RESULT}"))]
    if not found:
        raise NodeError(
            f"{folder} has no results: expected folders with a {RESULT} each, as `train arms --out` makes them."
        )
    if len({json.dumps(one["texts"], sort_keys=True) for one in found}) > 1:
        raise NodeError(
            f"The results in {folder} are of different texts and cannot be compared. Give each grid a folder."
        )
    return found


def summary(results: Sequence[dict[str, Any]], cost: Cost | None = None) -> list[dict[str, Any]]:
    """A line per arm, in their order: tau over seeds and prompts, and how it differs from the first arm's.

    Two intervals for a difference: over prompts, which says how sure the figure of these drafters is, and over seeds,
    which says what training again would give.
    """
    by_arm: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        by_arm.setdefault(result["arm"]["name"], []).append(result)
    base = next(iter(by_arm.values()), [])
    lines = []
    for name, runs in by_arm.items():
        taus = [run["tau"]["value"] for run in runs]
        by_seed = {first["arm"]["seed"]: first for first in base if runs is not base}
        pairs = [(by_seed[run["arm"]["seed"]], run) for run in runs if run["arm"]["seed"] in by_seed]
        survived = [sum(column) / len(runs) for column in zip(*(run["survival"] for run in runs), strict=True)]
        line: dict[str, Any] = {
            "arm": name,
            "seeds": len(runs),
            "tau": asdict(statistics.interval(_pooled(runs))),
            "tau_by_seed": taus,
            "survival": survived,
            "slot_accuracy": [sum(c) / len(runs) for c in zip(*(run["slot_accuracy"] for run in runs), strict=True)],
            "curve": _curve(runs),
            "loop_tau": [run["loop_tau"]["value"] for run in runs if "loop_tau" in run],
        }
        if pairs:
            over = statistics.difference(_pooled([a for a, _ in pairs]), _pooled([b for _, b in pairs]))
            seeds = statistics.over_seeds([b["tau"]["value"] - a["tau"]["value"] for a, b in pairs])
            line["difference"] = {"over_prompts": asdict(over), "over_seeds": None if seeds is None else asdict(seeds)}
        if cost is not None:
            expected = statistics.eta(survived, cost)
            best = max(expected, key=lambda rows: expected[rows])
            line["eta"] = {"best_rows": best, "best": expected[best]}
        lines.append(line)
    return lines


def write_report(folder: Path, results: Sequence[dict[str, Any]], title: str, cost: Cost | None = None) -> Path:
    """report.html, report.json and the page's plots as SVG files, from what is done."""
    lines = summary(results, cost)
    said, told = report.conclusions(lines), provenance(runs=len(results))
    folder.mkdir(parents=True, exist_ok=True)
    body = {"provenance": told, "conclusions": said, "arms": lines}
    (folder / "report.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    for name, drawn in report.pictures(lines).items():
        (folder / f"{name}.svg").write_text(drawn, encoding="utf-8")
    page = folder / "report.html"
    page.write_text(report.page(title, lines, told, said), encoding="utf-8")
    return page


def _pooled(runs: Sequence[dict[str, Any]]) -> list[Counts]:
    """Prompt by prompt, all seeds' cycles together."""
    tables = [run["per_prompt"] for run in runs]
    return [
        Counts(sum(committed for committed, _ in column), sum(cycles for _, cycles in column))
        for column in zip(*tables, strict=True)
    ]


def _curve(runs: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """(tokens seen, tau), means over seeds at the same look."""
    points = []
    for column in zip(*(run["curve"] for run in runs), strict=False):
        points.append((sum(seen for seen, _, _ in column) / len(column), sum(t for _, t, _ in column) / len(column)))
    return points
