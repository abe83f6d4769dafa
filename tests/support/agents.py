"""Agents without a model, a container or a database: a repo in a dict, a scripted model, a hand for the commands."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from review_agents import material
from review_agents.focus import Budget, Focus, builtin
from review_agents.limits import Meter
from review_agents.loop import Task, World, review
from review_agents.ports import NoSuchFile
from review_agents.records import (
    Candidate,
    Entry,
    Environment,
    FocusResult,
    Measurement,
    Message,
    Network,
    ProbeResult,
    ProbeState,
    Ran,
    Repo,
    Session,
)
from review_agents.scripted import ScriptedModel, Step

SOURCE = '''"""Sums."""


def total(values):
    """The sum of the values; 0 when there are none."""
    result = values[0]
    for value in values[1:]:
        result += value
    return result
'''
README = "# Sums\n\nAdds numbers.\n\n## Usage\n\n`total([])` gives 0.\n"
FILES = {"README.md": README, "sums.py": SOURCE, "tests/test_sums.py": "def test_total():\n    pass\n"}
MARK = "m4rk"
PROVE = "set -e\npython -c 'import sums; print(\"got\", sums.total([]))' 2>&1 | tail -1"


def repo(files: Mapping[str, str] = FILES, **changed: Any) -> Repo:
    given: dict[str, Any] = {
        "name": "sums",
        "url": "https://git.example/team/sums",
        "ref": "main",
        "commit": "1" * 40,
        "commit_date": "2026-11-29T10:00:00+01:00",
        "files": tuple(sorted(files)),
        "today": "2026-11-30",
    }
    return Repo(**{**given, **changed})


def results(**changed: ProbeResult) -> dict[str, ProbeResult]:
    return {
        "probe:install": ProbeResult(probe="install", state=ProbeState.PASSED, summary="installed in 2 s"),
        "probe:tests": ProbeResult(
            probe="tests", state=ProbeState.PASSED, summary="1 passed", facts={"passed": 1, "commands": ["pytest"]}
        ),
        **changed,
    }


@dataclass
class Hand:
    """A workspace over a dict; `says` answers commands."""

    says: Callable[[str], Ran] = lambda command: Ran(exit=0, seconds=0.01, head="done\n")
    files: dict[str, str] = field(default_factory=lambda: dict(FILES))
    ran: list[str] = field(default_factory=list)

    def run(
        self,
        command: str,
        *,
        environment: Environment = Environment.PLAIN,
        network: Network = Network.NONE,
        timeout_s: float = 120.0,
        stdin: str = "",
    ) -> Ran:
        self.ran.append(command)
        return self.says(command)

    def measure(self, name: str, command: str, **given: Any) -> Measurement:
        return Measurement(name=name, command=command, sessions=(Session(value=0.5), Session(value=0.6)))

    def read(self, path: str, *, limit_bytes: int = 1_000_000) -> str:
        if path not in self.files:
            raise NoSuchFile(path)
        return self.files[path]

    def list(self, folder: str = ".") -> tuple[str, ...]:
        return tuple(self.files)

    def search(self, pattern: str, *, folder: str = ".", limit: int = 200) -> tuple[Any, ...]:
        return ()

    def write(self, path: str, text: str) -> None:
        self.files[path] = text


@dataclass
class Played:
    """What came of a scripted focus."""

    result: FocusResult
    entries: list[Entry]
    kept: list[Candidate]
    model: ScriptedModel
    hand: Hand

    @property
    def last_question(self) -> tuple[Message, ...]:
        return self.model.asked[-1].messages

    @property
    def told(self) -> str:
        """All that the model was told in its last question, after the opening."""
        return "\n".join(message.text for message in self.last_question[3:])


class Ticks:
    """A clock that moves a second each time it is looked at."""

    def __init__(self, step: float = 1.0):
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def play(
    steps: Sequence[Step] | ScriptedModel,
    *,
    focus: Focus | None = None,
    budget: Mapping[str, Any] | None = None,
    files: Mapping[str, str] = FILES,
    hand: Hand | None = None,
    native: bool = True,
    context_tokens: int | None = None,
    trial: Callable[[Candidate], str] = lambda candidate: "",
    same_outcome: Callable[[Candidate, Candidate], str] = lambda candidate, known: "",
    earlier: Sequence[Entry] = (),
    recorded: Sequence[Candidate] = (),
    claimed: Sequence[Candidate] = (),
    documents: Mapping[str, str] | None = None,
    seconds: float = 10_000,
    clock: Callable[[], float] | None = None,
    entries: list[Entry] | None = None,
) -> Played:
    """One focus from beginning to end over a scripted model. `entries` has what was said when it breaks off."""
    focus = focus or builtin()["correctness"]
    if budget:
        focus = focus.model_copy(update={"budget": Budget(**{**focus.budget.model_dump(), **budget})})
    model = (
        steps
        if not isinstance(steps, Sequence)
        else ScriptedModel(steps, native_tools=native, context_tokens=context_tokens)
    )
    hand = hand or Hand(files=dict(files))
    entries = [] if entries is None else entries
    kept: list[Candidate] = []

    def keep(entry: Entry, candidate: Candidate | None = None) -> None:
        entries.append(entry)
        if candidate is not None:
            kept.append(candidate)

    ability = model.ability(cancelled=lambda: False)
    task = Task(
        focus=focus,
        opening=material.opening(
            repo(files), results(), files.get, focus=focus, mark=MARK, native=ability.native_tools, claimed=claimed,
            context_tokens=ability.context_tokens,
        ),
        ability=ability,
        mark=MARK,
        control="python -c 'import sums'",
        earlier=tuple(earlier),
        recorded=tuple(recorded),
        claimed=tuple(claimed),
        documents=documents or {},
    )  # fmt: skip
    clock = clock or Ticks(0.0)
    world = World(model=model, workspace=hand, source=files.get, keep=keep, clock=clock, trial=trial,
                  same_outcome=same_outcome)  # fmt: skip
    return Played(review(task, world, Meter(focus.budget, clock, seconds=seconds)), entries, kept, model, hand)


def finding(**changed: Any) -> dict[str, Any]:
    """Arguments of a good record_finding."""
    return {
        "title": "total fails for an empty list instead of giving 0",
        "kind": "correctness",
        "rule": "wrong_edge_case",
        "severity": "medium",
        "severity_reason": "whoever sums a list that may be empty",
        "experience": "The docstring promises 0 for no values; total([]) raises IndexError.",
        "file": "sums.py",
        "quote": "    result = values[0]",
        "command": PROVE,
        "output_contains": ["IndexError"],
        "expected": "got 0",
        "observed": "IndexError",
        "effort": "small",
        **changed,
    }


def report(**changed: Any) -> dict[str, Any]:
    return {"summary": "I read the one module and tried its edges.", "scores": {"correctness": 6}, **changed}
