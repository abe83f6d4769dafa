"""A conversation with a model: a history that only grows, and a transcript of all that happened in it.

The history is what the model sees. It is appended to and never changed, because a server that keeps the prefix would
have to read everything after the change again; when it must be cut, it is cut once and deeply. The transcript
(`Entry` by `Entry`) also keeps raw answers and what was refused, and is enough to go on after a crash.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from review_agents.records import Answer, Candidate, Entry, EntryKind, Message, Role, ToolCall

UNFINISHED = "The container was reset before this call came to its end."
JOINED = {(Role.USER, Role.USER), (Role.ASSISTANT, Role.ASSISTANT), (Role.TOOL, Role.USER)}  # neighbours, as sent


class Keep(Protocol):
    """Stores an entry, and the candidate that came with it, in one go."""

    def __call__(self, entry: Entry, candidate: Candidate | None = None) -> None: ...


class Conversation:
    """`keep` is called with each entry before anything else happens with it."""

    def __init__(self, keep: Keep, earlier: Iterable[Entry] = ()):
        self._keep = keep
        self._history: list[Message] = []
        self._head = 0  # messages of the opening, which no cut takes away
        for entry in earlier:
            self._apply(entry)

    @property
    def history(self) -> tuple[Message, ...]:
        return tuple(self._history)

    @property
    def head(self) -> tuple[Message, ...]:
        return tuple(self._history[: self._head])

    @property
    def begun(self) -> bool:
        return bool(self._history)

    def open(self, opening: Sequence[Message], protocol: str) -> None:
        self._take(Entry(kind=EntryKind.OPENED, history=tuple(opening), note=protocol))

    def answered(self, answer: Answer) -> None:
        self._take(Entry(kind=EntryKind.ASKED, answer=answer))

    def say(self, message: Message, candidate: Candidate | None = None) -> None:
        self._take(Entry(kind=EntryKind.SAID, message=message), candidate)

    def tell(self, text: str) -> None:
        """A message of ours to the model. Behind a tool's result it is sent as the end of that (`for_wire`)."""
        self.say(Message(role=Role.USER, text=text))

    def note(self, text: str) -> None:
        self._take(Entry(kind=EntryKind.NOTED, note=text))

    def cut(self, history: Sequence[Message], why: str) -> None:
        self._take(Entry(kind=EntryKind.CUT, history=tuple(history), note=why))

    def mend(self) -> bool:
        """After a crash: answer calls whose result was lost. Returns whether there were any."""
        lost = unanswered(self._history)
        for call in lost:
            self.say(Message(role=Role.TOOL, text=UNFINISHED, call_id=call.id, name=call.name))
        return bool(lost)

    def _take(self, entry: Entry, candidate: Candidate | None = None) -> None:
        self._keep(entry, candidate)
        self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        if entry.kind is EntryKind.OPENED:
            self._history = list(entry.history)
            self._head = len(self._history)
        elif entry.kind is EntryKind.CUT:
            self._history = list(entry.history)
        elif entry.message is not None:
            self._history.append(entry.message)


def protocol_of(entries: Iterable[Entry]) -> str:
    """How the tools of a stored conversation are called; "" when it has not begun."""
    return next((entry.note for entry in entries if entry.kind is EntryKind.OPENED), "")


def unanswered(history: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Calls of the last assistant message that no tool message after it answers."""
    for at in range(len(history) - 1, -1, -1):
        if history[at].role is Role.ASSISTANT:
            answered = {message.call_id for message in history[at + 1 :]}
            return tuple(call for call in history[at].calls if call.id not in answered)
    return ()


def for_wire(history: Sequence[Message]) -> tuple[Message, ...]:
    """As sent: neighbours of the same role, which strict chat templates refuse, are one message, and what we say right
    behind a tool's result goes with that result.

    The latter because templates of thinking models write the answers before the last message of a user without their
    thoughts. A new one there changes every answer since the one before, and the node has to read all that came after
    the first of them again; words within a result cost themselves only.

    Joining is done the same way each time, so what was sent before stays the beginning of what is sent later, except
    that a last message of ours may have grown; then the model has not answered it yet.
    """
    joined: list[Message] = []
    for message in history:
        last = joined[-1] if joined else None
        if last is not None and (last.role, message.role) in JOINED:
            texts = [text for text in (last.text, message.text) if text]
            joined[-1] = last.model_copy(update={"text": "\n\n".join(texts), "calls": last.calls + message.calls})
        else:
            joined.append(message)
    return tuple(joined)


def turns_in(history: Sequence[Message]) -> int:
    return sum(message.role is Role.ASSISTANT for message in history)


def shared_prefix(one: Sequence[Message], other: Sequence[Message]) -> int:
    """How many leading messages are the same."""
    same = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        same += 1
    return same
