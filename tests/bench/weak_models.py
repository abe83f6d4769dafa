"""The agents' loop against a weak model behind a real server, for as many turns as asked: no crash, every turn counted.

    python -m tests.bench weak-models --node http://127.0.0.1:8751/v1 --turns 1000

The repo, its commands and their output are made up, so that what is tested is the loop and the wire. What a weak model
writes is mostly nonsense; each conversation must come to an end of its own, and its turns must add up.
"""

import time
from collections import Counter
from dataclasses import dataclass, field

from orchestrator.clients.inference import HttpChatModel
from review_agents.focus import builtin
from review_agents.ports import Ability
from review_agents.records import Answer, AnswerEnd, EntryKind, FocusState, Question, Ran
from review_agents.repetition import repeats_itself
from tests.support.agents import Hand, play

ANSWER_TOKENS = 160  # a weak model that is let talk says nothing more


@dataclass
class Watched:
    """A model whose answers are counted, with a seed that differs in each conversation."""

    inner: HttpChatModel
    known: Ability
    seed: int = 0
    answers: list[Answer] = field(default_factory=list)
    asked: list[Question] = field(default_factory=list)

    def ability(self, *, cancelled):  # type: ignore[no-untyped-def]
        return self.known

    def ask(self, question: Question, *, cancelled):  # type: ignore[no-untyped-def]
        answer = self.inner.ask(question.model_copy(update={"seed": question.seed + self.seed}), cancelled=cancelled)
        self.answers.append(answer)
        return answer


def run(node: str, model: str, *, turns: int, tools: str = "auto", temperature: float = 0.8) -> dict[str, float]:
    """Conversations of all focuses in turn, until so many turns were taken."""
    client = HttpChatModel(node, model, tools=tools, temperature=temperature, repeats=repeats_itself)
    known = client.ability(cancelled=lambda: False)
    print(f"{known.model}: tools {'native' if known.native_tools else 'in the text'}, context {known.context_tokens}")
    states: Counter[str] = Counter()
    taken = malformed = conversations = truncated = looped = findings = unaccounted = 0
    seconds = time.monotonic()
    focuses = list(builtin().values())
    while taken < turns:
        focus = focuses[conversations % len(focuses)]
        watched = Watched(client, known, seed=1000 * conversations)
        hand = Hand(says=lambda command: Ran(exit=0, seconds=0.1, head=f"{command[:200]}\nok\n"))
        played = play(watched, focus=focus, budget={"answer_tokens": ANSWER_TOKENS, "turns": 25}, hand=hand)  # type: ignore[arg-type]
        conversations += 1
        result = played.result
        taken += result.turns
        kept = [entry.answer for entry in played.entries if entry.kind is EntryKind.ASKED]
        unaccounted += kept != watched.answers or result.turns < len(kept) or result.usage.completion == 0
        states[str(result.state)] += 1
        malformed += result.malformed
        truncated += sum(answer.end is AnswerEnd.LENGTH for answer in watched.answers)
        looped += sum(answer.end is AnswerEnd.LOOP for answer in watched.answers)
        findings += len(result.candidates)
        print(f"{conversations:4} {focus.name:12} {result.state:18} {result.turns:3} turns, {taken} in all", flush=True)
    assert sum(states.values()) == conversations
    return {
        "turns": taken,
        "conversations": conversations,
        "unaccounted": unaccounted,
        "malformed": malformed,
        "truncated": truncated,
        "looped": looped,
        "findings": findings,
        "finished": states[FocusState.FINISHED],
        "seconds": round(time.monotonic() - seconds),
    }
