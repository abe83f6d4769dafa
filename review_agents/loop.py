"""One focus at work: ask the model, carry out what it calls for, record what it finds, until it finishes or must.

Whatever the model writes, a turn ends in one of a few ways: calls carried out, an answer that could not be, one that
was cut off, one that said nothing to do. Each costs a turn and is counted; five failures in a row, or the same call
five times over, end the focus. Findings are stored as they come, so an end at any moment loses nothing.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from review_agents import claims, conversation, material, parsing
from review_agents.claims import ReadSource, Refused
from review_agents.conversation import Conversation, Keep
from review_agents.focus import ALWAYS, Focus
from review_agents.hands import Hands, InMemory, Outputs
from review_agents.limits import Meter
from review_agents.parsing import Wanted
from review_agents.ports import Ability, BrokenAnswer, ChatModel, ContextOverflow, NodeRefused, Stopped, Workspace
from review_agents.prompts import render
from review_agents.records import (
    Answer,
    AnswerEnd,
    Candidate,
    Entry,
    EntryKind,
    FocusResult,
    FocusState,
    Message,
    Question,
    Report,
    Role,
    Tool,
    ToolCall,
)
from review_agents.repetition import Watch
from review_agents.sameness import fails_otherwise
from review_agents.tools import DESCRIPTIONS, Arguments, BadArguments, Finish, RecordFinding, checked, offered
from review_agents.visible import beginning, in_words, quoted, without_control

NATIVE, TEXT = "native", "text"
COMMAND_S = 600.0
EVERY_TURNS = 10  # the turns that are left are told
FEW_TURNS = 3  # before those that are kept for concluding: they are told once more
MOST_CUTS = 3  # of the history, in one focus
KEPT_TURNS = 4  # behind a cut
SHRINKS_BY = 0.1  # at least, or the cut goes deeper
SECOND_TIME = 2  # a finding that fails its trial is stored when it is recorded again
ROOM_CHARS = 6000  # of an answer that was cut off, put back into the history
LISTED_CALLS = 60
REFUSAL_CHARS = 160
RECORD, NOT_STORED = "record_finding", "Not stored"
FINDING = re.compile(r"finding:(\d{1,6})")


@dataclass(frozen=True)
class Task:
    """What a focus is given. `opening` is not used when `earlier` has a conversation that was begun."""

    focus: Focus
    opening: tuple[Message, ...]
    ability: Ability
    mark: str
    seed: int = 0
    control: str | None = None  # for reproductions without one
    earlier: tuple[Entry, ...] = ()
    recorded: tuple[Candidate, ...] = ()  # by this focus, before it was interrupted
    claimed: tuple[Candidate, ...] = ()  # by probes and other focuses, in the order of their numbers
    documents: Mapping[str, str] = field(default_factory=dict)  # what can be read by name, for example evidence:tests


@dataclass
class World:
    """What the loop needs from outside."""

    model: ChatModel
    workspace: Workspace
    source: ReadSource
    keep: Keep
    clock: Callable[[], float]
    cancelled: Callable[[], bool] = lambda: False
    trial: Callable[[Candidate], str] = lambda candidate: ""  # why its proof does not hold, or ""
    # Why the scripts of a claim and of a known one show the same fault, or "".
    same_outcome: Callable[[Candidate, Candidate], str] = lambda candidate, known: ""
    outputs: Outputs = field(default_factory=InMemory)


def review(task: Task, world: World, meter: Meter) -> FocusResult:
    """Do the focus's work. Raises `NodeAway` and `Stopped`; the conversation so far is kept, so it can go on later."""
    return Loop(task, world, meter).run()


