"""Reviews whose node goes away or is busy in the middle: they wait for it, and go on where they were."""

import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from orchestrator.clients.inference import HttpChatModel
from orchestrator.services import reviews, submitting, working
from orchestrator.services.submitting import Submission
from orchestrator.services.views import ReviewPage, ReviewState
from orchestrator.services.workshop import Workshop
from orchestrator.store import transcripts
from orchestrator.store.reviews import Review
from orchestrator.store.session import Sessions
from orchestrator.store.steps import Step
from review_agents.focus import Budget
from review_agents.records import Answer, Entry, EntryKind, Question
from tests.support.agents import report
from tests.support.endpoint import Endpoint, Handler, refusal, tool_call
from tests.support.model_servers import Guest, ModelServer
from tests.support.tiny import FILES, Script, tiny_shop
from tests.support.tiny_agents import FOCUSES
from tests.support.waiting import wait_for

READS = tool_call("read", {"path": "README.md"})
FINISHES = tool_call("finish", report())


def half(handler: Handler) -> None:
    handler.begin_stream()
    handler.event({"choices": [{"index": 0, "delta": {"content": "I will"}, "finish_reason": None}]})


def reset(handler: Handler) -> None:
    half(handler)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def garbage(handler: Handler) -> None:
    handler.begin_stream()
    handler.event("<html>502 Bad Gateway</html>")


def silent(handler: Handler) -> None:
    half(handler)
    handler.server.hung_up.wait(3)


AWAY = {
    "busy for ten minutes": refusal(429, "queue full", headers={"Retry-After": "600"}),
    "still loading": refusal(503, "Loading model"),
    "gone behind a proxy": refusal(502, "upstream is down"),
    "half a stream": half,
    "a connection reset in a stream": reset,
    "a page of a proxy in a stream": garbage,
    "silence in a stream": silent,
}


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path) -> Callable[[Endpoint], Workshop]:
    def over(endpoint: Endpoint) -> Workshop:
        def chat() -> HttpChatModel:
            return HttpChatModel(endpoint.url, tools="native", pause_s=0.0, silence_s=0.3)

        made = tiny_shop(sessions, tmp_path, script=Script(), chat=chat, focuses={"newcomer": FOCUSES["newcomer"]})
        made.sandbox.files = {name: text.encode() for name, text in FILES.items()}  # type: ignore[union-attr]
        return made

    return over


def page_of(shop: Workshop, review_id: Any = None) -> ReviewPage:
    if review_id is None:
        review_id = submitting.submit(shop, Submission("https://git.example/team/tiny"))
        working.do_one(shop, review_id)
    else:
        shop.clock.forward(minutes=2)  # type: ignore[attr-defined]
        working.work(shop)
    return reviews.get(shop, review_id)


@pytest.mark.parametrize("why", AWAY)
def test_a_node_that_goes_away_in_the_middle_is_waited_for_and_asked_only_what_is_left(
    why: str, shop: Callable[[Endpoint], Workshop]
) -> None:
    with Endpoint([READS, AWAY[why]]) as endpoint:
        made = shop(endpoint)
        page = page_of(made)
        assert page.row.state is ReviewState.WAITING_FOR_NODE and page.row.outcome_note.startswith("waits for the node")
        assert page_of(made, page.row.id).row.state is ReviewState.WAITING_FOR_NODE, "it is still away"
        before = len(endpoint.bodies)
        endpoint.give([FINISHES])
        page = page_of(made, page.row.id)
        assert (page.row.state, page.row.error, page.attempt) == (ReviewState.DONE, "", 1)
        (last,) = endpoint.bodies[before:]
        assert [message["role"] for message in last["messages"]].count("tool") == 1
        assert last["messages"][-1]["content"].endswith("Go on where you were.")
    with made.sessions.reading() as db:
        assert db.get_one(Review, page.row.id).tokens["by_focus"]["newcomer"]["turns"] == 2


def test_a_node_that_was_never_there_is_waited_for(shop: Callable[[Endpoint], Workshop]) -> None:
    with Endpoint() as gone:
        pass
    made = shop(gone)
    page = page_of(made)
    assert page.row.state is ReviewState.WAITING_FOR_NODE and "does not answer" in page.row.outcome_note


# A node that works for others -------------------------------------------------------------------

TURNS = 3
SHORT = FOCUSES["newcomer"].model_copy(update={"budget": Budget(turns=TURNS, answer_tokens=64, conclude_turns=1)})


class Interrupted(HttpChatModel):
    """The real client, sending little; before the second turn somebody else's long answer begins."""

    def __init__(self, node: ModelServer):
        super().__init__(f"{node.url}/v1", temperature=0.0, tools="text", busy_s=0.3)
        self.guest = Guest(node)
        self.asked: list[Question] = []

    def ask(self, question: Question, *, cancelled: Any) -> Answer:
        self.asked.append(question)
        if len(self.asked) == 2:
            self.guest.arrive()
        short = [one.model_copy(update={"text": one.text[-200:]}) for one in question.messages]
        return super().ask(question.model_copy(update={"messages": tuple(short)}), cancelled=cancelled)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_that_works_for_others_is_waited_for_without_a_box_and_asked_again_when_they_have_gone(
    real_node: ModelServer, sessions: Sessions, tmp_path: Path
) -> None:
    model = Interrupted(real_node)
    made = tiny_shop(sessions, tmp_path, script=Script(), chat=lambda: model, focuses={"newcomer": SHORT})
    made.sandbox.files = {name: text.encode() for name, text in FILES.items()}  # type: ignore[union-attr]
    try:
        page = page_of(made)
        assert page.row.state is ReviewState.WAITING_FOR_NODE, page.row.error
        assert "busy with other requests" in page.row.outcome_note and not made.sandbox.boxes  # type: ignore[union-attr]
        step = next(one for one in page.steps if one.name == "focus:newcomer")
        assert str(step.state) == "waiting_for_node" and (real_node.working(), real_node.waiting()) == (1, 0)
        assert page_of(made, page.row.id).row.state is ReviewState.WAITING_FOR_NODE, "they are still there"
        assert (real_node.working(), real_node.waiting(), len(answers_of(made))) == (1, 0, 1)
    finally:
        model.guest.leave()
    wait_for(lambda: real_node.working() == 0, complaint="the node has not let go of the guest")
    page = page_of(made, page.row.id)
    assert (page.row.state, page.row.error, page.attempt) == (ReviewState.DONE, "", 1)
    assert len(answers_of(made)) == TURNS and len(model.asked) == TURNS + 2, "each turn once, one tried three times"
    first, second = model.asked[0].messages, model.asked[-TURNS + 1].messages
    assert second[: len(first)] == first and second[-1].text.endswith("Go on where you were.")
    with made.sessions.reading() as db:
        spent = db.get_one(Review, page.row.id).tokens["by_focus"]["newcomer"]
    assert spent["turns"] == TURNS and spent["seconds"] == pytest.approx(
        sum(answer.usage.seconds for answer in answers_of(made)), abs=0.01
    )


def answers_of(shop: Workshop) -> list[Answer]:
    with shop.sessions.reading() as db:
        step = db.scalars(select(Step).where(Step.name == "focus:newcomer")).one()
        entries = [Entry.model_validate(turn.body) for turn in transcripts.of_step(db, step.id)]
    return [entry.answer for entry in entries if entry.kind is EntryKind.ASKED and entry.answer is not None]
