"""Recordings changed by code: what is taken out is gone, what is told otherwise is told, and all can be played."""

from pathlib import Path

import pytest

from review_agents.parsing import Wanted
from review_agents.records import Answer, Entry, EntryKind, Message, Role
from review_agents.scripted import call, recorded
from review_agents.tools import RecordFinding, checked
from tests.bench import minds
from tests.bench.minds import calls_of
from tests.support.tiny_agents import DONE, finding

RECORDINGS = sorted((Path(__file__).parent.parent / "recordings").glob("*.json"))
HELD, REFUSED = "Stored as finding 1 (its proof held).", "Not stored yet. Its script was run in a fresh container: no"


def conversation(*said: tuple[Answer, str]) -> list[Entry]:
    """As it is stored: each answer, and what its one call gave."""
    entries = [Entry(kind=EntryKind.OPENED, history=(Message(role=Role.SYSTEM, text="Rules"),), note="native")]
    for answer, result in said:
        name = answer.calls[0].name
        entries += [
            Entry(kind=EntryKind.ASKED, answer=answer),
            Entry(kind=EntryKind.SAID, message=Message(role=Role.TOOL, name=name, text=result)),
        ]
    return entries


def recording() -> dict[str, list[Entry]]:
    one, two = finding(), finding(title="add.sh takes away", file="add.sh", quote="$1 - $2", command="bash add.sh 5 3")
    return {
        "focus:correctness": conversation(
            (call("record_finding", **one), REFUSED),
            (call("record_finding", **one), HELD),
            (call("record_finding", **two), HELD),
            (DONE, "The review of your focus has ended."),
        )
    }


def records(conversations: minds.Conversations) -> list[tuple[str, Wanted]]:
    """All findings that would be recorded, each with its conversation."""
    calls = [(name, one) for name, entries in conversations.items() for entry in entries for one in calls_of(entry)]
    return [(name, one) for name, one in calls if one.name == minds.RECORD]


def told(conversations: minds.Conversations) -> list[tuple[str, str]]:
    return [(str(one.arguments["file"]), str(one.arguments["title"])) for _, one in records(conversations)]


def test_a_finding_is_told_as_often_as_its_proof_held() -> None:
    assert [one.file for one in minds.proved(recording())] == ["greet.sh", "add.sh"]


def test_a_finding_that_is_taken_out_was_never_tried_either() -> None:
    (first, _) = minds.proved(recording())
    assert [file for file, _ in told(minds.without(recording(), first))] == ["add.sh"]


def test_a_finding_that_is_taken_out_is_not_told_of_another_line_with_the_same_script_either() -> None:
    (first, _) = minds.proved(recording())
    again = call("record_finding", **finding(title="In other words", file="other.sh", quote="elsewhere"))
    more = {**recording(), "focus:newcomer": conversation((again, REFUSED), (DONE, ""))}
    assert [file for file, _ in told(minds.without(more, first))] == ["add.sh"]


def test_another_mind_tells_the_same_in_the_opposite_order_and_in_other_words() -> None:
    before, after = told(recording()), told(minds.reworded(recording()))
    assert [file for file, _ in after] == ["add.sh", "greet.sh", "greet.sh"]
    assert not {title for _, title in before} & {title for _, title in after}


def test_a_conversation_that_is_broken_off_has_begun_and_does_not_finish() -> None:
    (entries,) = minds.broken_off(recording()).values()
    calls = [call.name for entry in entries for call in calls_of(entry)]
    assert calls == ["record_finding", "record_finding"]


def test_calls_in_the_text_stay_in_the_text() -> None:
    text = 'I look.\n\n```call\nread\n{"path": "README.md"}\n```'
    entry = Entry(kind=EntryKind.ASKED, answer=Answer(text=text))
    (changed,) = minds.changed({"": [entry]}, lambda name, one: Wanted("search", {"pattern": "x"}))[""]
    assert changed.answer is not None and changed.answer.calls == ()
    assert [(one.name, one.arguments) for one in calls_of(changed)] == [("search", {"pattern": "x"})]


@pytest.mark.parametrize("file", RECORDINGS, ids=lambda file: file.stem)
def test_every_recording_can_be_changed_and_played(file: Path, tmp_path: Path) -> None:
    whole = minds.read(file)
    proved = minds.proved(whole)
    assert proved and len(proved) <= len(told(whole))
    gone = minds.without(whole, proved[0])
    assert proved[0] not in [minds.told_by(name, one) for name, one in records(gone)]
    for mind in (gone, minds.reworded(gone), minds.broken_off(gone)):
        written = minds.write(mind, tmp_path / "mind.json")
        assert recorded(written.read_text(encoding="utf-8")).ability(cancelled=lambda: False).model == "recording"
        for _, one in records(mind):
            assert isinstance(checked(one.name, one.arguments), RecordFinding), "it would be carried out"
