"""Pages of what agents did, over a review with a scripted model: conversation, recording, memo, tokens, focuses."""

import json
from pathlib import Path
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from orchestrator.services import reviews, submitting, working
from orchestrator.services.submitting import Submission
from orchestrator.services.workshop import Workshop
from orchestrator.store.session import Sessions
from orchestrator.web.app import make_app
from review_agents.focus import builtin
from review_agents.ports import NodeAway
from review_agents.records import Usage
from review_agents.scripted import call, calls, recorded, said
from tests.orchestrator.web.html import read
from tests.support.tiny import Script
from tests.support.tiny_agents import DONE, FINDS, PROVE, SHOUTS, thinking

HOSTILE = "<script>alert(1)</script> \x1b[2K‮evil"


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path) -> Workshop:
    newcomer = [
        said(f"I look. {HOSTILE}", thought="Hm, where to begin?"),
        calls(("run", '{"command": broken')),
        call("run", command=f"echo '{HOSTILE}'"),
        call("finish", summary=f"Good. {HOSTILE}", scores={"overall": 9, "taste": 2}, not_looked_at=["the manual"]),
    ]
    return thinking(sessions, tmp_path, Script(**{PROVE: SHOUTS}), newcomer=newcomer, correctness=FINDS)


@pytest.fixture
def review_id(shop: Workshop) -> UUID:
    made = submitting.submit(shop, Submission("https://git.example/team/tiny"))
    working.do_one(shop, made)
    return made


@pytest.fixture
def client(shop: Workshop) -> TestClient:
    return TestClient(make_app(shop, shop.settings), base_url="http://127.0.0.1")


def step_id(shop: Workshop, review_id: UUID, name: str) -> UUID:
    return next(one.id for one in reviews.get(shop, review_id).steps if one.name == name)


def test_a_conversation_is_shown_with_its_calls_folded_and_all_foreign_text_visible(
    shop: Workshop, client: TestClient, review_id: UUID
) -> None:
    html = client.get(f"/steps/{step_id(shop, review_id, 'focus:newcomer')}/transcript").text
    assert "<script>alert(1)" not in html and "&lt;script&gt;alert(1)" in html
    assert "\x1b" not in html and "‮" not in html and "⟨ESC⟩" in html and "⟨U+202E⟩" in html
    assert "Hm, where to begin?" in html and "called no tool" in html
    assert html.count('<details class="call">') == 3, "the broken call is shown as it was written"
    assert "as written" in html and "Your focus is Newcomer." in html


def test_the_review_shows_tokens_by_focus_and_links_to_conversations(client: TestClient, review_id: UUID) -> None:
    html = client.get(f"/reviews/{review_id}").text
    assert 'id="agents"' in html and "a confirmed finding cost" in html and html.count("/transcript") == 2
    assert f"/reviews/{review_id}/memo" in html


def test_a_review_without_agents_has_no_such_section(shop: Workshop, client: TestClient) -> None:
    made = submitting.submit(shop, Submission("https://git.example/team/tiny", agents=False))
    working.do_one(shop, made)
    assert 'id="agents"' not in client.get(f"/reviews/{made}").text


def test_the_memo_reconciles_scores_orders_fixes_and_names_what_was_not_looked_at(
    client: TestClient, review_id: UUID
) -> None:
    html = client.get(f"/reviews/{review_id}/memo").text
    assert "2 proved faults, 1 of them serious; 2 of 2 focuses came to their end." in html
    assert "overall: correctness says 5, newcomer says 9" in html
    assert html.index("greets in the morning") < html.index("does not say hello"), "high before medium"
    assert "Newcomer: the manual" in html and "<script>alert(1)" not in html
    text = client.get(f"/reviews/{review_id}/memo.md")
    assert text.headers["content-disposition"].startswith("attachment")
    assert "## What to repair, most worth first" in text.text and "<script>" not in text.text


