"""The pages in a real browser: with JavaScript and without, by keyboard, on a phone, in both themes."""

import re
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from orchestrator.services import findings, reviews
from orchestrator.services.workshop import Workshop
from orchestrator.store.reviews import Review, ReviewState
from orchestrator.store.session import Sessions
from orchestrator.store.steps import Step, StepState
from orchestrator.web import events
from tests.factories import make_chunk, make_probe_result, make_review, make_shop, make_step
from tests.orchestrator.web.streets import HOSTILE, Street, build
from tests.support.chromium import chromium
from tests.support.site import Site, served

pytestmark = pytest.mark.browser
PHONE = {"width": 360, "height": 740}
NARROWEST = {"width": 320, "height": 640}  # WCAG's reflow


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def shop(sessions: Sessions, tmp_path: Path) -> Workshop:
    return make_shop(sessions, tmp_path)


@pytest.fixture
def site(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(events, "POLL_S", 0.1)
    monkeypatch.setattr(events, "RETRY_MS", 200)
    with served(shop) as opened:
        yield opened


@pytest.fixture
def street(shop: Workshop) -> Street:
    with shop.sessions.begin() as db:
        return build(db)


@pytest.fixture
def context(browser: Browser, site: Site) -> Iterator[BrowserContext]:
    opened = browser.new_context(base_url=site.address, color_scheme="dark")
    opened.set_default_timeout(15_000)
    yield opened
    opened.close()


@pytest.fixture
def tab(context: BrowserContext) -> Iterator[Page]:
    """A tab that must not complain: no script error, no refused resource, no dialog."""
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("console", lambda said: complaints.append(said.text) if is_complaint(said.text, said.type) else None)
    yield page
    assert complaints == []


def is_complaint(text: str, kind: str) -> bool:
    """An answer that is no success is said in the console too, and is what some tests are about."""
    return kind in ("error", "warning") and not re.search(r"Failed to load resource|sseError|^\[object Event\]$", text)


@pytest.fixture
def plain(browser: Browser, site: Site) -> Iterator[Page]:
    """A tab without JavaScript."""
    context = browser.new_context(base_url=site.address, java_script_enabled=False)
    context.set_default_timeout(15_000)
    yield context.new_page()
    context.close()


@pytest.fixture
def running(shop: Workshop) -> UUID:
    with shop.sessions.begin() as db:
        review = make_review(db, state=ReviewState.RUNNING)
        make_chunk(db, make_step(db, review, "checkout"), "cloned\n")
        step = make_step(db, review, "probe:tests", state=StepState.RUNNING, ended_at=None)
        make_step(db, review, "merge", state=StepState.PENDING, started_at=None, ended_at=None)
        make_chunk(db, step, "first line\n")
        return review.id


def say(shop: Workshop, text: str) -> None:
    with shop.sessions.begin() as db:
        make_chunk(db, db.query(Step).filter_by(name="probe:tests").one(), text)


def finish(shop: Workshop, review_id: UUID) -> None:
    with shop.sessions.begin() as db:
        for step in db.query(Step).filter_by(review_id=review_id):
            step.state, step.started_at = StepState.DONE, step.started_at or shop.clock()
            step.ended_at = shop.clock()
            if step.name.startswith("probe:"):
                step.result = make_probe_result(step.name.partition(":")[2]).model_dump(mode="json")
        review = db.get(Review, review_id)
        assert review is not None
        review.state, review.finished_at = ReviewState.DONE, shop.clock()


# Submitting ------------------------------------------------------------------------------------


def test_a_wrong_target_is_explained_at_the_field_and_a_right_one_leads_to_its_review(tab: Page) -> None:
    tab.goto("/")
    tab.get_by_label("Repository").fill("file:///etc/passwd")
    tab.get_by_role("button", name="Review it").click()
    box = tab.get_by_label("Repository")
    expect(box).to_have_value("file:///etc/passwd")
    expect(box).to_have_attribute("aria-invalid", "true")
    expect(tab.get_by_role("alert")).to_be_focused()  # a screen reader says it at once
    tab.get_by_role("alert").get_by_role("link").click()
    expect(box).to_be_focused()

    box.fill("https://git.example/team/thing")
    box.press("Enter")
    expect(tab).to_have_url(re.compile(r"/reviews/[0-9a-f-]{36}$"))
    expect(tab.get_by_role("heading", level=1)).to_have_text("thing")
    expect(tab.get_by_role("status")).to_have_text("It waits. It is the next one.")


def test_what_is_hidden_in_the_form_opens_when_it_is_wrong(tab: Page) -> None:
    tab.goto("/")
    tab.get_by_text("Focus and budget").click()
    tab.get_by_label("Judged for").evaluate("field => { field.options[1].value = '<b>'; field.selectedIndex = 1 }")
    tab.get_by_label("Repository").fill("https://git.example/team/thing")
    tab.get_by_role("button", name="Review it").click()
    expect(tab.get_by_label("Judged for")).to_be_visible()
    expect(tab.get_by_label("Judged for")).to_have_attribute("aria-invalid", "true")


def test_a_review_is_asked_for_without_javascript(plain: Page) -> None:
    plain.goto("/")
    plain.get_by_label("Repository").fill("https://git.example/team/thing")
    plain.get_by_role("button", name="Review it").click()
    expect(plain).to_have_url(re.compile(r"/reviews/[0-9a-f-]{36}$"))


# Progress --------------------------------------------------------------------------------------


def test_a_running_review_moves_before_ones_eyes_and_ends_as_its_result(
    tab: Page, shop: Workshop, running: UUID
) -> None:
    requests: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(f"/reviews/{running}")
    log = tab.get_by_role("log")
    expect(log).to_contain_text("first line")
    expect(tab.locator(".round .running")).to_contain_text("Probe tests")
    say(shop, "second line <script>alert(1)</script>\n")
    expect(log).to_contain_text("second line <script>alert(1)</script>")
    finish(shop, running)
    expect(tab.get_by_role("heading", name="Findings")).to_be_visible()
    expect(tab.locator("[sse-connect]")).to_have_count(0)
    expect(tab.get_by_role("heading", level=1)).to_have_count(1)
    before = sum("/events" in url for url in requests)
    tab.wait_for_timeout(5 * events.RETRY_MS)  # after one pause it would have been asked for again
    assert before == 1 and sum("/events" in url for url in requests) == before  # closed, and it stays closed


def test_a_lost_connection_is_shown_and_nothing_is_doubled_or_lost_when_it_comes_back(
    tab: Page, site: Site, shop: Workshop, running: UUID
) -> None:
    tab.goto(f"/reviews/{running}")
    say(shop, "second line\n")
    log = tab.get_by_role("log")
    expect(log).to_contain_text("second line")
    expect(tab.get_by_text("Live", exact=True)).to_be_visible()
    site.stop()
    expect(tab.get_by_text("Disconnected, trying again")).to_be_visible()
    say(shop, "third line\n")
    site.start()
    expect(log).to_contain_text("third line", timeout=30_000)
    expect(tab.get_by_text("Disconnected, trying again")).to_be_hidden()
    text = log.inner_text()
    assert [text.count(f"{word} line") for word in ("first", "second", "third")] == [1, 1, 1]


def test_a_running_review_is_cancelled_by_a_button(tab: Page, shop: Workshop, running: UUID) -> None:
    tab.goto(f"/reviews/{running}")
    tab.get_by_role("button", name="Cancel this review").click()
    expect(tab.get_by_text("It is being cancelled: the running command is ended first.")).to_be_visible()
    assert reviews.get(shop, running).cancel_requested


def test_without_javascript_a_running_review_reloads_itself(plain: Page, shop: Workshop, running: UUID) -> None:
    plain.goto(f"/reviews/{running}")
    expect(plain.locator("#log")).to_contain_text("first line")
    finish(shop, running)
    expect(plain.get_by_role("heading", name="Findings")).to_be_visible(timeout=15_000)


def test_the_first_page_shows_what_runs_without_a_reload(tab: Page, shop: Workshop) -> None:
    tab.goto("/")
    expect(tab.get_by_text("The street is dark")).to_be_visible()
    with shop.sessions.begin() as db:
        make_review(db, state=ReviewState.RUNNING, ref="a-branch")
    expect(tab.locator("#now").get_by_text("a-branch")).to_be_visible(timeout=15_000)


# Reading ---------------------------------------------------------------------------------------


def test_a_finding_is_opened_by_keyboard_and_its_command_copied(
    tab: Page, context: BrowserContext, street: Street
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.goto(f"/reviews/{street.done}")
    second = tab.locator("details.finding").nth(1)
    expect(second.locator(".body")).to_be_hidden()
    second.locator("summary").first.focus()
    tab.keyboard.press("Enter")
    expect(second.locator(".body")).to_be_visible()
    second.get_by_role("button", name="Copy").click()
    expect(second.get_by_role("button", name="Copied")).to_be_visible()
    assert tab.evaluate("navigator.clipboard.readText()") == "python -c 'print(1 + 2)'"
    expect(tab.locator("#announce")).to_have_text("Copied to the clipboard")


def test_the_runs_that_prove_a_finding_are_unfolded_in_its_review(tab: Page, street: Street) -> None:
    tab.goto(f"/reviews/{street.done}")
    finding = tab.locator("details.finding").first  # open from the start, and confirmed
    fold = finding.locator("details[data-fill]")
    fold.locator("summary").click()
    first = finding.locator("details", has_text="Run 1: exit status 1, 400 ms: shows the fault").last
    first.locator("summary").click()
    expect(first.locator("pre.log")).to_contain_text("3 bytes not kept")
    expect(finding.get_by_role("link", name="The verification runs")).to_have_count(0)


def test_without_javascript_a_link_leads_to_the_runs_of_a_finding(plain: Page, street: Street) -> None:
    plain.goto(f"/reviews/{street.done}")
    finding = plain.locator("details.finding").first
    finding.get_by_text("What the service saw when it ran this itself").click()
    finding.get_by_role("link", name="The verification runs").click()
    expect(plain.get_by_text("Run 1: exit status 1")).to_be_visible()


def test_a_link_to_a_finding_opens_it(tab: Page, street: Street, shop: Workshop) -> None:
    fingerprint = findings.get(shop, street.findings[-1]).finding.fingerprint
    tab.goto(f"/reviews/{street.done}#finding-{fingerprint}")
    expect(tab.locator(f"#finding-{fingerprint} .body")).to_be_visible()


def test_without_javascript_findings_open_and_there_is_no_button_that_does_nothing(plain: Page, street: Street) -> None:
    plain.goto(f"/reviews/{street.done}")
    second = plain.locator("details.finding").nth(1)
    second.locator("summary").first.click()
    expect(second.locator(".body")).to_be_visible()
    expect(plain.locator("button[data-copy]:visible")).to_have_count(0)


def test_a_finding_is_ignored_and_counted_again(tab: Page, street: Street) -> None:
    tab.goto(f"/findings/{street.findings[0]}")
    tab.get_by_label("Reason").fill("we know")
    tab.get_by_role("button", name="Ignore").click()
    expect(tab.get_by_text("Ignored: we know")).to_be_visible()
    tab.get_by_role("button", name="Count it again").click()
    expect(tab.get_by_label("Reason")).to_be_visible()


def test_the_list_is_filtered_in_place_and_the_address_follows(tab: Page, street: Street) -> None:
    tab.goto("/reviews")
    expect(tab.locator("#list tbody tr")).to_have_count(8)
    tab.get_by_label("State").select_option("failed")
    expect(tab.locator("#list tbody tr")).to_have_count(1)
    expect(tab).to_have_url(re.compile("state=failed"))
    tab.go_back()
    expect(tab.locator("#list tbody tr")).to_have_count(8)


def test_the_list_is_filtered_without_javascript(plain: Page, street: Street) -> None:
    plain.goto("/reviews")
    plain.get_by_label("State").select_option("failed")
    plain.get_by_role("button", name="Filter").click()
    expect(plain.locator("#list tbody tr")).to_have_count(1)


def test_a_round_is_planned_and_paused(tab: Page, street: Street) -> None:
    tab.goto(f"/schedules?repo={street.repo}#new")
    tab.get_by_label("Time", exact=True).fill("04:15")
    tab.get_by_role("combobox", name="Time zone").fill("Mars/Olympus")
    tab.get_by_role("button", name="Plan it").click()
    expect(tab.get_by_role("combobox", name="Time zone")).to_have_attribute("aria-invalid", "true")
    expect(tab.get_by_label("Time", exact=True)).to_have_value("04:15")
    tab.get_by_role("combobox", name="Time zone").fill("Europe/Berlin")
    tab.get_by_role("button", name="Plan it").click()
    row = tab.get_by_role("row").filter(has_text="04:15")
    row.get_by_role("link", name="Change").click()
    tab.get_by_label("It comes round").uncheck()
    tab.get_by_role("button", name="Save").click()
    expect(tab.get_by_role("row").filter(has_text="04:15")).to_contain_text("paused")


# Colours, keyboard, phone, hostile text ------------------------------------------------------------


def test_colours_are_changed_without_a_reload_and_stay(tab: Page) -> None:
    def ground() -> str:
        return str(tab.evaluate("getComputedStyle(document.body).backgroundColor"))

    tab.goto("/")
    night = ground()
    tab.evaluate("window.mark = 1")
    tab.get_by_role("button", name="Light").click()
    day = ground()
    assert day != night and tab.evaluate("window.mark") == 1
    expect(tab.get_by_role("button", name="Light")).to_have_attribute("aria-pressed", "true")
    tab.reload()
    assert ground() == day
    tab.get_by_role("button", name="As the system").click()
    assert ground() == night


def test_colours_are_changed_without_javascript(plain: Page, street: Street) -> None:
    plain.goto("/reviews?state=done")
    plain.get_by_role("button", name="Dark").click()
    expect(plain).to_have_url(re.compile(r"/reviews\?state=done$"))
    expect(plain.locator("html")).to_have_attribute("data-theme", "dark")


def test_the_keyboard_reaches_everything_in_order_and_one_sees_where_it_is(tab: Page) -> None:
    tab.goto("/")
    tab.keyboard.press("Tab")
    skip = tab.get_by_role("link", name="Skip to content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    tab.keyboard.press("Enter")
    expect(tab.locator("#main")).to_be_focused()
    tab.keyboard.press("Tab")
    expect(tab.get_by_label("Repository")).to_be_focused()

    tab.goto("/")
    order = []
    for _ in range(12):
        tab.keyboard.press("Tab")
        order.append(tab.evaluate("document.activeElement.textContent.trim() || document.activeElement.id"))
        outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", f"no focus mark on {order[-1]}"
    assert order[1:7] == ["Lamplighter", "Home", "Repos", "Reviews", "Rounds", "Node"]
    assert "f-target" in order


@pytest.mark.parametrize("size", [PHONE, NARROWEST], ids=["phone", "narrowest"])
def test_no_page_scrolls_sideways_on_a_phone(
    browser: Browser, site: Site, street: Street, size: dict[str, int]
) -> None:
    context = browser.new_context(base_url=site.address, viewport=size)  # type: ignore[arg-type]
    page = context.new_page()
    wide = []
    for address in street.pages:
        page.goto(address)
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        if page.evaluate("document.documentElement.scrollWidth") > size["width"]:
            wide.append(address)
    context.close()
    assert wide == []


def test_no_table_is_cut_at_its_edge_at_any_width(tab: Page, street: Street) -> None:
    """Where columns do not fit, a table becomes cards; it is never one that has to be pushed aside to be read."""
    wide = []
    for address in street.pages:
        if address == "/now":  # a part of a page, without its style
            continue
        tab.goto(address)
        tab.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        for width in (320, 480, 560, 641, 760, 860, 961, 1040, 1280):
            tab.set_viewport_size({"width": width, "height": 800})
            wide += tab.evaluate(
                "where => [...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth)"
                ".map(one => `${where}: ${one.scrollWidth} in ${one.clientWidth}, ${one.innerText}`.slice(0, 90))",
                f"{address} at {width}",
            )
    assert wide == []


def test_hostile_text_does_nothing_in_a_browser(tab: Page, shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        street = build(db, HOSTILE)
    for address in (
        "/", "/reviews", f"/reviews/{street.done}", f"/reviews/{street.running}", f"/repos/{street.repo}",
        f"/findings/{street.findings[1]}", "/schedules", f"/steps/{street.steps[0]}",
        f"/compare?one={street.earlier}&other={street.done}",
    ):  # fmt: skip
        tab.goto(address)
        tab.wait_for_timeout(200)  # for what begins when all is loaded: htmx's requests, a script's timer
        assert tab.locator("img, iframe").count() == 0
        assert tab.evaluate("window.evil") is None


def test_hostile_text_does_not_make_a_phone_scroll_sideways(browser: Browser, site: Site, shop: Workshop) -> None:
    with shop.sessions.begin() as db:
        street = build(db, "w" * 300)
    context = browser.new_context(base_url=site.address, viewport=PHONE)  # type: ignore[arg-type]
    page = context.new_page()
    wide = [
        address
        for address in street.pages
        if address != "/now"  # a part of a page, without its style
        and page.goto(address)
        and page.evaluate("document.documentElement.scrollWidth") > PHONE["width"]
    ]
    context.close()
    assert wide == []


# Measurements --------------------------------------------------------------------------------------


def test_benchmarks_are_filtered_in_place_and_opened_by_keyboard(tab: Page, street: Street) -> None:
    tab.goto(f"/repos/{street.repo}/measurements")
    expect(tab.locator(".series > li")).to_have_count(3)
    tab.get_by_label("Name has").fill("size")
    tab.get_by_label("Name has").press("Tab")
    expect(tab.locator(".series > li")).to_have_count(1)
    expect(tab).to_have_url(re.compile("q=size"))
    tab.locator(".series a").focus()
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("heading", level=1)).to_have_text("size")


def test_benchmarks_are_filtered_without_javascript(plain: Page, street: Street) -> None:
    plain.goto(f"/repos/{street.repo}/measurements")
    plain.get_by_label("Only what moved").check()
    plain.get_by_role("button", name="Filter").click()
    expect(plain.locator(".series > li")).to_have_count(1)


def test_a_frame_is_widened_by_keyboard_and_marked_when_it_has_the_focus(tab: Page, street: Street) -> None:
    tab.goto(f"/reviews/{street.done}/profile?name={street.benchmark}")
    frame = tab.locator("#head .flames a", has_text="scan").first
    before = tab.evaluate("one => getComputedStyle(one).strokeWidth", frame.locator("rect").element_handle())
    tab.keyboard.press("Tab")  # from now on the keyboard is what focus comes from
    frame.focus()
    after = tab.evaluate("one => getComputedStyle(one).strokeWidth", frame.locator("rect").element_handle())
    assert (before, after) == ("1px", "4px")
    tab.keyboard.press("Enter")
    expect(tab.get_by_text("Widened to")).to_be_visible()
    tab.get_by_role("link", name="Show all").click()
    expect(tab.get_by_text("Widened to")).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_in_pictures_can_be_read_in_both_themes(browser: Browser, site: Site, street: Street, theme: str) -> None:
    """WCAG's 4.5 to 1, for every word of a plot and every frame of a flame graph against what is behind it."""
    context = browser.new_context(base_url=site.address, color_scheme=theme)  # type: ignore[arg-type]
    page = context.new_page()
    faint = []
    for address, texts, behind in (
        (f"/repos/{street.repo}/benchmark?name={street.benchmark}", ".plot text", "figure.panel"),
        (f"/reviews/{street.done}/profile?name={street.benchmark}", ".flames a svg text", ""),
    ):
        page.goto(address)
        ratios = page.evaluate(CONTRASTS, [texts, behind])
        assert ratios, address
        faint += [(address, word, ratio) for word, ratio in ratios if ratio < 4.5]
    context.close()
    assert faint == []


# A canvas turns any colour that CSS can say into numbers.
CONTRASTS = """([texts, behind]) => {
  const context = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const light = (colour) => {
    context.fillStyle = colour; context.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part / 255)
      .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return [...document.querySelectorAll(texts)].filter((one) => one.textContent).map((one) => {
    const back = behind ? getComputedStyle(document.querySelector(behind)).backgroundColor
      : getComputedStyle(one.parentElement.querySelector("rect")).fill;
    const [high, low] = [light(getComputedStyle(one).fill), light(back)].sort((a, b) => b - a);
    return [one.textContent, (high + 0.05) / (low + 0.05)];
  });
}"""
