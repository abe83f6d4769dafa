"""What agents did: a focus's conversation, the recording of all, and the memo."""

from uuid import UUID

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from orchestrator.services import memos, transcripts
from orchestrator.web.deps import Shop
from orchestrator.web.render import page

router = APIRouter()


@router.get("/steps/{step_id}/transcript")
def transcript(request: Request, step_id: UUID, shop: Shop) -> HTMLResponse:
    found = transcripts.get(shop, step_id)
    return page(request, "transcript.html", section="/reviews", page=found)


@router.get("/reviews/{review_id}/transcripts.json")
def recording(review_id: UUID, shop: Shop) -> Response:
    return download(transcripts.recording(shop, review_id), "application/json", f"transcripts-{review_id}.json")


@router.get("/reviews/{review_id}/memo")
def memo(request: Request, review_id: UUID, shop: Shop) -> HTMLResponse:
    found = memos.get(shop, review_id)
    return page(request, "memo.html", section="/reviews", page=found.review, memo=found.memo)


@router.get("/reviews/{review_id}/memo.md")
def memo_text(review_id: UUID, shop: Shop) -> Response:
    return download(memos.markdown(shop, review_id), "text/markdown; charset=utf-8", f"memo-{review_id}.md")


def download(text: str, media_type: str, name: str) -> Response:
    """A browser must never show a foreign text as a page of ours."""
    return Response(
        text.encode("utf-8", "replace"),
        media_type=media_type,
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )
