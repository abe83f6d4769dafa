"""Score evidence-only reviews of the repos with planted faults (review-bench), twice each, and of their mended twins.

The second review of an unchanged commit must say nothing new, and of a mended repo there is nothing to say. The
scoring itself is review-bench's own score.py, which is the only part here that sees the truth files.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from tests.bench import figures
from tests.support.host_settings import sandbox_environment

KINDS = ("documentation", "packaging", "usability")
# Timings are not scored, so nothing waits for a quiet machine, and nothing is held against the review before.
HASTE = {"LAMPLIGHTER_MEASURE_PATIENCE_S": "0", "LAMPLIGHTER_COMPARE_WITH": "none"}


def run(bench: Path, *, only: Sequence[str] = (), keep: Path | None = None) -> dict[str, float]:
    """Review every repo of the bench twice and its mended twin once; the figures of `review-bench-evidence`.

    With `only`, just those repos, and nothing is recorded.
    """
    with folder(keep) as work:
        exports, again, mended = {}, {}, {}
        for repo in chosen(made_repos(bench, work, fixed=False), only):
            exports[repo.name] = reviewed(repo, work / "data", work / f"{repo.name}-1.json", **HASTE)
            again[repo.name] = reviewed(repo, work / "data", work / f"{repo.name}-2.json", **HASTE)
        for repo in chosen(made_repos(bench, work, fixed=True), only):
            mended[repo.name] = reviewed(repo, work / "mended", work / f"{repo.name}-mended.json", **HASTE)
        scored = score(bench, exports, work, "--details")
        score(bench, mended, work, "--fixed", "--details")
        result = as_figures(bench, scored, exports, again)
        result["findings_on_mended_repos"] = sum(len(export["findings"]) for export in mended.values())
    if not only:
        figures.record("review-bench-evidence", result)
    return result


def chosen(repos: list[Path], only: Sequence[str]) -> list[Path]:
    unknown = set(only) - {repo.name for repo in repos}
    if unknown:
        raise SystemExit(f"Not in the bench: {', '.join(sorted(unknown))}.")
    return [repo for repo in repos if not only or repo.name in only]


@contextmanager
def folder(keep: Path | None) -> Iterator[Path]:
    """Where all is kept, or a temporary one; of one commit from beginning to end."""
    with nullcontext(keep) if keep else tempfile.TemporaryDirectory(prefix="lamplighter-bench-") as place:
        figures.same_commit(Path(place))
        yield Path(place)
        figures.same_commit(Path(place))


def made_repos(bench: Path, work: Path, *, fixed: bool) -> list[Path]:
    target = work / ("fixed" if fixed else "repos")
    if not target.exists():
        command = [sys.executable, str(bench / "make_repos.py"), str(target), *(["--fixed"] if fixed else [])]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return sorted(path for path in target.iterdir() if (path / ".git").exists())


def reviewed(repo: Path, data: Path, out: Path, **settings: str) -> dict[str, Any]:
    """One review in the foreground by the real command; its export."""
    command = [sys.executable, "-m", "orchestrator", "review", str(repo), "--data", str(data), "--no-agents"]
    command += ["--format", "json", "--out", str(out)]
    done = subprocess.run(command, env={**os.environ, **sandbox_environment(), **settings}, cwd=figures.ROOT)
    if done.returncode not in (0, 1):
        raise SystemExit(f"The review of {repo.name} ended with exit status {done.returncode}.")
    return dict(json.loads(out.read_text(encoding="utf-8")))


def score(bench: Path, exports: dict[str, Any], work: Path, *options: str) -> dict[str, Any]:
    findings, out = work / "findings.json", work / "score.json"
    findings.write_text(json.dumps(exports), encoding="utf-8")
    wanted = [] if "--fixed" in options else ["--json", str(out)]
    subprocess.run([sys.executable, str(bench / "score.py"), str(findings), *options, *wanted], check=True)
    return dict(json.loads(out.read_text(encoding="utf-8"))) if wanted else {}


def as_figures(bench: Path, scored: dict[str, Any], exports: dict[str, Any], again: dict[str, Any]) -> dict[str, float]:
    """Only confirmed findings count as found."""
    faults = {fault["id"]: fault for name in exports for fault in truth(bench, name)["faults"]}
    found = {fault for repo in scored["verified"] for fault in repo["found"]}
    wanted = [fault for fault in faults.values() if fault["kind"] in KINDS]
    failing = [fault["id"] for fault in faults.values() if "test-suite fails" in fault["description"]]
    wrong = sum(repo["false_alarms"] + repo["decoy_hits"] for repo in scored["repos"])
    right = sum(len(repo["found"]) for repo in scored["repos"])
    new = sum(finding["lifecycle"] == "new" for export in again.values() for finding in export["findings"])
    return {
        "recall_docs_packaging_usability": share(sum(f["id"] in found for f in wanted), len(wanted)),
        "recall_failing_tests": share(sum(name in found for name in failing), len(failing)),
        "recall_all": share(len(found), len(faults)),
        "precision": share(right, right + wrong),
        "decoys": sum(repo["decoy_hits"] for repo in scored["repos"]),
        "new_on_rerun": new,
    }


def truth(bench: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((bench / name / "truth.json").read_text(encoding="utf-8")))


def share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 1.0
