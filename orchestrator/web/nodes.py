"""The inference node and the workers, as they are now."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from orchestrator.services import nodes
from orchestrator.web.deps import Shop
from orchestrator.web.render import page

router = APIRouter()


@router.get("/node")
def node(request: Request, shop: Shop) -> HTMLResponse:
    return page(request, "node.html", section="/node", node=nodes.status(shop))
