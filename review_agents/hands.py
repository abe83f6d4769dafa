"""Carrying out an agent's calls on its workspace, and keeping whole outputs so that it can read any part of them."""

import re
import statistics
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from review_agents.ports import CommandFailed, NoSuchFile, Workspace, WorkspaceReset
from review_agents.records import Measurement, Ran
from review_agents.tools import Arguments, Measure, Read, Run, Search, Write
from review_agents.visible import OUTPUT_CHARS, cut, in_words, quoted

KEPT_CHARS = 16 << 20  # of outputs in all; the oldest go first
SEARCH_LINES = 80
LINE_CHARS = 400
OUTPUT = re.compile(r"output:(\d{1,9})")
UNFLUSHED = "What it had not flushed by then is lost: use python -u, or print(..., flush=True)."
DISTURBED = "Every session was disturbed by other work on the machine: good for an estimate, not for a finding."


class Outputs(Protocol):
    """Where whole outputs are kept, by the number of the call that made them."""

    def keep(self, number: int, text: str) -> None:
        """In place of an earlier one of that number. All may be forgotten but the newest, the oldest first."""
        ...

    def kept(self, number: int) -> str | None: ...


class InMemory:
    """Outputs that end with the process."""

    def __init__(self) -> None:
        self._texts: OrderedDict[int, str] = OrderedDict()
        self._chars = 0

    def keep(self, number: int, text: str) -> None:
        self._chars += len(text) - len(self._texts.pop(number, ""))
        self._texts[number] = text
        while self._chars > KEPT_CHARS and len(self._texts) > 1:
            self._chars -= len(self._texts.popitem(last=False)[1])

    def kept(self, number: int) -> str | None:
        return self._texts.get(number)


class Hands:
    """`mark` surrounds all that comes out of the container. `document` gives texts of ours that can be read by name."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        mark: str,
        longest_s: float,
        outputs: Outputs | None = None,
        document: Callable[[str], str | None] = lambda name: None,
    ):
        self._workspace = workspace
        self._mark = mark
        self._longest_s = longest_s
        self._document = document
        self._outputs: Outputs = InMemory() if outputs is None else outputs

    def do(self, arguments: Arguments, number: int) -> str:
        """The result as the model sees it. `number` names its whole output."""
        try:
            match arguments:
                case Run():
                    return self._run(arguments, number)
                case Read():
                    return self._read(arguments)
                case Search():
                    return self._search(arguments, number)
                case Write():
                    self._workspace.write(arguments.path, arguments.text)
                    return f"Written: {len(arguments.text)} characters."
                case Measure():
                    return self._measure(arguments, number)
        except NoSuchFile as error:
            return f"There is no such file: {in_words(str(error), self._mark)}"
        except WorkspaceReset as error:
            return f"{in_words(str(error), self._mark)}. Files that you wrote are gone."
        except (ValueError, PermissionError, IsADirectoryError) as error:
            return f"That cannot be done: {in_words(str(error), self._mark)}"
        raise AssertionError(f"no hand for {type(arguments).__name__}")

    def _run(self, asked: Run, number: int) -> str:
        timeout_s = min(asked.timeout_s, self._longest_s)
        ran = self._workspace.run(asked.command, environment=asked.environment, timeout_s=timeout_s)
        self._outputs.keep(number, ran.output)
        lost = f" {UNFLUSHED}" if ran.timed_out else ""
        return f"{ending(ran)}{lost}\n{self._shown(ran.output, number)}"

    def _shown(self, output: str, number: int) -> str:
        if not output.strip():
            return "It printed nothing."

        def advice(head: str) -> str:
            whole = output[len(head)] == "\n"  # else it was cut within a line
            return f"; read output:{number} from_line {len(in_pieces(head)) + whole} shows them"

        return quoted(cut(output, advice=advice), mark=self._mark, label=f"output:{number}")

    def _read(self, asked: Read) -> str:
        kept = OUTPUT.fullmatch(asked.path.strip())
        if kept:
            text = self._outputs.kept(int(kept[1]))
            if text is None:
                return f"The output of call {kept[1]} is not kept (any more). Run the command again."
            lines = in_pieces(text)
        elif (document := self._document(asked.path.strip())) is not None:
            lines = in_pieces(document)
        else:
            lines = self._workspace.read(asked.path).splitlines()
        first = asked.from_line
        part = that_fit(
            [f"{first + at}: {cut_off(line)}" for at, line in enumerate(lines[first - 1 : first - 1 + asked.lines])]
        )
        if not part:
            return f"{in_words(asked.path, self._mark)} has {len(lines)} lines; there is none from {first} on."
        last = first + len(part) - 1
        shown = quoted("\n".join(part), mark=self._mark, label=f"{asked.path} lines {first}-{last} of {len(lines)}")
        return shown if last >= len(lines) else f"{shown}\nMore from line {last + 1} on."

    def _search(self, asked: Search, number: int) -> str:
        found = self._workspace.search(asked.pattern, folder=asked.folder)
        if not found:
            return "No line matches."
        lines = [f"{one.file}:{one.line}: {cut_off(one.text.strip())}" for one in found]
        self._outputs.keep(number, "\n".join(f"{one.file}:{one.line}: {one.text.strip()}" for one in found))
        part = that_fit(lines[:SEARCH_LINES])
        more = len(lines) - len(part)
        rest = f"\n{more} more lines match; read output:{number} has all of them, whole." if more else ""
        return quoted("\n".join(part), mark=self._mark, label=f"{len(lines)} lines") + rest

    def _measure(self, asked: Measure, number: int) -> str:
        try:
            measured = self._workspace.measure(
                asked.name,
                asked.command,
                sessions=asked.sessions,
                environment=asked.environment,
                timeout_s=self._longest_s,
            )
        except CommandFailed as error:
            self._outputs.keep(number, error.ran.output)
            shown = self._shown(error.ran.output, number)
            return f"It was not timed, because it did not succeed: {ending(error.ran)}\n{shown}"
        return told(measured)


def in_pieces(text: str) -> list[str]:
    """The lines of an output, long ones as several, so that all of it can be read. Of files the numbers must stay."""
    return [line[at : at + LINE_CHARS] for line in text.splitlines() for at in range(0, max(1, len(line)), LINE_CHARS)]


def that_fit(lines: list[str]) -> list[str]:
    """The first lines, as many as one result may show."""
    left = OUTPUT_CHARS
    for at, line in enumerate(lines):
        left -= len(line) + 1
        if left < 0:
            return lines[:at]
    return lines


def cut_off(line: str) -> str:
    rest = len(line) - LINE_CHARS
    return line if rest <= 0 else f"{line[:LINE_CHARS]} [... {rest} more characters in this line]"


def ending(ran: Ran) -> str:
    return f"{ran.ending[:1].upper()}{ran.ending[1:]}, {ran.seconds:.2f} s."


def told(measured: Measurement) -> str:
    good = [session for session in measured.sessions if not session.void]
    taken = good or list(measured.sessions)
    if not taken:
        return "No session was taken, so there is no number."
    median = statistics.median(session.value for session in taken)
    cpu = statistics.median(session.user_s + session.sys_s for session in taken)
    spread = f", spread {measured.spread:.1%}" if measured.spread is not None else ""
    void = f", {measured.contaminated} disturbed sessions left out" if good and measured.contaminated else ""
    of_cpu = f"; CPU time {cpu:.4g} s" if cpu else ""
    said = f"Median {median:.4g} {measured.unit} over {len(taken)} fresh processes{spread}{void}{of_cpu}."
    return said if good else f"{said} {DISTURBED}"
