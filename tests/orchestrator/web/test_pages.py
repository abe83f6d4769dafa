"""Every page comes up whatever is in the database, says what to do when there is nothing, and escapes all of it."""

import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from orchestrator.services.workshop import Workshop
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.web.repos import SHOWN_FINDINGS
from orchestrator.web.text import UNSEEN, visible
from review_agents.records import ProbeState
from tests.factories import make_finding, make_probe_result, make_repo, make_review, make_step
from tests.orchestrator.web.html import Page, read
from tests.orchestrator.web.streets import HOSTILE, Street, build

ALWAYS = ["/", "/now", "/reviews", "/repos", "/ignored", "/schedules", "/compare", "/node", "/api/docs"]


@pytest.fixture
def typical(shop: Workshop) -> Street:
    with shop.sessions.begin() as db:
        return build(db)


@pytest.fixture
def hostile(shop: Workshop) -> Street:
    with shop.sessions.begin() as db:
        return build(db, HOSTILE)


def pages(client: TestClient, addresses: list[str]) -> Iterator[tuple[str, Page]]:
    for address in addresses:
        answer = client.get(address)
        assert answer.status_code == 200, f"{address}: {answer.text}"
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        yield address, read(answer.text)


@pytest.mark.parametrize("address", ALWAYS)
def test_a_page_comes_up_with_an_empty_database(client: TestClient, address: str) -> None:
    assert client.get(address).status_code == 200


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("/", "Name any public Python repository above"),
        ("/reviews", "Name a repository"),
        ("/repos", "Name one"),
        ("/ignored", "A finding can be ignored on its own page"),
        ("/schedules", "Review one first"),
        ("/compare", "Choose a repo first"),
        ("/node", "LAMPLIGHTER_MODEL_URL"),
    ],
)
def test_an_empty_page_says_what_to_do_next(client: TestClient, address: str, advice: str) -> None:
    assert advice in read(client.get(address).text).text


