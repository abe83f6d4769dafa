"""The first page: the form that starts a review, what runs now, what comes tonight."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from orchestrator.services import judging, memos, reviews, schedules, submitting
from orchestrator.services.errors import BadInput
from orchestrator.web import forms
from orchestrator.web.deps import Shop
from orchestrator.web.forms import TICKED, Wishes
from orchestrator.web.render import THEME_COOKIE, THEMES, is_ours, page
from orchestrator.web.security import is_secure

router = APIRouter()
YEAR_S = 365 * 24 * 3600
Text = Annotated[str, Form()]


class SubmitForm(Wishes):
    target: str = ""
    budget_tokens: str = ""
    agents: str = ""
    force: str = ""


@router.get("/")
def home(request: Request, shop: Shop) -> HTMLResponse:
    return home_page(request, shop, SubmitForm(agents=TICKED))


@router.post("/reviews")
def submit(request: Request, shop: Shop, form: Annotated[SubmitForm, Form()]) -> Response:
    """Ask for a review; a wrong field brings the form back with what was typed."""
    try:
        review_id = submitting.submit(shop, submission_of(form))
    except BadInput as error:
        return home_page(request, shop, form, forms.by_field(error))
    return RedirectResponse(f"/reviews/{review_id}", status_code=303)


@router.get("/now")
def now(request: Request, shop: Shop) -> HTMLResponse:
    """What runs and waits, for the home page to ask again."""
    return page(request, "_now.html", tonight=schedules.tonight(shop))


@router.post("/theme")
def choose_theme(request: Request, theme: Text = "auto", back: Text = "/") -> RedirectResponse:
    """Colours without JavaScript. Only a path of ours is gone back to, never another site."""
    answer = RedirectResponse(back if is_ours(back) else "/", status_code=303)
    if theme in THEMES:
        # Not HttpOnly: static/app.js sets the same cookie to save the reload.
        answer.set_cookie(THEME_COOKIE, theme, max_age=YEAR_S, samesite="lax", secure=is_secure(request), path="/")
    return answer


def submission_of(form: SubmitForm) -> submitting.Submission:
    return submitting.Submission(
        target=form.target.strip(),
        ref=form.ref.strip(),
        focuses=tuple(form.focuses),
        profile=form.profile,
        flavour=form.flavour,
        budget_minutes=forms.whole_number("budget_minutes", form.budget_minutes),
        budget_tokens=forms.whole_number("budget_tokens", form.budget_tokens),
        agents=bool(form.agents),
        force=bool(form.force),
    )


def home_page(request: Request, shop: Shop, form: SubmitForm, errors: Mapping[str, str] | None = None) -> HTMLResponse:
    errors = errors or {}
    return page(
        request,
        "home.html",
        section="/",
        status=422 if errors else 200,
        form=form,
        errors=errors,
        opened=bool(errors.keys() - {"target", "ref"}),
        roots=shop.settings.allowed_roots,
        default_minutes=shop.settings.budget_minutes,
        has_model=bool(shop.settings.model_url),
        focuses=memos.focuses(shop),
        profiles=judging.profiles(),
        flavours=judging.flavours(),
        tonight=schedules.tonight(shop),
        latest=reviews.listed(shop, per_page=8),
    )
