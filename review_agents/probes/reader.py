"""Go through a document as a reader does: make the files it shows, run its commands and its Python, in order.

One `Reader` reads one document, in a folder of its own that holds a copy of the repo's files. The state of the shell
(folder, exported variables), the files, and the names at the Python prompt go on from example to example.
"""

import json
import re
import secrets
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from review_agents.ports import NoSuchFile, Workspace
from review_agents.probes import recipes
from review_agents.probes.documents import Block, BlockKind, Document
from review_agents.probes.names import names_set, names_used
from review_agents.probes.shell import Judgement, Package, judge, literal_names, own_invocations, simple_commands
from review_agents.probes.transcripts import Command, without_heredocs
from review_agents.probes.within import send
from review_agents.records import Environment, Ran

COMMAND_S = 30.0  # of one shell command
ITEM_S = 20.0  # of one Python block or session
PYTHON_S = 120.0  # of one interpreter
OUTPUT_LIMIT = 60_000
ROOT = "/tmp/lamplighter-reader"
NO_TIME, NOT_STARTED = "no time left", "the interpreter did not start"  # why a step that could be run was not


@dataclass(slots=True)
class Step:
    """One thing the reader does, and what came of it."""

    number: int
    kind: str  # file, shell, python, session
    block: Block
    line: int
    text: str
    command: Command | None = None  # of shell
    judgement: Judgement = field(default_factory=Judgement)
    skipped: str = ""  # why it was not run
    noted: str = ""  # why there was nothing to do
    ran: bool = False
    exit: int | None = None
    timed_out: bool = False
    out: str = ""
    err: str = ""
    record: dict[str, Any] = field(default_factory=dict)  # of python and session: what the driver wrote
    makes: set[str] = field(default_factory=set)  # files it created or changed
    seconds: float = 0.0
    absent: tuple[str, ...] = ()  # arguments of own programs that look like files and are none, before it ran

    @property
    def missed(self) -> bool:
        """Whether it could have been run, and was not: what it would have shown nobody knows."""
        return self.skipped.startswith((NO_TIME, NOT_STARTED))

    @property
    def both(self) -> str:
        """Standard output and standard error together; their order among each other is not known."""
        return "\n".join(filter(None, (self.out.rstrip("\n"), self.err.rstrip("\n"))))


