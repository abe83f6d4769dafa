"""Options, subcommands and exit statuses that the documents name, against `--help` and against what the parser does."""

import difflib
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from review_agents.copied import piece
from review_agents.ports import Workspace
from review_agents.probes import recipes
from review_agents.probes.claims import Claim, candidate_of, merge_claims
from review_agents.probes.code_places import CodePlaces
from review_agents.probes.documents import ELSEWHEN, BlockKind, Document
from review_agents.probes.help_texts import OPTION, Help, help_tree, node_of
from review_agents.probes.markup import Passage, PassageKind
from review_agents.probes.own import environment_for_programs, package_of, with_stand_ins
from review_agents.probes.pages import documentation, read_pages
from review_agents.probes.prepare import Prepared
from review_agents.probes.refusals import read_refusal
from review_agents.probes.shell import Package, own_invocations
from review_agents.probes.statuses import Situation, expected_statuses, status_claims
from review_agents.probes.tracebacks import last_traceback, surroundings
from review_agents.probes.worked import Worked, worked_commands
from review_agents.records import (
    Environment,
    Kind,
    Place,
    ProbeResult,
    ProbeState,
    Repo,
    Reproduction,
    Severity,
    Symptom,
)

NAME = "options"

BUDGET_S = 600.0
TRY_S = 30.0
MOST_VALUES = 40
# What stands in the same passage as an option that is not this program's.
OTHER_PROGRAMS = re.compile(
    r"(?<![\w/.-])(?:pip|pipx|python|git|pytest|docker|gcc|clang|make|cmake|curl|conda|npm|"
    r"cargo|tox|nox|uv|poetry|apt|brew|sphinx-build|"
    r"mypy|black|ruff|flake8|pylint|gunicorn|uvicorn|celery|jupyter|ls|grep|sed|awk|tar|find|"
    r"sort|diff|xargs|less|vim)(?![\w/-])",
    re.IGNORECASE,
)
NOT_NOW = re.compile(
    r"\b(?:deprecated|removed|no longer|obsolete|renamed|replaced by|instead of|formerly|"
    r"previously|used to|future|planned|not yet|will be added|"
    r"upcoming|there is no|does not (?:have|support|accept)|unlike|similar to|like the|as in|"
    r"equivalent of|plugin|extension|if installed)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Named:
    """An option that a document names, and for which commands that may be meant."""

    document: Document
    line: int
    option: str
    aliases: tuple[str, ...]  # other names of it in the same place
    paths: tuple[tuple[str, ...], ...]  # commands, the likeliest first
    command: str = ""  # the document's own command line, where there is one
    evidence: str = ""  # what says that it is about this program


def probe(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    environment = environment_for_programs(workspace, prepared)
    if prepared.not_installed:
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=prepared.not_installed)
    if environment is None or not prepared.console_scripts:
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, reason="the package installs no commands")
    paths = documentation(repo, prepared.root)
    if not paths:
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, reason="no README and no docs")
    package = package_of(workspace, repo, prepared, environment)
    tree = help_tree(workspace, package, environment)
    if not tree:
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason="no command of the package prints a help")
    documents = read_pages(workspace, paths, package.scripts)
    worked = worked_commands(workspace, repo, package, documents, environment, time.monotonic() + BUDGET_S)
    check = Check(workspace, package, environment, tree, worked, CodePlaces(workspace, repo, prepared))
    found: list[Claim] = []
    for document in documents:
        for named in named_options(document, tree, package):
            found += check.option(named)
        found += check.statuses(document)
    found += check.choices()
    candidates = tuple(candidate_of(claim) for claim in merge_claims(found))
    facts = {
        "commands": [node.name for node in tree.values()],
        "options_named": sorted(check.named),
        "not_in_help": check.not_in_help,
        "values_tried": check.values_tried,
    }
    return ProbeResult(
        probe=NAME,
        state=ProbeState.FAILED if candidates else ProbeState.PASSED,
        summary=f"{len(check.named)} options named in the documents against the help of {len(tree)} command(s): "
        f"{len(candidates)} fault(s)",
        facts=facts,
        candidates=candidates,
    )


# What documents name ---------------------------------------------------------------------


def named_options(document: Document, tree: dict[tuple[str, ...], Help], package: Package) -> Iterator[Named]:
    """Options in command lines, then options in prose and tables that are about the repo's own commands."""
    for block in document.blocks:
        if block.kind not in (BlockKind.SHELL, BlockKind.CONSOLE) or block.skip:
            continue
        for command in block.commands:
            for simple, _ in own_invocations(command.text, package):
                path, taken = node_of(simple.values, tree, package)
                if not path or NOT_NOW.search(block.before[-200:]):
                    continue
                for option in _options_of(simple.values[taken:]):
                    line = document.line_with(option, command.line)
                    yield Named(document, line, option, (), (path,), command.text, "command line")
    yield from _in_prose(document, tree, package)


