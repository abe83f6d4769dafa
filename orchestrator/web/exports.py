"""A review as a file: Markdown, JSON (version 1 of the contract), SARIF 2.1.0."""

from enum import StrEnum
from uuid import UUID

from fastapi import APIRouter, Response

from orchestrator.services import exporting
from orchestrator.web.deps import Shop

router = APIRouter()


class ExportFormat(StrEnum):
    JSON = "json"
    MARKDOWN = "markdown"
    SARIF = "sarif"


SUFFIXES = {"json": ExportFormat.JSON, "md": ExportFormat.MARKDOWN, "sarif": ExportFormat.SARIF}
MEDIA_TYPES = {
    ExportFormat.JSON: "application/json",
    ExportFormat.MARKDOWN: "text/markdown; charset=utf-8",
    ExportFormat.SARIF: "application/sarif+json",
}


@router.get("/reviews/{review_id}/export.json")
def export_json(review_id: UUID, shop: Shop) -> Response:
    return exported(shop, review_id, ExportFormat.JSON)


@router.get("/reviews/{review_id}/export.md")
def export_markdown(review_id: UUID, shop: Shop) -> Response:
    return exported(shop, review_id, ExportFormat.MARKDOWN)


@router.get("/reviews/{review_id}/export.sarif")
def export_sarif(review_id: UUID, shop: Shop) -> Response:
    return exported(shop, review_id, ExportFormat.SARIF)


def exported(shop: Shop, review_id: UUID, format: ExportFormat) -> Response:
    """As a download: a browser must never show a foreign text as a page of ours."""
    suffix = next(suffix for suffix, one in SUFFIXES.items() if one is format)
    return Response(
        exporting.export(shop, review_id, format.value),
        media_type=MEDIA_TYPES[format],
        headers=attachment(f"review-{review_id}.{suffix}"),
    )


def attachment(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}
