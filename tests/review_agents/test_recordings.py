"""Conversations that were really held, over repos with planted faults: what was understood then is understood now.

Each file of tests/recordings was made by `lamplighter reviews transcripts`; the answers were given by hand, by somebody
who saw the requests only (those of NAME-earlier.json by one who had written the loop and seen two scores).
`python -m tests.bench agents --recordings tests/recordings --model hand-played` plays them over the repos.
"""

import json
from pathlib import Path

import pytest

from review_agents import claims, parsing
from review_agents.conversation import Conversation, for_wire, unanswered
from review_agents.parsing import Wanted
from review_agents.records import Candidate, Entry, EntryKind, Place, Role, Source
from review_agents.scripted import recorded
from review_agents.tools import RecordFinding, checked

FILES = sorted((Path(__file__).parent.parent / "recordings").glob("*.json"))


def conversations(file: Path) -> dict[str, list[Entry]]:
    found = json.loads(file.read_text(encoding="utf-8"))["conversations"]
    return {name: [Entry.model_validate(entry) for entry in entries] for name, entries in found.items()}


def test_there_are_recordings() -> None:
    assert len(FILES) >= 2


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_call_that_was_carried_out_is_accepted_by_the_tools_of_today(file: Path) -> None:
    recorded(file.read_text(encoding="utf-8"))
    stored = 0
    for entries in conversations(file).values():
        for entry in entries:
            if entry.answer is None:
                continue
            understood = parsing.read(entry.answer)
            assert not understood.problems
            stored += sum(isinstance(checked(one.name, one.arguments), RecordFinding) for one in understood.calls)
    assert stored >= 2


def claimed(call: Wanted) -> Candidate:
    """As it would be stored, without its line being looked up."""
    asked = checked(call.name, call.arguments)
    assert isinstance(asked, RecordFinding)
    return Candidate(
        kind=asked.kind,
        rule=asked.rule,
        title=asked.title,
        description=asked.experience,
        severity=asked.severity,
        places=(Place(file=asked.file, quote=asked.quote),),
        reproduction=None if asked.opinion else claims.reproduction_of(asked, None),
        source=Source.AGENT,
    )


def test_of_what_players_were_refused_as_known_each_could_be_told_apart_by_its_proof() -> None:
    refused = 0
    for file in FILES:
        stored: dict[str, Candidate] = {}
        for entries in conversations(file).values():
            calls = {one.id: one for entry in entries if entry.message for one in entry.message.calls}
            for entry in entries:
                message = entry.message
                if message is None or message.role is not Role.TOOL or message.name != "record_finding":
                    continue
                call = calls[message.call_id]
                candidate = claimed(Wanted(call.name, json.loads(call.arguments)))
                if message.text.startswith("Stored"):
                    stored[candidate.title] = candidate
                elif "known already as “" in message.text:
                    known = stored[message.text.partition("“")[2].partition("”")[0]]
                    assert claims.inseparable(candidate, known) == ""
                    refused += 1
    assert refused >= 8


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_history_of_each_conversation_can_be_had_again_from_its_entries(file: Path) -> None:
    openings = []
    for entries in conversations(file).values():
        talk = Conversation(lambda entry, candidate=None: None, entries)
        assert talk.begun and unanswered(talk.history) == () and len(talk.head) == 4
        assert for_wire(talk.history) == talk.history, "nothing had to be joined"
        results = [message for message in talk.history if message.role is Role.TOOL]
        assert len(results) == sum(len(message.calls) for message in talk.history)
        openings.append(next(entry.history[:3] for entry in entries if entry.kind is EntryKind.OPENED))
    assert len(set(openings)) == 1, "all focuses of a review began with the same bytes"
