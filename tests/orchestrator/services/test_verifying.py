"""What a claim's re-runs prove, and what they do not."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.sandbox.contract import Box, BoxOrder, SandboxError
from orchestrator.sandbox.fake import FakeSandbox
from orchestrator.services import proving
from orchestrator.services.verifying import Verifier
from review_agents.copied import piece
from review_agents.records import Network, Place, Ran, Reproduction, Source, Symptom, Verification, VerificationState
from tests.review_agents.test_injection import harmless
from tests.support import attacks
from tests.support.agents import MARK
from tests.support.tiny import FILES, FIRST, GREET, Script, TinyCheckout, no_greeting

BAD, GOOD = Ran(exit=0, head="good morning\n"), Ran(exit=0, head="hello\n")


class Bench:
    """A verifier over a fake sandbox whose boxes are counted."""

    def __init__(self, tmp_path: Path):
        self.script = Script()
        self.sandbox = FakeSandbox(self.script)
        self.sandbox.prepare("r", tmp_path, FIRST)
        self.opened: list[tuple[str, bool]] = []
        self.left = 100.0
        self.verifier = Verifier(
            boxes=self.open,
            checkout=TinyCheckout(FIRST, FILES, tmp_path),
            files=tuple(FILES),
            time_left=lambda: self.left,
            say=lambda text: None,
        )

    def open(self, name: str, *, egress: bool) -> Box:
        self.opened.append((name, egress))
        return self.sandbox.open(BoxOrder("r", name, 1, egress=egress))

    def verify(self, **changed: Any) -> Verification:
        return self.verifier.verify(no_greeting(**changed))

    def trial(self) -> str:
        return proving.trial(self.verifier, no_greeting(), mark=MARK)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def reproduction(**changed: Any) -> Reproduction:
    given = no_greeting().reproduction
    assert given is not None
    return given.model_copy(update=changed)


def test_a_fault_shown_twice_with_its_control_is_confirmed(bench: Bench) -> None:
    result = bench.verify()
    assert (result.state, result.reason, len(result.runs)) == (VerificationState.CONFIRMED, "", 2)
    assert [control.exit for control in result.controls] == [0, 0]


def test_a_proof_whose_text_does_not_stand_any_more_names_the_files(bench: Bench) -> None:
    told = (piece("README.md", "It says hello."), piece("greet.sh", "echo good night"), piece("gone.md", "x"))
    assert bench.verifier.outdated(reproduction(copied=told[:1])) == bench.verifier.outdated(reproduction()) == ()
    assert bench.verifier.outdated(reproduction(copied=told)) == ("gone.md", "greet.sh")


def test_every_command_gets_a_fresh_box_and_none_stays(bench: Bench) -> None:
    bench.verify()
    assert [name for name, _ in bench.opened] == ["1", "1-control", "2", "2-control"]
    assert not bench.sandbox.boxes


def test_without_a_control_that_is_said(bench: Bench) -> None:
    result = bench.verify(reproduction=reproduction(control=None))
    assert (result.state, result.reason) == (VerificationState.CONFIRMED, "no control")


def test_a_fault_that_does_not_show_is_not_reproduced(bench: Bench) -> None:
    bench.script.says[GREET] = GOOD
    assert bench.verify().state is VerificationState.NOT_REPRODUCED


@pytest.mark.parametrize("order", [[BAD, GOOD], [GOOD, BAD]])
def test_a_fault_that_shows_once_is_flaky(bench: Bench, order: list[Ran]) -> None:
    bench.script.says[GREET] = list(order)
    result = bench.verify()
    assert (result.state, result.reason) == (VerificationState.FLAKY, "shown in 1 of 2 runs")


def test_a_failing_control_proves_nothing(bench: Bench) -> None:
    bench.script.says["true"] = Ran(exit=1, head="no such program\n")
    result = bench.verify()
    assert result.state is VerificationState.UNVERIFIED and "control failed, too" in result.reason
    assert "no such program" in result.reason
    assert [control.head for control in result.controls] == ["no such program\n"]


@pytest.mark.parametrize("attack", attacks.ALL.values(), ids=attacks.ALL)
def test_an_agent_is_told_why_its_proof_does_not_hold_in_harmless_words(bench: Bench, attack: str) -> None:
    bench.script.says["true"] = Ran(exit=1, head=f"no such program\n{attack}")
    told = bench.trial()
    assert told.startswith("its control failed, too (exit status 1). It ended with") and harmless(told)
    assert "Its control said:\n<<<" in told and "no such program" in told
    bench.sandbox.changed = [attack]
    assert "changed the source: " in bench.trial() and harmless(bench.trial())


def test_a_reproduction_that_changes_the_source_proves_nothing(bench: Bench) -> None:
    bench.sandbox.changed = ["greet.sh"]
    result = bench.verify()
    assert (result.state, result.reason) == (VerificationState.UNVERIFIED, "changed the source: 'greet.sh'")


@pytest.mark.parametrize(
    ("ran", "reason"),
    [(Ran(exit=None, timed_out=True, seconds=120), "timed out"), (Ran(exit=None, signal=9, oom=True), "memory")],
)
def test_a_run_that_was_cut_short_proves_nothing(bench: Bench, ran: Ran, reason: str) -> None:
    bench.script.says[GREET] = ran
    result = bench.verify()
    assert result.state is VerificationState.UNVERIFIED and reason in result.reason


def test_a_quote_that_is_not_in_its_file_is_found_out_without_running(bench: Bench) -> None:
    result = bench.verify(places=(Place(file="README.md", quote="It says goodbye."),))
    assert (result.state, result.reason) == (VerificationState.UNVERIFIED, "the quoted text is not in README.md")
    assert bench.opened == []


def test_white_space_in_quotes_does_not_matter(bench: Bench) -> None:
    places = (Place(file="/job/repo/README.md", quote="Run  greet.\n It says"),)
    assert bench.verify(places=places).state is VerificationState.CONFIRMED


def test_an_opinion_has_nothing_to_run(bench: Bench) -> None:
    result = bench.verify(reproduction=None, opinion=True)
    assert (result.state, result.reason) == (VerificationState.UNVERIFIED, "an opinion: nothing to run")


def test_only_our_own_checks_may_reach_the_network(bench: Bench) -> None:
    wanted = reproduction(network=Network.EGRESS)
    assert "network" in bench.verify(reproduction=wanted, source=Source.AGENT).reason
    assert bench.opened == []
    assert bench.verify(reproduction=wanted).state is VerificationState.CONFIRMED
    assert all(egress for _, egress in bench.opened)


def test_a_used_up_budget_leaves_claims_unverified(bench: Bench) -> None:
    bench.left = 0
    assert "budget" in bench.verify().reason


@pytest.mark.parametrize("method", ["open", "run"])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_verifier_that_could_not_run_is_its_own_state(bench: Bench, method: str, at: int) -> None:
    bench.sandbox.fail[method] = [*[None] * at, SandboxError("no space left")]
    result = bench.verify()
    assert result.state is VerificationState.UNVERIFIED and "the sandbox failed: no space left" in result.reason
    assert not bench.sandbox.boxes


def test_long_output_is_shortened_in_the_record(bench: Bench) -> None:
    bench.script.says[GREET] = Ran(exit=0, head="x" * 100_000)
    (run, _) = bench.verify().runs
    assert len(run.head) + len(run.tail) < 20_000 and run.dropped_bytes == 84_000


def test_an_exit_status_alone_may_be_the_symptom(bench: Bench) -> None:
    bench.script.says[GREET] = Ran(exit=3)
    assert bench.verify(reproduction=reproduction(symptom=Symptom(exit=3))).state is VerificationState.CONFIRMED
