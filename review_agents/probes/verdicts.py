"""What came of each example, judged without running anything: as shown, not for here, or suspect.

A suspect is not a finding yet: `examples.py` runs it again in other surroundings and as a script of its own.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from review_agents.probes.comparing import Comparison, Verdict, compare, parse_value
from review_agents.probes.documents import Block, BlockKind
from review_agents.probes.reader import Step, names_set, names_used, source_of
from review_agents.probes.own_traces import own_traceback
from review_agents.probes.refusals import Refusal, read_refusal
from review_agents.probes.shell import Package, own_invocations
from review_agents.probes.tracebacks import Raised, shape_of, surroundings
from review_agents.probes.transcripts import without_heredocs


@dataclass(frozen=True, slots=True)
class Suspect:
    """An example whose outcome is not what the document shows."""

    rule: str  # readme.output-differs, readme.example-fails, readme.unknown-option, readme.unknown-command
    symbol: str  # what of the package it is about
    shown: str = ""  # in full
    real: str = ""
    comparison: Comparison = Comparison(Verdict.DIFFERENT)
    what: str = ""  # what happened, in words
    shape: str = ""  # exception type and message, or empty
    error: str = ""  # the exception's type
    message: str = ""
    refusal: Refusal | None = None
    hint: str = ""  # what would have worked, where the program knows


@dataclass(frozen=True, slots=True)
class Outcome:
    """One example: a shell command, a statement of a block, or one `>>>`."""

    step: Step
    at: int  # index within the step
    line: int
    code: str
    state: str  # matched, ran, tolerated, abbreviated, unsure, not_run, noted, suspect
    reason: str = ""
    suspect: Suspect | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        return (self.step.block.line, self.line, self.at)


def judge_steps(steps: list[Step], package: Package, blocks: tuple[Block, ...]) -> list[Outcome]:
    """Outcomes of all examples, in order. Comparisons take the real output as stable; see `settle`."""
    judge = _Judge(steps, package)
    outcomes: list[Outcome] = []
    for step in steps:
        if step.kind != "file":
            outcomes += judge.step(step)
    outcomes += judge.output_blocks(blocks)
    return outcomes


def settle(outcome: Outcome, *, stable: bool) -> Outcome:
    """Compare once more, now knowing whether the output depends on its surroundings."""
    suspect = outcome.suspect
    if suspect is None or suspect.rule != "readme.output-differs" or not suspect.shown:
        return outcome
    whole = outcome.step.kind != "shell"
    comparison = compare(suspect.shown, suspect.real, stable=stable, whole=whole)
    if comparison.verdict is Verdict.DIFFERENT and stable:
        return replace(outcome, suspect=replace(suspect, comparison=comparison))
    reason = comparison.reason or "it depends on its surroundings"
    return replace(outcome, state="unsure", reason=reason, suspect=None)


# What points to an error being the point ---------------------------------------------------

ERROR_MEANT = re.compile(
    r"\b(rais\w+|error\w*|exceptions?|fail\w*|invalid|wrong|bad|illegal|not allowed|forbidden|doesn'?t work|does not work|won'?t|"
    r"can'?t|cannot|not supported|unsupported|deprecated|removed|no longer|don'?t|do not|avoid|crash\w*|oops|broken|instead of|"
    r"traceback|previously|used to|before version|old\b)",
    re.IGNORECASE,
)
ENVIRONMENTAL = {
    "FileNotFoundError", "ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "TimeoutError", "gaierror", "URLError",
    "HTTPError", "SSLError", "ProxyError", "ConnectTimeout", "ReadTimeout", "MaxRetryError", "NewConnectionError", "ConnectError",
    "PermissionError", "KeyboardInterrupt", "EOFError", "TclError", "ImproperlyConfigured", "NoCredentialsError", "SystemExit",
    "UnsupportedOperation", "NotADirectoryError", "IsADirectoryError", "FileExistsError", "TooLong", "MemoryError", "OSError",
    "BlockingIOError", "BrokenPipeError", "ClientConnectorError", "OperationalError", "NoSuchModuleError", "NoSuchFile", "error",
    "herror", "ChildProcessError", "ProcessLookupError", "LocaleError", "AppRegistryNotReady", "NoBackendError", "UnicodeEncodeError",
    "UnknownTimeZoneError", "ZoneInfoNotFoundError",
}  # fmt: skip


# Words of commands that later commands build on.
CHANGES_STATE = re.compile(
    r"\b(?:install|add|init|create|set|config\w*|log-?in|auth\w*|import|new|start|register|up|update|upgrade|remove|delete|enable|disable|use|"
    r"switch|save|load|plugins?|put|push|pull|sync|fetch|download|build|generate|write|apply|migrate|commit|tag|copy|move|rename|extract|in2\w+)\b|>",
    re.IGNORECASE,
)


class _Judge:
    def __init__(self, steps: list[Step], package: Package):
        self.steps = steps
        self.package = package
        self.spoilt: set[str] = set()  # names that a failed or skipped example would have set
        self.own_names: set[str] = set()  # names that come from the package, directly or not
        self.broken_before = False  # an own command was skipped or failed earlier
        self.spoilt_files: set[str] = set()  # what commands that were skipped or failed should have made

    def step(self, step: Step) -> list[Outcome]:
        if step.kind == "shell":
            return [self._shell(step)]
        if step.skipped or not step.ran:
            self.spoilt |= names_set(source_of(step))
            self._learn(source_of(step))
            return [Outcome(step, 0, step.line, step.text, "not_run", step.skipped or "it was not reached")]
        return self._session(step) if step.kind == "session" else self._block(step)

    # Shell ------------------------------------------------------------------------------

    def _shell(self, step: Step) -> Outcome:
        own = step.judgement.own

        def result(state: str, reason: str = "", suspect: Suspect | None = None) -> Outcome:
            if own and state in ("not_run", "unsure", "suspect") and CHANGES_STATE.search(step.text):
                self.broken_before = True
            if state in ("not_run", "unsure", "suspect") or (step.exit and not step.judgement.own):
                self.spoilt_files |= files_named(step.text) - step.makes
            else:
                self.spoilt_files -= step.makes
            return Outcome(step, 0, step.line, step.text, state, reason, suspect)

        if step.noted:
            return result("noted", step.noted)
        if step.skipped or not step.ran:
            return result("not_run", step.skipped)
        if step.timed_out:
            return result("not_run", "it does not end")
        shown = step.command.output if step.command else ""
        if shown and not _is_help(step.text):
            comparison = best_comparison(uncommented(shown), step)
            if comparison.verdict.agrees:
                state = "matched" if comparison.verdict is Verdict.SAME else comparison.verdict.value
                return result(state, comparison.reason)
        else:
            comparison = None
        if not own:
            return result("ran" if step.exit == 0 else "unsure", "" if step.exit == 0 else "it is no command of this repo")
        if step.exit:
            return self._failed_command(step, shown, comparison, result)
        if comparison is None:
            return result("ran", "" if not _is_help(step.text) else "help is compared by its options")
        if comparison.verdict is Verdict.UNSURE:
            return result("unsure", comparison.reason)
        if missing := sorted(self.spoilt_files & files_named(step.text)):
            return result("unsure", f"needs {missing[0]}, which an earlier command did not make")
        if step.absent:
            return result("unsure", f"needs input that is not there: {step.absent[0]}")
        if self.broken_before:
            return result("unsure", "a command before it did not do its part")
        if re.search(r"(?:^|\s)(?:--version|-V|version)(?:\s|$)", step.text):
            return result("unsure", "versions are the entry-point probe's business")
        if "|" in without_heredocs(step.text) and (not step.out.strip() or step.err.strip()):
            return result("unsure", "a part of the pipe failed")
        return result("suspect", "", self._differs(step, shown, comparison))

    def _differs(self, step: Step, shown: str, comparison: Comparison) -> Suspect:
        return Suspect(
            "readme.output-differs",
            own_command(step.text, self.package),
            shown,
            best_real(shown, step),
            comparison,
            what="prints something else than shown",
        )

    def _failed_command(self, step: Step, shown: str, comparison: Comparison | None, result: Any) -> Outcome:
        """An own command that ended with a status other than 0, and did not print what is shown."""
        said = step.both
        trace = own_traceback(said, self.package)
        symbol = own_command(step.text, self.package)
        if trace is not None:
            raised, own_frame = trace
            if why := _trace_excuse(raised, self.package):
                return result("not_run", why)
            if step.absent:
                return result("not_run", f"needs input that is not there: {step.absent[0]}")
            if own_frame is None:
                return result("unsure", "the traceback is not from this package")
            if ERROR_MEANT.search(step.block.before):
                return result("unsure", "the text around it speaks of errors")
            what = f"ends with a traceback: {raised.type}: {first_line(raised.message)}"
            suspect = Suspect(
                "readme.example-fails", symbol, shown, said,
                what=what, shape=raised.shape, error=raised.type, message=raised.message,
            )  # fmt: skip
            return result("suspect", "", suspect)
        refusal = read_refusal(said, step.text)
        if refusal is not None and refusal.kind in ("option", "command", "value"):
            if ERROR_MEANT.search(step.block.before) or "error" in shown.lower():
                return result("unsure", "the text around it speaks of errors")
            rule = {"option": "readme.unknown-option", "command": "readme.unknown-command", "value": "readme.unknown-value"}
            name = refused_symbol(refusal, step.text, self.package)
            suspect = Suspect(
                rule[refusal.kind], name, shown, said, what=f"is refused: {refusal.message}", refusal=refusal, hint=refusal.hint
            )
            return result("suspect", "", suspect)
        if missing := _missing_input(step, said):
            return result("not_run", missing)
        if step.absent:
            return result("not_run", f"needs input that is not there: {step.absent[0]}")
        if self.broken_before and comparison is not None:
            return result("unsure", "a command before it did not do its part")
        if comparison is None or comparison.verdict is Verdict.UNSURE:
            return result("ran" if comparison is None else "unsure", f"exit status {step.exit}")
        if not step.out.strip() and step.err.strip():
            what = f"fails with exit status {step.exit}: {first_line(step.err)}"
            return result("suspect", "", Suspect("readme.example-fails", symbol, shown, said, comparison, what))
        return result("suspect", "", self._differs(step, shown, comparison))

    # Blocks of Python ---------------------------------------------------------------------

    def _block(self, step: Step) -> list[Outcome]:
        outcomes: list[Outcome] = []
        statements = step.record.get("statements", [])
        error = step.record.get("error")
        lines = step.text.split("\n")
        shown_at = comments_as_output(step.text)
        done = statements[:-1] if error and not error.get("syntax") else statements
        for at, entry in enumerate(done):
            code = "\n".join(lines[entry["line"] - 1 : entry["end"]])
            line = step.line + entry["line"] - 1
            outcomes.append(self._statement(step, at, line, code, entry, shown_at.get(entry["end"])))
            self._learn(code)
        if error:
            at = len(done)
            if error.get("syntax"):
                line, code = step.line, step.text
            else:
                line = step.line + statements[-1]["line"] - 1
                code = "\n".join(lines[statements[-1]["line"] - 1 : statements[-1]["end"]])
            inner = error_line(error)
            around = "\n".join(lines[max(0, (inner or 1) - 3) : (inner or 1) + 1])
            shown = shown_at.get(statements[-1]["end"]) if statements and not error.get("syntax") else None
            outcomes.append(self._error(step, at, line, code, error, shown.text if shown else "", around))
            self.spoilt |= names_set("\n".join(lines[statements[-1]["line"] - 1 :]) if statements else step.text)
            self._learn(step.text)
        return outcomes

    def _statement(
        self, step: Step, at: int, line: int, code: str, entry: dict[str, Any], shown: "ShownComment | None"
    ) -> Outcome:
        if shown is None:
            return Outcome(step, at, line, code, "ran")
        real = entry.get("value")
        out = entry.get("out", "")
        comparison = compare_comment(shown, real, entry.get("string"), entry.get("type", ""), out)
        if comparison.verdict.agrees:
            return Outcome(step, at, line, code, "matched", comparison.reason)
        if comparison.reason in NO_CLAIM:
            return Outcome(step, at, line, code, "ran")
        if comparison.verdict is Verdict.UNSURE or not self._is_about_us(code) or self._is_spoilt(code):
            return Outcome(step, at, line, code, "unsure", comparison.reason or "it uses what an earlier example did not make")
        suspect = Suspect(
            "readme.output-differs",
            self._called(code),
            shown.text,
            out if real is None and out else (real if real is not None else "None"),
            comparison,
            "gives something else than shown",
        )
        return Outcome(step, at, shown.line + step.line - 1, code, "suspect", "", suspect)

    # Sessions -----------------------------------------------------------------------------

    def _session(self, step: Step) -> list[Outcome]:
        error = step.record.get("error")
        if error:
            return [Outcome(step, 0, step.line, step.text, "unsure", f"not a session as it stands: {error['message']}")]
        outcomes: list[Outcome] = []
        broken = ""
        for at, example in enumerate(step.record.get("examples", [])):
            outcome = self._example(step, at, example)
            if broken and outcome.suspect is not None and outcome.suspect.rule == "readme.output-differs":
                outcome = replace(outcome, state="unsure", reason=broken, suspect=None)
            if example.get("error") and not example.get("want_error"):
                broken = "an example before it in the same block failed"
            outcomes.append(outcome)
        return outcomes

    def _example(self, step: Step, at: int, example: dict[str, Any]) -> Outcome:
        code, want, line = example["source"], shown_part(example["want"]), example["line"]

        def result(state: str, reason: str = "", suspect: Suspect | None = None) -> Outcome:
            if state in ("not_run", "unsure", "suspect") and example.get("error"):
                self.spoilt |= names_set(code)
            return Outcome(step, at, line, code, state, reason, suspect)

        try:
            if example.get("skipped"):
                self.spoilt |= names_set(code)
                return result("not_run", "the author marked it as not to be tested")
            error = example.get("error")
            if error:
                if example.get("want_error"):
                    return self._expected_error(example, error, code, result)
                outcome = self._error(step, at, line, code, error, want, code + "\n" + want)
                return result(outcome.state, outcome.reason, outcome.suspect)
            if not want.strip():
                return result("ran")
            real = example["got"] or example.get("assigned") or ""
            comparison = compare(want, real, stable=True, whole=True)
            longer = shown_until_prompt(step, example)
            if not comparison.verdict.agrees and longer and compare(longer, real, stable=True, whole=True).verdict.agrees:
                return result("matched", "with the blank lines in it")
            if not comparison.verdict.agrees and is_cut(want):
                return result("unsure", "what is shown is cut off by a blank line")
            if comparison.verdict.agrees:
                return result("matched" if comparison.verdict is Verdict.SAME else "tolerated", comparison.reason)
            if comparison.verdict is Verdict.UNSURE:
                return result("unsure", comparison.reason)
            if not self._is_about_us(code):
                return result("unsure", "it is not about this package")
            if depends_on_zone_data(step.text, want):
                return result("unsure", "it depends on the time zone database")
            if self._is_spoilt(code):
                return result("unsure", "it uses what an earlier example did not make")
            if example.get("want_error"):
                what = "raises nothing, though an exception is shown"
            elif not example["got"].strip():
                what = "prints nothing"
            else:
                what = "gives something else than shown"
            suspect = Suspect("readme.output-differs", self._called(code), want, example["got"], comparison, what)
            return result("suspect", "", suspect)
        finally:
            self._learn(code)

    def _expected_error(self, example: dict[str, Any], error: dict[str, Any], code: str, result: Any) -> Outcome:
        wanted = example["want_error"].split(":")[0].strip().split(".")[-1]
        if wanted in error["bases"] or wanted == "...":
            return result("matched")
        if error["type"] in ("NameError", "ModuleNotFoundError") or not error["own_frames"] or self._is_spoilt(code):
            return result("unsure", f"{error['type']} came, {wanted} is shown")
        if error["type"] in ENVIRONMENTAL:
            return result("not_run", f"needs what this place lacks: {error['type']}")
        shown, real = example["want_error"].strip(), f"{error['type']}: {first_line(error['message'])}"
        suspect = Suspect(
            "readme.output-differs", self._called(code), shown, real,
            Comparison(Verdict.DIFFERENT, "", shown.split("\n")[0], real), f"raises {error['type']}, not {wanted}",
        )  # fmt: skip
        return result("suspect", "", suspect)

    # Errors in Python ---------------------------------------------------------------------

    def _error(
        self, step: Step, at: int, line: int, code: str, error: dict[str, Any], shown: str, around: str
    ) -> Outcome:
        kind, reason, symbol = self.error_kind(error, code)
        if kind == "fault" and self._error_is_meant(step, around):
            kind, reason = "unsure", "the text around it speaks of errors"
        if kind == "raises":
            meant = self._error_is_meant(step, around) or self._is_spoilt(code)
            kind = "fault" if shown.strip() and not meant and self._is_about_us(code) else "unsure"
            reason = reason or f"{error['type']}: {first_line(error['message'])}"
        if kind == "fault" and self._is_spoilt(code) and not error.get("import"):
            kind, reason = "unsure", "it uses what an earlier example did not make"
        if kind != "fault":
            return Outcome(step, at, line, code, "not_run" if kind == "needs" else "unsure", reason)
        inner = error_line(error)
        if step.kind == "python" and inner:
            line = step.line + inner - 1
        what = f"raises {error['type']}: {first_line(error['message'])}"
        suspect = Suspect(
            "readme.example-fails",
            symbol or self._called(code),
            shown,
            f"{error['type']}: {error['message']}",
            what=what,
            shape=shape_of(error["type"], error["message"]),
            error=error["type"],
            message=error["message"],
            hint=_hint(error),
        )
        return Outcome(step, at, line, code, "suspect", "", suspect)

    def error_kind(self, error: dict[str, Any], code: str) -> tuple[str, str, str]:
        """fault, raises (a fault only where output is shown), needs, or unsure; a reason; the symbol at fault."""
        kind, message, frames = error["type"], error["message"], error.get("frames", [])
        in_example = bool(frames) and frames[-1]["example"]
        if error.get("syntax"):
            if "Missing parentheses in call to 'print'" in message and self._is_about_us(code):
                return "fault", "", "print"
            return "unsure", "it is not Python as it stands", ""
        if any(frame["file"].startswith(("/job/repo", "/tmp")) and self.package.has_module(frame["module"]) for frame in frames):
            return "unsure", "it ran code of the clone instead of the installed package", ""
        if isinstance(error.get("import"), dict):
            return self._import_error(error, in_example)
        if kind == "NameError" and in_example:
            return "unsure", f"not self-contained: {first_line(message)}", ""
        if kind in ENVIRONMENTAL or ENVIRONMENTAL & set(error.get("bases", ())) & {"OSError", "SystemExit"}:
            return "needs", f"needs what this place lacks: {kind}: {first_line(message)}", ""
        attribute = error.get("attribute")
        if attribute and in_example:
            if attribute["own"] and attribute["name"]:
                return "fault", "", f"{attribute['of']}.{attribute['name']}"
            return "unsure", first_line(message), ""
        if kind == "TypeError" and in_example:
            return self._signature_error(error)
        if kind == "AttributeError" and self._is_about_us(code) and error["own_frames"]:
            return "raises", "", ""
        return ("raises", "", "") if error["own_frames"] else ("unsure", f"{kind}: {first_line(message)}", "")

    def _import_error(self, error: dict[str, Any], in_example: bool) -> tuple[str, str, str]:
        message = error["message"]
        module, name = error["import"]["module"], error["import"]["name"]
        found = re.match(r"cannot import name '([^']+)' from '([^']+)'", message)
        if found:
            name, module = found[1], found[2]
        importlib_only = all(frame["example"] or frame["module"].startswith("importlib") for frame in error.get("frames", []))
        if not self.package.has_module(module):
            return "needs", f"needs {module or 'a module that is not there'}", ""
        if "partially initialized" in message or not (in_example or importlib_only):
            return "unsure", first_line(message), ""
        if error["type"] == "ModuleNotFoundError" and module in self.package.modules:
            return "needs", f"needs {module}, which is not installed here", ""
        return "fault", "", f"{module}.{name}" if name and not module.endswith("." + name) else module

    def _signature_error(self, error: dict[str, Any]) -> tuple[str, str, str]:
        message = error["message"]
        found = re.match(r"([\w.<>]+)\(\) (?:got an unexpected keyword argument|missing \d+ required|takes |got multiple|got some positional)", message)
        if found:
            last = found[1].split(".")
            for call in error.get("calls", []):
                names = {call["name"], f"{call['name']}.__init__", call["name"].split(".")[-1], f"{call['name'].split('.')[-1]}.__init__"}
                if call["own"] and not call["ellipsis"] and (found[1] in names or last[-1] in names):
                    return "fault", "", call["name"] or call["text"]
        return "unsure", f"TypeError: {first_line(message)}", ""

    def _error_is_meant(self, step: Step, around: str) -> bool:
        comments = " ".join(re.findall(r"#.*", around))
        return bool(
            ERROR_MEANT.search(comments)
            or ERROR_MEANT.search(_last_sentences(step.block.before))
            or re.match(r"^.{0,80}\b(rais|error|exception|fail)", step.block.after, re.IGNORECASE)
        )

    # Names --------------------------------------------------------------------------------

    def _learn(self, code: str) -> None:
        """Which names come from the package."""
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError, RecursionError):
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if self.package.has_module(alias.name) or self._holds_own(alias.name):
                        self.own_names.add((alias.asname or alias.name).partition(".")[0])
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if self.package.has_module(node.module) or self.package.has_module(f"{node.module}.{alias.name}"):
                        if alias.name == "*":
                            self.own_names.add("*")
                        self.own_names.add(alias.asname or alias.name)
        for _ in range(2):
            if self.own_names & names_used(code) or "*" in self.own_names:
                self.own_names |= names_set(code)

    def _holds_own(self, module: str) -> bool:
        return any(own.startswith(module + ".") for own in self.package.modules)

    def _is_about_us(self, code: str) -> bool:
        used = names_used(code)
        builtin = set(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)
        return bool(self.own_names & used) or ("*" in self.own_names and bool(used - builtin))

    def _is_spoilt(self, code: str) -> bool:
        used = {name.lower() for name in names_used(code)} | {word.lower() for word in re.findall(r"\.(\w+)", code)}
        return bool({name.lower() for name in self.spoilt} & used)

    def _called(self, code: str) -> str:
        """The package's function that the code calls last, by which findings are told apart."""
        try:
            tree = ast.parse(code.strip())
        except (SyntaxError, ValueError, RecursionError):
            return ""
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        names = [name for call in calls if (name := _dotted(call.func)) and name.partition(".")[0] in self.own_names]
        if names:
            return names[0]
        methods = [call.func.attr for call in calls if isinstance(call.func, ast.Attribute)]
        if methods:
            return methods[0]
        used = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in self.own_names]
        return used[0] if used else ""

    # Blocks that show output ----------------------------------------------------------------

    def output_blocks(self, blocks: tuple[Block, ...]) -> list[Outcome]:
        """A block that shows what the block before it prints."""
        outcomes: list[Outcome] = []
        for before, block in zip(blocks, blocks[1:], strict=False):
            if block.kind is not BlockKind.OUTPUT or block.skip:
                continue
            steps = [step for step in self.steps if step.block is before and step.kind != "file"]
            if len(steps) == 1 and steps[0].ran and not steps[0].skipped:
                outcomes.append(self._output_block(block, steps[0]))
        return outcomes

    def _output_block(self, block: Block, step: Step) -> Outcome:
        if step.kind == "shell":
            real, failed = step.both, bool(step.exit) or _is_help(step.text) or not step.judgement.own
            symbol = own_command(step.text, self.package)
        else:
            statements = step.record.get("statements", [])
            real = "".join(entry.get("out", "") for entry in statements)
            if not real.strip() and statements and statements[-1].get("value") is not None:
                real = statements[-1]["value"]
            failed = bool(step.record.get("error")) or not self._is_about_us(step.text)
            symbol = self._called(step.text)
        comparison = compare(block.text, real, stable=True)
        if comparison.verdict.agrees:
            return Outcome(step, -1, block.line, step.text, "matched", comparison.reason)
        if failed or comparison.verdict is Verdict.UNSURE or not real.strip() or self._is_spoilt(step.text):
            return Outcome(step, -1, block.line, step.text, "unsure", comparison.reason)
        suspect = Suspect(
            "readme.output-differs", symbol, block.text, real, comparison, "prints something else than the block below shows"
        )
        return Outcome(step, -1, block.line, step.text, "suspect", "", suspect)


