"""The application: routes, guard and error shapes around one node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI

from inference_node.engine.api import Node
from inference_node.server import errors, pages, routes, states
from inference_node.server.guard import Guard
from inference_node.server.returning import Returning


@dataclass(frozen=True, slots=True)
class Options:
    """How the node shows itself."""

    name: str = ""  # of the model on /v1/models; empty: the target's own
    defaults: Mapping[str, Any] = field(default_factory=dict)  # sampling parameters for requests that leave them out
    keys: Sequence[str] = ()
    hosts: Sequence[str] = ()
    max_body_bytes: int = 64 << 20
    patience_s: float = 10.0  # silence before a comment is sent to a waiting client
    send_timeout_s: float = 60.0
    returning_bytes: int = 64 << 20
    states_model: str = ""  # fingerprint of the model whose states are served to a trainer; empty: they are not
    states_at_once: int = 4  # answers with states that are computed or sent
    states_bytes: int = 1 << 30  # of states, in each of them at most


def create_app(node: Node, options: Options | None = None) -> FastAPI:
    """The node's ASGI application. The caller owns the node and closes it."""
    options = options or Options()
    app = FastAPI(
        title="Lamplighter inference node",
        version="0.1.0",
        docs_url=None,  # the documentation page would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.node = node
    app.state.options = options
    app.state.returning = Returning(options.returning_bytes)
    errors.install(app)
    app.include_router(routes.router)
    app.include_router(pages.router)
    if options.states_model:
        app.state.places = states.Places(options.states_at_once)
        app.include_router(states.router)
    app.add_middleware(Guard, keys=options.keys, hosts=options.hosts, max_body_bytes=options.max_body_bytes)
    return app
