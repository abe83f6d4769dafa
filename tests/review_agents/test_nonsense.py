"""Over a thousand turns of what weak models write: pieces of calls, tags, prose and noise put together at random.

Whatever comes, no conversation crashes or stays without an end, every turn is accounted for, and nothing broken is ever
sent back to a server.
"""

import json
import random
from collections import Counter
from functools import cache

import pytest

from review_agents import parsing
from review_agents.focus import Focus, builtin
from review_agents.ports import BrokenAnswer, ContextOverflow
from review_agents.records import Answer, AnswerEnd, EntryKind, FocusState, Question, Ran, Role, ToolCall, Usage
from review_agents.scripted import ScriptedModel, calls
from tests.support.agents import Hand, Played, finding, play, report

SEEDS = range(150)
GOOD = (
    ("run", {"command": "pytest -q"}),
    ("run", {"command": "ls", "timeout_s": "20"}),
    ("read", {"path": "sums.py"}),
    ("read", {"path": "nope.py", "from_line": 9}),
    ("search", {"pattern": "def "}),
    ("write", {"path": "/tmp/a.py", "text": "x = 1\n"}),
    ("record_finding", finding()),
    (
        "record_finding",
        finding(quote="result = values[0]", title="Another title that is long enough", rule="wrong_result"),
    ),
    ("measure", {"name": "x", "command": "true"}),
    ("browse", {"url": "https://x"}),
    ("run", {"command": "ls", "timeout_s": float("nan")}),
    ("read", {"path": "sums.py", "from_line": float("inf")}),
    ("finish", report(scores={"overall": float("nan")})),
)
NOISE = (
    "I will now look at the code.", "", " ", "\n\n\n", "```", "```json\n{", "<tool_call>", "</tool_call>", "<think>",
    "</think>",
    "<|im_end|>", "{'a': 1}", '{"name": "run"', "None", "```call\nrun\n", "```bash\nls\n```", "TOOL: run(ls)",
    "Action: run\nAction Input: ls", "finish", "no no no " * 300, "\x00\x1b[2K\ud83d", "[" * 200, '"' * 50, "null", "0",
    "<function=run>", "<parameter=command>ls", "ünïcödé 日本 🦀", "[" * 5000 + "]" * 5000,
    "<function=run><parameter=command>" + "[" * 5000 + "</parameter></function>",
    '{"tool": "run", "command": "ls"}', "}" * 30,
)  # fmt: skip


class Nonsense(ScriptedModel):
    """Answers at random, the same for the same seed."""

    def __init__(self, seed: int, *, native_tools: bool):
        super().__init__([], native_tools=native_tools, context_tokens=8192)
        self.random = random.Random(seed)
        self.native = native_tools

    def ask(self, question: Question, *, cancelled) -> Answer:  # type: ignore[no-untyped-def]
        self.asked.append(question)
        chance = self.random.random()
        if chance < 0.02:
            raise BrokenAnswer("failed to parse tool call")
        if chance < 0.04:
            raise ContextOverflow("too long", prompt_tokens=9000, context_tokens=8192)
        answer = self.native_calls() if self.native and self.random.random() < 0.6 else self.words()
        usage = Usage(prompt=1000 + 50 * len(self.asked), completion=self.random.randint(1, 200), seconds=0.1)
        return answer.model_copy(update={"usage": usage})

    def call(self) -> tuple[str, str]:
        name, arguments = self.random.choice(GOOD)
        if self.random.random() < 0.03:
            name, arguments = "finish", report()
        return name, self.broken(json.dumps(arguments))

    def broken(self, text: str) -> str:
        """Often as it was, else cut, quoted wrongly, fenced, doubled, with chatter behind it or turned round."""
        ways = (
            text, text, text, text[: self.random.randint(0, len(text))],
            text.replace('"', "'"), f"```json\n{text}\n```",
            json.dumps(text), text + " and so on", text[:-1] + ",}", f"[{text}]", text * 2, text[::-1], "", "{}",
            f'{{"deep": {"[" * 900 + "]" * 900}}}',
        )  # fmt: skip
        return self.random.choice(ways)

    def native_calls(self) -> Answer:
        made = [self.call() for _ in range(self.random.choice((1, 1, 1, 2, 3, 12)))]
        calls = tuple(
            ToolCall(id=self.random.choice(("", "x", "call_1", str(at))), name=self.mangled(name), arguments=arguments)
            for at, (name, arguments) in enumerate(made)
        )
        end = self.random.choice((AnswerEnd.CALLS, AnswerEnd.CALLS, AnswerEnd.STOP, AnswerEnd.LENGTH))
        return Answer(text=self.random.choice(NOISE), calls=calls, end=end)

    def mangled(self, name: str) -> str:
        return (
            name
            if self.random.random() < 0.9
            else self.random.choice(("", name.upper(), f"functions.{name}", "a b", "💥"))
        )

    def words(self) -> Answer:
        name, arguments = self.call()
        tagged = json.dumps({"name": name})[:-1] + f', "arguments": {arguments}}}'
        forms = (
            f"```call\n{name}\n{arguments}\n```",
            f"<tool_call>{tagged}</tool_call>",
            f"<function={name}><parameter=command>ls</parameter></function>",
            self.random.choice(NOISE), self.random.choice(NOISE),
        )  # fmt: skip
        text = "\n".join([self.random.choice(NOISE), self.random.choice(forms), self.random.choice(NOISE)])
        end = self.random.choice((AnswerEnd.STOP, AnswerEnd.STOP, AnswerEnd.STOP, AnswerEnd.LENGTH, AnswerEnd.LOOP))
        return Answer(text=text, thought=self.random.choice(("", "Hm.")), end=end)


