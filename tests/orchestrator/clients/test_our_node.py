"""The agents' loop against our own node: real sockets, real prefix store, its own counters; the model is a script."""

import json
from collections.abc import Callable

from inference_node.speculate.scripted import scripted_facts
from orchestrator.clients.inference import HttpChatModel
from review_agents.records import FocusState, Ran
from tests.inference_node.engine.conftest import says
from tests.inference_node.engine.toy import END, VOCAB
from tests.inference_node.server.conftest import Served, serve  # noqa: F401
from tests.support.agents import Hand, play, report

TURNS = 30


def test_over_thirty_turns_the_node_knows_nearly_all_of_each_prompt_by_its_own_counters(
    serve: Callable[..., Served],  # noqa: F811
) -> None:
    calls = iter(range(1000))

    def called(name: str, **arguments: str) -> str:
        inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        return f"</think>\n<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"

    def answer() -> str:
        number = next(calls)
        if number < TURNS:
            return called("run", command=f"python -c 'print({number})'")
        return called("finish", summary=report()["summary"])

    node = serve(
        lambda tokens: says(answer())(tokens),
        facts=scripted_facts(vocab=VOCAB, known_ids=265, stop_ids=(END,), context=400_000),
    )
    hand = Hand(says=lambda command: Ran(exit=0, seconds=0.1, head=f"{command}\n" * 15))
    model = HttpChatModel(node.url, tools="native")
    played = play(model, hand=hand, budget={"turns": 40, "tokens": 10**9, "answer_tokens": 2000})  # type: ignore[arg-type]
    assert played.result.state is FocusState.FINISHED, played.result.reason
    assert played.result.turns == TURNS + 1
    counted = json.loads(node.http.get("/stats").text)["tokens"]
    usage = played.result.usage
    assert usage.prompt == counted["prompt"] and usage.cached == counted["restored"]
    first = played.entries[1].answer
    assert first is not None
    assert counted["known"] / (counted["prompt"] - first.usage.prompt) >= 0.95
    assert counted["restored"] / (counted["prompt"] - first.usage.prompt) >= 0.9