@dataclass
class Loop:
    task: Task
    world: World
    meter: Meter
    watch: Watch = field(default_factory=Watch)
    found: list[Candidate] = field(default_factory=list)
    tried: dict[str, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)  # one line each, for a cut
    report: Report | None = None
    ended: tuple[FocusState, str] | None = None
    malformed: int = 0
    failures: int = 0  # in a row
    number: int = 0  # of the call
    told: set[str] = field(default_factory=set)
    refusals: dict[str, str] = field(default_factory=dict)  # by title

    def __post_init__(self) -> None:
        self.talk = Conversation(self.world.keep, self.task.earlier)
        self.found = list(self.task.recorded)
        self.hands = Hands(
            self.world.workspace,
            mark=self.task.mark,
            longest_s=COMMAND_S,
            outputs=self.world.outputs,
            document=self.document,
        )
        protocol = conversation.protocol_of(self.task.earlier)
        self.native = protocol == NATIVE if protocol else self.task.ability.native_tools
        self.cuts = 0

    # The run ----------------------------------------------------------------------------------

    def run(self) -> FocusResult:
        self.begin()
        while self.ended is None:
            over = self.meter.over()
            if over:
                self.end(FocusState.OUT_OF_BUDGET, over)
                break
            self.say_how_much_is_left()
            answer = self.ask()
            if answer is not None:
                self.take(answer)
        return self.result()

    def begin(self) -> None:
        if not self.talk.begun:
            self.talk.open(self.task.opening, NATIVE if self.native else TEXT)
            return
        for entry in self.task.earlier:  # what was spent before the interruption
            if entry.kind is EntryKind.CUT:
                self.cuts += 1
                self.meter.forget_prefix()
            if entry.answer is not None:
                self.meter.count_earlier(entry.answer.usage)
        earlier = calls_in(self.task.earlier)
        self.calls = [in_a_line(call) for call in earlier]
        self.number = len(earlier)  # outputs keep their numbers, also where the history was cut
        for asked, said in refused_before(self.task.earlier):
            self.note_refusal(asked, said)
        self.talk.mend()
        self.talk.tell(render("reset"))

    def end(self, state: FocusState, reason: str) -> None:
        self.ended = (state, reason)
        self.talk.note(f"{state}: {reason}" if reason else str(state))

    def result(self) -> FocusResult:
        assert self.ended is not None
        state, reason = self.ended
        if self.report is None and not self.found and state is not FocusState.NODE_FAILED:
            why = f": {reason}" if reason else ""
            state, reason = (
                FocusState.PRODUCED_NOTHING,
                f"it ended without a finding and without a report ({state}{why})",
            )
        return FocusResult(
            focus=self.task.focus.name,
            state=state,
            reason=reason,
            report=self.report,
            candidates=tuple(self.found),
            usage=self.meter.usage,
            turns=self.meter.turns,
            malformed=self.malformed,
            model=self.task.ability.model,
            node=self.task.ability.node,
            protocol=NATIVE if self.native else TEXT,
            refused=self.still_refused(),
        )

    def still_refused(self) -> tuple[str, ...]:
        """What was refused and not stored later, each once."""
        stored = {one.title for one in self.found}
        return tuple(line for title, line in self.refusals.items() if title not in stored)

    def say_how_much_is_left(self) -> None:
        """Once when most is spent, once when only concluding is left."""
        concluding = self.meter.concluding()
        if concluding and "conclude" not in self.told:
            self.told |= {"conclude", "spent"}
            left = max(1, self.task.focus.budget.turns - self.meter.turns)
            self.talk.tell(render("conclude", what=concluding, turns=min(left, self.task.focus.budget.conclude_turns)))
        elif (nearly := self.meter.nearly()) and "spent" not in self.told:
            self.told.add("spent")
            self.talk.tell(render("spent", what=nearly))

    # Asking -------------------------------------------------------------------------------------

    def ask(self) -> Answer | None:
        """The model's next answer; None when this turn brought none and the loop goes on (or has ended)."""
        for attempt in (1, 2):
            try:
                answer = parsing.storable(self.world.model.ask(self.question(), cancelled=self.gives_up))
            except Stopped:
                if self.world.cancelled():
                    raise
                self.end(FocusState.OUT_OF_BUDGET, f"{self.meter.words('seconds')}, in the middle of an answer")
                return None
            except ContextOverflow as error:
                if attempt == 2 or not self.make_room(str(error)):
                    self.end(FocusState.STUCK, f"the conversation does not fit the model's context: {error}")
                    return None
            except BrokenAnswer as error:
                self.meter.turns += 1
                self.could_not(render("unread"), str(error))
                return None
            except NodeRefused as error:
                self.end(FocusState.NODE_FAILED, str(error))
                return None
            else:
                self.talk.answered(answer)
                self.meter.count(answer.usage)
                return answer
        return None

    def gives_up(self) -> bool:
        return self.world.cancelled() or self.meter.too_late()

    def question(self) -> Question:
        tools: tuple[Tool, ...] = offered() if self.native else ()
        return Question(
            messages=conversation.for_wire(self.talk.history),
            tools=tools,
            max_tokens=self.answer_tokens(),
            seed=self.task.seed + self.meter.turns,
            conversation=f"focus:{self.task.focus.name}",
        )

    def answer_tokens(self) -> int:
        """Of one answer; in a small context no more than a quarter of it."""
        most = self.task.focus.budget.answer_tokens
        context = self.task.ability.context_tokens
        return most if context is None else max(64, min(most, context // 4))

    # Taking an answer ---------------------------------------------------------------------------

    def take(self, answer: Answer) -> None:
        if answer.end is AnswerEnd.LOOP:
            self.put_back(answer.text)
            self.could_not(render("looped"), "the answer repeated itself")
            return
        read = parsing.read(answer, mend=answer.end is not AnswerEnd.LENGTH)  # what was cut off is not guessed
        if answer.end is AnswerEnd.LENGTH and (read.problems or not read.calls):
            self.put_back(read.said or answer.text)
            thinking = not answer.text.strip() and not answer.calls
            note = render("truncated", tokens=answer.usage.completion, thinking=thinking)
            self.could_not(note, "the answer was cut off", malformed=False)
            return
        if not read.calls and not read.problems:
            self.put_back(read.said)
            self.could_not(render("silent"), "the answer called no tool", malformed=False)
            return
        if not read.calls:
            self.put_back(read.said)
            problem = self.in_words(" ".join(read.problems))
            self.could_not(render("malformed", problem=problem), problem)
            return
        self.carry_out(read)

    def put_back(self, text: str) -> None:
        """An answer without usable calls goes into the history as plain words, never as a broken call."""
        kept = without_control(text.strip())
        if len(kept) > ROOM_CHARS:
            kept = f"{kept[: ROOM_CHARS // 2]}\n[...]\n{kept[-ROOM_CHARS // 2 :]}"
        self.talk.say(Message(role=Role.ASSISTANT, text=kept or "(An answer that could not be read.)"))

    def could_not(self, words: str, reason: str, *, malformed: bool = True) -> None:
        """Say why an answer was not carried out.

        An answer without a call has no result that could carry the words, and an answer must follow on something of
        ours, so they are a message of the user: a thinking model's template then writes all answers since the last
        such message anew, and the node reads again what came after the first of them. That is the price of a turn
        without a call. Where the server gave no answer at all, they go with what stands last.
        """
        self.malformed += malformed
        self.failures += 1
        if self.watch.failed() == "stop":
            self.end(FocusState.STUCK, f"{self.failures} answers in a row could not be carried out; the last: {reason}")
            return
        self.talk.note(reason)
        self.talk.tell(words)

    # Calls --------------------------------------------------------------------------------------

    def carry_out(self, read: parsing.Read) -> None:
        wanted = read.calls if self.native else read.calls[:1]
        calls: list[ToolCall] = []
        checks: list[tuple[str, Arguments | None]] = []
        for one in wanted:
            self.number += 1
            name = parsing.near(one.name)
            checks.append(self.checked(name, one))
            calls.append(ToolCall(id=f"call_{self.number}", name=name, arguments=kept_of(one, checks[-1][1])))
        said = without_control(read.said)  # a made-up turn of somebody else would be one when it is sent back
        if self.native:
            self.talk.say(Message(role=Role.ASSISTANT, text=said, calls=tuple(calls)))
        else:
            self.talk.say(Message(role=Role.ASSISTANT, text=written_again(said, calls[0])))
        last = self.number
        for at, (call, (refusal, arguments)) in enumerate(zip(calls, checks, strict=True), start=last - len(calls) + 1):
            if self.ended is not None:
                self.give(call, "Not carried out: the review has ended.", None)
                continue
            result, candidate = (refusal, None) if arguments is None else self.one(call, arguments, at)
            note = ""
            if arguments is None:
                self.refused(result)
            elif self.ended is None:
                note = self.judge_repetition(call, result)
            also = self.left_over(read, len(wanted)) if at == last else ""
            left = self.turns_left() if at == last and self.ended is None else ""
            # Notes go with the result that they are about.
            self.give(call, "\n\n".join(part for part in (result, note, also, left) if part), candidate)

    def turns_left(self) -> str:
        """Now and then, and when few are left."""
        budget = self.task.focus.budget
        left = budget.turns - self.meter.turns
        if "conclude" in self.told or (self.meter.turns % EVERY_TURNS and left != budget.conclude_turns + FEW_TURNS):
            return ""
        return f"({left} of {budget.turns} turns are left, the last {budget.conclude_turns} only for recording.)"

    def left_over(self, read: parsing.Read, carried_out: int) -> str:
        """What else the answer held that was not carried out."""
        parts = []
        if read.problems:
            self.malformed += 1
            parts.append(
                "A call of the same answer could not be carried out. " + self.in_words(" ".join(read.problems))
            )
        if len(read.calls) > carried_out:
            parts.append(f"Only the first of your {len(read.calls)} calls was carried out. Make one call in an answer.")
        return "\n\n".join(parts)

    def give(self, call: ToolCall, result: str, candidate: Candidate | None) -> None:
        """The result into the history; a candidate is stored together with it.

        In the plain-text protocol it is a message of the user: thinking models' templates then write the one answer
        before it without its thoughts, so the node reads that answer again, each turn, and nothing else.
        """
        if self.native:
            message = Message(role=Role.TOOL, text=result, call_id=call.id, name=call.name)
        else:
            message = Message(role=Role.USER, text=in_text(call.name, result))
        self.talk.say(message, candidate)
        if candidate is not None:
            self.found.append(candidate)

    def checked(self, name: str, wanted: Wanted) -> tuple[str, Arguments | None]:
        """The arguments of a call that may be carried out, else why not."""
        allowed, concluding = self.task.focus.tools, "conclude" in self.told
        if name not in DESCRIPTIONS:
            return render("unknown_tool", name=name, tools=allowed), None
        if name not in allowed or (concluding and name not in ALWAYS):
            return render("forbidden_tool", name=name, tools=allowed, concluding=concluding), None
        try:
            return "", checked(name, wanted.arguments)
        except BadArguments as error:
            return self.in_words(str(error)), None

    def refused(self, reason: str) -> None:
        """A call that could not be carried out; counted whatever its arguments, because a stuck model varies those."""
        self.malformed += 1
        self.failures += 1
        if self.watch.failed() == "stop":
            self.end(FocusState.STUCK, f"{self.failures} answers in a row could not be carried out; the last: {reason}")

    def one(self, call: ToolCall, arguments: Arguments, number: int) -> tuple[str, Candidate | None]:
        """What a call gives, and the finding that it stores."""
        self.failures = 0
        self.calls.append(in_a_line(call))
        if isinstance(arguments, RecordFinding):
            said, candidate = self.record(arguments)
            if candidate is None:
                self.note_refusal(arguments, said)
            return said, candidate
        if isinstance(arguments, Finish):
            return self.finish(arguments), None
        result = self.hands.do(arguments, number)
        first = result.removeprefix(f"<<<{self.task.mark} ").partition("\n")[0]
        self.calls[-1] += f" -> {first[:80]}"
        return result, None

    def judge_repetition(self, call: ToolCall, result: str) -> str:
        verdict, times, period = self.watch.saw(call.name, call.arguments, result)
        if verdict == "stop":
            what = "showed nothing new" if period == 0 else "repeated itself"
            self.end(FocusState.STUCK, f"it {what}: {call.name}, {times} times")
            return ""
        if verdict == "nudge":
            return render("no_progress", calls=times) if period == 0 else render("nudge", times=times, period=period)
        return ""

    def note_refusal(self, asked: RecordFinding, said: str) -> None:
        title = " ".join(asked.title.split())
        why = beginning(" ".join(said.partition("\n")[0].split()), REFUSAL_CHARS)
        self.refusals[title] = f"{title} ({asked.file}): {why}"

    def record(self, asked: RecordFinding) -> tuple[str, Candidate | None]:
        if len(self.found) >= self.task.focus.budget.findings:
            return f"Not stored: {len(self.found)} findings are the most that one focus records. Call finish.", None
        try:
            candidate = claims.candidate_of(
                asked, focus=self.task.focus.name, source=self.world.source, control=self.task.control
            )
        except Refused as error:
            near = f"\n{quoted(error.lines, mark=self.task.mark, label='nearest lines')}" if error.lines else ""
            return f"Not stored: {self.in_words(str(error))}{near}", None
        known = claims.repeated(candidate, self.known)
        if not candidate.differs and not all(fails_otherwise(candidate, one.candidate) for one in known):
            return claims.refusal(known, self.task.mark), None
        problem = next((why for one in known if (why := claims.inseparable(candidate, one.candidate))), "")
        if problem:
            return f"Not stored: it is known already, and `differs` alone is no proof: {self.in_words(problem)}.", None
        candidate = candidate if known else candidate.model_copy(update={"differs": ""})  # it differs from nothing
        key = f"{candidate.kind} {candidate.places[0].file} {candidate.places[0].symbol or candidate.places[0].line}"
        self.tried[key] = self.tried.get(key, 0) + 1
        problem = self.world.trial(candidate)
        if problem and known:
            return f"Not stored. To be another fault than the known one its proof must hold: {problem}", None
        if problem and self.tried[key] < SECOND_TIME:
            return (
                f"Not stored yet. Its script was run in a fresh container: {problem}\n"
                "Mend the script and record it again. If you are sure, record it as it is: it is then stored unproved."
            ), None
        for one in known:
            if same := self.world.same_outcome(candidate, one.candidate):
                return f"Not stored: it is known already as finding:{one.number}, because {self.in_words(same)}.", None
        del self.tried[key]  # what is recorded next at that place is another fault, and is tried anew
        proof = "an opinion" if candidate.opinion else "its proof did not hold" if problem else "its proof held"
        return f"Stored as finding {len(self.known) + 1} ({proof}).", candidate

    def in_words(self, text: str) -> str:
        return in_words(text, self.task.mark)

    @property
    def known(self) -> list[Candidate]:
        """All that is claimed, in the order of its numbers."""
        return [*self.task.claimed, *self.found]

    def document(self, name: str) -> str | None:
        """A text of ours that can be read by its name: a finding, or what a check said."""
        kept = FINDING.fullmatch(name)
        if kept is None:
            return self.task.documents.get(name)
        known, number = self.known, int(kept[1])
        return claims.whole(number, known[number - 1]) if 1 <= number <= len(known) else None

    def finish(self, asked: Finish) -> str:
        self.report = Report(
            summary=asked.summary,
            strengths=tuple(asked.strengths),
            weaknesses=tuple(asked.weaknesses),
            scores={name: value for name, value in asked.scores.model_dump().items() if value is not None},  # type: ignore[attr-defined]
            not_looked_at=tuple(asked.not_looked_at),
            recommendation=asked.recommendation,
        )
        state = FocusState.OUT_OF_BUDGET if "conclude" in self.told else FocusState.FINISHED
        self.end(state, self.meter.concluding() if state is FocusState.OUT_OF_BUDGET else "")
        return "The review of your focus has ended."

    # Room ---------------------------------------------------------------------------------------

    def make_room(self, why: str) -> bool:
        """Cut the history once and deeply; False when nothing more can be taken out."""
        if self.cuts >= MOST_CUTS:
            return False
        history = self.talk.history
        before = size_of(history)
        for kept in range(KEPT_TURNS, -1, -1):
            shorter = self.without_middle(history, kept)
            if shorter is not None and size_of(shorter) <= before * (1 - SHRINKS_BY):
                self.cuts += 1
                self.talk.cut(shorter, why)
                self.meter.forget_prefix()
                return True
        return False

    def without_middle(self, history: Sequence[Message], kept_turns: int) -> tuple[Message, ...] | None:
        """Opening, what happened in words, and the last turns with all their results; None when there is no middle."""
        head = len(self.talk.head)
        begins = [at for at in range(head, len(history)) if history[at].role is Role.ASSISTANT]
        start = begins[-kept_turns] if kept_turns and kept_turns < len(begins) else len(history)
        if kept_turns >= len(begins) or start <= head:
            return None
        gone = conversation.turns_in(history[head:start])
        calls = self.calls[:-kept_turns][-LISTED_CALLS:] if kept_turns else self.calls[-LISTED_CALLS:]
        mark, first = self.task.mark, len(self.task.claimed) + 1
        words = render(
            "cut",
            turns=gone,
            calls=quoted("\n".join(calls), mark=mark, label="calls and how they ended") if calls else "",
            findings=material.claims_quoted(self.found, mark, first=first),
        )
        summary = Message(role=Role.USER, text=words)
        return (*history[:head], summary, *history[start:])


def calls_in(entries: Iterable[Entry]) -> list[ToolCall]:
    """The calls of a stored conversation, in whichever protocol, in the order of their numbers."""
    found: list[ToolCall] = []
    for entry in entries:
        if entry.kind is EntryKind.SAID and entry.message is not None and entry.message.role is Role.ASSISTANT:
            text = () if entry.message.calls else parsing.read(Answer(text=entry.message.text)).calls[:1]
            found += entry.message.calls
            found += (ToolCall(id="", name=call.name, arguments=call.text) for call in text)
    return found


def refused_before(entries: Iterable[Entry]) -> list[tuple[RecordFinding, str]]:
    """The findings of a stored conversation that were not stored, each with what the model was told."""
    found: list[tuple[RecordFinding, str]] = []
    asked: deque[Wanted] = deque()
    for entry in entries:
        message = entry.message
        if message is None:
            continue
        if message.role is Role.ASSISTANT:
            calls = parsing.read(Answer(text=message.text, calls=message.calls)).calls
            asked = deque(call for call in calls if call.name == RECORD)
        elif asked and (said := result_of_recording(message)) is not None:
            call = asked.popleft()
            with suppress(BadArguments):
                arguments = checked(RECORD, call.arguments)
                if isinstance(arguments, RecordFinding) and said.startswith(NOT_STORED):
                    found.append((arguments, said))
    return found


def result_of_recording(message: Message) -> str | None:
    if message.role is Role.TOOL:
        return message.text if message.name == RECORD else None
    before = in_text(RECORD, "")
    return message.text.removeprefix(before) if message.text.startswith(before) else None


def in_text(tool: str, result: str) -> str:
    """A tool's result in the plain-text protocol."""
    return f"Result of {tool}:\n{result}"


def kept_of(wanted: Wanted, arguments: Arguments | None) -> str:
    """The arguments as they go into the history. Of a call that is refused not more than can be read, and nothing that
    could be taken for the end of a turn; one that is carried out stands there as it was."""
    if arguments is not None:
        return wanted.text
    text = without_control(wanted.text)
    if len(text) <= ROOM_CHARS:
        return text
    return json.dumps({"left_out": f"{len(text)} characters, which began with {text[:200]}"})


def size_of(history: Sequence[Message]) -> int:
    return sum(len(one.text) + sum(len(call.arguments) for call in one.calls) for one in history)


def written_again(said: str, call: ToolCall) -> str:
    """A call of the plain-text protocol as it goes into the history: in the right form, whatever form it came in."""
    block = f"```call\n{call.name}\n{call.arguments}\n```"
    return f"{said}\n\n{block}" if said else block


def in_a_line(call: ToolCall) -> str:
    first = next((str(value) for value in json.loads(call.arguments).values() if value), "")
    return f"{call.name} {' '.join(first.split())[:120]}"
