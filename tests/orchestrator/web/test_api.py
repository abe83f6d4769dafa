"""The JSON API: what it takes and gives, and one shape for all that goes wrong."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from orchestrator.services.workshop import Workshop
from orchestrator.store.reviews import ReviewState
from review_agents.ports import UnreachableRepo
from tests.factories import NOON, make_chunk, make_repo, make_review, make_shop, make_step
from tests.orchestrator.web.conftest import HERE
from tests.orchestrator.web.streets import HOSTILE, Street, build

TARGET = "https://git.example/team/thing"


@pytest.fixture
def street(shop: Workshop) -> Street:
    with shop.sessions.begin() as db:
        return build(db)


def the_error(answer: Any) -> dict[str, Any]:
    body = answer.json()
    assert set(body) == {"errors"}
    for error in body["errors"]:
        assert set(error) == {"field", "message"} and error["message"]
    return dict(body["errors"][0])


def test_a_review_is_asked_for_and_found_again(client: TestClient, shop: Workshop) -> None:
    answer = client.post("/api/reviews", json={"target": TARGET, "focuses": ["docs"], "agents": False})
    assert answer.status_code == 201
    asked = answer.json()
    assert answer.headers["location"] == asked["url"] == f"/api/reviews/{asked['id']}"
    page = client.get(asked["url"]).json()
    assert page["row"]["state"] == "queued" and page["row"]["requested_by"] == "api"
    assert page["repo_url"] == TARGET and page["focuses"] == ["docs"] and page["row"]["agents"] is False
    assert client.get(asked["page"]).status_code == 200
    assert client.get("/api/reviews").json()["items"][0]["id"] == asked["id"]


def test_asking_twice_leads_to_the_review_that_waits(client: TestClient) -> None:
    first, second = (client.post("/api/reviews", json={"target": TARGET}).json()["id"] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "target"),
        ({"target": ""}, "target"),
        ({"target": 3}, "target"),
        ({"target": "file:///etc"}, "target"),
        ({"target": "x" * 3000}, "target"),
        ({"target": TARGET, "ref": "-x"}, "ref"),
        ({"target": TARGET, "budget_minutes": 0}, "budget_minutes"),
        ({"target": TARGET, "budget_minutes": 10**30}, "budget_minutes"),
        ({"target": TARGET, "budget_tokens": "many"}, "budget_tokens"),
        ({"target": TARGET, "focuses": "docs"}, "focuses"),
        ({"target": TARGET, "focuses": ["<b>"]}, "focuses"),
        ({"target": TARGET, "budget": 3}, "budget"),
        ([], None),
        ("text", None),
    ],
)
def test_bad_input_names_its_field(client: TestClient, shop: Workshop, body: Any, field: str | None) -> None:
    answer = client.post("/api/reviews", json=body)
    assert answer.status_code == 422, answer.text
    assert the_error(answer)["field"] == field
    assert client.get("/api/reviews").json()["total"] == 0


@pytest.mark.parametrize("body", [b"{", b"", b"\xff\xfe", b'{"target": "\\ud800"}', b"[" * 5000, b'{"a": NaN}'])
def test_a_body_that_is_no_json_is_a_message_too(client: TestClient, body: bytes) -> None:
    answer = client.post("/api/reviews", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    the_error(answer)


def test_a_repo_that_does_not_answer_is_said_at_once_and_leaves_nothing(client: TestClient, shop: Workshop) -> None:
    shop.git.problem = UnreachableRepo(f"{TARGET} does not answer.", retry=True)  # type: ignore[attr-defined]
    answer = client.post("/api/reviews", json={"target": TARGET})
    assert answer.status_code == 422
    assert the_error(answer) == {"field": "target", "message": f"{TARGET} does not answer."}
    assert client.get("/api/repos").json() == []


@pytest.mark.parametrize(
    "address",
    [
        "/api/nothing",
        "/api/reviews/nonsense",
        *(f"/api/{thing}/{UUID(int=0)}" for thing in ("reviews", "repos", "findings", "schedules")),
        f"/api/steps/{UUID(int=0)}/log",
        f"/api/reviews/{UUID(int=0)}/export",
    ],
)
def test_what_is_not_there_has_the_same_shape(client: TestClient, address: str) -> None:
    answer = client.get(address)
    assert answer.status_code in (404, 422)
    the_error(answer)


def test_a_wrong_method_has_the_same_shape(client: TestClient) -> None:
    answer = client.put("/api/reviews", json={})
    assert answer.status_code == 405 and answer.headers["allow"]
    the_error(answer)


def test_a_foreign_page_cannot_use_the_api(client: TestClient, shop: Workshop) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = client.post("/api/reviews", json={"target": TARGET}, headers=headers)
        assert answer.status_code == 403
        the_error(answer)
    assert client.post("/api/reviews", data={"target": TARGET}).status_code == 415
    assert client.post("/api/reviews", json={"target": TARGET}, headers={"Origin": HERE}).status_code == 201
    assert "access-control-allow-origin" not in client.get("/api/reviews", headers={"Origin": "http://x"}).headers


def test_a_local_folder_is_taken_only_below_an_allowed_root(client: TestClient, tmp_path: Any, sessions: Any) -> None:
    from orchestrator.web.app import make_app

    inside, outside = tmp_path / "roots" / "repo", tmp_path / "elsewhere"
    inside.mkdir(parents=True), outside.mkdir()
    (tmp_path / "roots" / "link").symlink_to(outside)
    shop = make_shop(sessions, tmp_path, settings={"allowed_roots": (str(tmp_path / "roots"),)})
    client = TestClient(make_app(shop, shop.settings), base_url=HERE)
    assert client.post("/api/reviews", json={"target": str(inside)}).status_code == 201
    for path in (outside, tmp_path / "roots" / "link", f"{inside}/../../elsewhere", "/etc", tmp_path / "missing"):
        answer = client.post("/api/reviews", json={"target": str(path)})
        assert answer.status_code == 422
        assert the_error(answer)["field"] == "target"


def test_a_review_is_followed_and_its_log_read(client: TestClient, shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        review = make_review(db, state=ReviewState.RUNNING)
        step = make_step(db, review)
        make_chunk(db, step, "one\n"), make_chunk(db, step, "two \ud83d\n".encode("utf-8", "replace").decode())
        review_id, step_id = review.id, step.id
    progress = client.get(f"/api/reviews/{review_id}/progress").json()
    assert [line["text"] for line in progress["lines"]] == ["one\n", "two ?\n"]
    again = client.get(f"/api/reviews/{review_id}/progress?after={progress['last_seq']}").json()
    assert again["lines"] == [] and again["last_seq"] == progress["last_seq"]
    log = client.get(f"/api/steps/{step_id}/log")
    assert log.text == "one\ntwo ?\n" and log.headers["content-type"] == "text/plain; charset=utf-8"


def test_a_review_is_exported_in_each_format(client: TestClient, street: Street) -> None:
    address = f"/api/reviews/{street.done}/export"
    assert client.get(address).json()["lamplighter"] == 1
    assert client.get(f"{address}?format=markdown").headers["content-type"] == "text/markdown; charset=utf-8"
    assert client.get(f"{address}?format=sarif").json()["version"] == "2.1.0"
    assert the_error(client.get(f"{address}?format=pdf"))["field"] == "format"
    for suffix in ("json", "md", "sarif"):
        file = client.get(f"/reviews/{street.done}/export.{suffix}")
        assert file.headers["content-disposition"] == f'attachment; filename="review-{street.done}.{suffix}"'


def test_the_log_address_of_an_export_answers(client: TestClient, street: Street) -> None:
    evidence = client.get(f"/api/reviews/{street.done}/export").json()["evidence"]
    assert evidence
    for one in evidence:
        assert client.get(one["log"]).status_code == 200


def test_a_review_is_cancelled_once(client: TestClient, shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        review = make_review(db).id
    assert client.post(f"/api/reviews/{review}/cancel", json={}).status_code == 202
    answer = client.post(f"/api/reviews/{review}/cancel", json={})
    assert answer.status_code == 409
    the_error(answer)


def test_findings_are_ignored_and_counted_again(client: TestClient, street: Street) -> None:
    address = f"/api/findings/{street.findings[0]}/ignore"
    assert the_error(client.post(address, json={"reason": ""}))["field"] == "reason"
    assert the_error(client.post(address, json={"reason": "x", "until": "2030-01-01T00:00:00"}))["field"] == "until"
    until = (NOON + timedelta(days=3)).isoformat()
    assert client.post(address, json={"reason": "we know", "until": until}).json()["ignored"] is True
    assert client.delete(address).json()["ignored"] is False


def test_rounds_are_planned_changed_and_ended(client: TestClient, shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = str(make_repo(db).id)
    planned = {"kind": "nightly", "at": "02:30", "zone": "Europe/Berlin"}
    made = client.post("/api/schedules", json={"repo": repo, **planned})
    assert made.status_code == 201 and made.json()["at"] == "02:30"
    address = made.headers["location"]
    assert client.get("/api/tonight").json()["coming"][0]["schedule"]["id"] == made.json()["id"]
    changed = client.put(address, json={"kind": "loop", "pause_minutes": 5, "enabled": False})
    assert changed.json()["kind"] == "loop" and changed.json()["enabled"] is False
    assert the_error(client.put(address, json={"kind": "nightly", "at": "9"}))["field"] == "at"
    assert the_error(client.post("/api/schedules", json={"repo": str(uuid4()), **planned}))["message"]
    assert client.delete(address).status_code == 204
    assert client.get(address).status_code == 404


def test_everything_can_be_read_also_when_every_text_is_hostile(client: TestClient, shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        street = build(db, HOSTILE)
    addresses = [
        "/api/reviews", f"/api/reviews/{street.done}", f"/api/reviews/{street.running}/progress", "/api/repos",
        f"/api/repos/{street.repo}", f"/api/findings/{street.findings[0]}", "/api/schedules", "/api/tonight",
        f"/api/compare?one={street.earlier}&other={street.done}", "/api/node",
    ]  # fmt: skip
    for address in addresses:
        answer = client.get(address)
        assert answer.status_code == 200 and answer.headers["content-type"] == "application/json", address
        json.loads(answer.content)


def test_the_description_is_whole_and_names_our_own_error_shape(client: TestClient) -> None:
    schema = client.get("/api/openapi.json").json()
    assert "HTTPValidationError" not in schema["components"]["schemas"]
    assert all(path.startswith(("/api/", "/health/")) for path in schema["paths"])
    for methods in schema["paths"].values():
        for call in methods.values():
            assert call["summary"]
    assert "/api/reviews" in client.get("/api/docs").text


def test_no_request_that_fits_the_description_is_our_fault(app: FastAPI, street: Street) -> None:
    """Made-up requests for each call: never a 5xx, and every answer as the description says."""
    host = {"Host": "127.0.0.1:8750"}
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", app, headers=host)
    quick = settings(
        max_examples=12, phases=[Phase.generate], database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    checked = []
    for found in schema.get_all_operations():
        call = found.ok()

        @quick
        @given(case=call.as_strategy())
        def check(case: Any) -> None:
            answer = case.call(headers=host)
            assert answer.status_code < 500, answer.text
            case.validate_response(answer, checks=[status_code_conformance, response_schema_conformance])

        check()
        checked.append(call.label)
    assert len(checked) > 15
