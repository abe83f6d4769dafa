"""Turn a suspect example into a claim: a script of its own that shows the fault, tried in the workspace at once."""

import ast
import re
from dataclasses import replace

from review_agents.copied import down_to
from review_agents.ports import Workspace
from review_agents.probes import recipes
from review_agents.probes.claims import Claim
from review_agents.probes.comparing import clean, tokens
from review_agents.probes.documents import Block, BlockKind, Document
from review_agents.probes.help_texts import help_tree, node_of
from review_agents.probes.names import names_set, names_used
from review_agents.probes.own import with_stand_ins
from review_agents.probes.pages import is_readme
from review_agents.probes.python_errors import error_line, first_line
from review_agents.probes.reader import Reader, Step, merge_python
from review_agents.probes.shell import own_invocations
from review_agents.probes.shown_comments import without_comment
from review_agents.probes.verdicts import Outcome, Suspect
from review_agents.records import Environment, Kind, Place, Reproduction, Severity, Symptom

REPRODUCTION_S = 60.0
FREE = {"address", "path", "version", "rate", "elapsed", "bar", "date", "clock", "uuid", "hash"}


def reproduce(workspace: Workspace, reader: Reader, outcome: Outcome, environment: Environment) -> Claim | None:
    """The claim with the smallest script that shows it; None when no script does."""
    assert outcome.suspect is not None
    outcome = replace(outcome, suspect=_named_by_help(workspace, reader, outcome, environment))
    symptom = symptom_of(outcome)
    for all_before in (False, True):
        parts = _parts(reader, outcome, all_before=all_before)
        if parts is None:
            return None
        command = recipes.script(parts, bring=reader.brings(parts))
        control = _control(reader, outcome, parts)
        if shows(workspace, command, symptom, environment) and (
            control is None or workspace_ok(workspace, control, environment)
        ):
            return _claim(reader, outcome, command, control, symptom, environment)
    return None


def shows(workspace: Workspace, command: str, symptom: Symptom, environment: Environment) -> bool:
    ran = workspace.run(command, environment=environment, timeout_s=REPRODUCTION_S)
    return symptom.shown_by(ran)


def workspace_ok(workspace: Workspace, command: str, environment: Environment) -> bool:
    return workspace.run(command, environment=environment, timeout_s=REPRODUCTION_S).ok


def _named_by_help(workspace: Workspace, reader: Reader, outcome: Outcome, environment: Environment) -> Suspect:
    """A refused option is named after the subcommand that the help knows, as the options probe does."""
    suspect = outcome.suspect
    assert suspect is not None
    own = next(own_invocations(outcome.step.text, reader.package), None) if outcome.step.kind == "shell" else None
    if suspect.refusal is None or suspect.refusal.kind != "option" or own is None:
        return suspect
    path, _ = node_of(own[0].values, help_tree(workspace, reader.package, environment), reader.package)
    return replace(suspect, symbol=f"{' '.join(path)} {suspect.refusal.word}") if path else suspect


# Scripts ---------------------------------------------------------------------------------


def _parts(reader: Reader, outcome: Outcome, *, all_before: bool) -> list[recipes.Part] | None:
    step = outcome.step
    if step.kind == "shell":
        steps = [*reader.needed_for(step, all_before=all_before), step]
        parts = reader.parts_of(steps)
        last = recipes.Shell(with_stand_ins(step.text, reader.package))
        kept = [
            recipes.Shell(with_stand_ins(part.text, reader.package)) if isinstance(part, recipes.Shell) else part
            for part in parts[:-1]
        ]
        return [*kept, last]
    before = reader.needed_for(step, all_before=all_before)
    if all_before or any(other.kind not in ("python", "session") or other.makes for other in before):
        parts = reader.parts_of(before)
        pieces: list[str] = []
    else:
        parts = []
        pieces = [piece for other in before for piece in _pieces(other)]
    files = [
        recipes.File(name, content) for name, content in reader.files.items()
        if name in step.text and not any(isinstance(part, recipes.File) and part.name == name for part in parts)
    ]  # fmt: skip
    return merge_python([*files, *parts, recipes.Python(_code(outcome, pieces, all_before=all_before))])


def _code(outcome: Outcome, pieces: list[str], *, all_before: bool) -> str:
    """Earlier code that the example needs, then the example, printing its value."""
    step, suspect = outcome.step, outcome.suspect
    assert suspect is not None
    own = _pieces(step)
    if outcome.at < 0 or not own:
        before, this = [], step.text
    else:
        before, this = own[: outcome.at], own[outcome.at] if outcome.at < len(own) else step.text
    kept = [*pieces, *before] if all_before else _needed([*pieces, *before], this)
    last = this if suspect.error or outcome.at < 0 else printing(this)
    return "".join(piece if piece.endswith("\n") else piece + "\n" for piece in (*kept, last))


