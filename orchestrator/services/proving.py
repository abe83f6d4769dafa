"""Proving what agents claim: harder than what probes claim, because a model writes the script and may fool itself.

Beside what every claim must hold (services/verifying.py), an agent's script is run once where the package and the repo
are absent. One that shows its text there as well has shown nothing about them. Scripts that look as if they depended on
time are run more often.
"""

import re

from orchestrator.sandbox.contract import SandboxError
from orchestrator.services.verifying import Verifier, folded
from review_agents.lifecycle import PROVED, Recheck
from review_agents.records import (
    Candidate,
    Environment,
    Ran,
    Reproduction,
    Source,
    Symptom,
    Verification,
    VerificationState,
)
from review_agents.sameness import Known
from review_agents.visible import beginning, ending, in_words, quoted

ABSENT = "cd /job/repo && find . -mindepth 1 -delete\n"
TIMING = re.compile(
    r"\b(?:sleep|time\.|timeit|perf_counter|thread|Thread|asyncio|concurrent|multiprocessing|race|random|uuid|wait\b|&\s*$)",
    re.MULTILINE,
)
MORE_ROUNDS = 2  # of two runs each, when the outcome may depend on time
TAIL_CHARS = 600  # of a script's output, shown with why it proves nothing
NEAR_LINES, LINE_CHARS = 3, 200  # and the lines before that come nearest to what was missing


def verify(verifier: Verifier, candidate: Candidate) -> Verification:
    """What came of the claim. Raises what `Verifier.verify` does."""
    found = verifier.verify(candidate)
    reproduction = candidate.reproduction
    if candidate.source is not Source.AGENT or reproduction is None or found.state is not VerificationState.CONFIRMED:
        return found
    problem = shows_without_the_repo(verifier, reproduction)
    if problem:
        return found.model_copy(update={"state": VerificationState.UNVERIFIED, "reason": problem})
    if TIMING.search(reproduction.command):
        return again(verifier, candidate, found)
    return found


def again(verifier: Verifier, candidate: Candidate, found: Verification) -> Verification:
    """More runs of a script that was confirmed so far; one that fails makes it flaky."""
    assert candidate.reproduction is not None
    for _ in range(MORE_ROUNDS):
        more = verifier.rerun(candidate.reproduction, candidate.source)
        runs = found.runs + more.runs
        if more.state is not VerificationState.CONFIRMED:
            reason = more.reason or "not shown in a later run"
            return found.model_copy(update={"state": VerificationState.FLAKY, "reason": reason, "runs": runs})
        found = found.model_copy(update={"runs": runs})
    return found


def shows_without_the_repo(verifier: Verifier, reproduction: Reproduction) -> str:
    """Why the script proves nothing: its text appears where there is neither package nor repo. "" when it does not."""
    try:
        box = verifier.boxes("absent", egress=False)
        try:
            ran = box.run(
                ABSENT + reproduction.command,
                environment=Environment.NONE,
                timeout_s=min(reproduction.timeout_s, max(verifier.time_left(), 1.0)),
            )
        finally:
            box.destroy()
    except SandboxError as error:
        verifier.raise_if_it_may_pass(error)
        return f"the sandbox failed: {error}"
    if reproduction.symptom.shown_by(ran):
        return "it shows the same without the package and the repo, so it proves nothing about them"
    return ""


def recheck(verifier: Verifier, known: Known) -> Recheck:
    """Whether a finding of earlier nights is still there: its own proof first, then those of claims joined to it.

    What shows only now and then is not gone because it does not show in two runs.
    """
    candidate = known.candidate
    assert candidate.reproduction is not None
    found = verifier.rerun(candidate.reproduction, candidate.source)
    unsteady = known.flaky or bool(TIMING.search(candidate.reproduction.command))
    for _ in range(MORE_ROUNDS if unsteady else 0):
        if found.state is not VerificationState.NOT_REPRODUCED:
            break
        more = verifier.rerun(candidate.reproduction, candidate.source)
        found = more.model_copy(update={"runs": found.runs + more.runs, "controls": found.controls + more.controls})
    still = None
    for other in candidate.also if found.state is VerificationState.NOT_REPRODUCED else ():
        again = verifier.rerun(other.reproduction, Source.AGENT)
        if again.state is not VerificationState.NOT_REPRODUCED:  # it shows the fault, or nobody knows
            found, still = again, other if again.state in PROVED else None
            break
    return Recheck(
        verification=found,
        quotes_gone=verifier.quotes_gone(candidate),
        outdated=verifier.outdated(candidate.reproduction),
        still=still,
    )


