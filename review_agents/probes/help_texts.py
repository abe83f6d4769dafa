"""What programs say of themselves: options, subcommands and choices, read from `--help`, subcommands followed down."""

import re
import shlex
from dataclasses import dataclass, field

from review_agents.ports import Workspace
from review_agents.probes.comparing import ANSI
from review_agents.probes.shell import Package
from review_agents.records import Environment

HELP_S = 20.0
MOST_NODES = 60
DEEPEST = 3
OPTION = re.compile(r"(?<![\w/.-])(--?[A-Za-z][\w-]*|-\d)(?![\w])")
SECTION = re.compile(
    r"^\W*(?:(?:available |sub|all |core |main |other )?(?:commands|subcommands|command "
    r"groups)|positional arguments)\b.*$",
    re.I,
)
BRACES = re.compile(r"\{([A-Za-z0-9][\w.,-]*)\}")


@dataclass(frozen=True, slots=True)
class Help:
    """One program or subcommand as its help describes it."""

    path: tuple[str, ...]  # program words, then subcommands: ("spanparse", "sum")
    text: str
    options: frozenset[str]
    subcommands: tuple[str, ...]
    choices: dict[str, tuple[str, ...]] = field(default_factory=dict)  # option -> its values
    required: int = 0  # positional arguments that the usage line shows without brackets

    @property
    def name(self) -> str:
        return " ".join(self.path)


def help_tree(workspace: Workspace, package: Package, environment: Environment) -> dict[tuple[str, ...], Help]:
    """Help of every own program, and of every subcommand it names. A program without help has no entry."""
    tree: dict[tuple[str, ...], Help] = {}
    for name in package.scripts:
        command = shlex.split(package.stand_ins.get(name, name))
        _follow(workspace, environment, (name,), command, tree)
    return tree


def _follow(
    workspace: Workspace,
    environment: Environment,
    path: tuple[str, ...],
    command: list[str],
    tree: dict[tuple[str, ...], Help],
) -> None:
    if len(tree) >= MOST_NODES or len(path) > DEEPEST:
        return
    ran = workspace.run(f"{shlex.join(command)} --help < /dev/null", environment=environment, timeout_s=HELP_S)
    if ran.timed_out or "Traceback (most recent call last)" in ran.output or not ran.output.strip():
        return
    if ran.exit not in (0, 1, 2) or (ran.exit and not re.search(r"usage", ran.output, re.I)):
        return
    found = read_help(path, ran.output)
    parent = tree.get(path[:-1])
    if parent is not None and found.text.strip() == parent.text.strip():
        return  # a word that is no subcommand: the program printed its own help again
    tree[path] = found
    for word in found.subcommands:
        _follow(workspace, environment, (*path, word), [*command, word], tree)


def read_help(path: tuple[str, ...], output: str) -> Help:
    text = re.sub(r"[│┃╭╮╰╯]", " ", ANSI.sub("", output))
    return Help(
        path,
        text,
        frozenset(OPTION.findall(text)),
        tuple(dict.fromkeys(_subcommands(text))),
        _choices(text),
        _required(text, path),
    )


def _subcommands(text: str) -> list[str]:
    """argparse's `{a,b}` where a command stands, and indented names below a heading `Commands:`."""
    names: list[str] = []
    usage = " ".join(text.split("\n\n")[0].split())
    for found in BRACES.finditer(usage):
        before = usage[: found.start()].rstrip()
        if not re.search(r"--?[\w-]+[= ]?$", before):
            names += found[1].split(",")
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        heading = lines[at].strip(" ─-")
        if not SECTION.match(heading) or (heading.lower().startswith("positional") and not names):
            at += 1
            continue
        at += 1
        indent = None
        while at < len(lines) and (not lines[at].strip() or lines[at].startswith(" ")):
            found_word = re.match(r"^(\s+)([a-z][\w:.-]*)(?:,\s*[\w-]+)*(?:\s{2,}|\s*$)", lines[at])
            if found_word and not heading.lower().startswith("positional"):
                indent = indent or found_word[1]
                if found_word[1] == indent:
                    names.append(found_word[2])
            at += 1
    return [name for name in names if name and name not in ("help",)]


def _choices(text: str) -> dict[str, tuple[str, ...]]:
    """`--format {a,b}` of argparse, `--format [a|b]` of click."""
    found: dict[str, tuple[str, ...]] = {}
    for match in re.finditer(r"(--[\w-]+)[ =]\{([^{}\n]+)\}", text):
        found.setdefault(match[1], tuple(value.strip() for value in match[2].split(",")))
    for match in re.finditer(r"(--[\w-]+)\s+(?:<\w+>\s+)?\[([\w.-]+(?:\|[\w.-]+)+)\]", text):
        found.setdefault(match[1], tuple(match[2].split("|")))
    return found


def _required(text: str, path: tuple[str, ...]) -> int:
    """Words of the usage line that stand for arguments which cannot be left out."""
    usage = re.search(r"usage:\s*(.*?)(?:\n\s*\n|$)", text, re.IGNORECASE | re.DOTALL)
    if not usage:
        return 0
    line = " ".join(usage[1].split())
    while (bare := re.sub(r"\[[^\[\]]*\]|\{[^{}]*\}", " ", line)) != line:
        line = bare
    words = line.split()[1:]
    while words and words[0] in path:
        words.pop(0)
    return len([word for word in words if re.fullmatch(r"<?[A-Za-z][\w-]*>?", word)])


def node_of(words: list[str], tree: dict[tuple[str, ...], Help], package: Package) -> tuple[tuple[str, ...], int]:
    """The deepest known command that these words name, and how many words that takes. ((), 0) when none is ours."""
    count = package.own_words(words)
    if not count:
        return (), 0
    program = (
        words[0]
        if count == 1
        else next(
            (
                name
                for name, target in package.scripts.items()
                if target.partition(":")[0].split(".")[0] == words[2].split(".")[0]
            ),
            "",
        )
    )
    path: tuple[str, ...] = (program,)
    if path not in tree:
        return (), 0
    at = count
    while at < len(words):
        word = words[at]
        if word in tree[path].subcommands and (*path, word) in tree:
            path, at = (*path, word), at + 1
            count = at
        elif word.startswith("-"):
            at += 1
        else:
            break
    return path, count