def test_a_repo_without_reviews_says_what_to_do_next(client: TestClient, shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        repo = make_repo(db).id
    assert "Not reviewed yet" in client.get(f"/repos/{repo}").text


def test_every_page_comes_up_with_typical_content(client: TestClient, typical: Street) -> None:
    assert len(list(pages(client, typical.pages))) > 40


def test_examples_that_went_wrong_stand_open_and_the_others_are_counted_and_folded(
    client: TestClient, typical: Street
) -> None:
    page = client.get(f"/reviews/{typical.done}").text
    examples = page[page.index('id="examples"') :].partition("</section>")[0]
    opened, _, folded = examples.partition("<details")
    assert "parse(&#39;1-3&#39;)" in opened and "spanparse --version" not in opened
    assert "1 more: 1 as shown</summary>" in folded and "spanparse --version" in folded


def test_every_page_is_put_together_soundly(client: TestClient, typical: Street) -> None:
    for address, page in pages(client, [one for one in typical.pages if one != "/now"]):
        ids = [element.attributes["id"] for element in page.with_attribute("id")]
        assert len(ids) == len(set(ids)), f"{address}: {sorted(one for one in ids if ids.count(one) > 1)}"
        assert [element.tag for element in page.elements].count("h1") == 1, address
        assert {"header", "nav", "main", "footer"} <= {element.tag for element in page.elements}, address
        assert page.all("html")[0].attributes["lang"] == "en"
        labelled = {element.attributes["for"] for element in page.all("label") if "for" in element.attributes}
        for element in page.elements:
            given = element.attributes
            if element.tag in ("input", "select", "textarea") and given.get("type") not in (
                "hidden",
                "checkbox",
                "radio",
            ):
                assert given.get("id") in labelled, f"{address}: {element}"
            if element.tag == "th":
                assert given.get("scope") in ("col", "row"), f"{address}: {element}"
            for name in ("aria-labelledby", "aria-describedby", "data-copy"):
                for target in given.get(name, "").split():
                    assert target in ids, f"{address}: {name}={target} names nothing"
            assert "style" not in given, f"{address}: the policy forbids {element}"
            if element.tag == "form" and given.get("method") == "post":
                assert given["action"].startswith("/"), address


def test_every_form_that_changes_something_carries_the_token(client: TestClient, typical: Street) -> None:
    for address in typical.pages:
        for form in re.findall(r'<form[^>]*method="post".*?</form>', client.get(address).text, re.DOTALL):
            assert 'name="csrf"' in form, address


def test_nothing_that_a_repo_says_becomes_markup(client: TestClient, hostile: Street) -> None:
    seen = 0
    for address, page in pages(client, hostile.pages):
        for element in page.elements:
            assert element.tag not in ("img", "iframe", "object", "embed", "i", "base"), f"{address}: {element}"
            if element.tag == "script":
                assert re.fullmatch(r"/static/[a-z/.-]+\.js\?v=[0-9a-f]{12}", element.attributes["src"]), address
                assert not element.text.strip(), address
            for name, value in element.attributes.items():
                assert not name.startswith("on"), f"{address}: {element}"
                if name in ("href", "src", "action", "hx-get", "sse-connect"):
                    assert value.startswith(("/", "#")), f"{address}: {name}={value}"
                    assert not value.startswith("//"), f"{address}: {name}={value}"
        seen += page.text.count("{{7*7}}{% raw %}")
    assert seen > 300  # the payload really was on the pages, as text


def test_nothing_unseen_reaches_a_page(client: TestClient, hostile: Street) -> None:
    for address in hostile.pages:
        assert not UNSEEN.search(client.get(address).text), address


def test_a_hostile_log_is_shown_and_sent_as_plain_text(client: TestClient, hostile: Street) -> None:
    shown = read(client.get(f"/steps/{hostile.steps[0]}").text).text
    assert visible(HOSTILE) in shown
    raw = client.get(f"/steps/{hostile.steps[0]}/log.txt")
    assert raw.headers["content-type"] == "text/plain; charset=utf-8"
    assert raw.headers["x-content-type-options"] == "nosniff"
    assert HOSTILE in raw.text


def test_a_review_that_runs_reloads_itself_without_javascript(client: TestClient, typical: Street) -> None:
    text = client.get(f"/reviews/{typical.running}").text
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in text
    assert "sse-connect" in text
    assert "refresh" not in client.get(f"/reviews/{typical.done}").text


def test_a_review_page_shows_what_matters(client: TestClient, typical: Street) -> None:
    text = read(client.get(f"/reviews/{typical.done}").text).text
    for words in (
        "Evidence only.",
        "memory: no cgroup can be delegated here",
        "regressed",
        "not reproduced",
        "tests/test_merge.py::test_empty",
        "needs a compiler",
        "slower",
        "no good session",
        "scan",
        "an earlier worker went away",
    ):
        assert words in text, words


def test_the_list_is_filtered_and_paged(client: TestClient, typical: Street, shop: Workshop) -> None:
    page = read(client.get("/reviews?state=failed").text)
    assert "1 review" in page.text
    assert "Nothing fits the filter" in client.get("/reviews?state=failed&page=7").text
    assert client.get("/reviews?state=odd").status_code == 422
    assert client.get("/reviews?page=0").status_code == 422
    assert client.get("/reviews?page=99999999999999999999").status_code == 422
    assert client.get("/reviews?repo=nonsense").status_code == 422


def test_a_repo_with_very_many_open_findings_shows_them_in_pages_and_none_twice(
    client: TestClient, shop: Workshop
) -> None:
    with shop.sessions.begin() as db:
        review = make_review(db, make_repo(db), state=ReviewState.DONE)
        made = {f"/findings/{make_finding(db, review, path=f'file{at}.py').id}" for at in range(SHOWN_FINDINGS + 3)}
    address = f"/repos/{review.repo_id}"
    answers = [client.get(f"{address}?page={number}").text for number in (1, 2)]
    shown = [re.findall(r'href="(/findings/[0-9a-f-]+)"', answer) for answer in answers]
    assert [len(one) for one in shown] == [SHOWN_FINDINGS, 3]
    assert {*shown[0], *shown[1]} == made
    assert f"{SHOWN_FINDINGS + 3} in all" in answers[0] and f"{address}?page=2" in answers[0]
    assert f"{address}?page=1" in answers[1] and client.get(address).text.count("/findings/") == SHOWN_FINDINGS
    assert client.get(f"{address}?page=0").status_code == 422


@pytest.mark.parametrize(
    "address",
    [
        "/nothing",
        "/reviews/nonsense",
        "/reviews/00000000-0000-0000-0000-000000000000",
        "/repos/00000000-0000-0000-0000-000000000000",
        "/findings/00000000-0000-0000-0000-000000000000",
        "/schedules/00000000-0000-0000-0000-000000000000",
        "/steps/00000000-0000-0000-0000-000000000000",
        "/reviews/00000000-0000-0000-0000-000000000000/events",
        "/reviews/00000000-0000-0000-0000-000000000000/findings/00000000-0000-0000-0000-000000000000/runs",
        "/reviews/00000000-0000-0000-0000-000000000000/export.json",
        "/compare?other=00000000-0000-0000-0000-000000000000",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
    ],
)
def test_what_is_not_there_is_a_page_that_says_so(client: TestClient, address: str) -> None:
    answer = client.get(address)
    assert answer.status_code == 404
    assert len(read(answer.text).all("h1")) == 1
    assert "Traceback" not in answer.text


def reviewed(shop: Workshop, *probes: tuple[str, ProbeState, str]) -> Review:
    """A review without findings, and what its probes came to."""
    with shop.sessions.begin() as db:
        review = make_review(db, make_repo(db), state=ReviewState.DONE)
        for probe, state, reason in probes:
            result = make_probe_result(probe, state=state, reason=reason, facts={}).model_dump(mode="json")
            make_step(db, review, f"probe:{probe}", result=result)
        return review


NO_ROUTE = "install plain: Refused by the egress proxy: 403 <b>. `lamplighter doctor` prints the settings"
BARRED = (
    ("install", ProbeState.COULD_NOT_RUN, NO_ROUTE),
    ("entry_points", ProbeState.COULD_NOT_RUN, f"the package could not be installed: {NO_ROUTE}"),
    ("reviewer_text", ProbeState.PASSED, ""),
)


def test_a_review_that_could_check_nothing_is_no_good_night(client: TestClient, shop: Workshop) -> None:
    review = reviewed(shop, *BARRED)
    text = read(client.get(f"/reviews/{review.id}").text).text
    assert "Nothing could be checked: install plain: Refused by the egress proxy: 403 <b>." in text
    assert "Only reviewer text ran." in text and "these could not run: install, entry points" in text
    assert "good night" not in text and "Nothing found" not in text and "new tonight" not in text
    for address in ("/", "/repos", "/reviews", f"/repos/{review.repo_id}"):
        listed = read(client.get(address).text).text
        assert "nothing could be checked" in listed and "nothing confirmed" not in listed, address
    memo = read(client.get(f"/reviews/{review.id}/memo").text).text
    assert "Nothing could be checked: " in memo and "Nothing was proved wrong" not in memo


def test_a_review_without_findings_counts_the_checks_that_ran_and_names_the_others(
    client: TestClient, shop: Workshop
) -> None:
    unable = [(name, ProbeState.COULD_NOT_RUN, "no test could be started") for name in ("profile", "benchmarks")]
    review = reviewed(shop, ("install", ProbeState.PASSED, ""), ("wheel", ProbeState.PASSED, ""), *unable)
    text = read(client.get(f"/reviews/{review.id}").text).text
    assert "Nothing found by the 2 checks that ran; 2 could not run" in text
    assert "profile, benchmarks: no test could be started" in text and "good night" not in text
    assert "2 checks could not run" in read(client.get("/repos").text).text
    whole = reviewed(shop, ("install", ProbeState.PASSED, ""))
    text = read(client.get(f"/reviews/{whole.id}").text).text
    assert "Nothing found by the 1 check that ran" in text and "good night" in text


def test_what_could_not_run_is_told_beside_findings(client: TestClient, shop: Workshop, typical: Street) -> None:
    text = read(client.get(f"/reviews/{typical.done}").text).text
    assert "1 could not run" in text and "wheel: needs a compiler" in text
