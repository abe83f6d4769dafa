"""What every focus reads first: evidence, repo map and README, digested by code into the same bytes for all.

It stands at the front of each conversation, so a node that keeps prefixes reads it once a review.
"""

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date

from review_agents import claims
from review_agents.focus import FLAVOUR_WORDS, PROFILE_WORDS, Flavour, Focus, Profile, task_of
from review_agents.parsing import MOST_CALLS
from review_agents.probes.source_tree import is_test_path, parsed
from review_agents.prompts import render
from review_agents.records import Candidate, Message, ProbeResult, ProbeState, Repo, Role
from review_agents.sameness import one_each
from review_agents.tools import offered
from review_agents.visible import beginning, cut, in_words, quoted

CHARS = 24_000  # of all material; less where the model's context is small
CHARS_A_TOKEN = 3  # careful: code and tables have short tokens
SHARE = 0.35  # of the context, for the material
README_SHARE, MAP_SHARE = 0.35, 0.35
LISTED_FILES = 150
FACT_CHARS, SAID_CHARS = 160, 400  # of a fact and of a summary; longer ones are cut between words
SHOW_BYTES = 200_000  # larger files are named, not read

ReadSource = Callable[[str], str | None]


def opening(
    repo: Repo,
    results: Mapping[str, ProbeResult],
    source: ReadSource,
    *,
    focus: Focus,
    mark: str,
    native: bool,
    claimed: Sequence[Candidate] = (),
    refused: Sequence[str] = (),
    profile: Profile = Profile.GENERAL,
    flavour: Flavour = Flavour.PRODUCTION,
    context_tokens: int | None = None,
) -> tuple[Message, ...]:
    """The messages that a conversation begins with. All but the last are the same for every focus of a review."""
    tools = () if native else offered()
    system = render(
        "system",
        profile=PROFILE_WORDS[profile],
        flavour=FLAVOUR_WORDS[flavour],
        today=repo.today or date.today().isoformat(),
        mark=mark,
        native=native,
        tools=tools,
        most_calls=MOST_CALLS,
    )
    first = len(probed(results)) + 1
    task = task_of(
        focus,
        claimed=claims_quoted(claimed, mark, first=first),
        refused=quoted("\n".join(refused), mark=mark, label="refused") if refused else "",
    )
    return (
        Message(role=Role.SYSTEM, text=system),
        Message(role=Role.USER, text=material(repo, results, source, mark=mark, chars=chars_for(context_tokens))),
        Message(role=Role.ASSISTANT, text=render("read_it")),
        Message(role=Role.USER, text=task),
    )


def probed(results: Mapping[str, ProbeResult]) -> tuple[Candidate, ...]:
    """What checks claim, each fault once, in the order of their numbers."""
    return one_each([candidate for result in results.values() for candidate in result.candidates])


def claims_quoted(claimed: Sequence[Candidate], mark: str, *, first: int) -> str:
    """Titles quote the repo, so they are material, too."""
    return quoted("\n".join(claims.listed(claimed, first=first)), mark=mark, label="findings") if claimed else ""


def chars_for(context_tokens: int | None) -> int:
    if context_tokens is None:
        return CHARS
    return max(1500, min(CHARS, int(context_tokens * SHARE) * CHARS_A_TOKEN))


def material(repo: Repo, results: Mapping[str, ProbeResult], source: ReadSource, *, mark: str, chars: int) -> str:
    readme, map_chars = int(chars * README_SHARE), int(chars * MAP_SHARE)
    evidence = evidence_digest(results)
    name = readme_of(repo)
    text = (source(name) or "") if name else ""
    return render(
        "material",
        name=in_words(repo.name, mark)[:80],
        commit=repo.commit,
        commit_date=repo.commit_date,
        evidence=quoted(
            cut(evidence, most=chars - readme - map_chars, advice="; read evidence:CHECK shows one whole"),
            mark=mark,
            label="evidence",
        ),
        map=quoted(repo_map(repo, source, chars=map_chars), mark=mark, label="files and what they define"),
        readme=quoted(cut(text, most=readme, advice=f"; read {name}"), mark=mark, label=f"file {name}")
        if name
        else "There is no README.",
    )


def readme_of(repo: Repo) -> str:
    found = [path for path in repo.files if "/" not in path and path.lower().startswith("readme")]
    return min(found, key=lambda path: (not path.lower().endswith((".md", ".rst")), path), default="")


# Evidence ------------------------------------------------------------------------------------


