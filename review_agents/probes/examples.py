"""Run every example of README and docs as a reader would, and compare what comes with what is shown."""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from review_agents.ports import Workspace
from review_agents.probes.claims import Claim, candidate_of, merge_claims
from review_agents.probes.comparing import compare
from review_agents.probes.documents import BlockKind, Document
from review_agents.probes.own import environment_for_programs, package_of
from review_agents.probes.pages import documentation, read_pages
from review_agents.probes.prepare import Prepared
from review_agents.probes.reader import Reader
from review_agents.probes.reproducing import reproduce
from review_agents.probes.shell import Package
from review_agents.probes.verdicts import Outcome, judge_steps, settle
from review_agents.records import Environment, ProbeResult, ProbeState, Repo

NAME = "readme"

BUDGET_S = 900.0  # for all pages together
LACKS_A_MODULE = re.compile(r"^needs [A-Za-z_][\w.]*$")
GOOD = ("matched", "ran", "tolerated", "abbreviated")
REASONS_NAMED = 3
MOST_LISTED = 400  # examples named in the facts


@dataclass(slots=True)
class Reading:
    """One page as it was read."""

    document: Document
    reader: Reader
    outcomes: list[Outcome]
    unproved: bool = False  # something was seen that no script of its own shows

    @property
    def complete(self) -> bool:
        """Whether what was not seen is not there."""
        return not self.unproved and not any(one.step.missed for one in self.outcomes)


def probe(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    """Candidates are confirmed here already: each reproduction was run once in this workspace."""
    environment = environment_for_programs(workspace, prepared)
    if "python" not in prepared.languages:
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, reason="no Python in this repo")
    paths = documentation(repo, prepared.root)
    if not paths:
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, reason="no README and no docs")
    if environment is None:
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=prepared.not_installed)
    deadline = time.monotonic() + BUDGET_S
    package = package_of(workspace, repo, prepared, environment)
    readings, claims = [], []
    for document in read_pages(workspace, paths, package.scripts):
        page = Page(workspace, repo, prepared, package, document, environment, deadline)
        reading = page.read()
        readings.append(reading)
        claims += page.claims(reading)
    candidates = tuple(candidate_of(claim) for claim in merge_claims(claims))
    return result_of(readings, candidates, paths)


