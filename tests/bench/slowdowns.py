"""Real public repos with a slowdown that they named themselves: is it found, and is its commit?

Each repo of known_slowdowns.toml is cloned from a folder of mirrors, reviewed at a commit before the slow one and then
at one after it, on top of which stands a program that times what became slow. The commits between are the project's
own, unchanged; each is built and timed with that program.
"""

import json
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from packaging.version import Version

from orchestrator.sandbox import interpreters
from tests.bench import figures
from tests.bench.field import git_folder
from tests.bench.history import reviewed
from tests.support.boxes import git

KNOWN = Path(__file__).with_name("known_slowdowns.toml")
PROGRAM = "bench_known_slowdown.py"
SETTINGS = f'[benchmark]\nknown = "python {PROGRAM}"\n'
NOTE = "Named rightly: the commit that the project itself names, and no other, for the figure that became slow."


def run(mirrors: Path, keep: Path, *, only: tuple[str, ...] = (), tolerant: bool = False) -> dict[str, float]:
    """Goes on where it was cut off, at the same commit. `tolerant` takes disturbed sessions and records nothing."""
    figures.same_commit(keep)
    known = [one for one in tomllib.loads(KNOWN.read_text(encoding="utf-8"))["repo"]]
    if unknown := set(only) - {one["name"] for one in known}:
        raise SystemExit(f"Not in {KNOWN.name}: {', '.join(sorted(unknown))}.")
    told: list[dict[str, Any]] = []
    for one in known:
        if only and one["name"] not in only:
            continue
        file = keep / f"{one['name'].replace('/', '+')}.json"
        if not file.exists():
            file.write_text(json.dumps(asked(one, mirrors.resolve(), keep, tolerant)), encoding="utf-8")
        told.append(json.loads(file.read_text(encoding="utf-8")))
        print("  ".join(map(str, told[-1].values())), flush=True)
    figures.same_commit(keep)
    result: dict[str, float] = {
        "repos": len(told),
        "found_slower": sum(one["found"] for one in told),
        "named_rightly": sum(one["named"] == [one["slow"]] for one in told),
        "named_wrongly": sum(len(set(one["named"]) - {one["slow"]}) for one in told),
        "commits_between": sum(one["commits"] for one in told),
    }
    if not only and not tolerant:
        rows = [[one["repo"], one["slow"][:10], one["commits"], ", ".join(sha[:10] for sha in one["named"]) or "none",
                 one["summary"], one["said"]] for one in told]  # fmt: skip
        head = ["repo", "slow commit", "commits between", "named", "the review said", "known from"]
        figures.record("known-slowdowns", result, table={"head": head, "rows": rows}, note=NOTE)
    return result


def asked(one: dict[str, str], mirrors: Path, keep: Path, tolerant: bool) -> dict[str, Any]:
    """What a review says of the commits from `good` to `bad`."""
    work = Path(tempfile.mkdtemp(prefix=f"{one['name'].rpartition('/')[2]}-", dir=keep))
    try:
        repo = work / one["name"].rpartition("/")[2]
        good, slow, bad = prepared(one, mirrors, repo)
        with pythons_below(one.get("pythons_below", "")):
            found = reviewed(repo, work / "data", tolerant, ends=(good, bad), of="known")
        between = git(repo, "rev-list", "--count", f"{good}..{bad}~1").strip()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return {
        "repo": one["name"],
        "slow": slow,
        "named": sorted(found["named"]),
        "found": found["slower"] > 0,
        "commits": int(between),
        "summary": found["summary"],
        "said": one["said"],
    }


@contextmanager
def pythons_below(version: str) -> Iterator[None]:
    """As on a host of that time: commits that cannot run on a newer Python say so nowhere."""
    there = tuple(one for one in interpreters.found() if not version or Version(one.version) < Version(version))
    with patch.object(interpreters, "found", lambda: there):
        yield


def prepared(one: dict[str, str], mirrors: Path, repo: Path) -> tuple[str, str, str]:
    """A clone with the program on top of the last commit; the ids of the good, the slow and that new commit."""
    git(repo.parent, "clone", "-q", "--no-tags", str(git_folder(mirrors, one["name"])), str(repo))
    good, slow, bad = (git(repo, "rev-parse", f"{one[end]}^{{commit}}").strip() for end in ("good", "slow", "bad"))
    git(repo, "checkout", "-q", "-B", "main", bad)
    (repo / PROGRAM).write_text(one["program"].lstrip(), encoding="utf-8")
    (repo / ".lamplighter.toml").write_text(SETTINGS, encoding="utf-8")
    git(repo, "add", "-f", PROGRAM, ".lamplighter.toml")
    git(repo, "-c", "user.name=bench", "-c", "user.email=bench@example.org", "commit", "-q", "-m", "Time what was slow")
    return good, slow, git(repo, "rev-parse", "HEAD").strip()
