"""Forms: what they change, what they say when a field is wrong, and who may send them."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from orchestrator.services import findings, reviews, schedules
from orchestrator.services.views import ReviewState, ScheduleKind
from orchestrator.services.workshop import Workshop
from orchestrator.web import findings as web_findings
from orchestrator.web import home, repos
from orchestrator.web import reviews as web_reviews
from orchestrator.web import schedules as web_schedules
from orchestrator.web.security import CSRF_COOKIE
from tests.factories import make_repo, make_review, make_sighting
from tests.orchestrator.web.conftest import HERE
from tests.orchestrator.web.html import read

Post = Callable[..., Any]
TARGET = "https://git.example/team/thing"


def nothing_was_written(shop: Workshop) -> bool:
    return reviews.listed(shop).total == 0


def test_a_submitted_repo_leads_to_its_review(post: Post, shop: Workshop) -> None:
    answer = post(
        "/reviews",
        target=f" {TARGET} ",
        ref="main",
        focuses=["docs", "tests"],
        profile="adoption",
        flavour="research",
        budget_minutes="5",
        agents="yes",
        force="yes",
    )
    assert answer.status_code == 303
    page = reviews.get(shop, UUID(answer.headers["location"].rpartition("/")[2]))
    assert (page.repo_url, page.row.ref, page.focuses, page.budget_minutes) == (TARGET, "main", ("docs", "tests"), 5)
    assert (page.profile, page.flavour) == ("adoption", "research")
    assert (page.row.agents, page.force, page.row.requested_by) == (True, True, "web")
    assert shop.nudge.woken == [page.row.id]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target", ""),
        ("target", "file:///etc/passwd"),
        ("target", "ext::sh -c id"),
        ("target", "--upload-pack=id"),
        ("target", "https://user:secret@git.example/x"),
        ("target", "/etc"),
        ("target", "https://127.0.0.1/x"),
        ("target", "\u202ehttps://x"),
        ("ref", "--option"),
        ("ref", "a..b"),
        ("budget_minutes", "many"),
        ("budget_minutes", "0"),
        ("budget_tokens", "1e9"),
    ],
)
def test_a_wrong_field_brings_the_form_back_with_what_was_typed(
    post: Post, shop: Workshop, field: str, value: str
) -> None:
    answer = post("/reviews", **{"target": TARGET, field: value})
    assert answer.status_code == 422
    page = read(answer.text)
    box = next(one for one in page.all("input") if one.attributes.get("name") == field)
    assert box.attributes["aria-invalid"] == "true"
    assert f"e-{field}" in box.attributes["aria-describedby"]
    assert [one for one in page.elements if one.attributes.get("role") == "alert"]
    if "\u202e" not in value:
        assert box.attributes["value"] == value
    assert nothing_was_written(shop)


@pytest.mark.parametrize(("field", "value"), [("focuses", "<script>"), ("profile", "nobody"), ("flavour", "vanilla")])
def test_a_choice_that_does_not_exist_is_said_beside_its_choices(
    post: Post, shop: Workshop, field: str, value: str
) -> None:
    answer = post("/reviews", target=TARGET, **{field: value})
    assert answer.status_code == 422
    page = read(answer.text)
    (box,) = [one for one in page.elements if one.attributes.get("id") == f"f-{field}"]
    assert (box.attributes["aria-invalid"], box.attributes["aria-describedby"]) == ("true", f"e-{field}")
    assert "<script>" not in answer.text.partition("<main")[2] and nothing_was_written(shop)


def test_a_secret_in_a_url_is_not_repeated_outside_the_field(post: Post) -> None:
    page = read(post("/reviews", target="https://user:hunter2@git.example/x").text)
    assert "hunter2" not in page.text


@pytest.mark.parametrize("spoil", ["no token", "wrong token", "no cookie", "foreign origin", "no origin"])
def test_a_form_that_is_not_ours_changes_nothing(client: TestClient, shop: Workshop, spoil: str) -> None:
    client.get("/")
    token = client.cookies[CSRF_COOKIE]
    data, headers = {"target": TARGET, "csrf": token}, {"Origin": HERE}
    if spoil == "no token":
        del data["csrf"]
    elif spoil == "wrong token":
        data["csrf"] = "x" * 43
    elif spoil == "no cookie":
        client.cookies.clear()
    elif spoil == "foreign origin":
        headers = {"Origin": "http://evil.example"}
    else:
        headers = {}
    assert client.post("/reviews", data=data, headers=headers).status_code == 403
    assert nothing_was_written(shop)


def test_every_post_address_of_the_pages_asks_for_the_token(client: TestClient) -> None:
    some_id = "00000000-0000-0000-0000-000000000000"
    addresses = [
        route.path
        for module in (home, web_reviews, web_findings, web_schedules, repos)
        for route in module.router.routes
        if "POST" in getattr(route, "methods", ())
    ]
    assert len(addresses) >= 9
    for address in addresses:
        for name in ("review_id", "repo_id", "finding_id", "schedule_id"):
            address = address.replace(f"{{{name}}}", some_id)
        assert client.post(address, headers={"Origin": HERE}).status_code == 403, address


def test_the_token_cookie_is_kept_from_scripts_and_other_sites(client: TestClient) -> None:
    cookie = client.get("/").headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and "path=/" in cookie and "secure" not in cookie
    assert "set-cookie" not in client.get("/reviews").headers  # it stays, and open forms with it
    secure = client.get("https://127.0.0.1:8750/", headers={"Cookie": f"{CSRF_COOKIE}=planted"})
    assert "secure" in secure.headers["set-cookie"].lower()


def test_a_review_is_cancelled_once_and_then_not_any_more(post: Post, shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        review = make_review(db).id
    assert post(f"/reviews/{review}/cancel").status_code == 303
    assert reviews.get(shop, review).row.state is ReviewState.CANCELLED
    answer = post(f"/reviews/{review}/cancel")
    assert answer.status_code == 409
    assert "has ended already" in answer.text


def test_a_review_is_asked_for_again_with_the_same_wishes(post: Post, shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db, url=TARGET)
        given = {"focuses": ["docs"], "budget_minutes": 7, "agents": False, "profile": "student", "flavour": "personal"}
        old = make_review(db, repo, state=ReviewState.DONE, **given).id
    answer = post(f"/reviews/{old}/again")
    new = reviews.get(shop, UUID(answer.headers["location"].rpartition("/")[2]))
    assert (new.profile, new.flavour) == ("student", "personal")
    assert (new.repo_url, new.focuses, new.budget_minutes, new.row.agents, new.force) == (
        TARGET,
        ("docs",),
        7,
        False,
        True,
    )


def test_a_repo_is_reviewed_at_the_press_of_a_button(post: Post, shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db, url=TARGET).id
    assert post(f"/repos/{repo}/review").headers["location"].startswith("/reviews/")
    assert reviews.listed(shop, repo=repo).total == 1


def test_a_finding_is_ignored_with_a_reason_until_a_day(post: Post, shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        finding = make_sighting(db, make_review(db, state=ReviewState.DONE)).finding_id
    assert post(f"/findings/{finding}/ignore", reason="", until="").status_code == 422
    wrong = post(f"/findings/{finding}/ignore", reason="we know <b>", until="2020-01-01")
    assert wrong.status_code == 422 and 'value="we know &lt;b&gt;"' in wrong.text
    assert post(f"/findings/{finding}/ignore", reason="we know", until="2026-12-31").status_code == 303
    page = findings.get(shop, finding)
    assert (page.ignored, page.ignored_reason) == (True, "we know")
    assert page.ignored_until == datetime(2027, 1, 1, tzinfo=UTC)
    assert post(f"/findings/{finding}/unignore").status_code == 303
    assert not findings.get(shop, finding).ignored


def test_a_round_is_planned_changed_and_ended(post: Post, shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db).id
    planned = {"kind": "nightly", "at": "03:30", "zone": "Europe/Berlin", "skip_unchanged": "yes",
               "focuses": ["docs"], "profile": "adoption", "flavour": "research"}  # fmt: skip
    assert post("/schedules", repo=str(repo), **planned).status_code == 303
    (row,) = schedules.listed(shop)
    assert (row.kind, row.at, row.zone, row.skip_unchanged, row.enabled) == (
        ScheduleKind.NIGHTLY, "03:30", "Europe/Berlin", True, True,
    )  # fmt: skip
    assert (row.focuses, row.profile, row.flavour) == (("docs",), "adoption", "research")
    assert post(f"/schedules/{row.id}", kind="loop", pause_minutes="45").status_code == 303
    (row,) = schedules.listed(shop)
    assert (row.kind, row.pause_minutes, row.skip_unchanged, row.enabled) == (ScheduleKind.LOOP, 45, False, False)
    assert post(f"/schedules/{row.id}/delete").status_code == 303
    assert schedules.listed(shop) == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("at", "25:00"),
        ("at", ""),
        ("zone", "Mars/Olympus"),
        ("zone", "../../etc/passwd"),
        ("kind", "hourly"),
        ("budget_minutes", "x"),
        ("focuses", "<b>"),
        ("profile", "nobody"),
        ("flavour", "vanilla"),
        ("repo", "nonsense"),
    ],
)
def test_a_round_that_cannot_be_planned_says_which_field(post: Post, shop: Workshop, field: str, value: str) -> None:
    with shop.sessions.begin() as db:
        repo = str(make_repo(db).id)
    planned = {"repo": repo, "kind": "nightly", "at": "03:30", "zone": "UTC"}
    answer = post("/schedules", **{**planned, field: value})
    assert answer.status_code == 422
    assert "That did not work." in answer.text
    assert schedules.listed(shop) == ()


@pytest.mark.parametrize(
    ("back", "goes_to"),
    [
        ("/reviews?page=2", "/reviews?page=2"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/a\r\nSet-Cookie: x", "/"),
        ("", "/"),
    ],
)
def test_colours_are_chosen_without_javascript_and_lead_back_here(post: Post, back: str, goes_to: str) -> None:
    answer = post("/theme", theme="dark", back=back)
    assert (answer.status_code, answer.headers["location"]) == (303, goes_to)
    assert "lamplighter_theme=dark" in answer.headers["set-cookie"]


def test_the_chosen_colours_are_on_the_page(client: TestClient, post: Post) -> None:
    post("/theme", theme="light", back="/")
    assert '<html lang="en" data-theme="light">' in client.get("/").text
    client.cookies.clear()
    planted = client.get("/", headers={"Cookie": "lamplighter_theme=neon"})
    assert '<html lang="en">' in planted.text
