"""Score reviews with agents of the repos with planted faults, beside evidence alone.

Any endpoint will do, also a recording or one whose answers are given by hand. Only review-bench's own score.py sees the
truth files. It takes for wrong what nobody planted; that is judged by hand in tests/recordings/judged.toml.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench import figures, minds, reviewing
from tests.support.host_settings import sandbox_environment

NAME = "review-bench-agents"
KEPT = figures.FOLDER / NAME
VERDICTS = "verdicts.json"
COMMAND = "orchestrator"
JUDGED = figures.ROOT / "tests" / "recordings" / "judged.toml"
BY_HAND_NAME = "hand-played"
BY_HAND = (
    "The answers were given by hand, by a player who saw the requests only and none of the truth files: the figures "
    "say what the loop lets a good reviewer prove, not what a model finds."
)
UNPLANTED = (
    "`precision` counts as wrong what nobody planted (`unplanted`). Each of these findings was judged by hand, with a "
    "reason, in [judged.toml](../tests/recordings/judged.toml); the trivial ones are among the right ones."
)
Finding = dict[str, Any]


def run(
    bench: Path,
    node: str,
    model: str,
    *,
    focuses: str = "",
    only: Sequence[str] = (),
    keep: Path | None = None,
    recordings: Path | None = None,
    command: str = COMMAND,
) -> dict[str, float]:
    """Review each repo with all focuses, or those named; `recordings` has one NAME.json a repo, played instead.

    What the figures count is left beside them, so that they can be counted anew. With `only`, nothing is recorded.
    `command` is the module that reviews.
    """
    with reviewing.folder(keep) as work:
        repos = reviewing.chosen(reviewing.made_repos(bench, work, fixed=False), only)
        reviewing.made_repos(bench, work, fixed=True)
        check(read_judged(), [work / "repos", work / "fixed"])
        exports = {}
        for repo in repos:
            mind, focused = node, focuses
            if recordings is not None:
                file = recordings / f"{repo.name}.json"
                mind, focused = f"recording:{file}", focuses or ",".join(minds.focuses(minds.read(file)))
            out = work / f"{repo.name}-agents.json"
            if not out.exists():
                thought(repo, work / "thinking", out, mind, model, focused, command)
            exports[repo.name] = what_counts(json.loads(out.read_text(encoding="utf-8")), model if recordings else "")
        told = verdicts(bench, exports, work)
    result = counted(exports, told)
    if not only:
        kept(exports, told)
        recorded(exports, result, figures.commit())
    return result


def recount(bench: Path) -> dict[str, float]:
    """The figures of the reviews that are recorded, scored and judged as of now."""
    exports, _ = read_kept()
    with tempfile.TemporaryDirectory() as work:
        told = verdicts(bench, exports, Path(work))
    result = counted(exports, told)
    kept(exports, told)
    recorded(exports, result, json.loads((figures.FOLDER / f"{NAME}.json").read_text(encoding="utf-8"))["commit"])
    return result


def read_kept() -> tuple[dict[str, Any], dict[str, Any]]:
    """The recorded reviews by repo, and what score.py said of them."""
    told = {file.name: json.loads(file.read_text(encoding="utf-8")) for file in sorted(KEPT.glob("*.json"))}
    verdicts = told.pop(VERDICTS)
    return {name.removesuffix(".json"): export for name, export in told.items()}, verdicts


def kept(exports: dict[str, Any], told: dict[str, Any]) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    for name, content in {**{f"{repo}.json": export for repo, export in exports.items()}, VERDICTS: told}.items():
        (KEPT / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def recorded(exports: dict[str, Any], result: dict[str, float], measured_at: str) -> None:
    name = model_of(exports)
    note = f"{BY_HAND} {UNPLANTED}" if BY_HAND_NAME in name else UNPLANTED
    figures.record(NAME, result, measured_at=measured_at, model=name, focuses=focuses_of(exports), note=note)


def thought(repo: Path, data: Path, out: Path, node: str, model: str, focuses: str, command: str) -> None:
    """One review in the foreground by the real command, exported to `out`."""
    words = [sys.executable, "-m", command, "review", str(repo), "--data", str(data), "--node", node]
    words += ["--model", model, "--format", "json", "--out", str(out), *(["--focus", focuses] if focuses else [])]
    done = subprocess.run(words, env={**os.environ, **sandbox_environment(), **reviewing.HASTE}, cwd=figures.ROOT)
    if done.returncode not in (0, 1):
        out.unlink(missing_ok=True)
        raise SystemExit(f"The review of {repo.name} ended with exit status {done.returncode}.")


def what_counts(export: dict[str, Any], model: str) -> dict[str, Any]:
    """Of an export what is scored and counted, and nothing of the machine that made it."""
    of_proof = ("state", "reason")
    findings = [
        {**one, "verification": {name: one["verification"][name] for name in of_proof if name in one["verification"]}}
        for one in export["findings"]
    ]
    return {
        "commit": export["commit"],
        "model": model or export["model"],
        "tokens": export["tokens"],
        "findings": findings,
    }


def without_agents(export: dict[str, Any]) -> dict[str, Any]:
    return {**export, "findings": [one for one in export["findings"] if one["source"] == "probe"]}


def verdicts(bench: Path, exports: dict[str, Any], work: Path) -> dict[str, Any]:
    """What score.py says of the reviews, with their agents and without, and the kinds of the planted faults."""
    evidence = {name: without_agents(export) for name, export in exports.items()}
    return {
        "faults": {
            name: {fault["id"]: fault["kind"] for fault in reviewing.truth(bench, name)["faults"]} for name in exports
        },
        "alone": reviewing.score(bench, evidence, work, "--details"),
        "together": reviewing.score(bench, exports, work, "--details"),
    }


def counted(exports: dict[str, Any], told: dict[str, Any]) -> dict[str, float]:
    """The figures, from the reviews and what score.py said of them. Prints what nobody has judged yet."""
    judged = read_judged()
    evidence = {name: without_agents(export) for name, export in exports.items()}
    alone = scored(evidence, told["alone"], told["faults"], judged)
    together = scored(exports, told["together"], told["faults"], judged)
    for repo, finding in together["unplanted"]:
        if judgement(repo, finding, judged) is None:
            print(f"to judge: {repo} {finding['fingerprint']} {finding['title']}")
    return {
        "repos": len(exports),
        "recall": together["recall"],
        "precision": together["precision"],
        "decoys": together["decoys"],
        "recall_evidence_only": alone["recall"],
        "precision_evidence_only": alone["precision"],
        **{f"recall_{kind}": share for kind, share in together["by_kind"].items()},
        **of_unplanted(together["unplanted"], judged),
        **tokens(exports),
    }


def scored(
    exports: dict[str, Any], found: dict[str, Any], kinds: dict[str, dict[str, str]], judged: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Recall over the faults of the repos that were reviewed; only confirmed findings count as found."""
    faults = [(fault, kind) for name in exports for fault, kind in kinds[name].items()]
    proved = {fault for repo in found["verified"] for fault in planted(repo, confirmed(exports[repo["repo"]]), judged)}
    mine = found["repos"]
    wrong = sum(repo["false_alarms"] + repo["decoy_hits"] for repo in mine)
    right = sum(len(planted(repo, exports[repo["repo"]]["findings"], judged)) for repo in mine)
    return {
        "recall": reviewing.share(sum(fault in proved for fault, _ in faults), len(faults)),
        "precision": reviewing.share(right, right + wrong),
        "decoys": sum(repo["decoy_hits"] for repo in mine),
        "unplanted": [
            (repo["repo"], finding)
            for repo in mine
            for finding, verdict in zip(exports[repo["repo"]]["findings"], repo["verdicts"], strict=True)
            if verdict["verdict"] == "false alarm"
        ],
        "by_kind": {
            of: reviewing.share(
                sum(fault in proved for fault, kind in faults if kind == of), sum(kind == of for _, kind in faults)
            )
            for of in sorted({kind for _, kind in faults})
        },
    }