@cache
def conversation(seed: int) -> tuple[Nonsense, Focus, Played]:
    model = Nonsense(seed, native_tools=seed % 2 == 0)
    number = iter(range(10_000))
    hand = Hand(says=lambda command: Ran(exit=seed % 3, head=f"{command} {next(number)}\n" * 20))
    focus = list(builtin().values())[seed % 7]
    return model, focus, play(model, focus=focus, hand=hand)


@pytest.mark.parametrize("seed", SEEDS)
def test_nonsense_comes_to_an_end_and_every_turn_is_accounted_for(seed: int) -> None:
    model, focus, played = conversation(seed)
    result = played.result
    answers = [entry for entry in played.entries if entry.kind is EntryKind.ASKED]
    assert result.turns <= focus.budget.turns and len(model.asked) <= 2 * focus.budget.turns
    assert result.usage.completion == sum(entry.answer.usage.completion for entry in answers if entry.answer)
    assert (result.state is FocusState.FINISHED) <= (result.report is not None)
    assert len(result.candidates) == len(played.kept) <= focus.budget.findings
    for question in model.asked:
        well_formed(question)


def well_formed(question: Question) -> None:
    waiting: list[str] = []
    before = None
    for message in question.messages:
        message.model_dump_json()  # no half character in anything that is sent
        if message.role is Role.TOOL:
            assert message.call_id == waiting.pop(0)
        else:
            assert not waiting, "a call was left without its result"
            assert before is not message.role or message.role is Role.SYSTEM, "neighbours of one role are joined"
        waiting += [call.id for call in message.calls]
        for call in message.calls:
            assert isinstance(json.loads(call.arguments, parse_constant=no_number), dict) and question.tools
        assert message.text or message.calls
        before = message.role
    assert not waiting


def no_number(name: str) -> None:
    raise AssertionError(f"{name} stands in a call, and no server can read that")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", '"nan"'])
def test_a_score_that_is_no_number_is_refused_in_words_and_never_stored(number: str) -> None:
    odd = json.dumps(report())[:-1] + f', "scores": {{"overall": {number}}}}}'
    played = play([calls(("finish", odd)), calls(("finish", report()))])
    assert "scores.overall: input should be a finite number" in str(played.last_question)
    assert played.result.report is not None and played.result.report.scores == {"correctness": 6}
    for question in played.model.asked:
        well_formed(question)


LONG = 60_000
ENDLESS = {
    "fences that open": "```py x\n" * (LONG // 8),
    "fences of calls": "```call x\n" * (LONG // 10),
    "a fence and spaces": "```" + " " * LONG + "x",
    "spaces behind a name": "```call\nrun" + " " * LONG + "y\n{}\n```",
    "spaces in a tag": "<tool_call>a" + " " * LONG + "b",
    "tags that open": "<tool_call>" * (LONG // 11),
    "parameters that open": "<function=a>" + "<parameter=a>" * (LONG // 13),
    "brackets": "{" * LONG,
}


@pytest.mark.timeout(60)  # nothing can end it: some took minutes, in proportion to the square of their length
@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_reading_a_long_answer_takes_time_in_proportion_to_its_length(text: str) -> None:
    for form in (Answer(text=text), Answer(calls=(ToolCall(id="", name="run", arguments=text),))):
        for mend in (True, False):
            parsing.read(form, mend=mend)


def test_blocks_with_the_line_ends_of_windows_are_read() -> None:
    (wanted,) = parsing.read(Answer(text='```call\r\nrun\r\n{"command": "ls"}\r\n```\r\n')).calls
    assert (wanted.name, wanted.arguments) == ("run", {"command": "ls"})


def test_that_were_over_a_thousand_turns_and_no_end_is_missing_among_them() -> None:
    results = [conversation(seed)[2].result for seed in SEEDS]
    assert sum(result.turns for result in results) > 1000
    ends = Counter(result.state for result in results)
    assert ends[FocusState.STUCK] + ends[FocusState.PRODUCED_NOTHING] > 5 and ends[FocusState.FINISHED] > 0