# Comments that show output -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShownComment:
    line: int  # within the block, from 1
    text: str
    marked: bool  # `# -> x` rather than `# x`


MARKED = re.compile(
    r"^#+\s*(?:(?:=+|-+)>|→|⇒|>{1,3}(?=\s)|==(?=\s)|(?:prints?|returns?|outputs?|result|gives|out|evaluates to|is)(?:\s+(?:the\s+)?(?:value|string))?:?(?=\s))"
    r"\s*(?P<text>.+)$",
    re.IGNORECASE,
)


NO_VALUE, PROSE = "the statement has no value", "the comment may be prose"
NO_CLAIM = (NO_VALUE, PROSE)


def comments_as_output(text: str) -> dict[int, ShownComment]:
    """What comments show, by the last line of the statement that they stand behind or right below."""
    comments: dict[int, tuple[str, bool]] = {}
    code_lines: set[int] = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                comments[token.start[0]] = (token.string, not token.line[: token.start[1]].strip())
            elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
                code_lines.update(range(token.start[0], token.end[0] + 1))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return {}
    found: dict[int, ShownComment] = {}
    for line, (comment, alone) in sorted(comments.items()):
        marked = MARKED.match(comment)
        shown = marked["text"] if marked else re.sub(r"^#+\s*", "", comment)
        if not alone:
            found[line] = ShownComment(line, shown.strip(), bool(marked))
            continue
        above = max((code for code in code_lines if code < line), default=0)
        lines_between = range(above + 1, line)
        if not above or any(between not in comments for between in lines_between):
            continue
        if above in found and found[above].line < line and found[above].marked and lines_between:
            found[above] = replace(found[above], text=found[above].text + "\n" + re.sub(r"^#+\s?", "", comment))
        elif marked and above not in found:
            found[above] = ShownComment(line, shown.strip(), True)
    return found


