"""For whoever watches over the process: `live` says that it runs, `ready` that it can work."""

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from orchestrator.services import health
from orchestrator.services.errors import OutsideError
from orchestrator.web.deps import Shop

router = APIRouter(prefix="/health", tags=["health"])


class Health(BaseModel):
    status: Literal["ok", "failing"]
    problem: str = ""


@router.get("/live", summary="The process answers")
def live() -> Health:
    return Health(status="ok")


@router.get("/ready", summary="The process can work: its database answers", responses={503: {"model": Health}})
def ready(shop: Shop, response: Response) -> Health:
    try:
        health.check_database(shop)
    except OutsideError as error:
        response.status_code = 503
        return Health(status="failing", problem=str(error))
    return Health(status="ok")
