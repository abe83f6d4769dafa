"""The repo's own commands that README and docs show and that work here, each with the script that leads up to it."""

import re
import time
from dataclasses import dataclass, replace

from review_agents.ports import Workspace
from review_agents.probes import recipes
from review_agents.probes.documents import BlockKind, Document
from review_agents.probes.own import with_stand_ins
from review_agents.probes.own_traces import own_traceback
from review_agents.probes.reader import Reader, Step
from review_agents.probes.refusals import read_refusal
from review_agents.probes.shell import Package, Simple, own_invocations
from review_agents.records import Environment, Repo

REPAIRED_S = 30.0


@dataclass(frozen=True, slots=True)
class Worked:
    """A command as the document has it, and the parts that make its files first."""

    document: Document
    step: Step
    parts: tuple[recipes.Part, ...]  # what comes before it
    bring: frozenset[str]
    simple: Simple  # the own program in it
    own_words: int  # how many words name the program
    text: str
    exit: int  # its answer when nothing is wrong
    said: str  # and what it prints
    files: tuple[recipes.File, ...] = ()  # all that the document shows
    repaired: str = ""  # the option that had to be left out of the document's command

    @property
    def arguments(self) -> list[str]:
        return self.simple.values[self.own_words :]

    def positional(self, word: str) -> int:
        """Which of the arguments without a dash it is, from 0; -1 when it is none."""
        plain = [value for value in self.arguments if not value.startswith("-")]
        return plain.index(word) if word in plain else -1

    def script(self, text: str, package: Package) -> str:
        """The command, or another in its place, as a script of its own."""
        return recipes.script([*self.parts, recipes.Shell(with_stand_ins(text, package))], bring=self.bring)

    def replaced(self, start: int, end: int, words: str) -> str:
        """The command with a stretch of its text replaced."""
        return self.text[:start] + words + self.text[end:]


def worked_commands(
    workspace: Workspace,
    repo: Repo,
    package: Package,
    documents: tuple[Document, ...],
    environment: Environment,
    deadline: float,
) -> list[Worked]:
    """In the order of the documents, each once: command lines with exactly one own program in them."""
    found: list[Worked] = []
    seen: set[str] = set()
    for document in documents:
        if not _has_own_commands(document, package) or time.monotonic() > deadline:
            continue
        reader = Reader(workspace, package, document, tracked=repo.files, environment=environment, deadline=deadline)
        for step in reader.read():
            if step.text in seen or "\n" in step.text or not step.ran or not step.judgement.own:
                continue
            seen.add(step.text)
            one = (
                _of_step(reader, step, package)
                if _worked(step, package)
                else _repaired(workspace, reader, step, package, environment)
            )
            found += [one] if one is not None else []
    return found


def _of_step(reader: Reader, step: Step, package: Package, text: str = "") -> Worked | None:
    """The command with what leads up to it; None when there is not exactly one own program in it."""
    own = list(own_invocations(text or step.text, package))
    if len(own) != 1:
        return None
    parts = tuple(reader.parts_of([*reader.needed_for(step), step])[:-1])
    bring = frozenset(reader.brings([*parts, recipes.Shell(step.text)]))
    stood_in = tuple(
        recipes.Shell(with_stand_ins(part.text, package)) if isinstance(part, recipes.Shell) else part for part in parts
    )
    return Worked(
        reader.document,
        step,
        stood_in,
        bring,
        own[0][0],
        own[0][1],
        text or step.text,
        step.exit or 0,
        step.both,
        tuple(recipes.File(name, content) for name, content in reader.files.items()),
    )


def _repaired(
    workspace: Workspace, reader: Reader, step: Step, package: Package, environment: Environment
) -> Worked | None:
    """A command that only fails for an option that does not exist: the same without it, if that works."""
    refused = read_refusal(step.both, step.text) if step.exit else None
    if refused is None or refused.kind != "option":
        return None
    option = re.escape(refused.word)
    for pattern in (rf"\s+{option}(?:=\S+|\s+[^\s-]\S*)(?=\s|$)", rf"\s+{option}(?=\s|$)"):
        text = re.sub(pattern, "", step.text, count=1)
        if text == step.text or (one := _of_step(reader, step, package, text)) is None:
            continue
        ran = workspace.run(one.script(text, package), environment=environment, timeout_s=REPAIRED_S)
        if ran.ok:
            return replace(one, exit=0, said=ran.output, repaired=refused.word)
    return None


def _has_own_commands(document: Document, package: Package) -> bool:
    return any(
        block.kind in (BlockKind.SHELL, BlockKind.CONSOLE) and any(own_invocations(command.text, package))
        for block in document.blocks
        for command in block.commands
    )


def _worked(step: Step, package: Package) -> bool:
    """It ran, and neither the parser nor a traceback stopped it. A status other than 0 may be its answer."""
    if not step.ran or step.kind != "shell" or step.timed_out or not step.judgement.own or step.exit is None:
        return False
    if own_traceback(step.both, package) is not None:
        return False
    if step.exit == 0:
        return True
    refused = read_refusal(step.both, step.text)
    return refused is None and step.exit == 1 and not step.err.strip()
