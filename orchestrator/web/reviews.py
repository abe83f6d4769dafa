"""Reviews: the list, one while it runs, one that has ended, a step's log, two compared."""

from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse

from orchestrator.services import comparing, measurements, repos, reviews, steps, submitting, transcripts
from orchestrator.services.errors import BadInput, NotNow
from orchestrator.services.views import ReviewPage, ReviewRow, ReviewState
from orchestrator.web import facts, forms
from orchestrator.web.deps import PageNumber, Shop
from orchestrator.web.events import log_html, saying
from orchestrator.web.reading import grouped, totals
from orchestrator.web.render import page
from orchestrator.web.round import stops, title_of

router = APIRouter()
SHOWN_LOG = 400_000  # characters of a log in a page; the rest is a link away
CHOICES = 100  # newest reviews of a repo that can be compared

Choice = Annotated[str, Query(max_length=64)]


@router.get("/reviews")
def all_reviews(
    request: Request, shop: Shop, repo: Choice = "", state: Choice = "", number: PageNumber = 1
) -> HTMLResponse:
    repo_id = forms.identifier("repo", repo) if repo else None
    wanted = state_named(state) if state else None
    chosen = {name: value for name, value in (("repo", repo), ("state", state)) if value}
    return page(
        request,
        "reviews.html",
        section="/reviews",
        listed=reviews.listed(shop, repo=repo_id, state=wanted, page=number),
        repos=repos.names(shop),
        states=list(ReviewState),
        repo=repo_id,
        state=wanted,
        address=f"/reviews?{urlencode(chosen)}{'&' if chosen else ''}",
    )


@router.get("/reviews/{review_id}")
def one_review(request: Request, review_id: UUID, shop: Shop) -> HTMLResponse:
    found = reviews.get(shop, review_id)
    if found.row.state.ended:
        return page(request, "review_done.html", section="/reviews", **all_of(shop, found))
    progress = reviews.progress(shop, review_id)
    return page(
        request,
        "review_live.html",
        section="/reviews",
        page=found,
        progress=progress,
        stops=stops(progress.steps, shop.clock()),
        log=log_html(progress.lines),
        saying=saying(progress),
    )


def all_of(shop: Shop, found: ReviewPage) -> dict[str, Any]:
    """What the page of an ended review names."""
    return {
        "page": found,
        "stops": stops(found.steps, shop.clock()),
        "groups": grouped(found.findings),
        "totals": totals(found.row.counts),
        "fixed": sum(finding.lifecycle == "fixed" for finding in found.findings),
        "missing_limits": facts.texts(found.sandbox.get("missing_limits")),
        "suites": facts.suites(found.evidence),
        "examples": facts.examples(found.evidence),
        "hottest": facts.hottest(found.evidence),
        "compared": measurements.by_weight(measurements.of_review(shop, found.row.id)),
        "focused": transcripts.of_review(shop, found.row.id),
    }


@router.post("/reviews/{review_id}/cancel")
def cancel(review_id: UUID, shop: Shop) -> RedirectResponse:
    reviews.cancel(shop, review_id)
    return RedirectResponse(f"/reviews/{review_id}", status_code=303)


@router.post("/reviews/{review_id}/again")
def again(review_id: UUID, shop: Shop) -> RedirectResponse:
    """The same repo, ref, focuses and budgets once more, also for an unchanged commit."""
    old = reviews.get(shop, review_id)
    new = submitting.submit(
        shop,
        submitting.Submission(
            target=old.repo_url,
            ref=old.row.ref,
            focuses=old.focuses,
            profile=old.profile,
            flavour=old.flavour,
            remember=False,
            budget_minutes=old.budget_minutes,
            budget_tokens=old.budget_tokens,
            agents=old.row.agents,
            force=True,
        ),
    )
    return RedirectResponse(f"/reviews/{new}", status_code=303)


@router.get("/steps/{step_id}")
def one_step(request: Request, step_id: UUID, shop: Shop) -> HTMLResponse:
    log = steps.get(shop, step_id)
    text = steps.log(shop, step_id)
    left_out = max(0, len(text) - SHOWN_LOG)
    half = SHOWN_LOG // 2
    shown = f"{text[:half]}\n[... {left_out} characters left out here ...]\n{text[-half:]}" if left_out else text
    return page(
        request, "step.html", section="/reviews", log=log, title=title_of(log.name), shown=shown, left_out=left_out
    )


@router.get("/steps/{step_id}/log.txt")
def step_text(step_id: UUID, shop: Shop) -> PlainTextResponse:
    return PlainTextResponse(steps.log(shop, step_id).encode("utf-8", "replace"))


@router.get("/compare")
def compare(request: Request, shop: Shop, one: Choice = "", other: Choice = "", repo: Choice = "") -> HTMLResponse:
    """Two reviews side by side. With one of them, or a repo, given: a choice of what to put beside it."""
    one_id = forms.identifier("one", one) if one else None
    other_id = forms.identifier("other", other) if other else None
    known = other_id or one_id
    repo_id = forms.identifier("repo", repo) if repo else reviews.get(shop, known).row.repo_id if known else None
    choices = reviews.listed(shop, repo=repo_id, per_page=CHOICES).items if repo_id else ()
    comparison, problem = None, ""
    if one_id and other_id:
        try:
            comparison = comparing.compare(shop, one_id, other_id)
        except (BadInput, NotNow) as error:
            problem = str(error)
    elif other_id is None and choices:
        other_id = choices[0].id
    return page(
        request,
        "compare.html",
        section="/reviews",
        status=422 if problem else 200,
        choices=choices,
        one=one_id or before(choices, other_id),
        other=other_id,
        comparison=comparison,
        problem=problem,
    )


def before(choices: Sequence[ReviewRow], review_id: UUID | None) -> UUID | None:
    """The review that came before that one."""
    ids = [row.id for row in choices]
    at = ids.index(review_id) + 1 if review_id in ids else 0
    return ids[at] if at < len(ids) else None


def state_named(state: str) -> ReviewState:
    try:
        return ReviewState(state)
    except ValueError:
        raise BadInput("state", f"There is no state {state!r}.") from None
