"""A running review as server-sent events: steps, log, and an end that stays the end.

    round     the step list as HTML, whenever it changed
    log       new output as HTML; its id is the last line's seq, so a browser that lost the connection
              goes on behind what it has (Last-Event-ID), and nothing is shown twice
    saying    one sentence for screen readers, when another step began
    finished  the review ended; the page closes the stream and shows the result

A stream of a review that has ended says `finished` under the id `end`; who comes back with that id
gets 204, which tells any browser to stay away.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool

from orchestrator.services import reviews
from orchestrator.services.errors import OutsideError
from orchestrator.services.views import LogLine, Progress, ReviewState
from orchestrator.services.workshop import Workshop
from orchestrator.web.deps import Shop
from orchestrator.web.render import fragment
from orchestrator.web.round import stops, title_of
from orchestrator.web.text import log_text

router = APIRouter()
POLL_S = 1.0
QUIET_S = 15.0  # a comment after this long, so that proxies do not give up
STREAM_S = 600.0  # then the browser reconnects: a forgotten tab must not hold a stream for ever
STREAMS = 64  # at once
RETRY_MS = 2000
END = "end"
LARGEST = 2**62  # what a database still takes as a number


@router.get("/reviews/{review_id}/events")
async def events(
    request: Request,
    review_id: UUID,
    shop: Shop,
    after: Annotated[str, Query(max_length=20)] = "0",
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
) -> Response:
    seen = last_event_id or after
    if seen == END:
        return Response(status_code=204)
    await run_in_threadpool(reviews.progress, shop, review_id)  # an unknown review is a 404, not a stream
    if request.app.state.streams >= STREAMS:
        raise OutsideError(f"{STREAMS} live pages are open already; close one and load this one again.", retry=True)
    return StreamingResponse(
        counted(request, follow(shop, review_id, min(int(seen), LARGEST) if seen.isdecimal() else 0)),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def counted(request: Request, stream: AsyncIterator[str]) -> AsyncIterator[str]:
    """The stream, counted as long as it is open, and ended when the server ends."""
    request.app.state.streams += 1
    try:
        async for event in stream:
            yield event
            if request.app.state.closing:
                return
    finally:
        request.app.state.streams -= 1


async def follow(shop: Workshop, review_id: UUID, seen: int) -> AsyncIterator[str]:
    """Events from behind `seen` until the review ends or the stream has been open long enough."""
    clock = asyncio.get_running_loop().time
    begun = spoken_at = clock()
    shown = said = step = ""
    yield f"retry: {RETRY_MS}\n\n"
    if seen:
        step = await run_in_threadpool(step_of, shop, review_id, seen)
    while clock() - begun < STREAM_S:
        progress = await run_in_threadpool(reviews.progress, shop, review_id, seen)
        parts = []
        if (steps := round_html(shop, progress)) != shown:
            shown = steps
            parts.append(event("round", steps))
        if progress.lines:
            seen = progress.last_seq
            parts.append(event("log", log_html(progress.lines, step), seen))
            step = progress.lines[-1].step
        if (sentence := saying(progress)) != said:
            said = sentence
            parts.append(event("saying", str(Markup.escape(sentence))))
        if progress.ended and not progress.lines:
            yield "".join(parts) + event("finished", "The review has ended.", END)
            return
        if parts or clock() - spoken_at > QUIET_S:
            spoken_at = clock()
            parts = parts or [": still here\n\n"]
        yield "".join(parts)  # also when it is nothing: whoever reads may want to end
        if not progress.lines:  # with lines there may be more at once
            await asyncio.sleep(POLL_S)


def event(name: str, data: str, id: int | str | None = None) -> str:
    lines = [f"event: {name}", *(f"data: {line}" for line in data.split("\n"))]
    return "\n".join([*lines, *([] if id is None else [f"id: {id}"]), "", ""])


def step_of(shop: Workshop, review_id: UUID, seq: int) -> str:
    """The step that said the line with that seq, so that a resumed log does not name it again."""
    lines = reviews.progress(shop, review_id, seq - 1).lines
    return lines[0].step if lines and lines[0].seq == seq else ""


def round_html(shop: Workshop, progress: Progress) -> str:
    return fragment(
        "_progress.html", progress=progress, stops=stops(progress.steps, shop.clock()), saying=saying(progress)
    )


def log_html(lines: Sequence[LogLine], step: str = "") -> Markup:
    """Output as it came, each change of step announced. `step` is the step that spoke last."""
    parts = []
    for line in lines:
        if line.step != step:
            parts.append(Markup('<b class="step">{}</b>\n').format(title_of(line.step)))
            step = line.step
        parts.append(Markup('<span data-seq="{}">{}</span>').format(line.seq, log_text(line.text)))
    return Markup("").join(parts)


def saying(progress: Progress) -> str:
    """What happens now, in a sentence."""
    if progress.ended:
        return f"The review is {progress.state.replace('_', ' ')}."
    if progress.state is ReviewState.QUEUED:
        before = {0: "It is the next one.", 1: "One review goes before it."}
        return f"It waits. {before.get(progress.ahead, f'{progress.ahead} reviews go before it.')}"
    if progress.state is ReviewState.WAITING_FOR_NODE:
        return "It waits for the inference node to answer; nothing is lost meanwhile."
    if progress.state is ReviewState.CANCELLING:
        return "It is being cancelled."
    return f"Now: {title_of(progress.current.name)}." if progress.current else "It is under way."
