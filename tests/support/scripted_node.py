"""A node as a process of its own that plays one focus over the tiny repo: `python -m ... HOST PORT`

It remembers nothing: what it says depends only on the conversation that it is sent, so it may be killed and started
again at any moment, as a real node may.
"""

import json
import sys
import threading
from typing import Any

from tests.support.endpoint import Handler, Server, text, tool_call
from tests.support.tiny_agents import finding

SAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("run", {"command": "bash greet.sh"}),
    ("record_finding", finding()),
    ("finish", {"summary": "I looked at the one script.", "scores": {"correctness": 4, "overall": 5}}),
)


def answer(handler: Handler) -> None:
    """The next turn of the focus, or the answer to a question that asks for another tool."""
    body = handler.server.bodies.pop()
    tools = [tool["function"]["name"] for tool in body.get("tools", ())]
    turn = min(sum(message["role"] == "assistant" for message in body["messages"]), len(SAYS) - 1)
    name, arguments = SAYS[turn]
    if name in tools:
        tool_call(name, arguments)(handler)
    elif tools:
        tool_call(tools[0], {"word": "yes"})(handler)
    else:
        text(json.dumps(SAYS[-1][1]))(handler)


def main() -> None:
    server = Server((sys.argv[1], int(sys.argv[2])), Handler)
    server.answers, server.bodies, server.headers = [answer], [], []
    server.hung_up = threading.Event()
    server.pages = {"/v1/models": {"object": "list", "data": [{"id": "scripted", "object": "model"}]}}
    server.serve_forever()


if __name__ == "__main__":
    main()
