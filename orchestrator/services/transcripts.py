"""What agents said and did in a review: to look at as a conversation, and to take away as a recording."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from orchestrator.services import rows
from orchestrator.services.errors import UnknownStep
from orchestrator.services.reviews import known
from orchestrator.services.views import StepRow
from orchestrator.services.workshop import Workshop
from orchestrator.store import steps, transcripts
from orchestrator.store.steps import StepState
from review_agents.records import Answer, Entry, EntryKind, FocusResult, Message, Role, Usage

SETTLED = (StepState.DONE, StepState.FAILED)


@dataclass(slots=True)
class Call:
    """A tool call with what came of it."""

    name: str
    arguments: tuple[tuple[str, str], ...]
    result: str = ""


@dataclass(slots=True)
class Said:
    """One piece of a conversation as a reader meets it."""

    at: datetime
    who: str  # model, service (what the code told the model), opening, note, cut
    text: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)
    usage: Usage | None = None
    messages: tuple[Message, ...] = ()  # of an opening


@dataclass(frozen=True, slots=True)
class TranscriptPage:
    step: StepRow
    review_id: UUID
    repo_name: str
    focus: str
    title: str
    result: FocusResult | None  # None while it runs
    said: tuple[Said, ...]


@dataclass(frozen=True, slots=True)
class FocusRow:
    """A focus of a review, for its page."""

    step: StepRow
    focus: str
    title: str
    entries: int
    result: FocusResult | None


def get(shop: Workshop, step_id: UUID) -> TranscriptPage:
    """The conversation of a focus's step, as far as it has come."""
    with shop.sessions.reading() as db:
        step = steps.get(db, step_id)
        if step is None or not step.name.startswith("focus:"):
            raise UnknownStep(step_id)
        review, repo = known(db, step.review_id)
        found = steps.named(db, step.review_id, step.name)
        turns = [(turn.at, Entry.model_validate(turn.body)) for turn in transcripts.of_step(db, step_id)]
    focus = step.name.partition(":")[2]
    return TranscriptPage(
        step=rows.step_row(step),
        review_id=review.id,
        repo_name=repo.name,
        focus=focus,
        title=title_of(shop, focus),
        result=FocusResult.model_validate(found.result) if found and found.result else None,
        said=tuple(conversation(turns)),
    )


def of_review(shop: Workshop, review_id: UUID) -> tuple[FocusRow, ...]:
    """The focuses of a review in their order; empty where no model took part."""
    with shop.sessions.reading() as db:
        known(db, review_id)
        counted = {name: number for _, name, number in transcripts.steps_with(db, review_id)}
        results = {
            step_id: FocusResult.model_validate_json(body)
            for step_id, body in steps.results(db, review_id, "focus:", states=SETTLED)
        }
        found = [step for step in steps.of_review(db, review_id) if step.name.startswith("focus:")]
    return tuple(
        FocusRow(
            step=rows.step_row(step),
            focus=step.name.partition(":")[2],
            title=title_of(shop, step.name.partition(":")[2]),
            entries=counted.get(step.name, 0),
            result=results.get(step.id),
        )
        for step in found
    )


def recording(shop: Workshop, review_id: UUID) -> str:
    """All conversations of a review as one JSON text, which `--node recording:FILE` plays again."""
    from review_agents.scripted import recording_of

    with shop.sessions.reading() as db:
        known(db, review_id)
        kept = {
            name: [Entry.model_validate(turn.body) for turn in transcripts.of_step(db, step_id)]
            for step_id, name, _ in transcripts.steps_with(db, review_id)
        }
    return recording_of(kept)


def title_of(shop: Workshop, focus: str) -> str:
    return shop.focuses[focus].title if focus in shop.focuses else focus.replace("_", " ").capitalize()


# As a conversation ----------------------------------------------------------------------------


def conversation(turns: Iterable[tuple[datetime, Entry]]) -> list[Said]:
    """Answers with their calls and results together; broken answers as they came, with what was said of them."""
    said: list[Said] = []
    answer: Answer | None = None
    open_calls: dict[str, Call] = {}
    last_text_call: Call | None = None
    for at, entry in turns:
        if entry.kind is EntryKind.OPENED:
            said.append(Said(at, "opening", messages=entry.history, text=entry.note))
        elif entry.kind is EntryKind.CUT:
            said.append(Said(at, "cut", text=entry.note, messages=entry.history[-1:]))
        elif entry.kind is EntryKind.NOTED:
            said.append(Said(at, "note", text=entry.note))
        elif entry.kind is EntryKind.ASKED:
            answer = entry.answer
        elif entry.message is not None:
            message = entry.message
            if message.role is Role.ASSISTANT:
                one = spoken(at, message, answer)
                answer = None
                said.append(one)
                open_calls = {call.id: made for call, made in zip(message.calls, one.calls, strict=False)}
                last_text_call = None
            elif message.role is Role.TOOL and message.call_id in open_calls:
                open_calls[message.call_id].result = message.text
            elif message.text.startswith("Result of ") and said and said[-1].who == "model" and last_text_call is None:
                last_text_call = Call(*text_call(said[-1].text), result=message.text.partition("\n")[2])
                said[-1].calls.append(last_text_call)
            else:
                said.append(Said(at, "service", text=message.text))
    if answer is not None:  # it came, and nothing was done with it yet
        said.append(raw(turns_end(said), answer))
    return said


def spoken(at: datetime, message: Message, answer: Answer | None) -> Said:
    calls = [Call(call.name, arguments_of(call.arguments)) for call in message.calls]
    one = Said(at, "model", text=message.text, calls=calls)
    if answer is not None:
        one.thought, one.usage = answer.thought, answer.usage
        if not calls and answer.calls:  # what it wrote could not be carried out, and was replaced in the history
            one.calls = [Call(call.name or "(no name)", (("as written", call.arguments),)) for call in answer.calls]
    return one


def raw(at: datetime, answer: Answer) -> Said:
    calls = [Call(call.name, arguments_of(call.arguments)) for call in answer.calls]
    return Said(at, "model", text=answer.text, thought=answer.thought, calls=calls, usage=answer.usage)


def turns_end(said: Sequence[Said]) -> datetime:
    return said[-1].at if said else datetime.min


def arguments_of(text: str) -> tuple[tuple[str, str], ...]:
    """Names and values as texts; what is no JSON object as it was written."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return (("as written", text),)
    return tuple(
        (str(name), value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in found.items()
    )


def text_call(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The call in a block of the plain-text protocol, which our own code wrote."""
    inner = text.rpartition("```call\n")[2].rpartition("\n```")[0]
    name, _, arguments = inner.partition("\n")
    return name or "call", arguments_of(arguments)
