"""README and docs pages as a reader meets them: blocks of known kind in order, and the prose around them.

`read_document` never raises for what a file holds. Lines are counted from 1.
"""

import ast
import json
import re
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from review_agents.probes.markdown_text import read_markdown
from review_agents.probes.markup import Markup, Passage, PassageKind, Snippet
from review_agents.probes.rst_text import read_rst
from review_agents.probes.transcripts import Command, has_prompts, read_script, read_transcript


class BlockKind(StrEnum):
    SHELL = "shell"  # commands without prompts
    CONSOLE = "console"  # a transcript: prompts, commands, output
    PYTHON = "python"
    SESSION = "session"  # `>>>`
    CONFIG = "config"  # data in JSON, TOML, YAML, INI, CSV, ...
    OUTPUT = "output"  # what the block before it prints
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Block:
    """One literal block of a document."""

    file: str
    line: int  # of its first line of content
    headings: tuple[str, ...]
    kind: BlockKind
    language: str
    text: str
    before: str = ""  # the passage right above it, when nothing else is between
    after: str = ""  # the passage right below it
    filename: str = ""  # the file whose content this is, where the document says so
    commands: tuple[Command, ...] = ()  # of SHELL and CONSOLE
    sure: bool = True  # whether the author said what it is, or we guessed from the text
    hidden: bool = False  # set-up code that a reader does not see
    skip: str = ""  # why it must not be run, where the author or the heading says so


@dataclass(frozen=True, slots=True)
class Document:
    file: str
    source: str
    blocks: tuple[Block, ...]
    passages: tuple[Passage, ...] = field(default=())

    def source_line(self, line: int) -> str:
        """That line as it stands in the file, without the white space around it; empty outside the file."""
        lines = self.source.splitlines()
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def line_with(self, text: str, near: int) -> int:
        """The line at or after `near` that holds the text; `near` when none does."""
        lines = self.source.splitlines()
        for at in range(max(near, 1), len(lines) + 1):
            if text in lines[at - 1]:
                return at
        return near


PYTHON = {"python", "py", "python3", "py3", "python2", "ipython3", "py3k"}
SESSIONS = {"pycon", "pycon3", "python-console", "doctest", "python-repl", "pyconsole", "repl", "pytb", "py3tb"}
SHELLS = {"bash", "sh", "shell", "zsh", "ksh", "shell-script", "shellscript", "fish"}
CONSOLES = {"console", "shell-session", "shellsession", "sh-session", "bash-session", "terminal", "term", "cli", "ansi"}
DATA = {"json", "json5", "jsonc", "yaml", "yml", "toml", "ini", "cfg", "conf", "xml", "html", "css", "csv", "tsv",
        "sql", "env", "dotenv", "properties", "jsonl", "ndjson", "javascript", "js", "jinja", "jinja2", "html+jinja",
        "po", "config", "requirements", "pip-requirements", "editorconfig", "nginx", "graphql", "protobuf", "rst", "md",
        "markdown", "restructuredtext", "text/x-toml"}  # fmt: skip
PLAIN = {"", "text", "txt", "none", "plain", "plaintext", "output", "out", "log", "raw", "literal", "stdout"}

# First words by which an unmarked line is known to be for the shell.
SHELL_WORDS = {
    "pip", "pip3", "pipx", "python", "python3", "py", "uv", "uvx", "conda", "mamba", "poetry", "hatch", "pdm", "tox",
    "nox", "pytest", "git", "cd", "ls", "cat", "echo", "export", "source", "mkdir", "cp", "mv", "rm", "touch",
    "curl", "wget", "sudo", "apt", "apt-get", "brew", "docker", "docker-compose", "make", "npm", "npx", "yarn",
    "virtualenv", "pre-commit", "chmod", "tar", "unzip", "easy_install", "dnf", "yum", "pacman", "port", "pkg",
    "choco", "scoop", "winget", "nix-env", "time", "env", "printf", "bash", "sh", "set", "conda-forge", "pixi",
    "flit", "twine", "tree", "head", "tail", "diff",
}  # fmt: skip

