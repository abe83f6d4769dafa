"""What people and monitoring look at: health, metrics, figures, and a page that draws them."""

from dataclasses import asdict
from importlib import resources
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from inference_node.engine.api import Ending, Health, NotReady, Past, Speculation, State, Stats
from inference_node.server import answers, metrics
from inference_node.server.errors import JsonReply
from inference_node.server.routes import Here, refusals

router = APIRouter()

HEALTH_SHAPE: dict[int | str, dict[str, Any]] = {
    200: {"description": "Requests are taken"},
    500: {"description": "Not any more: the model did not load, the device failed, or a request is stuck"},
    503: {"description": "Not yet, or not any more: loading or closing"},
}


@router.get("/health", response_class=JsonReply, responses=HEALTH_SHAPE)
async def health(here: Here) -> Response:
    """Whether requests can be taken, and if not, why."""
    found = here.node.health()
    return JsonReply(_health(found), _health_status(found))


@router.get("/health/live", response_class=JsonReply)
async def live() -> Response:
    """That the process answers at all."""
    return JsonReply({"status": "live"})


@router.get("/metrics", responses=refusals(), response_class=Response)
async def prometheus(here: Here) -> Response:
    """Totals for Prometheus."""
    try:
        name = here.model
    except NotReady:
        name = here.options.name or "loading"
    return Response(metrics.exposition(here.node, name), media_type=metrics.CONTENT_TYPE)


@router.get("/stats", response_class=JsonReply, responses=refusals())
async def stats(here: Here) -> Response:
    """Totals and the last requests, as JSON."""
    found = here.node.health()
    try:
        facts: dict[str, Any] | None = asdict(here.node.facts)
    except NotReady:
        facts = None
    return JsonReply({"health": _health(found), "model": facts, **_stats(here.node.stats())})


@router.get("/", include_in_schema=False)
async def page() -> Response:
    return _file("page.html", "text/html; charset=utf-8")


@router.get("/page.js", include_in_schema=False)
async def script() -> Response:
    return _file("page.js", "text/javascript; charset=utf-8")


@router.get("/page.css", include_in_schema=False)
async def style() -> Response:
    return _file("page.css", "text/css; charset=utf-8")


def _file(name: str, media_type: str) -> Response:
    content = resources.files("inference_node.server").joinpath("static", name).read_bytes()
    headers = {
        "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return Response(content, media_type=media_type, headers=headers)


def _health(health: Health) -> dict[str, Any]:
    stuck = health.state is State.READY and health.stalled_s > 0
    status = "stalled" if stuck else {State.READY: "ok"}.get(health.state, health.state.value)
    why = f"the running request has shown no progress for {health.stalled_s:.0f} s" if stuck else health.why
    return {
        "status": status,
        "live": True,
        "ready": status == "ok",
        "why": why,
        "progress": round(health.progress, 4),
        "running": health.running,
        "waiting": health.waiting,
    }


def _health_status(health: Health) -> int:
    if health.state is State.FAILED or health.stalled_s > 0:
        return 500
    return 200 if health.state is State.READY else 503


def _stats(stats: Stats) -> dict[str, Any]:
    spent = stats.spent
    return {
        "up_s": round(stats.up_s, 3),
        "requests": {
            "by_ending": {reason.value: count for reason, count in stats.endings.items()},
            "refused_full": stats.refused_full,
            "out_of_memory": stats.out_of_memory,
        },
        "tokens": {
            "prompt": stats.prompt_tokens,
            "restored": stats.restored_tokens,
            "prefilled": stats.prompt_tokens - stats.restored_tokens,
            "known": stats.known_tokens,
            "completion": stats.speculation.tokens,
            "per_second": _per_second(stats.speculation.tokens, spent.decode_s),
            "prefilled_per_second": _per_second(stats.prompt_tokens - stats.restored_tokens, spent.prefill_s),
        },
        "speculation": _speculation(stats.speculation),
        "seconds": {name: round(value or 0.0, 4) for name, value in asdict(spent).items() if name != "first_token_s"},
        "experts_woken": [round(mean, 2) for mean in stats.experts_woken],
        "prefix": {
            "by_why": {why.value: count for why, count in stats.reuse_why.items()},
            "budget_bytes": stats.store.budget_bytes,
            "held_bytes": stats.store.held_bytes,
            "checkpoints": stats.store.checkpoints,
            "remembered_tokens": stats.store.tokens,
            "given_up": {why.value: count for why, count in stats.store.evicted.items()},
        },
        "last_requests": [_past(past) for past in stats.past],
    }


def _speculation(figures: Speculation) -> dict[str, Any]:
    return {
        "cycles": figures.cycles,
        "cut_by_budget": figures.cut_by_budget,
        "cut_by_stop": figures.cut_by_stop,
        "drafted": figures.drafted,
        "accepted": figures.accepted,
        "offered_at": list(figures.offered_at),
        "accepted_at": list(figures.accepted_at),
        "tau": figures.tau,
        "tau_all": figures.tau_all,
    }


def _past(past: Past) -> dict[str, Any]:
    ending: Ending = past.ending
    return {
        "id": past.id,
        "arrived_s": round(past.arrived_s, 4),
        "began_s": round(past.began_s, 4),
        "first_token_s": round(past.first_token_s, 4) if past.first_token_s is not None else None,
        "ended_s": round(past.ended_s, 4),
        "ending": ending.reason.value,
        "prompt_tokens": ending.reuse.prompt_tokens,
        "completion_tokens": len(ending.completion),
        "tokens_per_second": _per_second(len(ending.completion), ending.spent.decode_s),
        "tau": ending.speculation.tau,
        "accepted": ending.speculation.accepted,
        "drafted": ending.speculation.drafted,
        "prefix": answers.prefix(ending.reuse),
    }


def _per_second(tokens: int, seconds: float) -> float | None:
    return round(tokens / seconds, 2) if seconds > 0 and tokens else None
