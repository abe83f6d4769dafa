"""The JSON API: the same services as the pages, described by OpenAPI. All errors have one shape (errors.py)."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response, status
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from orchestrator.services import (
    comparing,
    exporting,
    findings,
    histories,
    judging,
    measurements,
    memos,
    nodes,
    repos,
    reviews,
    schedules,
    steps,
    submitting,
    transcripts,
)
from orchestrator.services.exports import measurements as measured_files
from orchestrator.services.histories import FalseAlarms
from orchestrator.services.measurements import BenchmarkPage, Compared, Measurements, Profile
from orchestrator.services.views import (
    Comparison,
    FindingPage,
    IgnoredRow,
    Listed,
    NodeStatus,
    Progress,
    RepoPage,
    RepoRow,
    ReviewPage,
    ReviewRow,
    ReviewState,
    ScheduleKind,
    ScheduleRow,
    Tonight,
)
from orchestrator.web.deps import BenchmarkName, PageNumber, PerPage, Shop
from orchestrator.web.errors import Problems
from orchestrator.web.exports import MEDIA_TYPES, ExportFormat
from orchestrator.web.render import page

WRONG: dict[int | str, dict[str, Any]] = {
    400: {"model": Problems, "description": "The request cannot be carried out"},
    401: {"model": Problems, "description": "An account is needed and no token of one was sent"},
    403: {"model": Problems, "description": "The request comes from another site's page"},
    404: {"model": Problems, "description": "There is no such thing"},
    409: {"model": Problems, "description": "Not in its present state"},
    413: {"model": Problems, "description": "The body is too large"},
    415: {"model": Problems, "description": "The body is not JSON"},
    422: {"model": Problems, "description": "A value is not acceptable"},
    503: {"model": Problems, "description": "Something outside does not answer"},
}
router = APIRouter(prefix="/api", responses=WRONG)

# Numbers stay within what a database column and a JSON number can both hold.
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Text = Annotated[str, Field(max_length=2000)]
Focuses = Annotated[list[Text], Field(max_length=20)]
PROFILES = ", ".join(one.value for one in judging.profiles())
FLAVOURS = ", ".join(one.value for one in judging.flavours())


class Asked(BaseModel):
    """A review that is wanted."""

    model_config = ConfigDict(extra="forbid")

    target: Text = Field(min_length=1, description="Git address, or a folder below an allowed root")
    ref: Text = Field("", description="branch, tag or commit; empty for the default branch")
    focuses: Focuses = Field([], description="empty for all")
    budget_minutes: Count | None = None
    budget_tokens: Count | None = None
    agents: bool = Field(True, description="false: evidence only")
    profile: Text = Field("", description=f"for whom agents judge: {PROFILES}; empty: as the repo was last")
    flavour: Text = Field("", description=f"what the repo means to be: {FLAVOURS}; empty: as it was last")
    force: bool = Field(False, description="also when the commit was reviewed before")


class Queued(BaseModel):
    id: UUID
    url: str = Field(description="address of this review in the API")
    page: str = Field(description="address of its page")


class Ignored(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: Text = Field(min_length=1)
    until: datetime | None = Field(None, description="with time zone; null for good")


class Planned(BaseModel):
    """When a repo comes round by itself."""

    model_config = ConfigDict(extra="forbid")

    kind: ScheduleKind
    at: Text = Field("", description="nightly: HH:MM on the clock of `zone`")
    zone: Text = Field("UTC", description="IANA time zone")
    pause_minutes: Annotated[int, Field(ge=0, le=525_600)] = Field(0, description="loop: from end to next start")
    ref: Text = ""
    focuses: Focuses = []
    profile: Text = Field("", description=f"for whom agents judge: {PROFILES}; empty: as the repo is")
    flavour: Text = Field("", description=f"what the repo means to be: {FLAVOURS}; empty: as the repo is")
    budget_minutes: Count | None = None
    skip_unchanged: bool = True
    enabled: bool = True


class PlannedFor(Planned):
    repo: UUID


# Reviews --------------------------------------------------------------------------------------


@router.post("/reviews", status_code=status.HTTP_201_CREATED, tags=["reviews"], summary="Ask for a review")
def submit(asked: Asked, shop: Shop, response: Response) -> Queued:
    """Asking again while the same repo and ref waits leads to the same review."""
    review_id = submitting.submit(
        shop,
        submitting.Submission(
            target=asked.target.strip(),
            ref=asked.ref.strip(),
            focuses=tuple(asked.focuses),
            budget_minutes=asked.budget_minutes,
            budget_tokens=asked.budget_tokens,
            agents=asked.agents,
            profile=asked.profile,
            flavour=asked.flavour,
            force=asked.force,
            requested_by="api",
        ),
    )
    response.headers["Location"] = f"/api/reviews/{review_id}"
    return Queued(id=review_id, url=f"/api/reviews/{review_id}", page=f"/reviews/{review_id}")


@router.get("/reviews", tags=["reviews"], summary="Reviews, newest first")
def list_reviews(
    shop: Shop,
    repo: UUID | None = None,
    state: ReviewState | None = None,
    page: PageNumber = 1,
    per_page: PerPage = 50,
) -> Listed[ReviewRow]:
    return reviews.listed(shop, repo=repo, state=state, page=page, per_page=per_page)


@router.get("/reviews/{review_id}", tags=["reviews"], summary="One review with all that it found")
def get_review(review_id: UUID, shop: Shop) -> ReviewPage:
    return reviews.get(shop, review_id)


@router.get("/reviews/{review_id}/progress", tags=["reviews"], summary="Steps and new output of a running review")
def get_progress(
    review_id: UUID,
    shop: Shop,
    after: Annotated[int, Query(ge=0, le=2**62, description="last seq that is known already")] = 0,
) -> Progress:
    return reviews.progress(shop, review_id, after)


@router.post("/reviews/{review_id}/cancel", status_code=status.HTTP_202_ACCEPTED, tags=["reviews"], summary="Cancel")
def cancel(review_id: UUID, shop: Shop) -> Queued:
    """A review that runs ends its command first; one that has ended is a 409."""
    reviews.cancel(shop, review_id)
    return Queued(id=review_id, url=f"/api/reviews/{review_id}", page=f"/reviews/{review_id}")


@router.get(
    "/reviews/{review_id}/export",
    tags=["reviews"],
    summary="The review as JSON (version 1), Markdown or SARIF 2.1.0",
    response_class=Response,
    responses={200: {"content": {media.partition(";")[0]: {} for media in MEDIA_TYPES.values()}}},
)
def export(review_id: UUID, shop: Shop, format: ExportFormat = ExportFormat.JSON) -> Response:
    return Response(exporting.export(shop, review_id, format.value), media_type=MEDIA_TYPES[format])


@router.get("/steps/{step_id}/log", tags=["reviews"], summary="What a step printed", response_class=PlainTextResponse)
def get_log(step_id: UUID, shop: Shop) -> PlainTextResponse:
    return PlainTextResponse(steps.log(shop, step_id).encode("utf-8", "replace"))


@router.get("/reviews/{review_id}/memo", tags=["reviews"], summary="The verdict: scores, fixes in order, limits")
def get_memo(review_id: UUID, shop: Shop) -> memos.Memo:
    return memos.get(shop, review_id).memo


@router.get(
    "/reviews/{review_id}/transcripts",
    tags=["reviews"],
    summary="What the agents said and did, as a recording that can be played again",
    response_class=Response,
    responses={200: {"content": {"application/json": {}}}},
)
def get_transcripts(review_id: UUID, shop: Shop) -> Response:
    return Response(transcripts.recording(shop, review_id), media_type="application/json")


@router.get("/focuses", tags=["node"], summary="The focuses that a review can have")
def list_focuses(shop: Shop) -> tuple[memos.Focus, ...]:
    return memos.focuses(shop)


@router.get("/compare", tags=["reviews"], summary="Two reviews of one repo side by side")
def compare(one: UUID, other: UUID, shop: Shop) -> Comparison:
    return comparing.compare(shop, one, other)


# Repos -------------------------------------------------------------------------------


@router.get("/repos", tags=["repos"], summary="All repos")
def list_repos(shop: Shop) -> tuple[RepoRow, ...]:
    return repos.listed(shop)


@router.get("/repos/{repo_id}", tags=["repos"], summary="One repo with reviews, open findings, series and rounds")
def get_repo(repo_id: UUID, shop: Shop) -> RepoPage:
    return repos.get(shop, repo_id)


# Measurements ---------------------------------------------------------------------------------------


@router.get(
    "/repos/{repo_id}/measurements",
    tags=["measurements"],
    summary="A repo's benchmarks over the nights, steps, verdicts",
)
def get_measurements(repo_id: UUID, shop: Shop) -> Measurements:
    """The newest ten thousand measurements; `complete` says whether there are older ones, which the CSV file has."""
    return measurements.get(shop, repo_id)


@router.get(
    "/repos/{repo_id}/measurements.csv",
    tags=["measurements"],
    summary="All measurements of a repo, newest first",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/csv": {}}}},
)
def get_measurements_csv(repo_id: UUID, shop: Shop) -> StreamingResponse:
    return StreamingResponse(measured_files.as_csv(shop, repo_id), media_type="text/csv; charset=utf-8")


@router.get("/repos/{repo_id}/benchmark", tags=["measurements"], summary="One benchmark with its sessions and verdicts")
def get_benchmark(repo_id: UUID, name: BenchmarkName, shop: Shop) -> BenchmarkPage:
    return measurements.benchmark(shop, repo_id, name)


@router.get("/reviews/{review_id}/comparisons", tags=["measurements"], summary="Base against head in one review")
def get_comparisons(review_id: UUID, shop: Shop) -> tuple[Compared, ...]:
    return measurements.of_review(shop, review_id)


@router.get("/reviews/{review_id}/profile", tags=["measurements"], summary="Stacks of a confirmed change, both sides")
def get_profile(review_id: UUID, name: BenchmarkName, shop: Shop) -> Profile:
    return measurements.profile(shop, review_id, name)


@router.get(
    "/reviews/{review_id}/profile/{side}.txt",
    tags=["measurements"],
    summary="One side's stacks as flamegraph.pl and speedscope read them",
    response_class=PlainTextResponse,
)
def get_stacks(review_id: UUID, side: Literal["base", "head"], name: BenchmarkName, shop: Shop) -> PlainTextResponse:
    found = measurements.profile(shop, review_id, name)
    stacks = found.base_stacks if side == "base" else found.head_stacks
    return PlainTextResponse(measurements.collapsed(stacks).encode("utf-8", "replace"))


@router.get("/false-alarms", tags=["measurements"], summary="How often equal code was said to differ, in 30 nights")
def get_false_alarms(shop: Shop) -> FalseAlarms:
    return histories.false_alarms(shop)


# Findings -------------------------------------------------------------------------------------------


@router.get("/findings/{finding_id}", tags=["findings"], summary="One finding with its history")
def get_finding(finding_id: UUID, shop: Shop) -> FindingPage:
    return findings.get(shop, finding_id)


@router.get("/ignored", tags=["findings"], summary="All that does not count, with reasons and ends")
def list_ignored(shop: Shop) -> tuple[IgnoredRow, ...]:
    return findings.ignored(shop)


@router.post("/findings/{finding_id}/ignore", tags=["findings"], summary="Do not count it, for a reason")
def ignore(finding_id: UUID, ignored: Ignored, shop: Shop) -> FindingPage:
    findings.ignore(shop, finding_id, ignored.reason, ignored.until)
    return findings.get(shop, finding_id)


@router.delete("/findings/{finding_id}/ignore", tags=["findings"], summary="Count it again")
def unignore(finding_id: UUID, shop: Shop) -> FindingPage:
    findings.unignore(shop, finding_id)
    return findings.get(shop, finding_id)


# Rounds ---------------------------------------------------------------------------------------------


@router.get("/schedules", tags=["rounds"], summary="All rounds")
def list_schedules(shop: Shop) -> tuple[ScheduleRow, ...]:
    return schedules.listed(shop)


@router.post("/schedules", status_code=status.HTTP_201_CREATED, tags=["rounds"], summary="Plan a round")
def plan(planned: PlannedFor, shop: Shop, response: Response) -> ScheduleRow:
    schedule_id = schedules.create(shop, planned.repo, plan_of(planned))
    response.headers["Location"] = f"/api/schedules/{schedule_id}"
    return schedules.get(shop, schedule_id)


@router.get("/schedules/{schedule_id}", tags=["rounds"], summary="One round")
def get_schedule(schedule_id: UUID, shop: Shop) -> ScheduleRow:
    return schedules.get(shop, schedule_id)


@router.put("/schedules/{schedule_id}", tags=["rounds"], summary="Change a round")
def change(schedule_id: UUID, planned: Planned, shop: Shop) -> ScheduleRow:
    schedules.update(shop, schedule_id, plan_of(planned))
    return schedules.get(shop, schedule_id)


@router.delete("/schedules/{schedule_id}", status_code=status.HTTP_204_NO_CONTENT, tags=["rounds"], summary="End it")
def delete(schedule_id: UUID, shop: Shop) -> None:
    schedules.delete(shop, schedule_id)


@router.get("/tonight", tags=["rounds"], summary="What comes in the next 24 hours and what came in the last")
def tonight(shop: Shop) -> Tonight:
    return schedules.tonight(shop)


# Node, and this API itself --------------------------------------------------------------------------


@router.get("/node", tags=["node"], summary="The inference node and the workers")
def node(shop: Shop) -> NodeStatus:
    return nodes.status(shop)


@router.get("/docs", include_in_schema=False)
def docs(request: Request) -> HTMLResponse:
    """A page of ours instead of a viewer that loads scripts from elsewhere."""
    groups: dict[str, list[dict[str, Any]]] = {}
    schema = request.app.openapi()
    for path, methods in schema["paths"].items():
        for method, call in methods.items():
            body = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            fields = schema["components"]["schemas"].get(body.get("$ref", "").rpartition("/")[2], {})
            takes = [*(one["name"] for one in call.get("parameters", []) if one["in"] == "query")]
            groups.setdefault(call.get("tags", ["other"])[0], []).append(
                {
                    "method": method.upper(),
                    "path": path,
                    "summary": call.get("summary", ""),
                    "takes": [*takes, *fields.get("properties", {})],
                }
            )
    return page(request, "api.html", groups=groups, base=str(request.base_url).rstrip("/"))


def plan_of(planned: Planned) -> schedules.Plan:
    return schedules.Plan(
        kind=planned.kind,
        at=planned.at,
        zone=planned.zone,
        pause_minutes=planned.pause_minutes,
        ref=planned.ref,
        focuses=tuple(planned.focuses),
        profile=planned.profile,
        flavour=planned.flavour,
        budget_minutes=planned.budget_minutes,
        skip_unchanged=planned.skip_unchanged,
        enabled=planned.enabled,
    )
