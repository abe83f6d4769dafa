"""What a repo's benchmarks do over the nights, one of them by itself, where a change spent its time; and as files."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse

from orchestrator.services import measurements
from orchestrator.services.exports import measurements as files
from orchestrator.services.measurements import Benchmark, BenchmarkPage, Measurements, Night
from orchestrator.web import flames
from orchestrator.web.deps import BenchmarkName, Shop
from orchestrator.web.exports import attachment
from orchestrator.web.render import page, profile_link

router = APIRouter()

FIRST = 20  # verdicts, and steps, of a repo that are shown before somebody asks for all
Words = Annotated[str, Query(max_length=200)]


@router.get("/repos/{repo_id}/measurements")
def all_measurements(
    request: Request, repo_id: UUID, shop: Shop, q: Words = "", moved: bool = False, whole: bool = False
) -> HTMLResponse:
    """`whole`: every verdict and every step, not the first of them."""
    found = measurements.get(shop, repo_id, ids=False, explained=None if whole else FIRST)
    return page(
        request,
        "measurements.html",
        section="/repos",
        page=found,
        benchmarks=moved_first(measurements.only(found, words=q, moved=moved), found),
        compared=measurements.by_weight(found.compared),
        q=q,
        moved=moved,
        whole=whole,
        first=FIRST,
    )


def moved_first(found: Measurements, whole: Measurements) -> list[Benchmark]:
    """What changed lately stands first, then by name."""
    fresh = {one.name for one in whole.compared if one.verdict in ("slower", "faster") and not one.same_code}
    return sorted(found.benchmarks, key=lambda one: one.name not in fresh)


@router.get("/repos/{repo_id}/benchmark")
def one_benchmark(request: Request, repo_id: UUID, shop: Shop, name: BenchmarkName) -> HTMLResponse:
    found = measurements.benchmark(shop, repo_id, name, ids=False)
    return page(request, "benchmark.html", section="/repos", page=found, nights=newest(found))


def newest(found: BenchmarkPage) -> list[tuple[Night, int]]:
    """Nights with the number of their machine key, counted from 1; newest first."""
    every = [(night, number) for number, line in enumerate(found.benchmark.lines, 1) for night in line.nights]
    return sorted(every, key=lambda one: one[0].at, reverse=True)[: measurements.SHOWN_NIGHTS]


@router.get("/repos/{repo_id}/measurements.csv")
def as_csv(repo_id: UUID, shop: Shop) -> Response:
    return StreamingResponse(
        files.as_csv(shop, repo_id), media_type="text/csv; charset=utf-8",
        headers=attachment(f"measurements-{repo_id}.csv"),
    )  # fmt: skip


@router.get("/repos/{repo_id}/measurements.json")
def as_json(repo_id: UUID, shop: Shop) -> Response:
    return Response(
        files.as_json(shop, repo_id), media_type="application/json",
        headers=attachment(f"measurements-{repo_id}.json"),
    )  # fmt: skip


@router.get("/reviews/{review_id}/profile")
def profile(
    request: Request, review_id: UUID, shop: Shop, name: BenchmarkName, at: Annotated[str, Query(max_length=64)] = ""
) -> HTMLResponse:
    found = measurements.profile(shop, review_id, name)
    above = flames.found(flames.tree(found), at)
    address = profile_link(review_id, name)
    graphs = [(side, flames.graph(above, side, found.parts_unit, address)) for side in ("head", "base")]
    return page(request, "profile.html", section="/reviews", page=found, above=above, graphs=graphs)