class Reader:
    """Reads one document in one workspace. `perturbed`: with another clock, hash seed and time zone."""

    def __init__(
        self,
        workspace: Workspace,
        package: Package,
        document: Document,
        *,
        tracked: Iterable[str] = (),
        environment: Environment = Environment.PLAIN,
        perturbed: bool = False,
        deadline: float = float("inf"),
    ):
        self.workspace = workspace
        self.package = package
        self.document = document
        self.tracked = set(tracked)
        self.environment = environment
        self.perturbed = perturbed
        self.deadline = deadline  # of time.monotonic()
        self.home = f"{ROOT}/{secrets.token_hex(4)}"
        self.folder = f"{self.home}/repo"
        self.steps = list(_steps(document))
        self.files: dict[str, str] = {}  # shown files that were made, with their content

    def read(self) -> list[Step]:
        self._set_up()
        waiting: list[Step] = []  # Python steps not yet run: they go to one interpreter
        for step in self.steps:
            if time.monotonic() > self.deadline:
                step.skipped = NO_TIME
            elif step.block.skip and not step.block.hidden:
                step.skipped = step.block.skip
            elif step.kind in ("python", "session"):
                waiting.append(step)
            else:
                if step.kind == "file":
                    self._make_file(step.text, step.block.text)
                    step.ran = True
                    continue
                literal = literal_names(command.output for command in step.block.commands)
                step.judgement = judge(step.text, self.package, self._known_files() | literal)
                step.skipped, step.noted = step.judgement.why_not, step.judgement.done
                if step.judgement.run:
                    self._run_python(waiting)
                    waiting = []
                    self._run_shell(step)
        self._run_python(waiting)
        return self.steps

    # Set-up ------------------------------------------------------------------------------

    def _set_up(self) -> None:
        """A copy of the tree without its history. Commands that do not start get their stand-in on PATH."""
        stand_ins = "".join(
            f"printf '#!/bin/sh\\nexec {command} \"$@\"\\n' > {self.home}/bin/{name}; chmod +x {self.home}/bin/{name}\n"
            for name, command in self.package.stand_ins.items()
        )
        surroundings = send(self.workspace, "surroundings")
        self.workspace.run(
            f"mkdir -p {self.folder} {self.home}/bin {self.home}/late && tar -C /job/repo --exclude=./.git -cf - . | "
            f"tar -C {self.folder} -xf -\n"
            f"cp {surroundings} {self.home}/late/sitecustomize.py\n{stand_ins}"
            f"echo {self.folder} > {self.home}/cwd; : > {self.home}/env",
            environment=Environment.NONE,
            timeout_s=120,
        )

    def _preamble(self) -> str:
        lines = [
            f"export PATH={self.home}/bin:$PATH PYTHONDONTWRITEBYTECODE=1 MPLBACKEND=Agg",
            f"export PYTHONPATH={self.home}/late PYTHONHASHSEED=4321 TZ=XYZ-5:45"
            if self.perturbed
            else "export PYTHONHASHSEED=0",
            f". {self.home}/env",
            f'cd "$(cat {self.home}/cwd)" || cd {self.folder}',
        ]
        return "\n".join(lines)

    def _known_files(self) -> set[str]:
        known = set(self.files) | {name for step in self.steps for name in step.makes}
        return known | self.tracked

    # Files -------------------------------------------------------------------------------

    def _make_file(self, name: str, content: str) -> None:
        """A file that the document shows, unless the repo has it."""
        if name in self.tracked or (name in self.files and self.files[name] == content):
            return
        self.files[name] = content
        self.workspace.write(f"{self.folder}/{name}", content if content.endswith("\n") else content + "\n")
        self.workspace.run(f"chmod -R u+w {shlex.quote(self.folder)}/{shlex.quote(name)}", environment=Environment.NONE)

    def _files_that_cat_shows(self, step: Step) -> None:
        """`cat FILE` with its output: the file is made first when there is none."""
        assert step.command is not None
        commands = simple_commands(step.text)
        if len(commands) == 1 and commands[0].program == "cat" and len(commands[0].words) == 2 and step.command.output:
            name = commands[0].values[1]
            safe = not name.startswith(("/", "~", "-")) and ".." not in name.split("/") and "$" not in name
            if safe and name not in self._known_files():
                self._make_file(name, step.command.output)

    def _absent(self, text: str) -> Iterable[str]:
        known = {name.removeprefix("./") for name in self._known_files()}
        folders = {name.rpartition("/")[0] for name in known if "/" in name}
        for command, count in own_invocations(text, self.package):
            for value in (*command.values[count:], *command.reads):
                name = value.partition("=")[2] if value.startswith("-") else value
                looks = re.fullmatch(r"[\w.~/@+-]*/[\w.@+-]+/?|[\w-]+\.[A-Za-z]\w{0,5}|\*\.\w+", name)
                bare = name.removeprefix("./").rstrip("/")
                if (
                    looks
                    and bare not in known
                    and not any(folder == bare or folder.startswith(f"{bare}/") for folder in folders)
                ):
                    yield name

    # Shell -------------------------------------------------------------------------------

    def _run_shell(self, step: Step) -> None:
        self._files_that_cat_shows(step)
        step.absent = tuple(self._absent(step.text))
        mark = secrets.token_hex(8)
        text = step.text
        safe_path = (
            "export PYTHONSAFEPATH=1\n" if re.search(r"\bpython[\d.]*\s+-m\s", text) and step.judgement.own else ""
        )
        command = (
            f"{self._preamble()}\n{safe_path}touch {self.home}/mark\n"
            f"exec 3>&1\n"
            f"finish() {{ status=$?; exec 1>&3 2>/dev/null\n"
            f"pwd > {self.home}/cwd; unset PYTHONSAFEPATH; export -p > {self.home}/env\n{self._keep_variables(step)}"
            f"printf '\\n{mark}out\\n'; head -c {OUTPUT_LIMIT} {self.home}/out\n"
            f"printf '\\n{mark}err\\n'; head -c {OUTPUT_LIMIT} {self.home}/err\n"
            f"printf '\\n{mark}made\\n'; cd {self.folder}; find . -newer {self.home}/mark -type f | head -200\n"
            f"printf '{mark}end %s\\n' $status; exit $status; }}\n"
            f"trap finish EXIT\n"
            f"exec > {self.home}/out 2> {self.home}/err < /dev/null\n{text}\n"
        )
        ran = self.workspace.run(command, environment=self.environment, timeout_s=COMMAND_S)
        step.ran, step.seconds, step.timed_out = True, ran.seconds, ran.timed_out
        self._take(step, ran, mark)

    def _keep_variables(self, last: Step) -> str:
        """What was set and not exported is there for the next command, too, as in a reader's shell."""
        run = [*(step for step in self.steps if step.kind == "shell" and step.ran), last]
        names = {name for step in run for name in variables_set(step.text)}
        return f"declare -p {' '.join(sorted(names))} >> {self.home}/env\n" if names else ""

    def _take(self, step: Step, ran: Ran, mark: str) -> None:
        said = ran.output
        found = re.search(rf"\n{mark}out\n(.*)\n{mark}err\n(.*)\n{mark}made\n(.*){mark}end (\d+)", said, re.DOTALL)
        if not found:
            step.exit = ran.exit
            step.err = said[-2000:]
            return
        step.out, step.err, step.exit = found[1], found[2], int(found[4])
        step.makes = {name.removeprefix("./") for name in found[3].split("\n") if name}

    # Python ------------------------------------------------------------------------------

    def _run_python(self, steps: list[Step]) -> None:
        """These in one interpreter, after all earlier Python that went well, whose names they may use."""
        steps = [step for step in steps if not step.skipped]
        while steps:
            before = [
                step
                for step in self.steps
                if step.kind in ("python", "session") and step.ran and not _ended_badly(step)
            ]
            done = self._interpret([*before, *steps], first=len(before))
            if not done:
                return
            steps = steps[done:]

    def _interpret(self, items: list[Step], first: int) -> int:
        """Run all; results of those from `first` on are taken. How many of these were dealt with."""
        driver = send(self.workspace, "run_python")
        job, result = f"{self.home}/job.json", f"{self.home}/result.jsonl"
        content = {
            "items": [
                {"id": step.number, "kind": "session" if step.kind == "session" else "block", "text": step.text,
                 "file": step.block.file, "line": step.line}
                for step in items
            ],
            "own": self.package.modules,
            "seconds": ITEM_S,
        }  # fmt: skip
        self.workspace.write(job, json.dumps(content))
        command = (
            f"{self._preamble()}\ntouch {self.home}/mark; rm -f {result}\n"
            f"python {driver} {job} {result} < /dev/null > {self.home}/out 2>&1\n"
            f"status=$?; cd {self.folder}; find . -newer {self.home}/mark -type f | head -200; exit $status"
        )
        ran = self.workspace.run(command, environment=self.environment, timeout_s=PYTHON_S)
        records = self._records(result)
        made = {name.removeprefix("./") for name in ran.output.split("\n") if name.startswith("./")}
        dealt = 0
        for step in items[first:]:
            if step.number in records:
                step.ran, step.record = True, records[step.number]
                step.makes = {name for name in made if name.rpartition("/")[2] in step.text}
                dealt += 1
            elif step.number == records.get("started"):
                step.skipped = "it does not end" if ran.timed_out else "it ended the interpreter"
                step.timed_out = ran.timed_out
                return dealt + 1
            else:
                break
        if not dealt:
            for step in items[first:]:
                step.skipped = f"{NOT_STARTED} ({ran.ending})"
        return dealt

    def _records(self, result: str) -> dict[Any, Any]:
        try:
            lines = self.workspace.read(result, limit_bytes=30_000_000).splitlines()
        except NoSuchFile:
            return {}
        records: dict[Any, Any] = {}
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if "start" in entry:
                records["started"] = entry["start"]
            elif "id" in entry:
                records[entry["id"]] = entry
        return records

    # Recipes -----------------------------------------------------------------------------

    def needed_for(self, step: Step, *, all_before: bool = False) -> list[Step]:
        """Earlier steps without which this one would not do what it did, in order."""
        earlier = [other for other in self.steps[: step.number] if other.ran]
        if all_before:
            return [other for other in earlier if not (other.kind in ("python", "session") and _ended_badly(other))]
        wanted: set[int] = set()
        self._collect(step, earlier, wanted)
        return [other for other in earlier if other.number in wanted]

    def _collect(self, step: Step, earlier: list[Step], wanted: set[int]) -> None:
        for other in earlier:
            if other.number >= step.number or other.number in wanted:
                continue
            if _feeds(other, step):
                wanted.add(other.number)
                self._collect(other, earlier, wanted)

    def parts_of(self, steps: Iterable[Step]) -> list[recipes.Part]:
        """Python steps that follow each other become one script."""
        parts: list[recipes.Part] = []
        made: set[str] = set()
        for step in steps:
            for name in sorted(self.files):
                if name not in made and _mentions(step, name):
                    made.add(name)
                    parts.append(recipes.File(name, self.files[name]))
            if step.kind in ("python", "session"):
                code = step.text if step.kind == "python" else session_source(step)
                parts.append(recipes.Python(code))
            elif step.kind == "shell" and not _only_shows(step):
                parts.append(recipes.Shell(step.text))
        return merge_python(parts)

    def brings(self, parts: Sequence[recipes.Part]) -> set[str]:
        """Names at the repo's root that the parts mention."""
        text = "\n".join(part.name if isinstance(part, recipes.File) else part.text for part in parts)
        shell = "\n".join(part.text for part in parts if isinstance(part, recipes.Shell))
        words = set(re.findall(r"[\w.@+-]+(?:/[\w.@+-]+)*/?", text))
        tops = {name.partition("/")[0] for name in self.tracked}
        brought = set()
        for word in words:
            word = word.removeprefix("./").rstrip("/")
            top = word.partition("/")[0]
            is_there = word in self.tracked or any(name.startswith(word + "/") for name in self.tracked)
            if top in tops and is_there and ("/" in word or top in self.tracked or _is_argument(shell, text, word)):
                brought.add(top)
        return brought


