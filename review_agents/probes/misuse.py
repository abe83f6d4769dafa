"""Every command of README and docs that works, once more with one argument spoiled.

A mistake of that kind is what happens to users first. It must end in a message and a status other than 0 (the one that
the documents name, if they name one), never in a traceback, and never cost an input file.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from review_agents.copied import piece
from review_agents.ports import Workspace
from review_agents.probes import recipes
from review_agents.probes.claims import Claim, candidate_of, merge_claims
from review_agents.probes.code_places import CodePlaces
from review_agents.probes.help_texts import Help, help_tree, node_of
from review_agents.probes.own import environment_for_programs, package_of, with_stand_ins
from review_agents.probes.pages import documentation, read_pages
from review_agents.probes.prepare import Prepared
from review_agents.probes.shell import Package, Word
from review_agents.probes.statuses import Situation, StatusClaim, expected_statuses, status_claims
from review_agents.probes.tracebacks import Raised, last_traceback, surroundings
from review_agents.probes.worked import Worked, worked_commands
from review_agents.records import (
    Copied,
    Environment,
    Kind,
    Place,
    ProbeResult,
    ProbeState,
    Ran,
    Repo,
    Reproduction,
    Severity,
    Symptom,
)

NAME = "misuse"

BUDGET_S = 600.0
SPOILED_S = 30.0
MOST_RUNS = 150
NO_FILE = "no-such-file"
NO_NAME = "no-such-name"
LOST = "has lost content"
GARBAGE = "@@ this line is no valid input @@"
# An error that a program reports, as opposed to a word such as "errors: 0" in a summary.
REPORTS = re.compile(
    r"\b(?:error|cannot|can't|could not|couldn't|no such|not found|does not exist|doesn't "
    r"exist|failed|fatal|unable to|invalid|unknown|"
    r"not a valid|unrecogni[sz]ed)\b",
    re.IGNORECASE,
)
MESSAGE_MEANT = {"KeyboardInterrupt", "EOFError"}


@dataclass(frozen=True, slots=True)
class Spoiled:
    """A working command with one argument made wrong."""

    worked: Worked
    situation: Situation
    word: str  # the argument as the document has it
    value: str  # what stands in its place
    option: str  # whose value it is; empty for a positional argument
    text: str  # the whole command
    before: tuple[recipes.Part, ...] = ()  # what makes the wrong input
    watched: str = ""  # an input file that must survive

    def key(self, path: tuple[str, ...]) -> tuple[object, ...]:
        """What is tried: the same mistake in the same place of the same subcommand tells nothing new."""
        place = self.option or self.worked.positional(self.word)
        return (path, self.situation, place, bool(self.before), self.watched and self.before[0])

    @property
    def what(self) -> str:
        if self.situation is Situation.MISSING_FILE:
            return f"the file {self.word} replaced by one that does not exist"
        if self.situation is Situation.BAD_INPUT and self.before:
            return (
                f"a line of garbage at the end of {self.word}"
                if not self.watched
                else f"another file in place of {self.word}"
            )
        where = f" of {self.option}" if self.option else ""
        return f"the value{where} `{self.word}` replaced by `{self.value}`"


def probe(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    environment = environment_for_programs(workspace, prepared)
    if prepared.not_installed:
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=prepared.not_installed)
    if environment is None or not prepared.console_scripts:
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, reason="the package installs no commands")
    paths = documentation(repo, prepared.root)
    if not paths:
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, reason="no README and no docs")
    deadline = time.monotonic() + BUDGET_S
    package = package_of(workspace, repo, prepared, environment)
    documents = read_pages(workspace, paths, package.scripts)
    worked = worked_commands(workspace, repo, package, documents, environment, deadline)
    if not worked:
        reason = "README and docs show no command of the package that works on its own"
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, reason=reason, left_out=paths)
    claims = tuple(claim for document in documents for claim in status_claims(document))
    tree = help_tree(workspace, package, environment)
    trial = Trial(workspace, package, environment, claims, tree, CodePlaces(workspace, repo, prepared))
    found: list[Claim] = []
    runs: list[dict[str, str]] = []
    seen: set[tuple[object, ...]] = set()
    stopped = False
    for one in worked:
        for spoiled in spoil(one, tree, package):
            if spoiled.key(trial.path(spoiled)) in seen:
                continue
            seen.add(spoiled.key(trial.path(spoiled)))
            if len(runs) >= MOST_RUNS or time.monotonic() > deadline:
                stopped = True
                break
            ran = trial.run(spoiled)
            runs.append({"command": spoiled.text, "spoiled": spoiled.what, "ended": ran.ending})
            found += trial.judge(spoiled, ran)
    candidates = tuple(candidate_of(claim) for claim in merge_claims(one_for_each_cause(found)))
    return ProbeResult(
        probe=NAME,
        state=ProbeState.FAILED if candidates else ProbeState.PASSED,
        summary=f"{len(worked)} commands from the documents run {len(runs)} times with one argument spoiled: "
        f"{len(candidates)} fault(s)",
        facts={"runs": runs, "statuses_named": [f"{one.status}: {one.condition}" for one in claims]},
        candidates=candidates,
        left_out=paths if stopped else (),
    )


def one_for_each_cause(claims: list[Claim]) -> list[Claim]:
    """Several subcommands that end with the same wrong status against the same sentence: the program's fault, once."""
    statuses = [claim for claim in claims if claim.rule.endswith(".exit-status")]
    for claim in statuses:
        alike = [
            other for other in statuses
            if (other.places[0].file, other.places[0].line, other.reproduction.symptom.exit)
            == (claim.places[0].file, claim.places[0].line, claim.reproduction.symptom.exit)
        ]  # fmt: skip
        if len({other.symbol for other in alike}) > 1:
            at = claims.index(claim)
            claims[at] = replace(claim, symbol=claim.symbol.partition(" ")[0])
    return claims