class Page:
    """Reads one page as often as it takes to be sure."""

    def __init__(
        self,
        workspace: Workspace,
        repo: Repo,
        prepared: Prepared,
        package: Package,
        document: Document,
        environment: Environment,
        deadline: float,
    ):
        self.workspace, self.repo, self.prepared, self.package = workspace, repo, prepared, package
        self.document, self.environment, self.deadline = document, environment, deadline

    def read(self) -> Reading:
        return self._reading(self.document, self.environment)

    def claims(self, reading: Reading) -> list[Claim]:
        """What holds: in /venv/test too, in other surroundings, without the rest of the page, and as a script."""
        self._drop_what_test_has(reading)
        self._run_sessions_alone(reading)
        self._settle(reading)
        self._try_alone(reading)
        claims: list[Claim] = []
        for at, outcome in enumerate(reading.outcomes):
            if outcome.suspect is None:
                continue
            claim = reproduce(self.workspace, reading.reader, outcome, self.environment)
            if claim is None:
                reason = "seen while reading the page, not when run on its own"
                reading.outcomes[at] = replace(outcome, state="unsure", reason=reason, suspect=None)
                reading.unproved = True
            else:
                claims.append(claim)
        return claims

    def _reading(self, document: Document, environment: Environment, *, perturbed: bool = False) -> Reading:
        reader = Reader(
            self.workspace,
            self.package,
            document,
            tracked=self.repo.files,
            environment=environment,
            perturbed=perturbed,
            deadline=self.deadline,
        )
        steps = reader.read()
        return Reading(document, reader, judge_steps(steps, self.package, document.blocks))

    def _drop_what_test_has(self, reading: Reading) -> None:
        """An example that works with what README tells to install besides is no fault of the example."""
        lacking = any(outcome.suspect or LACKS_A_MODULE.match(outcome.reason) for outcome in reading.outcomes)
        if not lacking or self.environment is Environment.TEST or not self.prepared.installed_test:
            return
        again = self._reading(self.document, Environment.TEST)
        better = {outcome.key: outcome for outcome in again.outcomes if outcome.state in GOOD}
        for at, outcome in enumerate(reading.outcomes):
            if outcome.state in ("suspect", "not_run") and outcome.key in better:
                found = better[outcome.key]
                reading.outcomes[at] = replace(
                    outcome,
                    state=found.state,
                    reason=f"only where /venv/test is installed: {found.reason}",
                    suspect=None,
                )

    def _run_sessions_alone(self, reading: Reading) -> None:
        """The `>>>` of a page may be a doctest in itself, to which other blocks that rebind its names do not belong."""
        others = [block for block in self.document.blocks if block.kind is BlockKind.PYTHON and not block.hidden]
        if not others or not any(one.state == "unsure" and one.step.kind == "session" for one in reading.outcomes):
            return
        blocks = tuple(block for block in self.document.blocks if block not in others)
        again = self._reading(replace(self.document, blocks=blocks), self.environment)
        better = {one.key: one for one in again.outcomes if one.state in GOOD}
        for at, outcome in enumerate(reading.outcomes):
            if outcome.state == "unsure" and outcome.step.kind == "session" and outcome.key in better:
                found = better[outcome.key]
                reason = "where the sessions of the page run by themselves"
                reading.outcomes[at] = replace(outcome, state=found.state, reason=reason, suspect=None)

    def _settle(self, reading: Reading) -> None:
        """Read once more at another time, with another hash seed: what then differs is not the page's business."""
        if not any(outcome.suspect for outcome in reading.outcomes):
            return
        later = {
            outcome.key: outcome for outcome in self._reading(self.document, self.environment, perturbed=True).outcomes
        }
        for at, outcome in enumerate(reading.outcomes):
            if outcome.suspect is None:
                continue
            other = later.get(outcome.key)
            if other is None or other.suspect is None or other.suspect.rule != outcome.suspect.rule:
                reading.outcomes[at] = replace(
                    outcome, state="unsure", reason="it is otherwise at another time", suspect=None
                )
            else:
                same = compare(outcome.suspect.real, other.suspect.real, stable=True).verdict.agrees
                reading.outcomes[at] = settle(outcome, stable=same)

    def _try_alone(self, reading: Reading) -> None:
        """Examples may be meant one by one, or section by section: only what fails that way too is a fault."""
        for at, outcome in enumerate(reading.outcomes):
            if outcome.suspect is None or outcome.step.kind == "shell":
                continue
            for scope in self._scopes(outcome):
                if scope is None:
                    continue
                found = next(
                    (other for other in self._reading(scope, self.environment).outcomes if other.key == outcome.key),
                    None,
                )
                if found is not None and found.state in GOOD:
                    reading.outcomes[at] = replace(outcome, state=found.state, reason="on its own", suspect=None)
                    break

    def _scopes(self, outcome: Outcome) -> Iterable[Document | None]:
        """The page with only this section's Python, and with only this block."""
        block = outcome.step.block
        python = (BlockKind.PYTHON, BlockKind.SESSION)
        section = [
            one for one in self.document.blocks
            if one.kind not in python or one.hidden or (one.headings == block.headings and one.line <= block.line)
        ]  # fmt: skip
        alone = [one for one in self.document.blocks if one.kind not in python or one.hidden or one is block]
        all_python = sum(one.kind in python for one in self.document.blocks)
        for chosen in (section, alone):
            if sum(one.kind in python for one in chosen) < all_python:
                yield replace(self.document, blocks=tuple(chosen))


def result_of(readings: list[Reading], candidates: tuple[Any, ...], paths: tuple[str, ...]) -> ProbeResult:
    outcomes = [outcome for reading in readings for outcome in reading.outcomes]
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.state] = counts.get(outcome.state, 0) + 1
    ran = sum(counts.get(state, 0) for state in ("matched", "ran", "tolerated", "abbreviated", "unsure", "suspect"))
    facts = {
        "pages": [reading.document.file for reading in readings],
        "pages_left_out": list(paths[len(readings) :]),
        "counts": counts,
        "examples": [_fact(outcome) for outcome in outcomes[:MOST_LISTED]],
        "examples_left_out": max(0, len(outcomes) - MOST_LISTED),
    }
    wrong = counts.get("suspect", 0)
    summary = (
        f"{ran} of {len(outcomes)} examples on {len(readings)} page(s) ran: {counts.get('matched', 0)} as shown, "
        f"{counts.get('tolerated', 0) + counts.get('abbreviated', 0)} apart from what may differ, {wrong} otherwise, "
        f"{counts.get('unsure', 0)} cannot be judged; {counts.get('not_run', 0)} not run here"
    )
    if not outcomes:
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, reason="no examples", facts=facts)
    if not ran and not counts.get("noted"):
        reasons = list(dict.fromkeys(outcome.reason for outcome in outcomes))
        reason = f"no example could run here: {'; '.join(reasons[:REASONS_NAMED])}"
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=reason, summary=summary, facts=facts)
    state = ProbeState.FAILED if candidates else ProbeState.PASSED
    left_out = (*paths[len(readings) :], *(one.document.file for one in readings if not one.complete))
    return ProbeResult(probe=NAME, state=state, summary=summary, facts=facts, candidates=candidates, left_out=left_out)


def _fact(outcome: Outcome) -> dict[str, Any]:
    code = outcome.code.strip()
    return {
        "file": outcome.step.block.file,
        "line": outcome.line,
        "example": code if len(code) <= 200 else code[:197] + "...",
        "state": outcome.state,
        "reason": outcome.reason,
    }
