"""Tiny reviews with agents: a scripted model for each focus, over the repo of tests.support.tiny."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.services.workshop import Workshop
from orchestrator.store.session import Sessions
from review_agents.focus import builtin
from review_agents.records import Ran
from review_agents.scripted import ScriptedModel, call
from tests.support.tiny import FILES, Script, tiny_shop

PROVE = "set -e\nbash greet.sh | tr a-z A-Z"
SHOUTS = Ran(exit=0, seconds=0.1, head="GOOD MORNING\n")
FOCUSES = {name: builtin()[name] for name in ("newcomer", "correctness")}


def finding(**changed: Any) -> dict[str, Any]:
    return {
        "title": "greet.sh greets in the morning at any time of the day",
        "kind": "correctness",
        "rule": "wrong_result",
        "severity": "high",
        "severity_reason": "everybody who greets in the evening",
        "experience": "In the evening a user is told good morning.",
        "file": "greet.sh",
        "quote": "echo good morning",
        "command": PROVE,
        "output_contains": ["GOOD MORNING"],
        "control": "test -f greet.sh",
        **changed,
    }


DONE = call("finish", summary="I looked at the one script.", scores={"correctness": 4, "overall": 5})
NOTHING = [call("read", path="README.md"), DONE]
FINDS = [call("run", command="bash greet.sh"), call("record_finding", **finding()), DONE]


def thinking(sessions: Sessions, data: Path, script: Script, **answers: Sequence[Any]) -> Workshop:
    """A workshop whose model is scripted for each focus; `shop.chat()` is always the same model."""
    model = ScriptedModel({f"focus:{name}": steps for name, steps in answers.items()})
    shop = tiny_shop(sessions, data, script=script, chat=lambda: model, focuses=FOCUSES)
    files = {name: text.encode() for name, text in FILES.items()}
    shop.sandbox.files = files  # type: ignore[union-attr]
    return shop


def model_of(shop: Workshop) -> ScriptedModel:
    assert shop.chat is not None
    model = shop.chat()
    assert isinstance(model, ScriptedModel)
    return model