def confirmed(export: dict[str, Any]) -> list[Finding]:
    return [one for one in export["findings"] if one["verification"]["state"] == "confirmed"]


def planted(scored: dict[str, Any], findings: Sequence[Finding], judged: Sequence[dict[str, Any]]) -> set[str]:
    """The planted faults that findings stand for, as scored."""
    pairs = zip(findings, scored["verdicts"], strict=True)
    return {item for one, verdict in pairs if (item := stands_for(scored["repo"], one, verdict, judged))}


def stands_for(repo: str, finding: Finding, verdict: dict[str, Any], judged: Sequence[dict[str, Any]]) -> str | None:
    """The planted fault that a finding is, alone or as one of several; not where its words alone are those of one."""
    if verdict["verdict"] not in ("fault", "duplicate"):
        return None
    mistaken = any(
        one["repo"] == repo
        and one.get("mistaken_for") == verdict["item"]
        and (
            is_of(one, finding) or one["title"] == finding["title"]
        )  # of two faults in one finding, the one that speaks
        for one in judged
    )
    return None if mistaken else str(verdict["item"])


# What nobody planted --------------------------------------------------------------------------


def read_judged() -> list[dict[str, Any]]:
    return list(tomllib.loads(JUDGED.read_text(encoding="utf-8"))["judged"])


