"""Whole reviews whose agent is a weak model behind a real server: every turn accounted for, every end a true one."""

from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import select

from orchestrator.clients.inference import HttpChatModel
from orchestrator.services import reviews, submitting, working
from orchestrator.services.submitting import Submission
from orchestrator.services.views import ReviewPage, ReviewState, StepState
from orchestrator.services.workshop import Workshop
from orchestrator.store import transcripts
from orchestrator.store.reviews import Review
from orchestrator.store.session import Sessions
from orchestrator.store.steps import Step
from review_agents.focus import Budget, builtin
from review_agents.ports import Ability
from review_agents.records import Answer, Entry, EntryKind, FocusResult, FocusState, Question
from review_agents.repetition import repeats_itself
from tests.support.counted import CountedTransport
from tests.support.model_servers import ModelServer, OurNode
from tests.support.postgres import free_port
from tests.support.tiny import FILES, Script, tiny_shop
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # a model of 135 million weights reads 3,000 tokens on one core
TURNS = 4
PATIENCE_S, BEGAN_NONE = 300.0, "the node began no answer"
FOCUS = builtin()["newcomer"].model_copy(
    update={"budget": Budget(turns=TURNS, answer_tokens=64, conclude_turns=1, seconds=1200)}
)


class Counting(HttpChatModel):
    """The real client, with what it sends counted, and what the server had written once it was probed."""

    def __init__(self, node: ModelServer):
        self.wire = CountedTransport()
        self.node = node
        self.written_before = 0
        super().__init__(f"{node.url}/v1", temperature=0.0, repeats=repeats_itself, pause_s=0.01, transport=self.wire)

    def ability(self, *, cancelled: Any) -> Ability:
        known = super().ability(cancelled=cancelled)
        self.written_before = self.node.written_tokens()
        return known


def shop_with(sessions: Sessions, data: Path, model: HttpChatModel) -> Workshop:
    shop = tiny_shop(sessions, data, script=Script(), chat=lambda: model, focuses={"newcomer": FOCUS})
    shop.sandbox.files = {name: text.encode() for name, text in FILES.items()}  # type: ignore[union-attr]
    return shop


def reviewed(shop: Workshop) -> ReviewPage:
    review_id = submitting.submit(shop, Submission("https://git.example/team/tiny", budget_minutes=60))
    working.do_one(shop, review_id)
    return reviews.get(shop, review_id)


def transcript(shop: Workshop) -> list[Entry]:
    with shop.sessions.reading() as db:
        step = db.scalars(select(Step).where(Step.name == "focus:newcomer")).one()
        return [Entry.model_validate(turn.body) for turn in transcripts.of_step(db, step.id)]


def answers(entries: list[Entry]) -> list[Answer]:
    return [entry.answer for entry in entries if entry.kind is EntryKind.ASKED and entry.answer is not None]


def result(shop: Workshop) -> FocusResult:
    with shop.sessions.reading() as db:
        return FocusResult.model_validate(db.scalars(select(Step).where(Step.name == "focus:newcomer")).one().result)


def test_a_weak_models_review_ends_truly_and_the_server_counts_the_same_turns_and_tokens(
    real_node: ModelServer, sessions: Sessions, tmp_path: Path
) -> None:
    model = Counting(real_node)
    shop = shop_with(sessions, tmp_path, model)
    requests = real_node.requests()
    page = reviewed(shop)
    assert (page.row.state, page.row.error) == (ReviewState.DONE, "")
    done, asked = result(shop), answers(transcript(shop))
    assert done.protocol == ("text" if isinstance(real_node, OurNode) else "native"), "as the probe found"
    assert 1 <= len(asked) == done.turns <= TURNS
    assert model.wire.chats == {"sent": len(asked) + 1, "200": len(asked) + 1}, "the probe and each turn"
    assert real_node.requests() - requests == len(asked) + 1 and real_node.working() == 0
    written = sum(answer.usage.completion for answer in asked)
    assert real_node.written_tokens() - model.written_before == written > 0
    with shop.sessions.reading() as db:
        tokens = db.get_one(Review, page.row.id).tokens
    counted = tokens["by_focus"]["newcomer"]
    assert (counted["completion"], counted["turns"], tokens["completion"]) == (written, len(asked), written)
    for before, after in pairwise(asked):
        assert after.usage.cached > 0.9 * before.usage.prompt, "each turn finds the one before it in the node"
    step = next(one for one in page.steps if one.name == "focus:newcomer")
    nothing = done.report is None and not done.candidates
    assert (done.state is FocusState.PRODUCED_NOTHING) is nothing
    assert (step.state is StepState.FAILED) is nothing and step.reason.startswith("produced nothing") is nothing