# Headings under which an example shows something else than today's behaviour.
ELSEWHEN = re.compile(
    r"\b(change ?log|changes in|release notes|history|migrat\w+|upgrad\w+|what'?s new|deprecat\w+|removed|roadmap|todo|"
    r"future|planned|old versions?|legacy|before|anti-?patterns?|pitfalls?|known (issues|"
    r"bugs)|troubleshoot\w*|uninstall\w*"
    r"|not supported|unsupported|backwards? incompatib\w+|breaking changes?)\b",
    re.IGNORECASE,
)
NOT_TESTED = {"notest", "no-test", "no_test", "norun", "no-run", "no_run", "skip", "ignore", "no-exec", "no_exec"}
SKIP_COMMENT = re.compile(
    r"(?:^|\W)(?:skip(?::\s*next|-next|test|-test)?|notest|no-?run|pytest-codeblocks:\s*skip|"
    r"pytest\.mark\.skip|phmdoctest-skip|doctest:\s*\+skip|doctest-skip)\b",
    re.IGNORECASE,
)
OUTPUT_CUE = re.compile(
    r"^(?:(?:and |which |this |that |it |the (?:output|result)\w* ?|running (?:this|it|that).{0,30} )*"
    r"(?:will |would |should |must )?(?:is|be|outputs?|prints?|gives?|produces?|results? in|shows?|displays?|yields?|"
    r"returns?|looks? like)\b.{0,60}|(?:sample |example |expected )?(?:outputs?|results?|prints)|"
    r"you (?:should|will|'ll|would|can) (?:then )?(?:see|get).{0,60}|(?:[\w ]{0,20}) output)\s*[:.]?$",
    re.IGNORECASE,
)
FILE_NAME = (
    r"[\w.][\w./-]*\.(?:py|pyi|toml|ini|cfg|json|jsonl|ya?ml|csv|tsv|txt|md|rst|html|xml|env|conf|sh|sql|ndjson|po|"
    r"log|ipynb|css|js|j2|jinja2|tex|dot|in|lock)"
)
NAMED_IN_TEXT = re.compile(rf"`({FILE_NAME})`|\*\*({FILE_NAME})\*\*|(?:^|\s)({FILE_NAME})(?=[:\s,.]|$)")
NAMING = re.compile(
    r"\b(?:create|save|put|write|add|called|named|contents?|contains?|containing|holds?|file|looks? like|given|with|"
    r"edit|in|consider|suppose|have|following|here is|here's|example)\b",
    re.IGNORECASE,
)
NAMED_BELOW = re.compile(
    rf"^(?:this|that|it|the (?:file )?above) (?:is|was|file is|is the content of) `({FILE_NAME})`", re.I
)
FIRST_COMMENT = re.compile(
    rf"^(?:#|//|;|--|<!--|/\*)\s*(?:file(?:name)?:?\s+|content of:?\s+|in:?\s+)?[`'\"]?({FILE_NAME})[`'\"]?:?\s*"
    r"(?:-->|\*/)?$",
    re.I,
)  # fmt: skip


def read_document(file: str, source: str, programs: Collection[str] = ()) -> Document:
    """Read a page. `programs` are the repo's own commands, by which an unmarked block is known for a script."""
    markup = read_rst(source) if is_rst(file) else read_markdown(source)
    blocks = tuple(_blocks(file, markup, frozenset(programs)))
    return Document(file, source, blocks, markup.passages)


def is_rst(file: str) -> bool:
    return file.lower().endswith((".rst", ".rest", ".txt"))


