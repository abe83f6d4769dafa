"""One finding over the nights, and ignoring it."""

from collections.abc import Mapping
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from orchestrator.services import findings
from orchestrator.services.errors import BadInput
from orchestrator.web import forms
from orchestrator.web.deps import Shop
from orchestrator.web.finding_parts import verification_runs
from orchestrator.web.render import page

router = APIRouter()
Text = Annotated[str, Form()]
EMPTY_FORM: Mapping[str, str] = {"reason": "", "until": ""}


@router.get("/findings/{finding_id}")
def one_finding(request: Request, finding_id: UUID, shop: Shop) -> HTMLResponse:
    return page(
        request, "finding.html", section="/repos", page=findings.get(shop, finding_id), form=EMPTY_FORM, errors={}
    )


@router.get("/ignored")
def all_ignored(request: Request, shop: Shop) -> HTMLResponse:
    return page(request, "ignored.html", section="/repos", found=findings.ignored(shop))


@router.get("/reviews/{review_id}/findings/{finding_id}/runs")
def runs(request: Request, review_id: UUID, finding_id: UUID, shop: Shop, bare: bool = False) -> HTMLResponse:
    """The verification of a finding in that review; `bare` is for a fold of the review's page."""
    proof = findings.runs(shop, review_id, finding_id)
    shown = verification_runs(proof.finding.reproduction, proof.runs, proof.controls)
    if bare:
        return HTMLResponse(shown)
    return page(request, "finding_runs.html", section="/repos", proof=proof, runs=shown)


@router.post("/findings/{finding_id}/ignore")
def ignore(request: Request, finding_id: UUID, shop: Shop, reason: Text = "", until: Text = "") -> Response:
    try:
        findings.ignore(shop, finding_id, reason.strip(), forms.end_of_day("until", until))
    except BadInput as error:
        return page(
            request,
            "finding.html",
            section="/repos",
            status=422,
            page=findings.get(shop, finding_id),
            form={"reason": reason, "until": until},
            errors=forms.by_field(error),
        )
    return RedirectResponse(f"/findings/{finding_id}", status_code=303)


@router.post("/findings/{finding_id}/unignore")
def unignore(finding_id: UUID, shop: Shop) -> RedirectResponse:
    findings.unignore(shop, finding_id)
    return RedirectResponse(f"/findings/{finding_id}", status_code=303)