def _options_of(words: list[str]) -> Iterator[str]:
    for word in words:
        if word == "--":
            return
        if re.fullmatch(r"--[A-Za-z][\w-]*(?:=.*)?", word, re.DOTALL):
            yield word.partition("=")[0]
        elif re.fullmatch(r"-[A-Za-z]", word):
            yield word


def _in_prose(document: Document, tree: dict[tuple[str, ...], Help], package: Package) -> Iterator[Named]:
    groups: dict[object, list[Passage]] = {}
    for passage in document.passages:
        if passage.kind is PassageKind.COMMENT or any(ELSEWHEN.search(heading) for heading in passage.headings):
            continue
        key: object = ("table", passage.table) if passage.kind is PassageKind.ROW else (passage.headings, passage.line)
        groups.setdefault(key, []).append(passage)
    known = frozenset().union(*(node.options for node in tree.values()))
    for passages in groups.values():
        text = " ".join(passage.text for passage in passages)
        in_group = {option for passage in passages for option in _coded_options(passage)}
        familiar = in_group & known
        for passage in passages:
            if OTHER_PROGRAMS.search(_without_own(passage.text, package)) or NOT_NOW.search(passage.text):
                continue
            for path, option in _coded_invocations(passage, tree, package):
                line = document.line_with(option, passage.line)
                yield Named(document, line, option, (), (path,), "", "named with its command")
            coded = _coded_options(passage)
            for option in coded:
                if option in known:
                    continue
                paths, evidence = _meant(document, passage, text, familiar - {option}, tree, package)
                if evidence:
                    aliases = (
                        tuple(other for other in coded if other != option) if passage.kind is PassageKind.ROW else ()
                    )
                    line = document.line_with(option, passage.line)
                    yield Named(document, line, option, aliases, paths, "", evidence)


