"""Pages and files of what was measured."""

import csv
import io
import json
from datetime import timedelta
from urllib.parse import urlencode
from uuid import UUID, uuid4

import pytest
from fastapi.testclient import TestClient

from orchestrator.measure.records import Why
from orchestrator.services import measurements
from orchestrator.services.exports import measurements as files
from orchestrator.services.workshop import Workshop
from orchestrator.store.repos import Repo
from orchestrator.store.reviews import Review, ReviewState
from review_agents.records import Change, Verdict
from tests.factories import NOON, make_compared, make_measured, make_measurement, make_repo, make_review
from tests.orchestrator.web.html import Page, read

NAME = "parse: 1/3 & more"  # cannot be part of a path


@pytest.fixture
def repo(shop: Workshop) -> Repo:
    with shop.sessions.begin() as db:
        return make_repo(db, name="tool")


@pytest.fixture
def nights(shop: Workshop, repo: Repo) -> list[Review]:
    """Six, with a step after the third; the last compared."""
    with shop.sessions.begin() as db:
        reviews = []
        for day, value in enumerate([1.0, 1.01, 0.99, 1.3, 1.31, 1.29]):
            at = NOON - timedelta(days=5 - day)
            review = make_review(db, repo, state=ReviewState.DONE, created_at=at, commit=f"{day}" * 40)
            make_measured(db, review, make_measurement(*[value] * 6, name=NAME))
            make_measured(db, review, make_measurement(name="steady"))
            reviews.append(review)
        stacks = {"a.py:1:main": 1.0, "a.py:1:main;a.py:5:scan": 3.0}
        make_compared(db, reviews[-1], NAME, 1.2, why=Why((), stacks, stacks))
        make_compared(db, reviews[-1], "steady", 1.0, same_code=True)
        return reviews


def shown(client: TestClient, address: str) -> Page:
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    return read(answer.text)


def test_a_repos_page_shows_verdicts_steps_series_and_how_often_we_were_wrong(
    client: TestClient, repo: Repo, nights: list[Review]
) -> None:
    page = shown(client, f"/repos/{repo.id}/measurements")
    for said in (
        "×1.200 (1.176 to 1.224)",
        "10 + 10 sessions in the second block",
        "equal code on both sides",
        "▲ +30 %",
        "after 2222222222, up to 3333333333",
        "slower by 30 % since 28 Nov 2026",
        "false alarms: 0 of 1 pair of equal code in 30 nights",
    ):
        assert said in " ".join(page.text.split()), said
    assert len([one for one in page.all("svg") if one.attributes.get("class") == "plot"]) == 2
    links = {one.attributes.get("href") for one in page.all("a")}
    assert f"/repos/{repo.id}/benchmark?{urlencode({'name': NAME})}" in links
    assert f"/reviews/{nights[-1].id}/profile?{urlencode({'name': NAME})}" in links
    assert {f"/repos/{repo.id}/measurements.{kind}" for kind in ("csv", "json")} <= links


def test_what_moved_stands_first_and_the_list_is_filtered(client: TestClient, repo: Repo, nights: list[Review]) -> None:
    def listed(query: str = "") -> list[str]:
        page = shown(client, f"/repos/{repo.id}/measurements{query}")
        return [one.attributes["aria-label"].split(": ")[0] for one in page.all("svg")
                if one.attributes.get("class") == "plot"]  # fmt: skip

    assert listed() == ["parse", "steady"]
    assert listed("?q=stead") == ["steady"]
    assert listed("?moved=true") == ["parse"]
    assert "Nothing fits the filter" in shown(client, f"/repos/{repo.id}/measurements?q=no").text


def test_a_benchmarks_page_has_a_table_of_what_its_picture_shows(
    client: TestClient, repo: Repo, nights: list[Review]
) -> None:
    page = shown(client, f"/repos/{repo.id}/benchmark?{urlencode({'name': NAME})}")
    text = " ".join(page.text.split())
    assert "▲ +30 %" in text and "machine/fake/image/3.11.2" in text
    for night in nights:
        assert f"{night.created_at.day} Nov 2026, 12:00 UTC{night.commit[:10]}" in text
    assert len([one for one in page.all("circle") if one.attributes.get("class") == "session"]) == 36


def test_of_many_nights_the_newest_are_listed(
    client: TestClient, repo: Repo, nights: list[Review], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurements, "SHOWN_NIGHTS", 4)
    page = shown(client, f"/repos/{repo.id}/benchmark?{urlencode({'name': NAME})}")
    assert "the last 4 of 6" in page.text
    linked = {one.attributes["href"] for one in page.all("a") if one.attributes["href"].startswith("/reviews/")}
    assert linked == {
        *(f"/reviews/{night.id}" for night in nights[2:]),
        f"/reviews/{nights[-1].id}/profile?{urlencode({'name': NAME})}",
    }


def test_a_flame_graph_is_widened_by_a_link(client: TestClient, nights: list[Review]) -> None:
    address = f"/reviews/{nights[-1].id}/profile?{urlencode({'name': NAME})}"
    whole = shown(client, address)
    links = [one.attributes["href"] for one in whole.all("a") if "&at=" in one.attributes.get("href", "")]
    assert len(links) == 6  # all, main and scan on both sides
    assert "Widened to scan (a.py)" in " ".join(shown(client, links[2]).text.split())
    for side in ("head", "base"):
        answer = client.get(f"/api/reviews/{nights[-1].id}/profile/{side}.txt", params={"name": NAME})
        assert answer.text == "main (a.py) 1000000\nmain (a.py);scan (a.py) 3000000\n"