class KilledInTurn(Counting):
    """Its node dies while it answers the turn of that number."""

    def __init__(self, node: ModelServer, turn: int):
        super().__init__(node)
        self.turn = turn
        self.asked: list[Question] = []

    def ask(self, question: Question, *, cancelled: Any) -> Answer:
        if question.conversation == "probe":
            return super().ask(question, cancelled=cancelled)
        self.asked.append(question)
        if len(self.asked) != self.turn:
            return super().ask(question, cancelled=cancelled)
        killer = Thread(target=self.kill_at_work, daemon=True)
        killer.start()
        try:
            return super().ask(question, cancelled=cancelled)
        finally:
            killer.join()

    def kill_at_work(self) -> None:
        wait_for(lambda: self.node.working() > 0, PATIENCE_S, BEGAN_NONE, every_s=0.02)
        self.node.kill()


def test_a_node_that_is_killed_in_the_middle_of_an_answer_parks_the_review_which_goes_on_where_it_was(
    random_model: Path, sessions: Sessions, tmp_path: Path
) -> None:
    with OurNode(tmp_path / "node.log", model=str(random_model), ctx=65_536, port=free_port()) as node:
        model = KilledInTurn(node, turn=3)
        shop = shop_with(sessions, tmp_path, model)
        page = reviewed(shop)
        assert page.row.state is ReviewState.WAITING_FOR_NODE and "waits for the node" in page.row.outcome_note
        assert len(answers(transcript(shop))) == 2 and not shop.sandbox.boxes  # type: ignore[union-attr]
        shop.clock.forward(minutes=2)  # type: ignore[attr-defined]
        working.work(shop)
        assert reviews.get(shop, page.row.id).row.state is ReviewState.WAITING_FOR_NODE, "it is still gone"
        node.start()
        node.wait_until_ready()
        shop.clock.forward(minutes=2)  # type: ignore[attr-defined]
        working.work(shop)
        page = reviews.get(shop, page.row.id)
        assert (page.row.state, page.attempt) == (ReviewState.DONE, 1)
        said = answers(transcript(shop))
        assert len(said) == result(shop).turns == TURNS, "no turn twice, none lost"
        assert model.asked[3].messages[: len(model.asked[2].messages) - 1] == model.asked[2].messages[:-1]
        assert model.asked[3].messages[-1].text.endswith("Go on where you were.")
        assert node.requests() == TURNS - 2 + 1, "what is left, and the probe"


def test_a_review_that_is_cancelled_in_the_middle_of_an_answer_leaves_no_request_on_the_node(
    our_node: OurNode, sessions: Sessions, tmp_path: Path
) -> None:
    model = Counting(our_node)
    shop = shop_with(sessions, tmp_path, model)
    review_id = submitting.submit(shop, Submission("https://git.example/team/tiny"))

    def cancel_at_work() -> None:
        wait_for(lambda: model.written_before and our_node.working() > 0, PATIENCE_S, BEGAN_NONE, every_s=0.02)
        reviews.cancel(shop, review_id)

    canceller = Thread(target=cancel_at_work, daemon=True)
    canceller.start()
    working.do_one(shop, review_id)
    canceller.join()
    assert reviews.get(shop, review_id).row.state is ReviewState.CANCELLED
    assert our_node.working() == 0 and model.is_busy() is False
