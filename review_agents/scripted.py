"""Models that are no models: a list of answers played back, or a recorded transcript.

A recording is a model, so what an agent did once can be tested for ever without a GPU: it says the same things in the
same order, and code around it must do with them what it did.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from review_agents.ports import Ability, NodeRefused, Stopped
from review_agents.records import Answer, AnswerEnd, Entry, Question, ToolCall, Usage

Step = Answer | Exception | Callable[[Question], Answer]
CHARS_A_TOKEN = 4


class ScriptedModel:
    """Answers each conversation from its own list; `asked` keeps all questions.

    An exception in the list is raised. A list that ends is finished with `last`, or refuses.
    """

    def __init__(
        self,
        answers: Mapping[str, Sequence[Step]] | Sequence[Step],
        *,
        native_tools: bool = True,
        context_tokens: int | None = None,
        last: Answer | None = None,
        name: str = "scripted",
    ):
        lists = answers if isinstance(answers, Mapping) else {"": answers}
        self._left = {conversation: list(steps) for conversation, steps in lists.items()}
        self._ability = Ability(model=name, node="scripted", native_tools=native_tools, context_tokens=context_tokens)
        self._last = last
        self._seen: dict[str, str] = {}
        self.asked: list[Question] = []

    def ability(self, *, cancelled: Callable[[], bool]) -> Ability:
        return self._ability

    def ask(self, question: Question, *, cancelled: Callable[[], bool]) -> Answer:
        if cancelled():
            raise Stopped
        self.asked.append(question)
        steps = self._left.get(question.conversation, self._left.get(""))
        if not steps:
            if self._last is None:
                raise NodeRefused(f"the script for {question.conversation or 'any conversation'} has ended")
            return self._counted(question, self._last)
        step = steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return self._counted(question, step(question) if callable(step) else step)

    def _counted(self, question: Question, answer: Answer) -> Answer:
        """With token counts, where the script gives none: characters over four, known ones from the last question."""
        if answer.usage != Usage():
            return answer
        text = as_text(question)
        before = self._seen.get(question.conversation, "")
        same = next((at for at, (one, other) in enumerate(zip(text, before, strict=False)) if one != other), None)
        known = min(len(text), len(before)) if same is None else same
        self._seen[question.conversation] = text
        written = len(answer.text) + sum(len(call.arguments) + len(call.name) for call in answer.calls)
        usage = Usage(
            prompt=len(text) // CHARS_A_TOKEN,
            cached=known // CHARS_A_TOKEN,
            completion=max(1, written // CHARS_A_TOKEN),
        )
        return answer.model_copy(update={"usage": usage})


def as_text(question: Question) -> str:
    """The prompt as one text, tools first, as chat templates write it."""
    tools = json.dumps([tool.model_dump() for tool in question.tools]) if question.tools else ""
    return tools + "".join(message.model_dump_json() for message in question.messages)


def replayed(transcripts: Mapping[str, Iterable[Entry]]) -> ScriptedModel:
    """The model that gave these answers. Keys are conversations, for example focus:security."""
    answers: dict[str, list[Step]] = {}
    native = True
    for conversation, entries in transcripts.items():
        kept = list(entries)
        native = native and all(entry.note != "text" for entry in kept if entry.kind == "opened")
        answers[conversation] = [entry.answer for entry in kept if entry.answer is not None]
    return ScriptedModel({"": [], **answers}, native_tools=native, name="recording")


RECORDING = "lamplighter_transcripts"


def recording_of(transcripts: Mapping[str, Iterable[Entry]]) -> str:
    """Transcripts as JSON, to be kept and played back."""
    kept = {
        conversation: [entry.model_dump(mode="json", exclude_defaults=True) for entry in entries]
        for conversation, entries in transcripts.items()
    }
    return json.dumps({RECORDING: 1, "conversations": kept}, ensure_ascii=False, indent=1) + "\n"


def recorded(text: str) -> ScriptedModel:
    """The model that a recording is. Raises `ValueError` when the text is none."""
    found = json.loads(text)
    if not isinstance(found, dict) or found.get(RECORDING) != 1 or not isinstance(found.get("conversations"), dict):
        raise ValueError("it is no recording of transcripts, version 1")
    return replayed(
        {name: [Entry.model_validate(entry) for entry in entries] for name, entries in found["conversations"].items()}
    )


def call(name: str, **arguments: Any) -> Answer:
    """An answer that calls one tool."""
    return calls((name, arguments))


def calls(*wanted: tuple[str, Any]) -> Answer:
    """An answer with several calls; arguments that are text go out as they are."""
    made = tuple(
        ToolCall(id=f"x{at}", name=name, arguments=given if isinstance(given, str) else json.dumps(given))
        for at, (name, given) in enumerate(wanted)
    )
    return Answer(calls=made, end=AnswerEnd.CALLS)


def said(text: str, **more: Any) -> Answer:
    return Answer(text=text, **more)