def _blocks(file: str, markup: Markup, programs: frozenset[str]) -> Iterator[Block]:
    previous: Block | None = None
    end_of_previous = 0
    for snippet in markup.snippets:
        if not snippet.text.strip():
            continue
        before = _passage_above(markup.passages, snippet, end_of_previous)
        after = _passage_below(markup, snippet)
        kind, sure = _kind(snippet, programs)
        if kind in (BlockKind.OTHER, BlockKind.CONSOLE, BlockKind.SHELL, BlockKind.CONFIG) and _is_output(
            snippet, kind, previous, before, adjacent=not before and previous is not None
        ):
            kind = BlockKind.OUTPUT
        block = Block(
            file,
            snippet.line,
            snippet.headings,
            kind,
            snippet.language,
            snippet.text,
            before,
            after,
            sure=sure,
            hidden=snippet.hidden,
            skip=_skip(snippet, markup.passages),
        )
        block = replace(block, filename=_filename(snippet, block))
        for part in _parts(block):
            yield part
            previous = part
        end_of_previous = snippet.line + snippet.text.count("\n")


def _parts(block: Block) -> Iterator[Block]:
    """A transcript in which `python` is started and spoken to becomes a transcript and a session."""
    if block.kind is BlockKind.SHELL:
        yield replace(block, commands=read_script(block.text, block.line))
        return
    if block.kind is not BlockKind.CONSOLE:
        yield block
        return
    commands = read_transcript(block.text, block.line)
    plain: list[Command] = []
    for command in commands:
        if command.output.lstrip().startswith(">>> ") or "\n>>> " in command.output:
            if plain:
                yield replace(block, commands=tuple(plain), line=plain[0].line)
                plain = []
            offset = command.output[: command.output.find(">>> ")].count("\n")
            session = "\n".join(command.output.split("\n")[offset:])
            yield replace(block, kind=BlockKind.SESSION, text=session, line=command.output_line + offset)
        else:
            plain.append(command)
    if plain or not commands:
        yield replace(block, commands=tuple(plain))


def _passage_above(passages: tuple[Passage, ...], snippet: Snippet, end_of_previous: int) -> str:
    above = [
        passage
        for passage in passages
        if end_of_previous < passage.line < snippet.line
        and passage.headings == snippet.headings
        and passage.kind is not PassageKind.COMMENT
    ]
    return above[-1].text if above else ""


def _passage_below(markup: Markup, snippet: Snippet) -> str:
    end = snippet.line + snippet.text.count("\n")
    next_snippet = min((other.line for other in markup.snippets if other.line > end), default=1 << 30)
    for passage in markup.passages:
        if end < passage.line < next_snippet and passage.headings == snippet.headings:
            return passage.text if passage.kind is not PassageKind.COMMENT else ""
    return ""


def _skip(snippet: Snippet, passages: tuple[Passage, ...]) -> str:
    if NOT_TESTED & set(snippet.options) or "skip" in snippet.language:
        return "the author marked it as not to be tested"
    for passage in passages:
        if passage.kind is PassageKind.COMMENT and 0 < snippet.line - passage.last_line <= 4:
            between = any(passage.line < other.line < snippet.line for other in passages if other is not passage)
            if not between and SKIP_COMMENT.search(passage.text):
                return "the author marked it as not to be tested"
    for heading in snippet.headings:
        if ELSEWHEN.search(heading):
            return f'it stands below "{heading}"'
    return ""