# Spoiling --------------------------------------------------------------------------------


def spoil(worked: Worked, tree: dict[tuple[str, ...], Help], package: Package) -> Iterator[Spoiled]:
    """Each argument made wrong in the ways that fit it."""
    path, taken = node_of(worked.simple.values, tree, package)
    words = worked.simple.words
    node = tree.get(path)
    option = ""
    for at in range(max(taken, worked.own_words), len(words)):
        word = words[at]
        if word.value == "--":
            continue
        if word.value.startswith("-") and len(word.value) > 1 and not re.fullmatch(r"-\d+(?:\.\d+)?", word.value):
            name, equals, value = word.value.partition("=")
            option = "" if equals else name
            if equals and value and not word.expands:
                yield from _value_spoiled(worked, word, value, name, f"{name}=")
            continue
        if word.expands or not word.value:
            option = ""
            continue
        of = option if option and _takes_value(option, node) else ""
        option = ""
        if _is_file(worked, word.value):
            yield from _file_spoiled(worked, word, of)
        elif of or node is None or word.value not in node.subcommands:
            yield from _value_spoiled(worked, word, word.value, of, "")


def _takes_value(option: str, node: Help | None) -> bool:
    """Whether the help shows something behind the option. Without help: yes, as most do."""
    if node is None:
        return True
    return bool(
        re.search(
            rf"{re.escape(option)}(?:,\s*--?[\w-]+)*"
            r"(?:[= ]\s?(?:[A-Z<{\[][\w<>{}|,.\[\]-]*)|\s+(?:TEXT|INTEGER|PATH|FILE)\b)",
            node.text,
        )
    )


def _is_file(worked: Worked, value: str) -> bool:
    """Whether the argument names an input: a file of the repo, or one that the document made."""
    if "/" in value and value.startswith("/"):
        return False
    made = {part.name for part in worked.parts if isinstance(part, recipes.File)}
    text = "\n".join(part.text for part in worked.parts if not isinstance(part, recipes.File))
    in_repo = any(value == name or value.startswith(f"{name}/") for name in worked.bring)
    return (
        value in made or in_repo or bool(re.search(rf"(?<![\w./-]){re.escape(value)}(?![\w/-])", text) and "." in value)
    )


