"""All repos, and one with its reviews, numbers, findings and rounds."""

from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from orchestrator.services import repos, submitting
from orchestrator.web.deps import Shop
from orchestrator.web.render import page

router = APIRouter()


@router.get("/repos")
def all_repos(request: Request, shop: Shop) -> HTMLResponse:
    return page(request, "repos.html", section="/repos", repos=repos.listed(shop))


@router.get("/repos/{repo_id}")
def one_repo(request: Request, repo_id: UUID, shop: Shop) -> HTMLResponse:
    return page(request, "repo.html", section="/repos", page=repos.get(shop, repo_id))


@router.post("/repos/{repo_id}/review")
def review_now(repo_id: UUID, shop: Shop) -> RedirectResponse:
    """Review the default branch now, also when that commit was reviewed before: somebody pressed the button."""
    repo = repos.get(shop, repo_id)
    review_id = submitting.submit(shop, submitting.Submission(target=repo.row.url, ref=repo.default_ref, force=True))
    return RedirectResponse(f"/reviews/{review_id}", status_code=303)
