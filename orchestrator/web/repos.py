"""All repos, and one with its reviews, numbers, findings and rounds."""

from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from orchestrator.services import repos, submitting
from orchestrator.services.views import Listed
from orchestrator.web.deps import PageNumber, Shop
from orchestrator.web.render import page

router = APIRouter()
SHOWN_FINDINGS = 200  # in a page


@router.get("/repos")
def all_repos(request: Request, shop: Shop) -> HTMLResponse:
    return page(request, "repos.html", section="/repos", repos=repos.listed(shop))


@router.get("/repos/{repo_id}")
def one_repo(request: Request, repo_id: UUID, shop: Shop, number: PageNumber = 1) -> HTMLResponse:
    """A repo in which nobody mends anything has thousands of open findings: they come in pages."""
    found = repos.get(shop, repo_id)
    first = (number - 1) * SHOWN_FINDINGS
    shown = found.findings[first : first + SHOWN_FINDINGS]
    return page(
        request,
        "repo.html",
        section="/repos",
        page=found,
        open=Listed(items=shown, page=number, per_page=SHOWN_FINDINGS, total=len(found.findings)),
    )


@router.post("/repos/{repo_id}/review")
def review_now(repo_id: UUID, shop: Shop) -> RedirectResponse:
    """Review the default branch now, also when that commit was reviewed before: somebody pressed the button."""
    repo = repos.get(shop, repo_id)
    review_id = submitting.submit(shop, submitting.Submission(target=repo.row.url, ref=repo.default_ref, force=True))
    return RedirectResponse(f"/reviews/{review_id}", status_code=303)
