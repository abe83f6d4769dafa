"""The inference node and the worker machines, as they are now."""

from datetime import datetime

from orchestrator.services.views import MachineRow, NodeStatus
from orchestrator.services.workshop import Workshop
from orchestrator.store import machines
from orchestrator.store.machines import Machine
from review_agents.ports import NodeHealth

LEASES_UNTIL_LOST = 3


def status(shop: Workshop) -> NodeStatus:
    """Asks the node, which may take seconds when it does not answer."""
    health = shop.node.health() if shop.node else NodeHealth(reachable=False, problem="no model is configured")
    with shop.sessions.reading() as db:
        found = machines.listed(db)
    now = shop.clock()
    return NodeStatus(
        configured=shop.node is not None,
        url=shop.settings.model_url,
        model=shop.settings.model_name,
        reachable=health.reachable,
        problem=health.problem,
        models=health.models,
        seconds=health.seconds,
        work=health.work,
        machines=tuple(machine_row(one, now, shop.settings.lease_s) for one in found),
    )


def machine_row(machine: Machine, now: datetime, lease_s: float) -> MachineRow:
    silent_s = (now - machine.heartbeat).total_seconds() if machine.heartbeat else None
    alive = machine.worker_pid is not None and silent_s is not None and silent_s < LEASES_UNTIL_LOST * lease_s
    return MachineRow(
        id=machine.id,
        alive=alive,
        heartbeat=machine.heartbeat,
        version=machine.version,
        sandbox=machine.sandbox or {},
        current_review=machine.current_review,
    )
