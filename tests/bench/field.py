"""Real repositories, each really reviewed, every finding judged by hand: what docs/field-tests.md is made of.

`python -m tests.bench field MIRRORS` reviews the repos named in docs/field-tests.toml, one after another, from local
clones (MIRRORS/OWNER+NAME, bare or not). Exports are kept: at the same commit it goes on where it stopped. Afterwards
docs/field-tests.json holds what each review found and ran, in short; findings that nobody has judged are printed.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.bench import figures
from tests.support.host_settings import isolated

JUDGED = figures.ROOT / "docs" / "field-tests.toml"
SUMMARY = figures.ROOT / "docs" / "field-tests.json"
LONGEST_S = 1800


def run(mirrors: Path, keep: Path, *, only: tuple[str, ...] = (), again: bool = False) -> dict[str, float]:
    """Review what has not been reviewed yet (or what `only` names), write the summary and return the figures."""
    figures.same_commit(keep)
    known = read_judged()
    for repo in known["repo"]:
        name = repo["name"]
        if only and name not in only:
            continue
        export = keep / f"{file_name(name)}.json"
        if again or not export.exists():
            review(git_folder(mirrors.resolve(), name), keep, export)
    summaries = [
        summary(repo["name"], json.loads(export.read_text(encoding="utf-8")))
        for repo in known["repo"]
        if (export := keep / f"{file_name(repo['name'])}.json").exists()
    ]
    figures.same_commit(keep)
    write_summary(summaries)
    for line in to_judge(summaries, known):
        print(line)
    result = as_figures(summaries, known)
    figures.record("field-tests", result)
    return result


def read_judged() -> dict[str, list[dict[str, Any]]]:
    """The repos, what was judged of their findings, and what was mended on the way; by hand, in TOML."""
    said = tomllib.loads(JUDGED.read_text(encoding="utf-8"))
    return {key: list(said.get(key, ())) for key in ("repo", "judged", "mended", "left_out")}


def read_summary() -> list[dict[str, Any]]:
    return list(json.loads(SUMMARY.read_text(encoding="utf-8")))


def file_name(repo: str) -> str:
    return repo.replace("/", "+")


def git_folder(mirrors: Path, name: str) -> Path:
    folder = mirrors / file_name(name)
    found = next((one for one in (folder / "repo" / ".git", folder / "repo", folder) if (one / "HEAD").exists()), None)
    found = found or (folder if (folder / ".git").exists() else None)
    if found is None:
        raise SystemExit(f"There is no clone of {name} at {folder}. `git clone --mirror` it there.")
    return found


def review(target: Path, keep: Path, export: Path) -> None:
    """One review with a database of its own, so that nothing found earlier colours it."""
    data = keep / "data" / export.stem
    shutil.rmtree(data, ignore_errors=True)
    export.unlink(missing_ok=True)
    print(f"--- {export.stem}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "orchestrator", "review", str(target), "--data", str(data), "--no-agents"]
    command += ["--format", "json", "--out", str(export)]
    done = subprocess.run(
        command, env={**os.environ, **isolated(keep)}, cwd=figures.ROOT, timeout=LONGEST_S, stdin=subprocess.DEVNULL
    )
    if done.returncode not in (0, 1) or not export.exists():
        raise SystemExit(f"The review of {target} ended with exit status {done.returncode}.")


# What is kept of an export ----------------------------------------------------------------


def summary(name: str, export: dict[str, Any]) -> dict[str, Any]:
    """What a reader of the page wants to know of one review."""
    evidence = {one["probe"]: one for one in export["evidence"]}
    started, finished = (datetime.fromisoformat(export[key]) for key in ("started", "finished"))
    return {
        "repo": name,
        "commit": export["commit"],
        "state": export["state"],
        "seconds": round((finished - started).total_seconds()),
        "python": evidence.get("install", {}).get("facts", {}).get("python", ""),
        "probes": {
            probe: {"state": one["state"], "said": one["summary"] or one["reason"], "reason": one["reason"]}
            for probe, one in evidence.items()
        },
        "examples": {
            probe: evidence[probe]["facts"]["counts"]
            for probe in ("readme", "doctests")
            if evidence.get(probe, {}).get("facts", {}).get("counts")
        },
        "measurements": len(export["measurements"]),
        "void": sum(one["median"] is None for one in export["measurements"]),
        "findings": [
            {
                **{key: one[key] for key in ("fingerprint", "kind", "rule", "severity", "title")},
                "file": one["places"][0]["file"],
                "verification": one["verification"]["state"],
                "lifecycle": one["lifecycle"],
            }
            for one in export["findings"]
        ],
    }


def write_summary(summaries: list[dict[str, Any]]) -> None:
    """One line for a review: short, and a changed review shows as a changed line."""
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in summaries)
    SUMMARY.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


# Judging ----------------------------------------------------------------------------------


def judgement(repo: str, finding: dict[str, Any], known: dict[str, list[dict[str, Any]]]) -> dict[str, Any] | None:
    return next(
        (one for one in known["judged"] if one["repo"] == repo and one["fingerprint"] == finding["fingerprint"]), None
    )


def findings_of(summaries: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in summaries:
        for finding in one["findings"]:
            yield one["repo"], finding


def to_judge(summaries: list[dict[str, Any]], known: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    for repo, finding in findings_of(summaries):
        if judgement(repo, finding, known) is None:
            yield f"to judge: {repo} {finding['fingerprint']} [{finding['rule']}] {finding['title']}"


def as_figures(summaries: list[dict[str, Any]], known: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """`findings` and `wrong` are those of the reviews as they are now; `_ever` counts what was mended since, too."""
    now = [judgement(repo, finding, known) for repo, finding in findings_of(summaries)]
    return {
        "repos": len(summaries),
        "findings": len(now),
        "wrong": sum(one is not None and not one["right"] for one in now),
        "not_judged": sum(one is None for one in now),
        "findings_ever": len(known["judged"]),
        "wrong_ever": sum(not one["right"] for one in known["judged"]),
    }
