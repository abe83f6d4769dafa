"""Rounds: what comes tonight, what came last night, and planning when a repo comes round by itself."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any
from uuid import UUID
from zoneinfo import available_timezones

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from orchestrator.services import judging, memos, repos, schedules
from orchestrator.services.errors import BadInput
from orchestrator.services.views import ScheduleKind, ScheduleRow
from orchestrator.web import forms
from orchestrator.web.deps import Shop
from orchestrator.web.forms import TICKED, Wishes
from orchestrator.web.render import page

router = APIRouter()
USUAL_TIME = "02:00"


@cache
def zones() -> list[str]:
    return sorted(zone for zone in available_timezones() if "/" in zone or zone == "UTC")


class ScheduleForm(Wishes):
    repo: str = ""  # of a new one only
    kind: str = "nightly"
    at: str = ""
    zone: str = ""
    pause_minutes: str = ""
    skip_unchanged: str = ""
    enabled: str = ""


Sent = Annotated[ScheduleForm, Form()]


@router.get("/schedules")
def all_schedules(request: Request, shop: Shop, repo: str = "") -> HTMLResponse:
    form = ScheduleForm(repo=repo, at=USUAL_TIME, zone="UTC", pause_minutes="60", skip_unchanged=TICKED)
    return list_page(request, shop, form)


@router.post("/schedules")
def create(request: Request, shop: Shop, form: Sent) -> Response:
    form.enabled = TICKED  # a new one comes round at once
    try:
        schedules.create(shop, forms.identifier("repo", form.repo), plan_of(form))
    except BadInput as error:
        return list_page(request, shop, form, forms.by_field(error))
    return RedirectResponse("/schedules", status_code=303)


@router.get("/schedules/{schedule_id}")
def one_schedule(request: Request, schedule_id: UUID, shop: Shop) -> HTMLResponse:
    found = schedules.get(shop, schedule_id)
    return one_page(request, shop, found, form_of(found))


@router.post("/schedules/{schedule_id}")
def update(request: Request, schedule_id: UUID, shop: Shop, form: Sent) -> Response:
    try:
        schedules.update(shop, schedule_id, plan_of(form))
    except BadInput as error:
        return one_page(request, shop, schedules.get(shop, schedule_id), form, forms.by_field(error))
    return RedirectResponse("/schedules", status_code=303)


@router.post("/schedules/{schedule_id}/delete")
def delete(schedule_id: UUID, shop: Shop) -> RedirectResponse:
    schedules.delete(shop, schedule_id)
    return RedirectResponse("/schedules", status_code=303)


def plan_of(form: ScheduleForm) -> schedules.Plan:
    """The fields of the kind that was chosen; those of the other kind are left as they are by default."""
    try:
        kind = ScheduleKind(form.kind)
    except ValueError:
        raise BadInput("kind", "Choose every night, or again and again.") from None
    nightly = kind is ScheduleKind.NIGHTLY
    return schedules.Plan(
        kind=kind,
        at=form.at.strip() if nightly else "",
        zone=form.zone.strip() or "UTC" if nightly else "UTC",
        pause_minutes=0 if nightly else forms.whole_number("pause_minutes", form.pause_minutes, least=0) or 0,
        ref=form.ref.strip(),
        focuses=tuple(form.focuses),
        profile=form.profile,
        flavour=form.flavour,
        budget_minutes=forms.whole_number("budget_minutes", form.budget_minutes),
        skip_unchanged=bool(form.skip_unchanged),
        enabled=bool(form.enabled),
    )


def form_of(found: ScheduleRow) -> ScheduleForm:
    return ScheduleForm(
        kind=found.kind.value,
        at=found.at or USUAL_TIME,
        zone=found.zone,
        pause_minutes=str(found.pause_minutes),
        ref=found.ref,
        focuses=found.focuses,
        profile=found.profile,
        flavour=found.flavour,
        budget_minutes="" if found.budget_minutes is None else str(found.budget_minutes),
        skip_unchanged=TICKED if found.skip_unchanged else "",
        enabled=TICKED if found.enabled else "",
    )


def choices(shop: Shop) -> dict[str, Any]:
    """What the fields offer."""
    return {
        "zones": zones(),
        "focuses": memos.focuses(shop),
        "profiles": judging.profiles(),
        "flavours": judging.flavours(),
    }


def list_page(
    request: Request, shop: Shop, form: ScheduleForm, errors: Mapping[str, str] | None = None
) -> HTMLResponse:
    return page(
        request,
        "schedules.html",
        section="/schedules",
        status=422 if errors else 200,
        tonight=schedules.tonight(shop),
        schedules=schedules.listed(shop),
        repos=repos.names(shop),
        **choices(shop),
        form=form,
        errors=errors or {},
    )


def one_page(
    request: Request,
    shop: Shop,
    found: ScheduleRow,
    form: ScheduleForm,
    errors: Mapping[str, str] | None = None,
) -> HTMLResponse:
    return page(
        request,
        "schedule.html",
        section="/schedules",
        status=422 if errors else 200,
        schedule=found,
        **choices(shop),
        form=form,
        errors=errors or {},
    )