def _file_spoiled(worked: Worked, word: Word, option: str) -> Iterator[Spoiled]:
    name = word.value
    _, dot, ending = name.rpartition(".")
    missing = f"{NO_FILE}.{ending}" if dot and "/" not in ending else NO_FILE
    yield Spoiled(
        worked,
        Situation.MISSING_FILE,
        name,
        missing,
        option,
        worked.replaced(word.start, word.end, recipes.quoted(missing)),
    )
    if not dot or "/" in ending:
        return
    spoiled = f"spoiled.{ending}"
    garbage = recipes.Shell(f"cp {recipes.quoted(name)} {spoiled} && echo '{GARBAGE}' >> {spoiled}")
    yield Spoiled(
        worked, Situation.BAD_INPUT, name, spoiled, option, worked.replaced(word.start, word.end, spoiled), (garbage,)
    )
    for other in _other_files(worked, name, ending):
        swapped = f"other.{ending}"
        made = recipes.File(swapped, other.content)
        text = worked.replaced(word.start, word.end, swapped)
        yield Spoiled(worked, Situation.BAD_INPUT, name, swapped, option, text, (made,), swapped)


def _other_files(worked: Worked, name: str, ending: str) -> list[recipes.File]:
    """Other files of the same kind that the document shows: the right form, the wrong content."""
    own = next((file.content for file in worked.files if file.name == name), None)
    fitting = [
        file for file in worked.files if file.name.endswith(f".{ending}") and file.name not in (name, *worked.arguments)
    ]
    return [file for file in fitting if file.content != own][-2:]


def _value_spoiled(worked: Worked, word: Word, value: str, option: str, prefix: str) -> Iterator[Spoiled]:
    wrong = "not-a-number" if re.fullmatch(r"[-+]?\d+(?:\.\d+)?", value) else NO_NAME
    situation = Situation.UNKNOWN_NAME if option else Situation.BAD_INPUT
    yield Spoiled(worked, situation, value, wrong, option, worked.replaced(word.start, word.end, prefix + wrong))


# Judging ---------------------------------------------------------------------------------