def judgement(repo: str, finding: Finding, judged: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    return next((one for one in judged if one["repo"] == repo and is_of(one, finding)), None)


def is_of(judgement: dict[str, Any], finding: Finding) -> bool:
    return finding["fingerprint"] in (judgement["fingerprint"], *judgement.get("also", ()))


def check(judged: Sequence[dict[str, Any]], trees: Sequence[Path]) -> None:
    """Run what shows a judged finding in each tree, the faulty ones and the mended: it is there in both, so nobody
    planted it."""
    for one in judged:
        for tree in (tree / one["repo"] for tree in trees if "shows" in one and (tree / one["repo"]).is_dir()):
            path = {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"}
            words = [sys.executable, "-c", one["shows"]]
            with tempfile.TemporaryDirectory() as elsewhere:
                done = subprocess.run(words, env={**os.environ, **path}, cwd=elsewhere, capture_output=True, text=True)
            if one["says"] not in done.stdout:
                raise SystemExit(f"{tree} does not show “{one['title']}”: {done.stdout}{done.stderr[-500:]}")


def of_unplanted(others: Sequence[tuple[str, Finding]], judged: Sequence[dict[str, Any]]) -> dict[str, float]:
    known = [one for repo, finding in others if (one := judgement(repo, finding, judged)) is not None]
    return {
        "unplanted": len(others),
        "unplanted_right": sum(one["right"] for one in known),
        "unplanted_trivial": sum(one.get("trivial", False) for one in known),
        "unplanted_wrong": sum(not one["right"] for one in known),
        "unplanted_not_judged": len(others) - len(known),
    }


def tokens(exports: dict[str, Any]) -> dict[str, float]:
    told = [export["tokens"] for export in exports.values()]
    read, known, written = (sum(one[name] for one in told) for name in ("prompt", "cached", "completion"))
    confirmed = sum(
        finding["source"] == "agent" and finding["verification"]["state"] == "confirmed"
        for export in exports.values()
        for finding in export["findings"]
    )
    return {
        "tokens_read": read,
        "tokens_known": known,
        "tokens_written": written,
        "confirmed_by_agents": confirmed,
        "tokens_per_confirmed": round((read - known + written) / confirmed) if confirmed else 0,
    }


def focuses_of(exports: dict[str, Any]) -> str:
    """By repo, as the exports have them."""
    return "; ".join(f"{name}: {', '.join(export['tokens']['by_focus'])}" for name, export in exports.items())


def model_of(exports: dict[str, Any]) -> str:
    names = {export["model"] for export in exports.values()} - {""}
    return ", ".join(BY_HAND_NAME if name == "manual" else name for name in sorted(names)) or "none"