def test_a_reviews_own_page_shows_what_it_compared(client: TestClient, nights: list[Review]) -> None:
    assert "×1.200 (1.176 to 1.224)" in shown(client, f"/reviews/{nights[-1].id}").text
    assert "Base against head" not in shown(client, f"/reviews/{nights[0].id}").text


def test_without_a_number_the_page_says_so(client: TestClient, repo: Repo) -> None:
    assert "No number yet" in shown(client, f"/repos/{repo.id}/measurements").text


PLACES = (
    "/repos/{}/measurements",
    "/repos/{}/measurements.csv",
    "/repos/{}/measurements.json",
    "/repos/{}/benchmark?name=x",
    "/reviews/{}/profile?name=x",
)


@pytest.mark.parametrize("place", PLACES)
def test_what_is_not_there_is_not_found(client: TestClient, repo: Repo, nights: list[Review], place: str) -> None:
    known = nights[0].id if "reviews" in place else repo.id
    for address in (place.format(uuid4()), f"/api{place.format(uuid4())}".replace(".json", "")):
        assert client.get(address).status_code == 404, address
    if "name=" in place:
        assert client.get(place.format(known)).status_code == 404
        assert client.get(place.format(known).replace("=x", "=")).status_code == 422


# Files ------------------------------------------------------------------------------------


def test_the_table_has_every_measurement_newest_first(
    client: TestClient, shop: Workshop, repo: Repo, nights: list[Review], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "IN_ONE_GO", 5)  # several reads, and an end in the middle of one
    with shop.sessions.begin() as db:
        moved = Change(ratio=1.2, low=1.1, high=1.3, verdict=Verdict.SLOWER)
        make_measured(db, nights[-1], make_measurement(name="=1+1", note="@note", change=moved))
    answer = client.get(f"/repos/{repo.id}/measurements.csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == f'attachment; filename="measurements-{repo.id}.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == 13 and len({(row["review"], row["name"]) for row in rows}) == 13
    assert [row["at"] for row in rows] == sorted((row["at"] for row in rows), reverse=True)
    (first,) = [row for row in rows if row["name"] == NAME and row["commit"] == "0" * 40]
    assert (float(first["median"]), first["good"], first["void"], first["unit"]) == (1.0, "6", "0", "s")
    (formula,) = [row for row in rows if row["verdict"]]
    assert (formula["name"], formula["note"], formula["ratio"]) == ("'=1+1", "'@note", "1.2")
    assert client.get(f"/api/repos/{repo.id}/measurements.csv").text == answer.text


def test_the_json_file_is_what_the_api_gives(client: TestClient, repo: Repo, nights: list[Review]) -> None:
    answer = client.get(f"/repos/{repo.id}/measurements.json")
    assert answer.headers["content-disposition"] == f'attachment; filename="measurements-{repo.id}.json"'
    told = client.get(f"/api/repos/{repo.id}/measurements").json()
    assert json.loads(answer.text) == told
    assert [one["name"] for one in told["benchmarks"]] == [NAME, "steady"]
    assert [step["point"]["to_commit"] for step in told["steps"]] == ["3" * 40]
    assert told["false_alarms"] == {"pairs": 1, "alarms": 0, "without": 0}


def test_one_benchmark_one_review_and_the_honesty_number_are_in_the_api_too(
    client: TestClient, repo: Repo, nights: list[Review]
) -> None:
    told = client.get(f"/api/repos/{repo.id}/benchmark", params={"name": NAME}).json()
    assert [len(line["nights"]) for line in told["benchmark"]["lines"]] == [6]
    assert {UUID(night["id"]) for night in told["benchmark"]["lines"][0]["nights"]} == set(map(UUID, told["sessions"]))
    compared = client.get(f"/api/reviews/{nights[-1].id}/comparisons").json()
    assert [(one["name"], one["verdict"], one["confirmed"]) for one in compared] == [
        (NAME, "slower", True), ("steady", "no_change", False),
    ]  # fmt: skip
    assert client.get(f"/api/reviews/{uuid4()}/comparisons").status_code == 404
    profile = client.get(f"/api/reviews/{nights[-1].id}/profile", params={"name": NAME}).json()
    assert profile["head_stacks"] == {"a.py:1:main": 1.0, "a.py:1:main;a.py:5:scan": 3.0}
    assert client.get("/api/false-alarms").json() == {"pairs": 1, "alarms": 0, "without": 0}


def test_verdicts_beyond_the_first_twenty_are_made_when_somebody_asks_for_them(
    client: TestClient, shop: Workshop, repo: Repo, nights: list[Review]
) -> None:
    with shop.sessions.begin() as db:
        for number in range(30):
            make_compared(db, db.merge(nights[-1]), f"many {number}", 1.0)

    def rows(address: str) -> int:
        return sum("×1." in one.text for one in shown(client, address).all("span"))

    page = shown(client, f"/repos/{repo.id}/measurements")
    (more,) = [one for one in page.all("a") if one.text.strip() == "12 more"]
    assert rows(f"/repos/{repo.id}/measurements") == 20
    assert rows(more.attributes["href"]) == 32
