"""How much of its prompts our node knows already in a review of thirty turns, by its own counters.

The node is a real one: sockets, engine, prefix store. Only the model is a script, so that each turn calls a tool.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import httpx

from inference_node.engine.engine import Engine
from inference_node.lab.serving import Background
from inference_node.server.app import create_app
from inference_node.speculate.scripted import ScriptedTarget, scripted_facts
from orchestrator.clients.inference import HttpChatModel
from review_agents.focus import builtin
from review_agents.records import FocusState, Ran
from tests.bench import figures
from tests.inference_node.engine.conftest import says
from tests.inference_node.engine.toy import END, THINKING_TEMPLATE, VOCAB, toy
from tests.support.agents import Hand, Played, play, report

TURNS = 30
CONTEXT = 400_000  # the toy's tokens are single letters


def run() -> dict[str, float]:
    result = measured(TURNS)
    figures.record("prefix", result, model="scripted")
    return result


def measured(turns: int) -> dict[str, float]:
    """One focus of so many turns, and then another one of the same review, which begins with the same material."""
    with node(turns) as url:
        first = focus(url, "correctness")
        one = counted(url)
        second = focus(url, "newcomer")
        both = counted(url)
    assert first.result.turns == second.result.turns == turns, (first.result, second.result)
    for played in (first, second):
        assert played.result.state is FocusState.FINISHED, played.result.reason
    assert first.result.usage.prompt == one["prompt"] and first.result.usage.cached == one["restored"]
    opening = first.entries[1].answer
    assert opening is not None
    return {
        "turns": turns,
        "prompt_tokens": one["prompt"],
        "known_share": round(one["known"] / one["prompt"], 4),
        "known_share_after_the_opening": round(one["known"] / (one["prompt"] - opening.usage.prompt), 4),
        "restored_share": round(one["restored"] / one["prompt"], 4),
        "known_share_of_the_next_focus": round((both["known"] - one["known"]) / (both["prompt"] - one["prompt"]), 4),
    }


@contextmanager
def node(turns: int) -> Iterator[str]:
    """Its model runs a command at each turn but the last of each conversation, and then finishes."""
    numbers = count(1)

    def answer() -> str:
        number = next(numbers)
        if number % turns:
            return called("run", command=f"python -c 'print({number})'")
        return called("finish", summary=report()["summary"])

    facts = scripted_facts(vocab=VOCAB, known_ids=265, stop_ids=(END,), context=CONTEXT)
    engine = Engine(
        lambda told: (ScriptedTarget(lambda tokens: says(answer())(tokens), facts=facts), toy(THINKING_TEMPLATE))
    )
    engine.wait_until_loaded(30)
    background = Background(create_app(engine))
    try:
        yield background.url
    finally:
        background.stop()
        engine.close()


def called(name: str, **arguments: str) -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"</think>\n<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def focus(url: str, name: str) -> Played:
    model = HttpChatModel(url, tools="native")
    hand = Hand(says=lambda command: Ran(exit=0, seconds=0.1, head=f"{command}\n" * 15))
    budget = {"turns": TURNS + 10, "tokens": 10**9, "answer_tokens": 2000}
    return play(model, focus=builtin()[name], hand=hand, budget=budget)  # type: ignore[arg-type]


def counted(url: str) -> dict[str, int]:
    return dict(httpx.get(f"{url}/stats", trust_env=False).json()["tokens"])
