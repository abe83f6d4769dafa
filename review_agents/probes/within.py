"""Sending our small programs into the sandbox and getting their JSON back."""

import json
import shlex
from importlib import resources
from typing import Any

from review_agents.ports import NoSuchFile, Workspace
from review_agents.records import Environment, Network, Ran

RESULT_LIMIT_BYTES = 20_000_000


class InsideFailed(RuntimeError):
    """One of our programs did not end well inside; `ran` says how."""

    def __init__(self, name: str, ran: Ran):
        super().__init__(f"inside/{name}.py ended with {ran.ending}: {ran.output[-400:]}")
        self.ran = ran


def run_inside(
    workspace: Workspace,
    name: str,
    *arguments: str,
    python: str = "python3",
    environment: Environment = Environment.NONE,
    network: Network = Network.NONE,
    timeout_s: float = 120.0,
) -> Any:
    """Run `inside/NAME.py ARGUMENTS RESULT` isolated from the repo's own modules; give the JSON it wrote."""
    script, result = send(workspace, name), f"/tmp/lamplighter-{name}.json"
    command = f"rm -f {result}; {python} -I {script} {shlex.join(arguments)} {result}"
    ran = workspace.run(command, environment=environment, network=network, timeout_s=timeout_s)
    try:
        return json.loads(workspace.read(result, limit_bytes=RESULT_LIMIT_BYTES))
    except (NoSuchFile, ValueError) as problem:
        raise InsideFailed(name, ran) from problem


def send(workspace: Workspace, name: str, path: str = "") -> str:
    """Put `inside/NAME.py` into the workspace, at that path below /tmp; its path there."""
    path = path or f"/tmp/lamplighter-{name}.py"
    workspace.write(path, resources.files("review_agents.probes.inside").joinpath(f"{name}.py").read_text("utf-8"))
    return path