def merge_python(parts: list[recipes.Part]) -> list[recipes.Part]:
    merged: list[recipes.Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, recipes.Python) and isinstance(last, recipes.Python):
            merged[-1] = recipes.Python(last.text.rstrip("\n") + "\n" + part.text)
        else:
            merged.append(part)
    return merged


def _steps(document: Document) -> Iterable[Step]:
    number = 0
    for block in document.blocks:
        for kind, text, line, command in _things_to_do(block):
            yield Step(number, kind, block, line, text, command)
            number += 1


def _things_to_do(block: Block) -> Iterable[tuple[str, str, int, Command | None]]:
    if block.filename:
        yield "file", block.filename, block.line, None
    if block.kind in (BlockKind.SHELL, BlockKind.CONSOLE):
        for command in block.commands:
            yield "shell", command.text, command.line, command
    elif block.kind is BlockKind.PYTHON:
        yield "python", block.text, block.line, None
    elif block.kind is BlockKind.SESSION:
        yield "session", block.text, block.line, None


def _ended_badly(step: Step) -> bool:
    """Whether running it once more would only cost time."""
    error = step.record.get("error") or {}
    return bool(step.skipped) or error.get("type") == "TooLong" or error.get("syntax", False)


def _only_shows(step: Step) -> bool:
    commands = simple_commands(step.text)
    return all(
        command.program in ("cat", "ls", "head", "tail", "pwd", "tree") and not command.writes for command in commands
    )


