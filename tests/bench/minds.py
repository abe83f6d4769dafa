"""Recordings of agents, changed by code: the same judgement in other words, with a finding less, or broken off early.

A recording is a model (review_agents/scripted.py). Playing a changed one is a second night with another mind, whose
difference to the first is known exactly.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from review_agents import parsing
from review_agents.parsing import Wanted
from review_agents.records import Answer, Entry, EntryKind, Kind, Message, Role, ToolCall
from review_agents.rules import RULES
from review_agents.scripted import RECORDING, recording_of

Conversations = Mapping[str, Sequence[Entry]]  # by name, for example focus:security
RECORD = "record_finding"
STORED, HELD = "Stored as finding", "its proof held"
LONGEST_TITLE = 120


@dataclass(frozen=True)
class Told:
    """A finding that a recording tells, as far as it can be known again in it."""

    conversation: str
    kind: str
    file: str
    quote: str
    title: str
    script: str


def read(file: Path) -> dict[str, list[Entry]]:
    found = json.loads(file.read_text(encoding="utf-8"))
    if found.get(RECORDING) != 1:
        raise SystemExit(f"{file} is no recording of transcripts.")
    return {
        name: [Entry.model_validate(entry) for entry in entries] for name, entries in found["conversations"].items()
    }


def write(conversations: Conversations, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(recording_of(conversations), encoding="utf-8")
    return file


def focuses(conversations: Conversations) -> tuple[str, ...]:
    return tuple(name.removeprefix("focus:") for name in conversations)


def proved(conversations: Conversations) -> list[Told]:
    """The findings whose proof held when they were recorded, in order."""
    found = []
    for name, entries in conversations.items():
        wanted = [call for entry in entries for call in calls_of(entry) if call.name == RECORD]
        given = [text for entry in entries if entry.kind is EntryKind.SAID for text in results_of(entry.message)]
        found += [
            told_by(name, call)
            for call, result in zip(wanted, given, strict=False)
            if result.startswith(STORED) and HELD in result
        ]
    return list(dict.fromkeys(found))


def results_of(message: Message | None) -> list[str]:
    """What recording a finding gave, native or in the plain-text protocol."""
    if message is None:
        return []
    if message.role is Role.TOOL:
        return [message.text] if message.name == RECORD else []
    before = f"Result of {RECORD}:\n"
    return [message.text.removeprefix(before)] if message.text.startswith(before) else []


def told_by(conversation: str, call: Wanted) -> Told:
    said = {name: str(call.arguments.get(name, "")) for name in ("kind", "file", "quote", "title", "command")}
    quote, script = (" ".join(said[name].split()) for name in ("quote", "command"))
    return Told(conversation, said["kind"], said["file"], quote, said["title"], script)


def without(conversations: Conversations, gone: Told) -> dict[str, list[Entry]]:
    """As if that finding had never been seen, by anybody; also where it was told of another line with its script."""

    def keep(name: str, call: Wanted) -> Wanted | None:
        return None if call.name == RECORD and same(told_by(name, call), gone) else call

    return changed(conversations, keep)


def same(one: Told, other: Told) -> bool:
    alike = (one.kind, one.file, one.quote) == (other.kind, other.file, other.quote)
    return alike or (one.script != "" and one.script == other.script)


def reworded(conversations: Conversations) -> dict[str, list[Entry]]:
    """The same findings of somebody else: other titles, words, scripts and rules, told in the opposite order."""
    return {name: in_reverse(entries) for name, entries in changed(conversations, in_other_words).items()}


def in_other_words(name: str, call: Wanted) -> Wanted:
    if call.name != RECORD:
        return call
    said = dict(call.arguments)
    title, experience = str(said.get("title", "")), str(said.get("experience", ""))
    first = experience.partition(". ")[0].strip().rstrip(".")
    said["title"] = f"In {Path(str(said.get('file', ''))).name}: {first}"[:LONGEST_TITLE]
    said["experience"] = f"Somebody else puts it so. {title}"
    said["severity_reason"] = "whoever relies on what it says"
    if said.get("command"):
        said["command"] = f"{said['command']}\n# written by another mind"
    rules, rule = RULES[Kind(str(said["kind"]))], str(said["rule"])
    if rule in rules:  # else it was refused, and is again
        said["rule"] = rules[(rules.index(rule) + 1) % len(rules)]
    return Wanted(call.name, said)


def in_reverse(entries: Sequence[Entry]) -> list[Entry]:
    """The findings of a conversation in the opposite order; everything else stays where it is."""
    told = [call for entry in entries for call in calls_of(entry) if call.name == RECORD]
    return changed({"": entries}, lambda name, call: told.pop() if call.name == RECORD else call)[""]


def broken_off(conversations: Conversations) -> dict[str, list[Entry]]:
    """Each conversation ends in its middle, before it has finished: the node refuses what comes then."""
    found = {}
    for name, entries in conversations.items():
        asked = [at for at, entry in enumerate(entries) if entry.answer is not None]
        found[name] = list(entries[: asked[len(asked) // 2]]) if asked else list(entries)
    return found


# Calls within answers ------------------------------------------------------------------------


def calls_of(entry: Entry) -> tuple[Wanted, ...]:
    return parsing.read(entry.answer).calls if entry.answer is not None else ()


def changed(conversations: Conversations, change: Callable[[str, Wanted], Wanted | None]) -> dict[str, list[Entry]]:
    """What a model would play: how it began, and its answers with each call changed or (None) left out."""
    found: dict[str, list[Entry]] = {}
    for name, entries in conversations.items():
        kept = found.setdefault(name, [])
        for entry in entries:
            if entry.kind is EntryKind.OPENED:
                kept.append(entry)
            elif entry.answer is not None:
                calls = calls_of(entry)
                after = [one for call in calls if (one := change(name, call)) is not None]
                if after or not calls:
                    kept.append(entry.model_copy(update={"answer": calling(entry.answer, after)}))
    return found


def calling(answer: Answer, calls: Sequence[Wanted]) -> Answer:
    """The answer with these calls in the place of its own, native or in the text as before."""
    if answer.calls:
        made = tuple(ToolCall(id=f"c{at}", name=call.name, arguments=call.text) for at, call in enumerate(calls))
        return answer.model_copy(update={"calls": made})
    if not calls:
        return answer
    blocks = "\n\n".join(f"```call\n{call.name}\n{call.text}\n```" for call in calls)
    return answer.model_copy(update={"text": f"{parsing.read(answer).said}\n\n{blocks}".strip()})