def trial(verifier: Verifier, candidate: Candidate, *, mark: str) -> str:
    """For the agent, at once: why its proof does not hold, with what its script said; "" when it holds."""
    if candidate.reproduction is None:
        return ""
    found = verify(verifier, candidate)
    if found.state is VerificationState.CONFIRMED:
        return ""
    said = found.runs[0] if found.runs else None
    control = next((one for one in found.controls if not one.ok), None)
    why = f"its control failed, too ({control.ending})" if control else in_words(found.reason, mark)
    if found.state is VerificationState.FLAKY:
        why = f"it showed the fault only sometimes ({why})"
    if found.state is VerificationState.NOT_REPRODUCED and said is not None:
        why = in_words(not_shown(candidate.reproduction.symptom, said), mark)
    parts = [f"{why}."]
    if said:
        parts[0] += f" It ended with {said.ending} and said:"
        parts.append(relevant(candidate, said, mark))
    if control is not None:
        end = ending(control.output.strip(), TAIL_CHARS)
        parts += ["Its control said:", quoted(end or "(nothing)", mark=mark, label="its output")]
    return "\n".join(parts)


def not_shown(symptom: Symptom, ran: Ran) -> str:
    """What of the symptom the run did not have, and nothing of what it had."""
    missing = missing_texts(symptom, ran)
    parts = [f"its output did not contain {', '.join(map(repr, missing))}"] if missing else []
    if len(symptom.contains) > len(missing) > 0:
        parts[0] += f" (it had the {len(symptom.contains) - len(missing)} other texts)"
    if symptom.exit is not None and ran.exit != symptom.exit:
        parts.append(f"it did not end with exit status {symptom.exit}")
    return " and ".join(parts) or "it did not show the fault"


def missing_texts(symptom: Symptom, ran: Ran) -> list[str]:
    said = folded(ran.output)
    return [text for text in symptom.contains if folded(text) not in said]


def relevant(candidate: Candidate, ran: Ran, mark: str) -> str:
    """The lines of the output that come nearest to the missing texts, then its end; quoted."""
    assert candidate.reproduction is not None
    output = ran.output.strip()
    end = ending(output, TAIL_CHARS)
    earlier = output[: len(output) - len(end)].splitlines()
    wanted = {word for text in missing_texts(candidate.reproduction.symptom, ran) for word in text.split()}
    scored = [(len(wanted & set(line.split())), -at) for at, line in enumerate(earlier)]
    nearest = sorted(-at for score, at in sorted(scored, reverse=True)[:NEAR_LINES] if score)
    lines = [f"{at + 1}: {beginning(earlier[at].strip(), LINE_CHARS)}" for at in nearest]
    left_out = [f"[... {len(earlier)} lines in all before its end ...]"] if earlier else []
    return quoted("\n".join([*lines, *left_out, end]) or "(nothing)", mark=mark, label="its output")


def same_outcome(verifier: Verifier, candidate: Candidate, known: Candidate) -> str:
    """Why the scripts of a claim and of a known finding show the same fault, each run once and searched for the text of
    the other; "" when each shows only its own. Both proofs were seen to hold before."""
    mine, theirs = candidate.reproduction, known.reproduction
    if mine is None or theirs is None:
        return ""
    try:
        if not verifier.refusal(theirs, Source.AGENT) and shows(verifier, theirs, mine.symptom, "known"):
            return "its script shows the text of this one, too"
        if shows(verifier, mine, theirs.symptom, "this"):
            return "this script shows the text of that finding, too"
    except SandboxError as error:
        verifier.raise_if_it_may_pass(error)
        return f"nobody could see what differs (the sandbox failed: {error})"
    return ""


def shows(verifier: Verifier, script: Reproduction, symptom: Symptom, name: str) -> bool:
    """Whether that script shows another one's symptom. One without a text fits too much to tell anything."""
    if not symptom.contains:
        return False
    ran, _ = verifier.in_fresh_box(script, script.command, name)
    return symptom.shown_by(ran)