def _pieces(step: Step) -> list[str]:
    """The statements of a block, or the examples of a session, that ran."""
    if step.kind == "session":
        return ["" if example.get("skipped") else example["source"] for example in step.record.get("examples", [])]
    lines = step.text.split("\n")
    return ["\n".join(lines[entry["line"] - 1 : entry["end"]]) for entry in step.record.get("statements", [])]


def _needed(before: list[str], this: str) -> list[str]:
    """The pieces of code that set a name which is used later."""
    wanted = names_used(this)
    kept: list[str] = []
    for piece in reversed(before):
        sets = names_set(piece)
        star = "import *" in piece
        if sets & wanted or star or (not sets and not names_used(piece)):
            kept.append(piece)
            wanted |= names_used(piece)
    return list(reversed(kept))


def printing(code: str) -> str:
    """The statement, its value printed when it is an expression, as the prompt would."""
    try:
        tree = ast.parse(code.strip())
    except (SyntaxError, ValueError):
        return code
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.Expr):
        return code
    value = tree.body[0].value
    if isinstance(value, ast.Await):
        return code
    if (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in ("print", "pprint", "help")
    ):
        return code
    expression = ast.get_source_segment(code.strip(), value)
    return f"__import__('sys').displayhook({expression})" if expression else code


def _control(reader: Reader, outcome: Outcome, parts: list[recipes.Part]) -> str | None:
    """Something close that works: what comes before, the program's help, or the package's import."""
    if outcome.step.kind == "shell":
        own = next(own_invocations(outcome.step.text, reader.package), None)
        if own is None:
            return None
        program = with_stand_ins(
            recipes.quoted(own[0].values[0]) if own[1] == 1 else " ".join(own[0].values[:3]), reader.package
        )
        return f"{program} --help > /dev/null"
    last = parts[-1]
    assert isinstance(last, recipes.Python)
    modules = [
        module
        for module in reader.package.modules
        if re.search(rf"\b{re.escape(module.partition('.')[0])}\b", last.text)
    ]
    if not modules:
        return None
    return f'cd "$(mktemp -d)"\npython -c "import {modules[0]}"\n'


# Symptoms --------------------------------------------------------------------------------


def symptom_of(outcome: Outcome) -> Symptom:
    suspect = outcome.suspect
    assert suspect is not None
    if suspect.error:
        said = f"{suspect.error}: {first_line(suspect.message)}" if suspect.message.strip() else suspect.error
        return Symptom(nonzero=True, contains=(steady_text(said) or suspect.error,))
    if suspect.refusal is not None:
        return Symptom(nonzero=True, contains=(suspect.refusal.word,))
    real, shown = (clean(text).strip() for text in (suspect.comparison.real, suspect.comparison.shown))
    contains = (real,) if real and _issteady_text(real) else ()
    lacks = (shown,) if shown and not any(_folded(shown) in _folded(text) for text in contains) else ()
    if suspect.rule == "readme.example-fails":
        steady = steady_text(first_line(outcome.step.err)) if outcome.step.kind == "shell" else ""
        return Symptom(nonzero=True, contains=(steady,) if steady else (), lacks=lacks)
    if not contains and not lacks:
        contains = (clean(suspect.real).strip()[:200] or "(nothing)",)
    ended = outcome.step.exit if outcome.step.kind == "shell" else 0
    return Symptom(exit=ended, contains=contains, lacks=lacks)


def steady_text(text: str) -> str:
    """The text's first part in which nothing depends on the machine."""
    for token in tokens(text):
        if token.kind in FREE:
            return text[: text.index(token.text)].rstrip(" '\"(:<")
    return text


def _issteady_text(text: str) -> bool:
    return not any(token.kind in FREE - {"date", "clock", "version"} for token in tokens(text))


def _folded(text: str) -> str:
    return " ".join(text.split())


# Words -----------------------------------------------------------------------------------