def compare_comment(shown: ShownComment, value: str | None, string: str | None, kind: str, out: str) -> Comparison:
    """A comment against the value or the output of its statement. Prose in a comment is no claim."""
    candidates = [text for text in (value, string, out.rstrip("\n") or None) if text is not None]
    if not candidates:
        if shown.marked and shown.text == "None":
            return Comparison(Verdict.SAME)
        return Comparison(Verdict.UNSURE, NO_VALUE)
    best = Comparison(Verdict.UNSURE)
    for text in candidates:
        comparison = compare(shown.text, text, stable=True)
        if comparison.verdict.agrees:
            return comparison
        if comparison.verdict is Verdict.DIFFERENT or best.reason == "":
            best = comparison
    wanted, real = parse_value(shown.text), parse_value(value if value is not None else out.strip())
    if wanted is None or real is None or wanted[1][0] in ("name", "call") or shown.text.strip() in ("...", ""):
        return Comparison(Verdict.UNSURE, PROSE)
    if wanted[1][0] != real[1][0]:
        return Comparison(Verdict.UNSURE, "the comment may be about something else")
    if wanted[1][0] == "int" and not shown.marked and abs(wanted[1][1]) < 30:
        return Comparison(Verdict.UNSURE, "the comment may number the lines")
    return best


