"""What came of each example, judged without running anything: as shown, not for here, or suspect.

A suspect is not a finding yet: `examples.py` runs it again in other surroundings and as a script of its own.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from review_agents.probes.comparing import Comparison, Verdict, compare
from review_agents.probes.documents import Block, BlockKind
from review_agents.probes.names import Names, names_set
from review_agents.probes.own_traces import own_traceback
from review_agents.probes.python_errors import (
    ENVIRONMENTAL,
    ERROR_MEANT,
    error_is_meant,
    error_kind,
    error_line,
    first_line,
    hint_of,
)
from review_agents.probes.reader import Step, source_of
from review_agents.probes.refusals import Refusal, read_refusal
from review_agents.probes.shell import Package, own_invocations
from review_agents.probes.shown_comments import NO_CLAIM, ShownComment, comments_as_output, compare_comment
from review_agents.probes.tracebacks import Raised, shape_of, surroundings
from review_agents.probes.transcripts import without_heredocs


@dataclass(frozen=True, slots=True)
class Suspect:
    """An example whose outcome is not what the document shows."""

    rule: str  # readme.output-differs, readme.example-fails, readme.unknown-option, readme.unknown-command
    symbol: str  # what of the package it is about
    shown: str = ""  # in full
    real: str = ""
    comparison: Comparison = field(default_factory=lambda: Comparison(Verdict.DIFFERENT))
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


# Words of commands that later commands build on.
CHANGES_STATE = re.compile(
    r"\b(?:install|add|init|create|set|config\w*|log-?in|auth\w*|import|new|start|register|up|"
    r"update|upgrade|remove|delete|enable|disable|use|"
    r"switch|save|load|plugins?|put|push|pull|sync|fetch|download|build|generate|write|apply|"
    r"migrate|commit|tag|copy|move|rename|extract|in2\w+)\b|>",
    re.IGNORECASE,
)


class _Judge:
    def __init__(self, steps: list[Step], package: Package):
        self.steps = steps
        self.package = package
        self.names = Names(package)
        self.broken_before = False  # an own command was skipped or failed earlier
        self.spoilt_files: set[str] = set()  # what commands that were skipped or failed should have made

    def step(self, step: Step) -> list[Outcome]:
        if step.kind == "shell":
            return [self._shell(step)]
        if step.skipped or not step.ran:
            self.names.spoilt |= names_set(source_of(step))
            self.names.learn(source_of(step))
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
            return result(
                "ran" if step.exit == 0 else "unsure", "" if step.exit == 0 else "it is no command of this repo"
            )
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
            rule = {
                "option": "readme.unknown-option",
                "command": "readme.unknown-command",
                "value": "readme.unknown-value",
            }
            name = refused_symbol(refusal, step.text, self.package)
            suspect = Suspect(
                rule[refusal.kind],
                name,
                shown,
                said,
                what=f"is refused: {refusal.message}",
                refusal=refusal,
                hint=refusal.hint,
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
            self.names.made_anew(code)
            self.names.learn(code)
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
            self.names.spoilt |= names_set("\n".join(lines[statements[-1]["line"] - 1 :]) if statements else step.text)
            self.names.learn(step.text)
        return outcomes

    def _statement(
        self, step: Step, at: int, line: int, code: str, entry: dict[str, Any], shown: ShownComment | None
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
        if comparison.verdict is Verdict.UNSURE or not self.names.are_ours(code) or self.names.are_spoilt(code):
            return Outcome(
                step, at, line, code, "unsure", comparison.reason or "it uses what an earlier example did not make"
            )
        suspect = Suspect(
            "readme.output-differs",
            self.names.called_by(code),
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
            reason = f"not a session as it stands: {error['message']}"
            return [Outcome(step, 0, step.line, step.text, "not_run", reason)]
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
                self.names.spoilt |= names_set(code)
            return Outcome(step, at, line, code, state, reason, suspect)

        try:
            if example.get("skipped"):
                self.names.spoilt |= names_set(code)
                return result("not_run", "the author marked it as not to be tested")
            error = example.get("error")
            if error:
                if example.get("want_error"):
                    return self._expected_error(example, error, code, result)
                outcome = self._error(step, at, line, code, error, want, code + "\n" + want)
                return result(outcome.state, outcome.reason, outcome.suspect)
            self.names.made_anew(code)
            if not want.strip():
                return result("ran")
            real = example["got"] or example.get("assigned") or ""
            comparison = compare(want, real, stable=True, whole=True)
            longer = shown_until_prompt(step, example)
            if (
                not comparison.verdict.agrees
                and longer
                and compare(longer, real, stable=True, whole=True).verdict.agrees
            ):
                return result("matched", "with the blank lines in it")
            if not comparison.verdict.agrees and is_cut(want):
                return result("unsure", "what is shown is cut off by a blank line")
            if comparison.verdict.agrees:
                return result("matched" if comparison.verdict is Verdict.SAME else "tolerated", comparison.reason)
            if comparison.verdict is Verdict.UNSURE:
                return result("unsure", comparison.reason)
            if not self.names.are_ours(code):
                return result("unsure", "it is not about this package")
            if depends_on_zone_data(step.text, want):
                return result("unsure", "it depends on the time zone database")
            if self.names.are_spoilt(code):
                return result("unsure", "it uses what an earlier example did not make")
            if example.get("want_error"):
                what = "raises nothing, though an exception is shown"
            elif not example["got"].strip():
                what = "prints nothing"
            else:
                what = "gives something else than shown"
            suspect = Suspect(
                "readme.output-differs", self.names.called_by(code), want, example["got"], comparison, what
            )
            return result("suspect", "", suspect)
        finally:
            self.names.learn(code)

    def _expected_error(self, example: dict[str, Any], error: dict[str, Any], code: str, result: Any) -> Outcome:
        wanted = example["want_error"].split(":")[0].strip().split(".")[-1]
        if wanted in error["bases"] or wanted == "...":
            return result("matched")
        if (
            error["type"] in ("NameError", "ModuleNotFoundError")
            or not error["own_frames"]
            or self.names.are_spoilt(code)
        ):
            return result("unsure", f"{error['type']} came, {wanted} is shown")
        if error["type"] in ENVIRONMENTAL:
            return result("not_run", f"needs what this place lacks: {error['type']}")
        shown, real = example["want_error"].strip(), f"{error['type']}: {first_line(error['message'])}"
        suspect = Suspect(
            "readme.output-differs", self.names.called_by(code), shown, real,
            Comparison(Verdict.DIFFERENT, "", shown.split("\n")[0], real), f"raises {error['type']}, not {wanted}",
        )  # fmt: skip
        return result("suspect", "", suspect)

    # Errors in Python ---------------------------------------------------------------------

    def _error(
        self, step: Step, at: int, line: int, code: str, error: dict[str, Any], shown: str, around: str
    ) -> Outcome:
        kind, reason, symbol = error_kind(error, code, self.names)
        if kind == "fault" and error_is_meant(step.block, around):
            kind, reason = "unsure", "the text around it speaks of errors"
        if kind == "raises":
            meant = error_is_meant(step.block, around) or self.names.are_spoilt(code)
            kind = "fault" if shown.strip() and not meant and self.names.are_ours(code) else "unsure"
            reason = reason or f"{error['type']}: {first_line(error['message'])}"
        if kind == "fault" and self.names.are_spoilt(code) and not error.get("import"):
            kind, reason = "unsure", "it uses what an earlier example did not make"
        if kind != "fault":
            not_run = kind == "needs" or error.get("syntax")
            return Outcome(step, at, line, code, "not_run" if not_run else "unsure", reason)
        inner = error_line(error)
        if step.kind == "python" and inner:
            line = step.line + inner - 1
        what = f"raises {error['type']}: {first_line(error['message'])}"
        suspect = Suspect(
            "readme.example-fails",
            symbol or self.names.called_by(code),
            shown,
            f"{error['type']}: {error['message']}",
            what=what,
            shape=shape_of(error["type"], error["message"]),
            error=error["type"],
            message=error["message"],
            hint=hint_of(error),
        )
        return Outcome(step, at, line, code, "suspect", "", suspect)

    # Blocks that show output ----------------------------------------------------------------

    def output_blocks(self, blocks: tuple[Block, ...]) -> list[Outcome]:
        """A block that shows what the block before it prints."""
        outcomes: list[Outcome] = []
        for before, block in pairwise(blocks):
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
            failed = bool(step.record.get("error")) or not self.names.are_ours(step.text)
            symbol = self.names.called_by(step.text)
        comparison = compare(block.text, real, stable=True)
        if comparison.verdict.agrees:
            return Outcome(step, -1, block.line, step.text, "matched", comparison.reason)
        if failed or comparison.verdict is Verdict.UNSURE or not real.strip() or self.names.are_spoilt(step.text):
            return Outcome(step, -1, block.line, step.text, "unsure", comparison.reason)
        suspect = Suspect(
            "readme.output-differs",
            symbol,
            block.text,
            real,
            comparison,
            "prints something else than the block below shows",
        )
        return Outcome(step, -1, block.line, step.text, "suspect", "", suspect)


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
        r"(?:No such file or directory|[Ff]ile not found|[Nn]ot found|[Dd]oes not exist|[Cc]annot "
        r"find|[Cc]ould not (?:find|open|read)|"
        r"[Nn]o such file|[Nn]ot a directory|[Ii]s not a file|[Uu]nable to (?:open|find|read)|"
        r"[Nn]o files?)[^\n]{0,160}",
        said,
    )
    if found:
        return f"needs input that is not there: {first_line(found[0])}"
    if re.search(
        r"[Cc]onnection|[Nn]etwork|[Tt]imed? ?out|[Nn]ame or service|resolve|[Uu]nreachable|[Pp]roxy|SSL", said
    ):
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


def count_states(outcomes: Iterable[Outcome]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.state] = counts.get(outcome.state, 0) + 1
    return counts
