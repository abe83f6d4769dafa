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

from tests.bench import figures, reviewing
from tests.support.host_settings import sandbox_environment

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
    exports_in: Path | None = None,
    made_at: str = "",
) -> dict[str, float]:
    """Review each repo with all focuses, or those named; `recordings` has one NAME.json a repo, played instead.

    `exports_in` has the exports of reviews that were made at the commit `made_at` (NAME.json): they are only scored.
    With `only`, nothing is recorded.
    """
    with reviewing.folder(keep) as work:
        repos = [repo for repo in reviewing.made_repos(bench, work, fixed=False) if not only or repo.name in only]
        exports = {}
        for repo in repos:
            if exports_in is not None:
                exports[repo.name] = json.loads((exports_in / f"{repo.name}.json").read_text(encoding="utf-8"))
                continue
            address = f"recording:{recordings / repo.name}.json" if recordings else node
            exports[repo.name] = thought(
                repo, work / "thinking", work / f"{repo.name}-agents.json", address, model, focuses
            )
        evidence = {name: without_agents(export) for name, export in exports.items()}
        alone = scored(bench, evidence, work)
        together = scored(bench, exports, work)
    others = together["unplanted"]
    judged = read_judged()
    result = {
        "repos": len(exports),
        "recall": together["recall"],
        "precision": together["precision"],
        "decoys": together["decoys"],
        "recall_evidence_only": alone["recall"],
        "precision_evidence_only": alone["precision"],
        **{f"recall_{kind}": share for kind, share in together["by_kind"].items()},
        **of_unplanted(others, judged),
        **tokens(exports),
    }
    for repo, finding in others:
        if judgement(repo, finding, judged) is None:
            print(f"to judge: {repo} {finding['fingerprint']} {finding['title']}")
    name = model_of(exports)
    note = f"{BY_HAND} {UNPLANTED}" if BY_HAND_NAME in name else UNPLANTED
    if not only:
        figures.record(
            "review-bench-agents", result, measured_at=made_at, model=name, focuses=focuses_of(exports), note=note
        )
    return result


def thought(repo: Path, data: Path, out: Path, node: str, model: str, focuses: str) -> dict[str, Any]:
    """One review in the foreground by the real command; its export."""
    command = [sys.executable, "-m", "orchestrator", "review", str(repo), "--data", str(data), "--node", node]
    command += ["--model", model, "--format", "json", "--out", str(out), *(["--focus", focuses] if focuses else [])]
    done = subprocess.run(command, env={**os.environ, **sandbox_environment()}, cwd=figures.ROOT)
    if done.returncode not in (0, 1):
        raise SystemExit(f"The review of {repo.name} ended with exit status {done.returncode}.")
    return dict(json.loads(out.read_text(encoding="utf-8")))


def without_agents(export: dict[str, Any]) -> dict[str, Any]:
    return {**export, "findings": [one for one in export["findings"] if one["source"] == "probe"]}


def scored(bench: Path, exports: dict[str, Any], work: Path) -> dict[str, Any]:
    """Recall over the faults of the repos that were reviewed; only confirmed findings count as found."""
    found = reviewing.score(bench, exports, work, "--details")
    judged = read_judged()
    faults = [fault for name in exports for fault in reviewing.truth(bench, name)["faults"]]
    proved = {fault for repo in found["verified"] for fault in planted(repo, confirmed(exports[repo["repo"]]), judged)}
    mine = [repo for repo in found["repos"] if repo.get("repo", repo.get("name")) in exports] or found["repos"]
    wrong = sum(repo["false_alarms"] + repo["decoy_hits"] for repo in mine)
    right = sum(len(planted(repo, exports[repo["repo"]]["findings"], judged)) for repo in mine)
    kinds = sorted({fault["kind"] for fault in faults})
    return {
        "recall": reviewing.share(sum(fault["id"] in proved for fault in faults), len(faults)),
        "precision": reviewing.share(right, right + wrong),
        "decoys": sum(repo["decoy_hits"] for repo in mine),
        "unplanted": [
            (repo["repo"], finding)
            for repo in mine
            for finding, verdict in zip(exports[repo["repo"]]["findings"], repo["verdicts"], strict=True)
            if verdict["verdict"] == "false alarm"
        ],
        "by_kind": {
            kind: reviewing.share(
                sum(fault["id"] in proved for fault in faults if fault["kind"] == kind),
                sum(fault["kind"] == kind for fault in faults),
            )
            for kind in kinds
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
