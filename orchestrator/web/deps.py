"""What routes ask for by type."""

from typing import Annotated

from fastapi import Depends, Query, Request

from orchestrator.services.workshop import Workshop


def workshop(request: Request) -> Workshop:
    shop: Workshop = request.app.state.shop
    return shop


Shop = Annotated[Workshop, Depends(workshop)]
# A benchmark is named by its repo, in whatever characters, so its name cannot be part of a path.
BenchmarkName = Annotated[str, Query(alias="name", min_length=1, max_length=2000)]
# An upper bound, because an offset beyond 64 bits is an error in the database.
PageNumber = Annotated[int, Query(alias="page", ge=1, le=1_000_000, description="counted from 1")]
PerPage = Annotated[int, Query(ge=1, le=200)]