def _kind(snippet: Snippet, programs: frozenset[str]) -> tuple[BlockKind, bool]:
    language, text = snippet.language, snippet.text
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if snippet.directive == "testoutput":
        return BlockKind.OUTPUT, True
    if first.startswith(">>> ") or (language in PYTHON | SESSIONS and re.search(r"^\s*>>> ", text, re.MULTILINE)):
        return BlockKind.SESSION, language in PYTHON | SESSIONS
    if language in PYTHON:
        return BlockKind.PYTHON, True
    if language in SESSIONS:
        return BlockKind.OTHER, True
    if language in SHELLS | CONSOLES:
        if has_prompts(text):
            return BlockKind.CONSOLE, True
        return (BlockKind.SHELL, language in SHELLS)
    if language in DATA:
        return BlockKind.CONFIG, True
    if language not in PLAIN:
        return BlockKind.OTHER, True
    if has_prompts(text) and re.match(r"\s*(\([\w.-]+\)\s*)?[$%]\s+\S", first):
        return BlockKind.CONSOLE, False
    if looks_like_shell(text, programs):
        return BlockKind.SHELL, False
    if looks_like_python(text):
        return BlockKind.PYTHON, False
    if _is_json(text):
        return BlockKind.CONFIG, False
    return BlockKind.OTHER, True


def looks_like_shell(text: str, programs: Collection[str] = ()) -> bool:
    """Whether every command line begins with a program that we know."""
    commands = read_script(text)
    if not commands:
        return False
    for command in commands:
        words = [word for word in command.text.split() if not re.fullmatch(r"[A-Za-z_]\w*=\S*", word)]
        first = words[0] if words else "env"
        if first not in SHELL_WORDS and first not in programs and not first.startswith("./"):
            return False
        if re.match(r"^\S+\s*(=|is\b|are\b|\()", command.text) and first not in programs:
            return False
    return True


def looks_like_python(text: str) -> bool:
    """Whether it parses, and does what prose and data do not: import, assign, define or call."""
    try:
        tree = ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    telling = (
        ast.Import,
        ast.ImportFrom,
        ast.Assign,
        ast.FunctionDef,
        ast.ClassDef,
        ast.With,
        ast.For,
        ast.AsyncFunctionDef,
    )
    return any(
        isinstance(node, telling) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        for node in tree.body
    )


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False


def _is_output(snippet: Snippet, kind: BlockKind, previous: Block | None, before: str, *, adjacent: bool) -> bool:
    """Whether this block is what the one before it prints."""
    if previous is None or previous.headings != snippet.headings or has_prompts(snippet.text):
        return False
    if previous.kind not in (BlockKind.SHELL, BlockKind.CONSOLE, BlockKind.PYTHON):
        return False
    if kind is BlockKind.SHELL and snippet.language in SHELLS:
        return False
    if OUTPUT_CUE.match(before.strip()):
        return True
    plain = snippet.language in {"text", "txt", "output", "out", "stdout", "none", "plaintext", "plain"}
    return adjacent and plain and kind is BlockKind.OTHER


def _filename(snippet: Snippet, block: Block) -> str:
    """The file whose content this block is, if the title, a first comment, or the text beside it says so."""
    if block.kind in (BlockKind.SESSION, BlockKind.OUTPUT, BlockKind.CONSOLE):
        return ""
    for key in ("title", "filename", "file", "caption", "name"):
        value = snippet.options.get(key, "").strip().strip("`")
        if re.fullmatch(FILE_NAME, value):
            return _safe(value)
    first = block.text.lstrip("\n").split("\n", 1)[0].strip()
    if found := FIRST_COMMENT.match(first):
        return _safe(found[1])
    if block.kind is BlockKind.SHELL:
        return ""
    if found := NAMED_BELOW.match(block.after):
        return _safe(found[1])
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", block.before.strip())[-1] if block.before else ""
    named = {next(filter(None, found.groups())) for found in NAMED_IN_TEXT.finditer(sentence)}
    if len(named) == 1 and sentence.rstrip().endswith(":") and _names_the_block(sentence, next(iter(named))):
        return _safe(named.pop())
    return ""


def _names_the_block(sentence: str, name: str) -> bool:
    alone = re.sub(r"[`*:\s]", "", sentence) == name
    return alone or bool(NAMING.search(sentence.replace(name, "")))


def _safe(name: str) -> str:
    """Only names that stay below the folder they are written to."""
    return "" if name.startswith("/") or ".." in name.split("/") else name.removeprefix("./")
