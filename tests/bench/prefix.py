"""How much of its prompts our node knows already in a review of thirty turns, by its own counters.

The node is a real one: sockets, engine, prefix store, and a chat template that drops earlier thoughts as Qwen's does.
Only the model is a script: it thinks, calls a tool in each turn, goes in a circle, errs, and spends its whole budget,
so it is told all that the loop has to tell.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, pairwise

import httpx

from inference_node.engine.engine import Engine
from inference_node.lab.serving import Background
from inference_node.server.app import create_app
from inference_node.speculate.scripted import ScriptedTarget, scripted_facts
from orchestrator.clients.inference import HttpChatModel
from review_agents.focus import Budget, builtin
from review_agents.records import FocusState, Ran, Role
from tests.bench import figures
from tests.inference_node.engine.conftest import says
from tests.inference_node.engine.toy import END, VOCAB, toy
from tests.support.agents import Hand, Played, finding, play, report
from tests.support.chat_templates import THINKING_TEMPLATE

TURNS = 30
SILENT = (10, 20)  # turns, in the second script
CONTEXT = 400_000  # the toy's tokens are single letters
BUDGET = Budget(turns=TURNS)  # of a focus that says nothing else; the tokens, which are letters here, last for it
SAID = (
    "You have made this call 3 times",
    "measure is not one of your tools",
    "turns are left",
    "Most of your budget",
    "Your budget ends",
)
NOTE = (
    "`known_share_at_best`: of the tokens of all prompts those that had been sent or written before; no more can be "
    "known, and what is written behind a thought is not, because thoughts are not sent back. "
    "`known_share_with_silent_turns`: the same script with two answers that call no tool; a message of the user has to "
    "follow those, and the template then drops the thoughts before it."
)


def run() -> dict[str, float]:
    result = measured()
    figures.record("prefix", result, model="scripted", note=NOTE)
    return result


def measured() -> dict[str, float]:
    """One focus of thirty turns, and then another one of the same review, which begins with the same material."""
    with node(words) as url:
        first = focus(url, "correctness")
        one = counted(url)
        second = focus(url, "newcomer")
        both = counted(url)
    for played in (first, second):
        spent_its_budget(played)
    assert first.result.usage.prompt == one["prompt"] and first.result.usage.cached == one["restored"]
    with node(lambda turn: "I look on." if turn in SILENT else words(turn)) as url:
        silent = focus(url, "correctness")
        with_silent = counted(url)
    spent_its_budget(silent)
    opening = first.entries[1].answer
    assert opening is not None
    return {
        "turns": TURNS,
        "prompt_tokens": one["prompt"],
        "known_share": round(one["known"] / one["prompt"], 4),
        "known_share_at_best": round(1 - new(first) / one["prompt"], 4),
        "known_share_after_the_opening": round(one["known"] / (one["prompt"] - opening.usage.prompt), 4),
        "restored_share": round(one["restored"] / one["prompt"], 4),
        "known_share_of_the_next_focus": round((both["known"] - one["known"]) / (both["prompt"] - one["prompt"]), 4),
        "known_share_with_silent_turns": round(with_silent["known"] / with_silent["prompt"], 4),
    }


def spent_its_budget(played: Played) -> None:
    """It was told all that there is to tell, and its history only grew."""
    assert (played.result.turns, played.result.state) == (TURNS, FocusState.OUT_OF_BUDGET), played.result
    assert played.result.report is not None, played.result.reason
    told = "\n".join(
        entry.message.text for entry in played.entries if entry.message and entry.message.role is not Role.ASSISTANT
    )
    assert all(words in told for words in SAID), [words for words in SAID if words not in told]


def new(played: Played) -> int:
    """Tokens of all its prompts that had neither been sent nor been written before."""
    usages = [entry.answer.usage for entry in played.entries if entry.answer is not None]
    grown = (later.prompt - earlier.prompt - earlier.completion for earlier, later in pairwise(usages))
    return usages[0].prompt + sum(max(0, more) for more in grown)


@contextmanager
def node(answers: Callable[[int], str]) -> Iterator[str]:
    """Its model gives that answer in each turn of a conversation, the first of which is 1."""
    facts = scripted_facts(vocab=VOCAB, known_ids=265, stop_ids=(END,), context=CONTEXT)
    turns = cycle(range(1, TURNS + 1))
    engine = Engine(
        lambda told: (
            ScriptedTarget(lambda tokens: says(answers(next(turns)))(tokens), facts=facts),
            toy(THINKING_TEMPLATE),
        )
    )
    engine.wait_until_loaded(30)
    background = Background(create_app(engine))
    try:
        yield background.url
    finally:
        background.stop()
        engine.close()


def words(turn: int) -> str:
    """What the model writes: commands, one of them three times over, a tool of others, findings, its report."""
    thought = f"Turn {turn}. What would a user try now? I see what comes of it.\n</think>\n"
    if turn == TURNS:
        return thought + called("finish", summary=report()["summary"])
    if turn > TURNS - BUDGET.conclude_turns:
        return thought + called("record_finding", **finding(title=f"{finding()['title']}, seen in turn {turn}"))
    if turn == 4:
        return thought + called("measure", command="python -c 'import sums'", name="import")
    return thought + called("run", command=f"python -c 'print({5 if turn in (6, 7) else turn})'")


def called(tool: str, /, **arguments: object) -> str:
    given = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in given.items())
    return f"<tool_call>\n<function={tool}>\n{inside}</function>\n</tool_call>"


def focus(url: str, name: str) -> Played:
    model = HttpChatModel(url, tools="native")
    hand = Hand(says=lambda command: Ran(exit=0, seconds=0.1, head=f"{command}\n" * 15))
    return play(model, focus=builtin()[name], hand=hand, budget=BUDGET.model_dump())  # type: ignore[arg-type]


def counted(url: str) -> dict[str, int]:
    return dict(httpx.get(f"{url}/stats", trust_env=False).json()["tokens"])