def _claim(
    reader: Reader, outcome: Outcome, command: str, control: str | None, symptom: Symptom, environment: Environment
) -> Claim:
    suspect, step = outcome.suspect, outcome.step
    assert suspect is not None
    place = place_of(reader, outcome)
    title, expected, observed = _words(outcome, place)
    heading = " > ".join(step.block.headings)
    where = f"{place.file}, line {place.line}" + (f' (under "{heading}")' if heading else "")
    description = f"{where}: {expected} {observed}"
    if suspect.hint:
        description += (
            f" The program itself says: {suspect.hint}." if suspect.refusal else f" There is: {suspect.hint}."
        )
    if suspect.comparison.reason and suspect.rule == "readme.output-differs":
        description += f" ({suspect.comparison.reason}.)"
    description += " A reader who follows the page to the letter ends up here."
    return Claim(
        kind=kind_of(suspect),
        rule=suspect.rule,
        symbol=suspect.symbol or heading,
        title=title,
        description=description,
        severity=severity_of(outcome),
        places=(place,),
        reproduction=Reproduction(
            command=command,
            expected=expected,
            observed=observed,
            environment=environment,
            control=control,
            symptom=symptom,
            copied=(down_to(place.file, reader.document.source, end_of(reader.document, step.block)),),
        ),
        shape=suspect.shape,
    )


def end_of(document: Document, block: Block) -> int:
    """The line of the page below the block and the one that shows its output: a line more there makes it another."""
    below = next((one for one in document.blocks if one.line > block.line), None)
    last = below if below is not None and below.kind is BlockKind.OUTPUT else block
    return last.line + len(last.text.splitlines())


def place_of(reader: Reader, outcome: Outcome) -> Place:
    suspect = outcome.suspect
    assert suspect is not None
    document = reader.document
    line = outcome.line
    if suspect.refusal is not None:
        line = document.line_with(suspect.refusal.word, line)
    elif suspect.rule == "readme.output-differs" and suspect.comparison.shown:
        after = line + (
            outcome.code.rstrip("\n").count("\n") + 1 if outcome.at >= 0 and outcome.step.kind != "python" else 0
        )
        line = document.line_with(suspect.comparison.shown.split("  ")[0], after)
    elif outcome.step.kind == "python" and suspect.error:
        line = outcome.step.line + (error_line(outcome.step.record.get("error") or {}) or 1) - 1
    quote = document.source_line(line)
    return Place(
        file=document.file, line=line, symbol=suspect.symbol or " > ".join(outcome.step.block.headings), quote=quote
    )


def kind_of(suspect: Suspect) -> Kind:
    return Kind.CORRECTNESS if suspect.rule == "readme.output-differs" else Kind.DOCUMENTATION


def severity_of(outcome: Outcome) -> Severity:
    first_page = is_readme(outcome.step.block.file)
    assert outcome.suspect is not None
    if outcome.suspect.rule in ("readme.example-fails", "readme.unknown-command"):
        return Severity.HIGH if first_page else Severity.MEDIUM
    return Severity.MEDIUM if first_page else Severity.LOW


def _words(outcome: Outcome, place: Place) -> tuple[str, str, str]:
    """Title, what is expected, what is observed."""
    suspect, step = outcome.suspect, outcome.step
    assert suspect is not None
    code = first_line(step.text) if step.kind == "shell" else without_comment(first_line(outcome.code))
    short = code if len(code) <= 100 else code[:97] + "..."
    about = f"`{short}`"
    shown = suspect.comparison.shown or first_line(suspect.shown)
    if suspect.rule == "readme.output-differs":
        real = suspect.comparison.real or first_line(suspect.real) or "nothing"
        title = f"{place.file} shows {_short(shown or 'nothing more')} for {about}, but it gives {_short(real)}"
        expected = f"the page shows that {about} gives {_quoted(suspect.shown)}"
        observed = f"it {suspect.what or 'gives something else'}: {_quoted(suspect.real)}"
    elif suspect.refusal is not None:
        thing = {"option": "option", "command": "command", "value": "value"}[suspect.refusal.kind]
        title = f"{place.file} uses the {thing} {suspect.refusal.word}, which the program refuses: {about}"
        expected = f"the page tells to run {about}"
        observed = f"the program does not know the {thing} {suspect.refusal.word}: {suspect.refusal.message}"
    else:
        title = f"{place.file}: the example {about} {suspect.what}"
        expected = f"the page tells to run {about}" + (
            f" and shows {_quoted(suspect.shown)}" if suspect.shown.strip() else ""
        )
        observed = f"it {suspect.what}"
    return title, _sentence(expected), _sentence(observed)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith("\n") else ".")


def _short(text: str) -> str:
    text = _folded(text)
    return f"`{text}`" if len(text) <= 80 else f"`{text[:77]}...`"


def _quoted(text: str) -> str:
    text = clean(text).strip()
    if len(text) > 600:
        text = text[:597] + "..."
    if not text:
        return "nothing"
    return f"`{text}`" if "\n" not in text else "\n\n    " + text.replace("\n", "\n    ") + "\n\n"
