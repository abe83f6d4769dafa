"""Proving claims: each reproduction is run again by us, twice, each time in a fresh box, with its control.

A claim is confirmed when both runs show its symptom, every control succeeds, its quotes exist at the commit and
the source is unchanged afterwards. "The verifier did not run" is a state of its own, with its reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.sandbox.contract import Box, SandboxError
from review_agents.copied import stands
from review_agents.identity import clean_path
from review_agents.ports import Checkout
from review_agents.records import (
    Candidate,
    Network,
    Ran,
    Reproduction,
    Source,
    Verification,
    VerificationState,
)

RUNS = 2
QUOTE_PROBLEMS_NAMED = 3


class Boxes(Protocol):
    """Where the verifier gets fresh boxes: one per call, named after the step and the number of the run."""

    def __call__(self, name: str, *, egress: bool) -> Box: ...


@dataclass(frozen=True)
class Verifier:
    """Runs reproductions of one review."""

    boxes: Boxes
    checkout: Checkout
    files: tuple[str, ...]  # tracked, as in the commit
    time_left: Callable[[], float]  # seconds of the review's budget
    say: Callable[[str], None]  # the step's log
    # Whether a failure of the sandbox that may pass rises, so that the step is done again; else claims stay unverified.
    again_later: bool = False

    def verify(self, candidate: Candidate) -> Verification:
        """What came of the claim. Raises `Cancelled`, `LostClaim`, and `SandboxError` where `again_later` says so."""
        problem = self.quote_problem(candidate)
        if problem:
            return unverified(problem)
        if candidate.reproduction is None:
            return unverified("an opinion: nothing to run" if candidate.opinion else "it has no reproduction")
        return self.rerun(candidate.reproduction, candidate.source)

    def rerun(self, reproduction: Reproduction, source: Source) -> Verification:
        """Run it twice and judge."""
        refusal = self.refusal(reproduction, source)
        if refusal:
            return unverified(refusal)
        runs: list[Ran] = []
        controls: list[Ran] = []
        shown: list[bool] = []
        try:
            for number in range(1, RUNS + 1):
                ran, control, problem = self.run_once(reproduction, number)
                runs.append(ran)
                if control is not None:
                    controls.append(control)
                if problem:
                    return unverified(problem, runs, controls)
                shown.append(reproduction.symptom.shown_by(ran))
        except SandboxError as error:
            self.raise_if_it_may_pass(error)
            return unverified(f"the sandbox failed: {error}", runs, controls)
        return judged(shown, runs, controls, has_control=reproduction.control is not None)

    def raise_if_it_may_pass(self, error: SandboxError) -> None:
        if error.retry and self.again_later:
            raise error

    def refusal(self, reproduction: Reproduction, source: Source) -> str:
        """Why it is not run at all, or ""."""
        if reproduction.network is Network.EGRESS and source is not Source.PROBE:
            return "its reproduction asks for the network, which only the service's own checks may use"
        if self.time_left() <= 0:
            return "the review's time budget is used up"
        return ""

    def run_once(self, reproduction: Reproduction, number: int) -> tuple[Ran, Ran | None, str]:
        """The reproduction in one fresh box, its control in another; what they did, and why that says nothing."""
        ran, changed = self.in_fresh_box(reproduction, reproduction.command, f"{number}")
        if changed:
            return ran, None, f"changed the source: {named(changed)}"
        if ran.timed_out or ran.oom:
            return ran, None, f"its reproduction {ran.ending}"
        if reproduction.control is None:
            return ran, None, ""
        control, changed = self.in_fresh_box(reproduction, reproduction.control, f"{number}-control")
        if changed:
            return ran, control, f"its control changed the source: {named(changed)}"
        if not control.ok:
            last = control.output.strip().rpartition("\n")[2][:200]
            return ran, control, f"its control failed, too ({control.ending}{': ' + last if last else ''})"
        return ran, control, ""

    def in_fresh_box(self, reproduction: Reproduction, command: str, name: str) -> tuple[Ran, tuple[str, ...]]:
        """What the command did, and the tracked files that differ afterwards."""
        box = self.boxes(name, egress=reproduction.network is Network.EGRESS)
        try:
            ran = box.run(
                command,
                environment=reproduction.environment,
                network=reproduction.network,
                timeout_s=min(reproduction.timeout_s, max(self.time_left(), 1.0)),
            )
            return ran, box.changed(self.files)
        finally:
            box.destroy()

    def quote_problem(self, candidate: Candidate) -> str:
        """Which quoted text is not at the commit, or ""."""
        problems = [
            f"the quoted text is not in {place.file}"
            for place in candidate.places
            if place.quote and not self.has_quote(place.file, place.quote)
        ]
        return "; ".join(problems[:QUOTE_PROBLEMS_NAMED])

    def quotes_gone(self, candidate: Candidate) -> bool:
        """Whether it quotes something, and none of that exists any more."""
        quoting = [place for place in candidate.places if place.quote]
        return bool(quoting) and not any(self.has_quote(place.file, place.quote) for place in quoting)

    def outdated(self, reproduction: Reproduction) -> tuple[str, ...]:
        """The files in which text that it repeats does not stand any more as it was."""
        gone = {one.file for one in reproduction.copied if not stands(one, self.checkout.show(clean_path(one.file)))}
        return tuple(sorted(gone))

    def has_quote(self, file: str, quote: str) -> bool:
        text = self.checkout.show(clean_path(file))
        return text is not None and folded(quote) in folded(text)


def judged(shown: list[bool], runs: list[Ran], controls: list[Ran], *, has_control: bool) -> Verification:
    if all(shown):
        state, reason = VerificationState.CONFIRMED, "" if has_control else "no control"
    elif any(shown):
        state, reason = VerificationState.FLAKY, f"shown in {sum(shown)} of {len(shown)} runs"
    else:
        state, reason = VerificationState.NOT_REPRODUCED, f"not shown in {len(shown)} runs"
    return kept(state, reason, runs, controls)


def named(files: Sequence[str]) -> str:
    return ", ".join(map(repr, files[:QUOTE_PROBLEMS_NAMED]))


def unverified(reason: str, runs: Sequence[Ran] = (), controls: Sequence[Ran] = ()) -> Verification:
    return kept(VerificationState.UNVERIFIED, reason, runs, controls)


def kept(state: VerificationState, reason: str, runs: Sequence[Ran], controls: Sequence[Ran]) -> Verification:
    return Verification(
        state=state, reason=reason, runs=tuple(map(shortened, runs)), controls=tuple(map(shortened, controls))
    )


RUN_CHARS = 8000  # of each end of a run's output; it is stored with the finding, the whole is in the step's log


def shortened(ran: Ran) -> Ran:
    output = ran.output
    if len(output) <= 2 * RUN_CHARS:
        return ran
    dropped = ran.dropped_bytes + len(output[RUN_CHARS:-RUN_CHARS].encode("utf-8", "replace"))
    return ran.model_copy(update={"head": output[:RUN_CHARS], "tail": output[-RUN_CHARS:], "dropped_bytes": dropped})


def folded(text: str) -> str:
    return " ".join(text.split())