def evidence_digest(results: Mapping[str, ProbeResult]) -> str:
    """A line or two a probe, then what the probes claim. Times are left out: they differ from night to night."""
    lines = []
    for result in results.values():
        said = " ".join((result.summary or result.reason).split())
        state = "could not run" if result.state is ProbeState.COULD_NOT_RUN else str(result.state).replace("_", " ")
        lines.append(f"{result.probe}: {state}{': ' + shortened(said, SAID_CHARS) if said else ''}")
        lines += [f"  {line}" for line in facts_in_lines(result.facts)]
        for one in result.measurements:
            if one.median is not None:
                lines.append(f"  measured {one.name}: median {one.median:.3g} {one.unit}, spread {one.spread or 0:.1%}")
    if claimed := probed(results):
        lines.append("Claimed by these checks already (each is proved by code, do not record them again):")
        lines += claims.listed(claimed)
    return "\n".join(lines)


def whole_evidence(results: Mapping[str, ProbeResult]) -> dict[str, str]:
    """All that each check said, under the name by which an agent can read it."""
    return {f"evidence:{result.probe}": in_full(result) for result in results.values()}


def in_full(result: ProbeResult) -> str:
    parts = [f"{result.probe}: {result.state}", result.summary, result.reason]
    for name, value in result.facts.items():
        if isinstance(value, list):
            parts += [f"{name}:", *(f"- {one if isinstance(one, str) else json.dumps(one)}" for one in value)]
        else:
            parts.append(f"{name}: {value if isinstance(value, str) else json.dumps(value)}")
    return "\n".join(part for part in [*parts, result.log] if part)


def facts_in_lines(facts: Mapping[str, object], *, most: int = 6) -> list[str]:
    """Plain facts only, each cut; tables are in the probe's own log."""
    lines = []
    for name, value in facts.items():
        if isinstance(value, bool | int | str) and str(value):
            lines.append(f"{name.replace('_', ' ')}: {shortened(str(value), FACT_CHARS)}")
        elif isinstance(value, list) and value and all(isinstance(one, str | int) for one in value):
            lines.append(f"{name.replace('_', ' ')}: {that_fit([str(one) for one in value])}")
    return lines[:most]


def shortened(text: str, most: int) -> str:
    """In one line, cut between words."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{beginning(text, most)} ..."


def that_fit(items: Sequence[str]) -> str:
    """As many whole items as there is room for, and how many are left."""
    shown: list[str] = []
    for item in items:
        if shown and len(", ".join([*shown, item])) > FACT_CHARS:
            return f"{', '.join(shown)} and {len(items) - len(shown)} more"
        shown.append(shortened(item, FACT_CHARS))
    return ", ".join(shown)


# Map -----------------------------------------------------------------------------------------


def repo_map(repo: Repo, source: ReadSource, *, chars: int) -> str:
    """Files with what they define: code first, tests and the rest by name, until the characters are used up."""
    code = [path for path in repo.files if path.endswith(".py") and not is_test_path(path)]
    rest = [path for path in repo.files if path not in set(code)]
    lines: list[str] = []
    used = 0
    for at, path in enumerate(code):
        part = outline(path, source(path) or "") if used < chars * 0.8 else [path]
        size = sum(len(line) + 1 for line in part)
        if used + size > chars * 0.85:
            left = len(code) - at
            lines.append(f"(and {left} more Python files)" if used + left * 40 > chars else "")
            lines += code[at:] if used + left * 40 <= chars else []
            break
        lines += part
        used += size
    lines += names_of(rest, max(200, chars - sum(len(line) + 1 for line in lines)))
    return beginning("\n".join(line for line in lines if line), chars)


def outline(path: str, text: str) -> list[str]:
    """The file's classes and functions with their signatures."""
    tree = parsed(text) if len(text) <= SHOW_BYTES else None
    lines = [f"{path} ({text.count(chr(10))} lines)"]
    for node in tree.body if tree else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines.append(f"  {signature(node)}")
        elif isinstance(node, ast.ClassDef):
            lines.append(f"  class {node.name}")
            lines += [
                f"    {signature(inner)}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
                and (not inner.name.startswith("_") or inner.name == "__init__")
            ]
    return lines


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return shortened(f"{node.name}({ast.unparse(node.args)}){returns}", FACT_CHARS)


def names_of(paths: Sequence[str], chars: int) -> list[str]:
    lines: list[str] = []
    used = 0
    for at, path in enumerate(paths):
        if used + len(path) > chars or at >= LISTED_FILES:
            return [*lines, f"(and {len(paths) - at} more files)"]
        lines.append(path)
        used += len(path) + 1
    return lines