def _coded_invocations(
    passage: Passage, tree: dict[tuple[str, ...], Help], package: Package
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Options in inline code that begins with one of the repo's own programs: `lamp --bright`, with their command."""
    for text in passage.cells or (passage.text,):
        for code in re.findall(r"`([^`]+)`", text):
            first = next(own_invocations(code, package), None) if code.split() else None
            if first is None or first[0].words[0].start > len(code) - len(code.lstrip()):
                continue
            path, taken = node_of(first[0].values, tree, package)
            if path:
                yield from ((path, option) for option in _options_of(first[0].values[taken:]))


def _coded_options(passage: Passage) -> list[str]:
    """Options in inline code; of a table's row, those of its first cell that holds any."""
    cells = [cell for cell in passage.cells if re.search(r"`\s*-", cell)][:1] if passage.cells else [passage.text]
    found: list[str] = []
    for cell in cells:
        for code in re.findall(r"`([^`]+)`", cell):
            if re.match(r"^\s*--?[A-Za-z]", code) and not re.search(r"[;|&$(){}]", code):
                found += [
                    option
                    for option in OPTION.findall(code)
                    if option not in found and not re.fullmatch(r"-[A-Za-z]{2,}", option)
                ]
    return found


def _without_own(text: str, package: Package) -> str:
    for name in (*package.scripts, *package.names, *package.modules):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", " ", text)
    return text


def _meant(
    document: Document,
    passage: Passage,
    group_text: str,
    familiar: set[str],
    tree: dict[tuple[str, ...], Help],
    package: Package,
) -> tuple[tuple[tuple[str, ...], ...], str]:
    """Which commands an option in prose belongs to, and what says so; no evidence: no claim."""
    words = set(re.findall(r"`([a-z][\w-]*)(?: [^`]*)?`", group_text))
    by_word = tuple(path for path in tree if path[-1] in words)
    by_option = tuple(path for path, node in tree.items() if familiar & node.options)
    before = [
        block for block in document.blocks
        if block.line < passage.line and block.headings == passage.headings
        and block.kind in (BlockKind.SHELL, BlockKind.CONSOLE)
    ]  # fmt: skip
    by_section = tuple(
        path
        for block in reversed(before)
        for command in block.commands
        for simple, _ in own_invocations(command.text, package)
        if (path := node_of(simple.values, tree, package)[0])
    )
    if passage.kind is PassageKind.ROW and familiar:
        shown = [path for path in by_section if path in by_option]
        return tuple(dict.fromkeys((*shown, *by_option))), "other options of the same table are known"
    if by_word:
        return tuple(dict.fromkeys((*by_word, *by_option))), "the passage names the command"
    if familiar:
        return tuple(dict.fromkeys((*by_section, *by_option))), "the passage names other options of the command"
    if by_section:
        return tuple(dict.fromkeys(by_section)), "the section shows the command"
    return (), ""


# Checking --------------------------------------------------------------------------------


@dataclass(slots=True)
class Check:
    workspace: Workspace
    package: Package
    environment: Environment
    tree: dict[tuple[str, ...], Help]
    worked: list[Worked]
    places: CodePlaces
    named: set[str] = field(default_factory=set)
    not_in_help: list[str] = field(default_factory=list)
    values_tried: list[str] = field(default_factory=list)
    refused: set[tuple[str, str]] = field(default_factory=set)

    def option(self, named: Named) -> list[Claim]:
        """A claim when the parser of every command that may be meant refuses the option by name."""
        label = f"{' '.join(named.paths[0])} {named.option}"
        self.named.add(label)
        if any(named.option in self._known(path) for path in named.paths):
            return []
        main = (
            max((named.option, *named.aliases), key=len)
            if not set(named.aliases) & self._all_options()
            else named.option
        )
        if (named.document.file, main) in self.refused:
            return []
        for path in named.paths[:3]:
            attempt = self._refusal(path, main, named.command) or self._refusal(path, named.option, named.command)
            if attempt is None:
                self.not_in_help.append(
                    f"{named.document.file}:{named.line} {label}: not in the help, and not refused by name"
                )
                return []
            if path == named.paths[0]:
                first = attempt
        self.refused.add((named.document.file, main))
        return [self._unknown(named, main, *first)]

    def _known(self, path: tuple[str, ...]) -> frozenset[str]:
        """Options of the command and of the commands above it."""
        known: frozenset[str] = frozenset({"--help"})
        for length in range(1, len(path) + 1):
            if node := self.tree.get(path[:length]):
                known |= node.options
        return known

    def _all_options(self) -> frozenset[str]:
        return frozenset().union(*(node.options for node in self.tree.values()))

    def _refusal(self, path: tuple[str, ...], option: str, command: str) -> tuple[str, str] | None:
        """The script in which the parser refuses that very option, and its words; None when it does not."""
        for script in self._scripts(path, option, command):
            ran = self.workspace.run(script, environment=self.environment, timeout_s=TRY_S)
            refusal = read_refusal(ran.output, script)
            if ran.exit and refusal is not None and refusal.kind == "option" and refusal.word == option:
                return script, refusal.message
        return None

    def _scripts(self, path: tuple[str, ...], option: str, command: str) -> Iterator[str]:
        """The option in a command that works otherwise; else alone, and with words for what the command requires."""
        for one in self.worked:
            if command and one.step.text == command:
                yield one.script(command, self.package)
        for one in self.worked:
            known, count = node_of(one.simple.values, self.tree, self.package)
            if known == path:
                at = one.simple.words[count - 1].end
                yield one.script(one.replaced(at, at, f" {option}"), self.package)
                break
        program = with_stand_ins(" ".join(path), self.package)
        required = self.tree[path].required if path in self.tree else 0
        for words in range(min(required, 3), -1, -1):
            yield recipes.script([recipes.Shell(" ".join([program, option, *["x"] * words]) + " < /dev/null")])

    def _unknown(self, named: Named, option: str, script: str, message: str) -> Claim:
        command = " ".join(named.paths[0])
        document = named.document
        quote = document.source_line(named.line)
        near = difflib.get_close_matches(option, sorted(self._known(named.paths[0])), 1, 0.6)
        hint = f" There is {near[0]}." if near else ""
        shown = f" in `{named.command}`" if named.command else ""
        return Claim(
            kind=Kind.DOCUMENTATION,
            rule="readme.unknown-option",
            symbol=f"{command} {option}",
            title=f"{document.file} documents the option {option} of `{command}`{shown}, which the program refuses",
            description=(
                f"{document.file} line {named.line} names the option {option}{shown}, but `{command} "
                f"--help` does not list it and "
                f"the program refuses it: {message}.{hint} A user who follows the documentation gets an error."
            ),
            severity=Severity.MEDIUM,
            places=(Place(file=document.file, line=named.line, symbol=f"{command} {option}", quote=quote),),
            reproduction=Reproduction(
                command=script,
                expected=f"`{command}` accepts the documented option {option}",
                observed=f"it is refused: {message}",
                environment=self.environment,
                control=f"{with_stand_ins(command, self.package)} --help > /dev/null",
                symptom=Symptom(nonzero=True, contains=(option if option in message else named.option,)),
                copied=(piece(document.file, quote),),
            ),
        )

    # Exit statuses of wrong use -----------------------------------------------------------

    def statuses(self, document: Document) -> list[Claim]:
        """The status that the document names for wrong use, against an unknown option."""
        claims = status_claims(document)
        found = []
        for path in [path for path in self.tree if len(path) == 1]:
            named = expected_statuses(claims, Situation.WRONG_USE, path)
            wanted = {claim.status for claim in named}
            if len(wanted) != 1 or path[0] not in document.source:
                continue
            script = recipes.script(
                [recipes.Shell(f"{with_stand_ins(path[0], self.package)} --no-such-option < /dev/null")]
            )
            ran = self.workspace.run(script, environment=self.environment, timeout_s=TRY_S)
            refusal = read_refusal(ran.output, script)
            if not ran.exit or ran.exit in wanted or refusal is None or last_traceback(ran.output) is not None:
                continue
            claim = named[0]
            found.append(
                Claim(
                    kind=Kind.DOCUMENTATION,
                    rule="readme.exit-status",
                    symbol=f"{path[0]} wrong use",
                    title=f"{document.file} says that wrong use of `{path[0]}` ends with exit status "
                    f"{claim.status}; it ends with {ran.exit}",
                    description=(
                        f"{document.file} line {claim.line} names exit status {claim.status} for: {claim.condition}. "
                        f"`{path[0]} --no-such-option` ends with exit status {ran.exit}: {refusal.message}."
                    ),
                    severity=Severity.LOW,
                    places=(
                        Place(
                            file=document.file, line=claim.line, symbol=path[0], quote=document.source_line(claim.line)
                        ),
                    ),
                    reproduction=Reproduction(
                        command=script,
                        expected=f"exit status {claim.status}",
                        observed=f"exit status {ran.exit}",
                        environment=self.environment,
                        control=f"{with_stand_ins(path[0], self.package)} --help > /dev/null",
                        symptom=Symptom(exit=ran.exit, contains=(refusal.message[-60:].strip(),)),
                        copied=(piece(document.file, document.source_line(claim.line)),),
                    ),
                )
            )
        return found

    # Values that the help names -----------------------------------------------------------

    def choices(self) -> list[Claim]:
        """Each value that a help lists for an option, in a command that works: none may end in a traceback."""
        found: list[Claim] = []
        for path, node in self.tree.items():
            base = next(
                (one for one in self.worked if node_of(one.simple.values, self.tree, self.package)[0] == path), None
            )
            for option, values in node.choices.items():
                for value in values if base is not None else ():
                    if len(self.values_tried) >= MOST_VALUES:
                        return found
                    assert base is not None
                    found += self._choice(base, path, option, value)
        return found

    def _choice(self, base: Worked, path: tuple[str, ...], option: str, value: str) -> list[Claim]:
        text = self._with_value(base, option, value)
        script = base.script(text, self.package)
        ran = self.workspace.run(script, environment=self.environment, timeout_s=TRY_S)
        self.values_tried.append(f"{' '.join(path)} {option} {value}: {ran.ending}")
        raised = last_traceback(ran.output)
        if raised is None or not ran.exit or surroundings(raised.text):
            return []
        place = self.places.of_traceback(raised)
        if place is None or raised.type == "ModuleNotFoundError":
            return []  # a module that is not declared is the dependency probe's finding
        command = " ".join(path)
        return [
            Claim(
                kind=Kind.CORRECTNESS,
                rule="cli.traceback",
                symbol=place.symbol,
                title=f"`{command} {option} {value}` ends with a {raised.type} traceback, though its help "
                f"offers that value",
                description=(
                    f"`{command} --help` lists `{value}` as a value of {option}. `{text}` ends with an "
                    f"uncaught `{raised.text}`, raised in "
                    f"{place.symbol or place.file} ({place.file}, line {place.line})."
                ),
                severity=Severity.HIGH,
                places=(place,),
                reproduction=Reproduction(
                    command=script,
                    expected=f"{option} {value} works as the help offers it",
                    observed=f"a traceback that ends with {raised.text}",
                    environment=self.environment,
                    control=base.script(f"{base.text}\ntest $? -eq {base.exit}", self.package),
                    symptom=Symptom(nonzero=True, contains=("Traceback (most recent call last)", raised.type)),
                ),
                shape=raised.shape,
            )
        ]

    def _with_value(self, base: Worked, option: str, value: str) -> str:
        """The command with that value: in place of the option's own, or with the option added."""
        words = base.simple.words
        for at, word in enumerate(words[:-1]):
            if word.value == option:
                return base.replaced(words[at + 1].start, words[at + 1].end, shlex.quote(value))
        _, count = node_of(base.simple.values, self.tree, self.package)
        end = words[count - 1].end
        return base.replaced(end, end, f" {option} {shlex.quote(value)}")