def test_the_recording_is_a_model(client: TestClient, review_id: UUID) -> None:
    answer = client.get(f"/reviews/{review_id}/transcripts.json")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert set(json.loads(answer.text)["conversations"]) == {"focus:newcomer", "focus:correctness"}
    assert recorded(answer.text).ability(cancelled=lambda: False).model == "recording"
    assert client.get(f"/api/reviews/{review_id}/transcripts").text == answer.text


def test_the_api_has_memo_and_focuses(client: TestClient, review_id: UUID) -> None:
    memo = client.get(f"/api/reviews/{review_id}/memo").json()
    assert memo["scores"][-1]["name"] == "overall" and len(memo["fixes"]) == 2
    assert [one["name"] for one in client.get("/api/focuses").json()] == ["newcomer", "correctness"]


def test_the_forms_list_the_focuses_with_what_they_look_at(client: TestClient, review_id: UUID) -> None:
    for address in ("/", "/schedules"):
        page = read(client.get(address).text)
        ticked = [one for one in page.all("input") if one.attributes.get("name") == "focuses"]
        assert [one.attributes["value"] for one in ticked] == ["newcomer", "correctness"]
        assert builtin()["newcomer"].summary in page.text


def test_who_judges_and_as_what_is_on_the_pages_of_the_review(client: TestClient, review_id: UUID) -> None:
    assert "for general, as production" in client.get(f"/reviews/{review_id}").text
    assert "judged for general, as production" in client.get(f"/reviews/{review_id}/memo").text
    found = client.get(f"/api/reviews/{review_id}").json()
    assert (found["profile"], found["flavour"]) == ("general", "production")


def test_a_review_that_waits_for_its_node_says_so_wherever_it_is_shown(sessions: Sessions, tmp_path: Path) -> None:
    shop = thinking(sessions, tmp_path, Script(), newcomer=[NodeAway("it loads its model")], correctness=[DONE])
    made = submitting.submit(shop, Submission("https://git.example/team/tiny"))
    working.do_one(shop, made)
    client = TestClient(make_app(shop, shop.settings), base_url="http://127.0.0.1")
    live = client.get(f"/reviews/{made}").text
    assert '<li class="waiting_for_node">' in live and "waiting for node: it loads its model" in live
    assert '<li class="running">' not in live
    for address in ("/", "/now", "/reviews", "/schedules"):
        assert '<span class="mark waiting_for_node">waiting for node</span>' in client.get(address).text, address
    states = {one["name"]: one["state"] for one in client.get(f"/api/reviews/{made}").json()["steps"]}
    assert states["focus:newcomer"] == "waiting_for_node" and "running" not in states.values()
    assert client.get(f"/api/reviews/{made}/progress").json()["state"] == "waiting_for_node"
    assert client.get(f"/steps/{step_id(shop, made, 'focus:newcomer')}/transcript").status_code == 200


def test_a_step_that_is_no_focus_has_no_conversation(shop: Workshop, client: TestClient, review_id: UUID) -> None:
    merge, focus = (step_id(shop, review_id, name) for name in ("merge", "focus:newcomer"))
    assert client.get(f"/steps/{merge}/transcript").status_code == 404
    assert "/transcript" not in client.get(f"/steps/{merge}").text
    assert f"/steps/{focus}/transcript" in client.get(f"/steps/{focus}").text


def test_tokens_of_each_answer_stand_beside_it(sessions: Sessions, tmp_path: Path) -> None:
    first = call("read", path="README.md").model_copy(update={"usage": Usage(prompt=4321, cached=1234, completion=56)})
    shop = thinking(sessions, tmp_path, Script(), newcomer=[first, DONE], correctness=[DONE])
    made = submitting.submit(shop, Submission("https://git.example/team/tiny"))
    working.do_one(shop, made)
    client = TestClient(make_app(shop, shop.settings), base_url="http://127.0.0.1")
    html = client.get(f"/steps/{step_id(shop, made, 'focus:newcomer')}/transcript").text
    assert "4321 tokens read, 1234 of them known; 56 written" in html