def _mentions(step: Step, name: str) -> bool:
    return name in step.text or name.rpartition("/")[2] in step.text


def _feeds(other: Step, step: Step) -> bool:
    """Whether `step` uses what `other` made: a file, a name, or the state of the shell."""
    if other.kind == "file":
        return _mentions(step, other.text)
    if any(_mentions(step, name) for name in other.makes):
        return True
    if other.kind == "shell" and step.kind == "shell":
        if any(re.search(rf"\$\{{?{name}\b", step.text) for name in variables_set(other.text)):
            return True
        return bool(re.match(r"^\s*(?:cd|export|alias|pushd|set)\b", other.text)) and not other.noted
    if other.kind in ("python", "session") and step.kind in ("python", "session"):
        return bool(names_set(source_of(other)) & names_used(source_of(step)))
    return False


def variables_set(text: str) -> list[str]:
    """Shell variables that a command sets for those after it: assignments without a program."""
    return [
        assignment.partition("=")[0]
        for command in simple_commands(text)
        if not command.program
        for assignment in command.assignments
    ]


def source_of(step: Step) -> str:
    return session_source(step) if step.kind == "session" else step.text


def session_source(step: Step) -> str:
    """The code of a `>>>` session without prompts and output."""
    examples = step.record.get("examples")
    if examples is not None:
        return "".join(example["source"] for example in examples)
    lines = [line[4:] for line in step.text.splitlines() if re.match(r"^\s*(?:>>>|\.\.\.)(?: |$)", line)]
    return "\n".join(lines) + "\n"


def _is_argument(shell: str, text: str, word: str) -> bool:
    """Whether a bare word that is also a folder of the repo stands where a path would; a module's name is none."""
    path = rf"(?:\./)?{re.escape(word)}/?"
    return bool(re.search(rf"(?:^|(?<!\s-m)\s){path}(?=\s|$)", shell) or re.search(rf"(['\"]){path}\1", text))


def shell_programs(text: str, package: Package) -> str:
    """The own command and subcommand-like words of a command, for titles: `spanparse sum`."""
    for command, count in own_invocations(without_heredocs(text), package):
        words = command.values[:count]
        for value in command.values[count:]:
            if not re.fullmatch(r"[a-z][\w-]*", value):
                break
            words.append(value)
        return " ".join(words)
    return ""