# Smaller helpers ---------------------------------------------------------------------------


def best_comparison(shown: str, step: Step) -> Comparison:
    """Against standard output, standard error, and both."""
    best: Comparison | None = None
    for real in (step.out, step.both, "\n".join(filter(None, (step.err.rstrip("\n"), step.out))), step.err):
        comparison = compare(shown, real, stable=True)
        if comparison.verdict.agrees:
            return comparison
        if best is None:
            best = comparison
    assert best is not None
    return best


def files_named(text: str) -> set[str]:
    """Words of a command that look like files."""
    return {word for word in re.split(r"[\s|;&<>()'\"=]+", text) if re.fullmatch(r"[\w./-]*\w\.[A-Za-z]\w{0,5}", word)}


def uncommented(shown: str) -> str:
    """Output that is shown as comments, each line behind a `#`."""
    lines = [line for line in shown.split("\n") if line.strip()]
    if lines and all(line.startswith("#") for line in lines):
        return "\n".join(re.sub(r"^#+\s?", "", line) for line in lines)
    return shown


def best_real(shown: str, step: Step) -> str:
    return step.out if step.out.strip() else step.both


def shown_part(want: str) -> str:
    """What a session shows, without comment lines that stand among it."""
    return "".join(line for line in want.splitlines(True) if not line.lstrip().startswith("# "))