class Trial:
    """Runs spoiled commands and says what is wrong with their answers."""

    def __init__(
        self,
        workspace: Workspace,
        package: Package,
        environment: Environment,
        claims: tuple[StatusClaim, ...],
        tree: dict[tuple[str, ...], Help],
        places: CodePlaces,
    ):
        self.workspace, self.package, self.environment = workspace, package, environment
        self.claims, self.tree, self.places = claims, tree, places

    def run(self, spoiled: Spoiled) -> Ran:
        return self.workspace.run(self.script(spoiled), environment=self.environment, timeout_s=SPOILED_S)

    def script(self, spoiled: Spoiled) -> str:
        worked = spoiled.worked
        last = with_stand_ins(spoiled.text, self.package)
        if spoiled.watched:
            name = spoiled.watched
            last = (
                f"before=$(wc -c < {name})\n{last}\nstatus=$?; after=$(cat {name} 2> /dev/null | wc -c)\n"
                f'test $((after * 4)) -ge $((before * 3)) || echo "{name}: {LOST} ($before bytes before, '
                f'$after after)"\nexit $status'
            )
        return recipes.script([*worked.parts, *spoiled.before, recipes.Shell(last)], bring=worked.bring)

    def judge(self, spoiled: Spoiled, ran: Ran) -> list[Claim]:
        if ran.timed_out or ran.oom or ran.exit is None:
            return []
        found = []
        raised = last_traceback(ran.output)
        if raised is not None and ran.exit != 0:
            claim = self._traceback(spoiled, ran, raised)
            found += [claim] if claim else []
        elif claim := self._status(spoiled, ran):
            found.append(claim)
        if spoiled.watched and LOST in ran.output and ran.exit != 0 and re.search(r"\bnot?\b", ran.output, re.I):
            found.append(self._destroyed(spoiled, ran))
        return found

    def _traceback(self, spoiled: Spoiled, ran: Ran, raised: Raised) -> Claim | None:
        """A mistake of the user answered with a traceback out of the package's own code."""
        place = self.places.of_traceback(raised)
        foreign = raised.type == "ModuleNotFoundError" and not self.package.has_module(
            raised.message.strip("'\"").split("'")[-1]
        )
        if place is None or surroundings(raised.text) or raised.type in MESSAGE_MEANT or foreign:
            return None
        command = self.command(spoiled)
        promised = self._promise(spoiled)
        also = f" {promised[0].file} names exit status {promised[0].status} for this case." if promised else ""
        return Claim(
            kind=Kind.USABILITY,
            rule="cli.traceback",
            symbol=place.symbol,
            title=f"`{command}` answers a mistake ({spoiled.what}) with a {raised.type} traceback",
            description=(
                f"The command `{spoiled.worked.text}` from {spoiled.worked.document.file} line "
                f"{spoiled.worked.step.line} works. With "
                f"{spoiled.what} it ends with an uncaught `{raised.text}`, raised in "
                f"{place.symbol or place.file} ({place.file}, line "
                f"{place.line}). The user sees a Python traceback where one line should name the mistake.{also}"
            ),
            severity=Severity.MEDIUM,
            places=(place,),
            reproduction=self.reproduction(
                spoiled, ran, "an error message that names the mistake, and no traceback",
                f"a traceback that ends with {raised.text}",
                Symptom(nonzero=True, contains=("Traceback (most recent call last)", raised.type)),
            ),
            shape=raised.shape,
        )  # fmt: skip

    def _status(self, spoiled: Spoiled, ran: Ran) -> Claim | None:
        """Exit status 0 after an error, or another status than the documents name for this case."""
        promised = self._promise(spoiled)
        statuses = {claim.status for claim in promised}
        report = reported(spoiled, ran)
        if ran.exit == 0 and 0 not in statuses and report and (promised or spoiled.situation is Situation.MISSING_FILE):
            return self._status_claim(spoiled, ran, promised, report)
        clear = spoiled.situation is Situation.MISSING_FILE and len(statuses) == 1
        if ran.exit and clear and ran.exit not in statuses and 0 not in statuses and report:
            return self._status_claim(spoiled, ran, promised, report)
        return None

    def _status_claim(self, spoiled: Spoiled, ran: Ran, promised: list[StatusClaim], report: str) -> Claim:
        command = self.command(spoiled)
        code = self.places.of_command(self.path(spoiled))
        places = [
            *(Place(file=one.file, line=one.line, symbol=command, quote=self._quote(one)) for one in promised[:1])
        ]
        places += [code] if code else []
        if not places:
            document = spoiled.worked.document
            line = spoiled.worked.step.line
            places = [Place(file=document.file, line=line, symbol=command, quote=document.source_line(line))]
        said = (
            f"{promised[0].file} says exit status {promised[0].status} for: {promised[0].condition}" if promised else ""
        )
        wanted = f"exit status {promised[0].status}" if promised else "an exit status other than 0"
        return Claim(
            kind=Kind.USABILITY,
            rule="readme.exit-status" if promised else "cli.exit-status",
            symbol=command,
            title=f"`{command}` ends with exit status {ran.exit} after an error ({spoiled.what}); {wanted} is "
            + ("documented" if promised else "expected"),
            description=(
                f"With {spoiled.what}, `{spoiled.text}` prints {report!r} and ends with exit status {ran.exit}. "
                + (f"{said}. " if said else "")
                + "A script or a CI job that calls it does not notice that something went wrong."
            ),
            severity=Severity.MEDIUM,
            places=tuple(places),
            reproduction=self.reproduction(
                spoiled,
                ran,
                wanted,
                f"exit status {ran.exit} after {report!r}",
                Symptom(exit=ran.exit, contains=(steady(report, spoiled),)),
                copied=tuple(piece(one.file, self._quote(one)) for one in promised[:1]),
            ),
        )

    def _destroyed(self, spoiled: Spoiled, ran: Ran) -> Claim:
        command = self.command(spoiled)
        document = spoiled.worked.document
        promise = re.search(
            r"[^.]*\bleaves?\b[^.]*\b(?:files?|input|copy|it|them)\b[^.]*\b(?:as (?:it|they) (?:was|"
            r"were)|unchanged|untouched|alone|intact)\b",
            document.source,
        )
        lost = (re.search(r"\d+ bytes before, \d+ after", ran.output) or [""])[0]
        code = self.places.of_command(self.path(spoiled))
        line = document.line_with(_first_words(promise[0]), 1) if promise else spoiled.worked.step.line
        places = [
            *([code] if code else []),
            Place(file=document.file, line=line, symbol=command, quote=document.source_line(line)),
        ]
        return Claim(
            kind=Kind.RELIABILITY,
            rule="cli.input-destroyed",
            symbol=command,
            title=f"`{command}` destroys its input file when it fails",
            description=(
                f"With {spoiled.what}, `{spoiled.text}` ends with {ran.ending}, and the input file "
                f"{spoiled.watched} is shorter afterwards "
                f"({lost}): a user who makes this mistake loses data."
                + (f" {document.file} promises: {' '.join(promise[0].split())}." if promise else "")
            ),
            severity=Severity.HIGH,
            places=tuple(places),
            reproduction=self.reproduction(
                spoiled, ran, "the input file as it was", f"{ran.ending}, and the input file has lost its content",
                Symptom(nonzero=True, contains=(f"{spoiled.watched}: {LOST}",)),
            ),
        )  # fmt: skip

    def reproduction(
        self,
        spoiled: Spoiled,
        ran: Ran,
        expected: str,
        observed: str,
        symptom: Symptom,
        *,
        copied: tuple[Copied, ...] = (),
    ) -> Reproduction:
        """`copied`: what the claim says of a page. The page's command is only what brings a fault of the program about,
        and still does when the page shows another one."""
        worked = spoiled.worked
        text = worked.text if worked.exit == 0 else f"{worked.text}\ntest $? -eq {worked.exit}"
        control = worked.script(text, self.package)
        return Reproduction(
            command=self.script(spoiled),
            expected=expected,
            observed=observed,
            environment=self.environment,
            control=control,
            symptom=symptom,
            copied=copied,
        )

    def command(self, spoiled: Spoiled) -> str:
        return " ".join(self.path(spoiled)) or spoiled.worked.simple.program

    def path(self, spoiled: Spoiled) -> tuple[str, ...]:
        return node_of(spoiled.worked.simple.values, self.tree, self.package)[0]

    def _promise(self, spoiled: Spoiled) -> list[StatusClaim]:
        return expected_statuses(self.claims, spoiled.situation, self.path(spoiled))

    def _quote(self, claim: StatusClaim) -> str:
        return self.places.line(claim.file, claim.line)


def reported(spoiled: Spoiled, ran: Ran) -> str:
    """The line by which the program shows that it noticed; empty when it says nothing."""
    lines = [line.strip() for line in ran.output.splitlines() if line.strip()]
    before = {line.strip() for line in spoiled.worked.said.splitlines()}
    new = [line for line in lines if line not in before]
    named = [line for line in new if spoiled.value in line]
    if spoiled.situation is Situation.BAD_INPUT and spoiled.before:
        return next((line for line in new if REPORTS.search(line) or GARBAGE[:12] in line or "left out" in line), "")
    return next((line for line in named if REPORTS.search(line) or re.search(r"\bnot?\b", line)), "")


def steady(report: str, spoiled: Spoiled) -> str:
    """A piece of the message that will come again: what was wrong, else its last words."""
    if spoiled.value in report:
        return spoiled.value
    return report[-60:].strip()


def _first_words(text: str) -> str:
    return " ".join(text.split()[:4])
