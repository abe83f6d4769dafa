"""The fake keeps the contract's order of calls and fails where it is told to."""

from pathlib import Path

import pytest

from orchestrator.sandbox.contract import BoxGone, BoxOrder, SandboxError
from orchestrator.sandbox.fake import FakeSandbox
from review_agents.records import Network, Ran

METHODS = ["prepare", "open", "run", "read", "write", "list", "destroy", "drop", "sweep", "describe", "prepared"]


def whole_life(sandbox: FakeSandbox) -> None:
    sandbox.describe()
    sandbox.sweep([])
    sandbox.prepare("r", Path("x.bundle"), "0" * 40)
    sandbox.prepared("r")
    box = sandbox.open(BoxOrder("r", "s", 1))
    box.write("a", b"x")
    box.run("true")
    box.read("a", limit_bytes=1)
    box.list(".")
    box.destroy()
    sandbox.drop("r")


@pytest.mark.parametrize("method", METHODS)
def test_every_call_can_be_told_to_fail(method: str):
    sandbox = FakeSandbox()
    sandbox.fail[method] = SandboxError(f"{method} fails")
    with pytest.raises(SandboxError, match=method):
        whole_life(sandbox)
    del sandbox.fail[method]
    whole_life(sandbox)


def test_failures_may_come_in_a_list_one_a_call():
    sandbox = FakeSandbox(lambda command: Ran(exit=0, head=command))
    sandbox.prepare("r", Path("x"), "0" * 40)
    box = sandbox.open(BoxOrder("r", "s", 1))
    sandbox.fail["run"] = [None, BoxGone("killed")]
    assert box.run("one").output == "one"
    with pytest.raises(BoxGone):
        box.run("two")
    assert box.run("three").output == "three"


def test_box_needs_a_prepared_review_and_is_gone_after_destroy_drop_or_sweep():
    sandbox = FakeSandbox()
    with pytest.raises(SandboxError, match="prepare it first"):
        sandbox.open(BoxOrder("r", "s", 1))
    for end in (lambda box: box.destroy(), lambda box: sandbox.drop("r"), lambda box: sandbox.sweep([])):
        sandbox.prepare("r", Path("x"), "0" * 40)
        box = sandbox.open(BoxOrder("r", "s", 1))
        end(box)
        with pytest.raises(BoxGone):
            box.run("true")


def test_egress_needs_a_box_with_egress():
    sandbox = FakeSandbox()
    sandbox.prepare("r", Path("x"), "0" * 40)
    with pytest.raises(SandboxError, match="without egress"):
        sandbox.open(BoxOrder("r", "s", 1)).run("true", network=Network.EGRESS)