def shown_until_prompt(step: Step, example: dict[str, Any]) -> str:
    """What stands below an example up to the next prompt, blank lines included, at which doctest would stop."""
    lines = step.text.split("\n")
    at = example["line"] - step.line + example["source"].rstrip("\n").count("\n") + 1
    end = next((index for index in range(at, len(lines)) if lines[index].lstrip().startswith(">>> ")), len(lines))
    shown = lines[at:end]
    return "\n".join(line for line in shown if not line.lstrip().startswith("# "))


ZONE_DATA = re.compile(r"['\"][A-Z]\w+/[A-Z]\w+(?:/\w+)?['\"]|\bgettz\b|\bZoneInfo\b|\bpytz\b")


def depends_on_zone_data(code: str, shown: str) -> bool:
    """Rules of time zones change with the database that a machine has."""
    dated = re.search(r"\d{4}-\d\d|\d:\d\d|datetime|[A-Z]{3,4}T?\b", shown)
    return bool(ZONE_DATA.search(code) and dated)


def is_cut(want: str) -> bool:
    """Whether brackets or triple quotes are left open."""
    opened = sum(want.count(char) for char in "([{") - sum(want.count(char) for char in ")]}")
    return opened > 0 or want.count('"""') % 2 == 1 or want.count("'''") % 2 == 1


