"""Nights over the repos with planted faults, with recorded minds: what a second night may say, and what it may not.

For each repo with a recording (NAME.json), five reviews by the real command (tests/bench/lean.py) on one data folder:

    first    the recording, without one of its findings
    again    the same, on the same commit: nothing may be new
    other    a second mind on the same commit: other titles, words, scripts, rules and order, one finding less, and the
             one that the first did not have; only that may be new, and it is `seen_late`
    dying    a commit that changes nothing, and every focus breaks off half-way: nothing is fixed, nothing is new
    mended   the repaired tree as the next commit, and a mind that still says the same: what was mended is `fixed`
             because its proof ran and showed nothing (or was made of a page that was mended, and the check that made it
             found nothing on it), all else stays, and nothing is new

More recordings of a repo (NAME-WORD.json), by other players, are nights of their own between `other` and `dying`. Which
finding stands for which planted fault is told by review-bench's score.py, which alone sees the truth files.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench import figures, minds, reviewing, thinking
from tests.support.boxes import git
from tests.support.host_settings import sandbox_environment

RECORDINGS = figures.ROOT / "tests" / "recordings"
COMMAND = "tests.bench.lean"
UNCHANGED, MENDED = "Nothing changes", "Mend everything"  # subjects of the commits that are added
THERE = ("new", "persisting", "regressed")
Finding = dict[str, Any]


@dataclass
class Nights:
    """What the reviews of one repo said, in their order."""

    repo: str
    exports: dict[str, dict[str, Any]] = field(default_factory=dict)
    late: minds.Told | None = None  # what only the second mind has
    seconds: float = 0.0

    def findings(self, night: str) -> list[Finding]:
        return list(self.exports[night]["findings"])

    def fresh(self, night: str) -> list[Finding]:
        """What that night says for the first time, as proved."""
        return [
            one
            for one in self.findings(night)
            if one["lifecycle"] == "new" and one["verification"]["state"] in ("confirmed", "flaky")
        ]

    def open_before(self, night: str) -> dict[str, Finding]:
        """By id, as last said in the nights before that one: what was proved and is not fixed."""
        found: dict[str, Finding] = {}
        for name, export in self.exports.items():
            if name == night:
                break
            found.update({one["id"]: one for one in export["findings"]})
        return {
            key: one
            for key, one in found.items()
            if one["lifecycle"] in THERE and one["verification"]["state"] in ("confirmed", "flaky")
        }

    @property
    def seconds_minds(self) -> list[str]:
        """Nights on the unchanged commit with another mind."""
        return [name for name in self.exports if name not in ("first", "again", "dying", "mended")]


def run(
    bench: Path, *, recordings: Path = RECORDINGS, only: Sequence[str] = (), keep: Path | None = None
) -> dict[str, float]:
    """The figures of `replay`; with `only`, of just those repos, and nothing is recorded."""
    with reviewing.folder(keep) as work:
        repos = reviewing.chosen(reviewing.made_repos(bench, work, fixed=False), only)
        mended = {repo.name: repo for repo in reviewing.made_repos(bench, work, fixed=True)}
        thinking.check(thinking.read_judged(), [work / "repos", work / "fixed"])
        found = [
            nights(repo, mended[repo.name], recordings, work)
            for repo in repos
            if (recordings / f"{repo.name}.json").is_file()
        ]
        meanings = [(ever(bench, one, work), still(bench, one, work)) for one in found]
    counts = [counted(one, *meaning) for one, meaning in zip(found, meanings, strict=True)]
    unwanted = {one.repo: in_words(one, *meaning) for one, meaning in zip(found, meanings, strict=True)}
    for repo, lines in unwanted.items():
        print(*(f"{repo}: {line}" for line in lines), sep="\n", end="\n" if lines else "")
    result = in_figures(found, counts)
    if not only:
        beside: dict[str, Any] = {
            "repos": {one.repo: f"{len(one.exports)} reviews, {one.seconds:.0f} s" for one in found}
        }
        if any(unwanted.values()):
            beside["note"] = "; ".join(f"{repo}: {line}" for repo, lines in unwanted.items() for line in lines)
        figures.record("replay", result, **beside)
    return result


# Reviewing -----------------------------------------------------------------------------------


def nights(
    repo: Path,
    mended: Path,
    recordings: Path,
    work: Path,
    *,
    command: str = COMMAND,
    settings: Mapping[str, str] = reviewing.HASTE,
) -> Nights:
    """All reviews of one repo, as far as `work` does not have them. They change its HEAD, so it is copied first.

    `command` is the module that reviews.
    """
    began = time.monotonic()
    found = Nights(repo.name)
    place = work / "nights" / repo.name
    copy = place / repo.name
    if not copy.exists():
        shutil.copytree(repo, copy, symlinks=True)
    whole = minds.read(recordings / f"{repo.name}.json")
    told = minds.proved(whole)
    found.late = late_one(told)
    first = minds.without(whole, found.late) if found.late else minds.changed(whole, lambda name, call: call)
    rest = [one for one in told if one != found.late]
    other = minds.reworded(minds.without(whole, rest[0]) if rest else whole)
    more = {file.stem.removeprefix(f"{repo.name}-"): file for file in sorted(recordings.glob(f"{repo.name}-*.json"))}

    def night(name: str, mind: minds.Conversations) -> None:
        if (done := place / f"{name}.json").exists():
            found.exports[name] = json.loads(done.read_text(encoding="utf-8"))
            return
        file = minds.write(mind, place / f"{name}-mind.json")
        found.exports[name] = reviewed(copy, name, file, minds.focuses(mind), command, settings)

    night("first", first)
    night("again", first)
    night("other", other)
    for name, file in more.items():
        night(f"mind-{name}", minds.read(file))
    if subject(copy) not in (UNCHANGED, MENDED):
        git(copy, "commit", "-q", "--allow-empty", "-m", UNCHANGED)
    night("dying", minds.broken_off(first))
    if subject(copy) != MENDED:
        git(copy, "fetch", "-q", str(mended), "HEAD")
        tree = git(copy, "rev-parse", "FETCH_HEAD^{tree}").strip()
        git(copy, "reset", "-q", "--hard", git(copy, "commit-tree", tree, "-p", "HEAD", "-m", MENDED).strip())
    night("mended", first)
    found.seconds = time.monotonic() - began
    return found


def late_one(told: Sequence[minds.Told]) -> minds.Told | None:
    """The finding that the first mind is not to have: the last one that shares kind and file with no other."""
    alone = [one for one in told if sum((one.kind, one.file) == (two.kind, two.file) for two in told) == 1]
    return alone[-1] if alone else None


def reviewed(
    repo: Path, name: str, recording: Path, focuses: Sequence[str], command: str, settings: Mapping[str, str]
) -> dict[str, Any]:
    """One review in the foreground by the real command; its export. All lies beside the repo."""
    out = repo.parent / f"{name}.json"
    words = [sys.executable, "-m", command, "review", str(repo), "--data", str(repo.parent / "data")]
    words += ["--node", f"recording:{recording}", "--focus", ",".join(focuses), "--format", "json", "--out", str(out)]
    environment = {**os.environ, **sandbox_environment(), **settings}
    done = subprocess.run(words, env=environment, cwd=figures.ROOT)
    if done.returncode not in (0, 1):
        raise SystemExit(f"The review “{name}” of {repo.name} ended with exit status {done.returncode}.")
    return dict(json.loads(out.read_text(encoding="utf-8")))


def subject(repo: Path) -> str:
    return git(repo, "log", "-1", "--format=%s").strip()


# Counting ------------------------------------------------------------------------------------


def ever(bench: Path, found: Nights, work: Path) -> dict[str, str]:
    """Which planted fault each finding that was ever proved stands for, by its id; a second one for the same fault
    stands for it, too."""
    told: dict[str, Finding] = {}
    for export in found.exports.values():
        for one in proved(export):
            told.setdefault(one["id"], one)
    return verdicts(bench, found.repo, list(told.values()), work)


def still(bench: Path, found: Nights, work: Path) -> dict[str, str]:
    """The same of what is there in the mended tree, in the words of that night."""
    return verdicts(bench, found.repo, proved(found.exports["mended"]), work)


def proved(export: dict[str, Any]) -> list[Finding]:
    return [
        one
        for one in export["findings"]
        if one["lifecycle"] in THERE and one["verification"]["state"] in ("confirmed", "flaky")
    ]


def verdicts(bench: Path, repo: str, findings: Sequence[Finding], work: Path) -> dict[str, str]:
    (scored,) = reviewing.score(bench, {repo: {"findings": findings}}, work, "--details")["repos"]
    judged = thinking.read_judged()
    return {
        one["id"]: item
        for one, verdict in zip(findings, scored["verdicts"], strict=True)
        if (item := thinking.stands_for(repo, one, verdict, judged))
    }


def in_figures(found: Sequence[Nights], counts: Sequence[dict[str, int]]) -> dict[str, float]:
    return {
        "repos": len(found),
        "reviews": sum(len(one.exports) for one in found),
        **{key: sum(one[key] for one in counts) for key in (counts[0] if counts else {})},
    }


def counted(found: Nights, stands_for: dict[str, str], still_for: dict[str, str]) -> dict[str, int]:
    """Of one repo. To be 0: new_again, late_lost, not_seen_late, filed_twice, dying_fixed, dying_new, mended_new,
    mended_left and fixed_without_proof.

    `stands_for` has the planted fault of each finding, `still_for` those of the night with the mended tree. A finding
    of two faults, of which one was mended, goes on in the words of the other. A fault that nobody planted may be gone
    with a mended one (`fixed_beside`).
    """
    others = found.seconds_minds
    fixed = [one for one in found.findings("mended") if one["lifecycle"] == "fixed"]
    open_faults = {key for key in found.open_before("mended") if key in stands_for}
    fixed_ids = {one["id"] for one in fixed}
    left = {one["id"] for one in not_mended(found, stands_for, still_for)}
    return {
        "proved_at_first": len(found.fresh("first")),
        "proved_at_first_by_agents": sum(one["source"] == "agent" for one in found.fresh("first")),
        "new_again": len(found.fresh("again")),
        "late_expected": 1 if found.late else 0,
        "seen_late": sum(one["seen_late"] for name in others for one in found.fresh(name)),
        "late_lost": len(lost(found)),
        "not_seen_late": sum(not one["seen_late"] for name in others for one in found.fresh(name)),
        "filed_twice": sum(twice(found, name, stands_for) for name in others),
        "dying_focuses": broken(found.exports["dying"]),
        "dying_fixed": sum(one["lifecycle"] == "fixed" for one in found.findings("dying")),
        "dying_new": len(found.fresh("dying")),
        "mended_faults": len(open_faults),
        "mended_fixed": len(open_faults & fixed_ids),
        "mended_in_part": len(open_faults - fixed_ids - left),
        "mended_left": len(left),
        "mended_new": len(found.fresh("mended")),
        "fixed_without_proof": sum(not ran_and_showed_nothing(one) for one in fixed),
        "fixed_beside": len(fixed_ids - open_faults),
    }


def not_mended(found: Nights, stands_for: dict[str, str], still_for: dict[str, str]) -> list[Finding]:
    """What was known of a planted fault and is not fixed in the mended tree, nor goes on in the words of another."""
    night = {one["id"]: one for one in found.findings("mended")}
    before = {key: one for key, one in found.open_before("mended").items() if key in stands_for}
    unsaid = [one for key, one in before.items() if key not in night]
    said = [night[key] for key in before if key in night and night[key]["lifecycle"] != "fixed"]
    return unsaid + [one for one in said if still_for.get(one["id"]) == stands_for[one["id"]]]


def lost(found: Nights) -> list[minds.Told]:
    """What only the second mind has, and what none of its nights said as seen late: it was taken for a known one."""
    seen = [one for name in found.seconds_minds for one in found.fresh(name) if one["seen_late"]]
    return [found.late] if found.late and not any(is_told(one, found.late) for one in seen) else []


def in_words(found: Nights, stands_for: dict[str, str], still_for: dict[str, str]) -> list[str]:
    """What is behind the numbers that are to be 0, so that none is taken for granted."""
    return [
        *(f"lost: {one.title} ({one.file})" for one in lost(found)),
        *(f"left: {one['title']}" for one in not_mended(found, stands_for, still_for)),
        *(f"new on an unchanged commit: {one['title']}" for one in found.fresh("again")),
    ]


def twice(found: Nights, night: str, stands_for: dict[str, str]) -> int:
    """What that second mind filed as new although the fault was known. Derived by code, it may say one new thing
    only; of a mind that was really another one, the truth files tell."""
    fresh = found.fresh(night)
    if night == "other":
        return len(fresh) - (1 if found.late and any(is_told(one, found.late) for one in fresh) else 0)
    known = {stands_for[key] for key in found.open_before(night) if key in stands_for}
    return sum(stands_for.get(one["id"]) in known for one in fresh)


def is_told(finding: Finding, told: minds.Told) -> bool:
    """Whether it is of that kind and names that very line."""
    return finding["kind"] == told.kind and any(
        place["file"] == told.file and place["quote"] and " ".join(place["quote"].split()) in told.quote
        for place in finding["places"]
    )


def broken(export: dict[str, Any]) -> int:
    return sum(one["state"] == "node_failed" for one in export["tokens"]["by_focus"].values())


def ran_and_showed_nothing(finding: Finding) -> bool:
    verification = finding["verification"]
    return verification["state"] == "not_reproduced" and bool(verification["runs"])
