"""docs/field-tests.md, made of docs/field-tests.json and docs/field-tests.toml: `python -m tests.bench.field_page`."""

from collections.abc import Iterator
from typing import Any

from tests.bench import field
from tests.bench.figures import ROOT

PAGE = ROOT / "docs" / "field-tests.md"
OPENING = """# Field tests

Real public repositories, each reviewed end to end without agents, in bubblewrap, on one machine with two cores that
other work shared:

```console
$ python -m tests.bench field DIR_OF_CLONES      # reviews what is not there yet, prints what is to be judged
$ python -m tests.bench.field_page               # writes this page
```

Every finding was judged by hand: its reproduction was run again in a clone and an environment made by hand, and the
source was read. The judgements are in [field-tests.toml](field-tests.toml), what the reviews said, in short, in
[field-tests.json](field-tests.json); this page is made from both. What went wrong on the way was mended as a kind and
the repo in which it was seen reviewed again; the others keep the review that they had, by somewhat older probes.
"""
NOT_INSTALLED = "the package could not be installed: "


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    known, summaries = field.read_judged(), field.read_summary()
    parts = [
        OPENING,
        *counts(field.as_figures(summaries, known)),
        *repos(summaries, known),
        *findings(summaries, known),
        *gone(summaries, known),
        *mended(known),
        *unable(summaries),
        *left_out(known),
    ]
    return "\n".join(parts)


def counts(figures: dict[str, float]) -> Iterator[str]:
    now, wrong = int(figures["findings"]), int(figures["wrong"])
    share = f", {wrong / now:.1%}" if now else ""
    yield f"**{figures['repos']:g} repositories, {now} findings, {wrong} of them wrong{share}.** Counting also what was"
    ever, wrong_ever = int(figures["findings_ever"]), int(figures["wrong_ever"])
    yield f"reported before the mending below: {ever} findings, {wrong_ever} wrong. So few findings bound the share"
    yield "of wrong ones loosely, and the probes were mended on these very repositories.\n"


def repos(summaries: list[dict[str, Any]], known: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    yield "## The repositories and what ran\n"
    yield "Examples of README and docs: as shown + otherwise run / all. Docstrings: as shown / all. Timed: series for"
    yield "which the machine was quiet enough / all.\n"
    yield "| repository | kind | commit | seconds | Python | tests | README, docs | docstrings | timed | findings |"
    yield "| --- | --- | --- | --: | --- | --- | --: | --: | --: | --: |"
    kinds = {one["name"]: one["kinds"] for one in known["repo"]}
    for one in summaries:
        link = f"[{one['repo']}](https://github.com/{one['repo']})"
        row = [link, cell(kinds[one["repo"]]), f"`{one['commit'][:10]}`", str(one["seconds"]), one["python"] or "none"]
        row += [cell(tested(one)), examples(one), docstrings(one)]
        row += [f"{one['measurements'] - one['void']}/{one['measurements']}", str(len(one["findings"]))]
        yield f"| {' | '.join(row)} |"
    yield ""


def tested(one: dict[str, Any]) -> str:
    """What the tests probe said, and where there are no Python tests what other languages' commands did."""
    for name in ("tests", "other_languages"):
        probe = one["probes"][name]
        if probe["state"] in ("passed", "failed"):
            return str(probe["said"])
    return "could not run" if one["probes"]["tests"]["state"] == "could_not_run" else "none"


def examples(one: dict[str, Any]) -> str:
    counts = one["examples"].get("readme")
    if not counts:
        return "none"
    shown = sum(counts.get(state, 0) for state in ("matched", "tolerated", "abbreviated"))
    ran = sum(counts.get(state, 0) for state in ("ran", "unsure", "suspect"))
    return f"{shown} + {ran} / {sum(counts.values())}"


def docstrings(one: dict[str, Any]) -> str:
    counts = one["examples"].get("doctests")
    return f"{counts['matched']} / {counts['examples']}" if counts else "none"


def findings(summaries: list[dict[str, Any]], known: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    yield "## Every finding, judged\n"
    yield "| repository | finding | verified | judged | why |"
    yield "| --- | --- | --- | --- | --- |"
    for repo, finding in field.findings_of(summaries):
        judged = field.judgement(repo, finding, known)
        verdict = "not yet" if judged is None else "right" if judged["right"] else "**wrong**"
        title = f"{cell(finding['title'])} (`{finding['rule']}`)"
        yield f"| {repo} | {title} | {finding['verification']} | {verdict} | {cell(judged['why']) if judged else ''} |"
    yield ""


def gone(summaries: list[dict[str, Any]], known: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    now = {(repo, finding["fingerprint"]) for repo, finding in field.findings_of(summaries)}
    before = [one for one in known["judged"] if (one["repo"], one["fingerprint"]) not in now]
    if not before:
        return
    yield "## Reported in earlier reviews, and no longer\n"
    yield "| repository | fingerprint | judged | why |"
    yield "| --- | --- | --- | --- |"
    for one in before:
        judged = "right" if one["right"] else "wrong"
        yield f"| {one['repo']} | `{one['fingerprint']}` | {judged} | {cell(one['why'])} |"
    yield ""


def mended(known: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    yield "## What was mended on the way\n"
    yield "| seen in | what was wrong | test that would have caught it |"
    yield "| --- | --- | --- |"
    for one in known["mended"]:
        yield f"| {one['seen']} | {cell(one['what'])} | [{one['test'].rpartition('/')[2]}](../{one['test']}) |"
    yield ""


def unable(summaries: list[dict[str, Any]]) -> Iterator[str]:
    """Each probe that could not run, with its reason: what a reader must not take for \"nothing found\"."""
    yield "## What could not run, and why\n"
    yield "| repository | probes | reason |"
    yield "| --- | --- | --- |"
    for one in summaries:
        reasons: dict[str, list[str]] = {}
        for name, probe in one["probes"].items():
            if probe["state"] == "could_not_run":
                reasons.setdefault(probe["reason"].removeprefix(NOT_INSTALLED), []).append(name)
        yield from (f"| {one['repo']} | {', '.join(names)} | {cell(reason)} |" for reason, names in reasons.items())
    yield ""


def left_out(known: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    if known["left_out"]:
        yield "## Left out\n"
        yield from (f"* {one['repo']}: {one['why']}" for one in known["left_out"])
        yield ""


def cell(text: str) -> str:
    """Text that keeps a table's row together and shows as it is."""
    folded = " ".join(text.split())
    return (
        "".join(f"\\{char}" if char in "|<>*_[]" else char for char in folded)
        if "`" not in folded
        else (folded.replace("|", "\\|").replace("<", "&lt;"))
    )


if __name__ == "__main__":
    main()