def _is_help(text: str) -> bool:
    return bool(re.search(r"(?:^|\s)(?:--help|-h|help|--help-all|-\?)(?:\s|$)", text))


def own_command(text: str, package: Package) -> str:
    """`spanparse sum`: the program and its subcommand-like first word."""
    for command, count in own_invocations(text, package):
        words = command.values[:count]
        for word in command.words[count:]:
            if not re.fullmatch(r"[a-z][a-z0-9_-]*", word.value) or word.quoted:
                break
            words.append(word.value)
            break
        return " ".join(words)
    return ""


def refused_symbol(refusal: Refusal, text: str, package: Package) -> str:
    if refusal.kind == "command":
        program = next((command.values[:count] for command, count in own_invocations(text, package)), [])
        return " ".join([*program, refusal.word])
    return f"{own_command(text, package)} {refusal.option or refusal.word}".strip()


def _missing_input(step: Step, said: str) -> str:
    found = re.search(
        r"(?:No such file or directory|[Ff]ile not found|[Nn]ot found|[Dd]oes not exist|[Cc]annot find|[Cc]ould not (?:find|open|read)|"
        r"[Nn]o such file|[Nn]ot a directory|[Ii]s not a file|[Uu]nable to (?:open|find|read)|[Nn]o files?)[^\n]{0,160}",
        said,
    )
    if found:
        return f"needs input that is not there: {first_line(found[0])}"
    if re.search(r"[Cc]onnection|[Nn]etwork|[Tt]imed? ?out|[Nn]ame or service|resolve|[Uu]nreachable|[Pp]roxy|SSL", said):
        return "needs the network"
    if re.search(r"[Pp]ermission denied|[Rr]ead-only|not a (?:tty|terminal)|[Ii]nappropriate ioctl|DISPLAY", said):
        return "needs what this place lacks"
    return ""


def _trace_excuse(raised: Raised, package: Package) -> str:
    """Why a traceback says nothing about the document; empty when it may."""
    if raised.type == "ModuleNotFoundError":
        found = re.search(r"No module named '([^']+)'", raised.message)
        if found and not package.has_module(found[1]):
            return f"needs {found[1]}"
    if raised.type in ENVIRONMENTAL:
        return f"needs what this place lacks: {raised.text}"
    return surroundings(raised.text)


def error_line(error: dict[str, Any]) -> int | None:
    """The line of the block on which it was raised."""
    return next((frame["line"] for frame in error.get("frames", []) if frame["example"]), None)


def _hint(error: dict[str, Any]) -> str:
    found = re.search(r"Did you mean: '([^']+)'", error.get("message", ""))
    if found:
        return found[1]
    for call in error.get("calls", []):
        if call["own"] and call["signature"]:
            return f"{call['text']}{call['signature']}"
    return ""


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:200]


def _last_sentences(text: str) -> str:
    return text[-240:]


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def count_states(outcomes: Iterable[Outcome]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.state] = counts.get(outcome.state, 0) + 1
    return counts


