"""Shell commands taken into words, and what each command of a document is: to be run, done already, or not here."""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from review_agents.probes.transcripts import without_heredocs

# Words -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Word:
    """One word or operator of a command, and where it stands in the text."""

    start: int
    end: int
    value: str  # unquoted
    operator: bool = False  # ; & | && || ( ) { } newline and redirections
    expands: bool = False  # holds $..., `...`, or a pattern that the shell replaces
    quoted: bool = False


OPERATOR = re.compile(r"\d?>>?(?:&\d|&-)?|&>>?|<<<|<<-?|<|\|\||&&|\|&?|;;?|&|\(|\)|\n")
REDIRECTION = re.compile(r"^(?:\d?>>?|&>>?|<|<<<|<<-?)$")


def words_of(text: str) -> tuple[Word, ...]:
    """Words and operators in order. A quote that is never closed runs to the end."""
    found: list[Word] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char in " \t\r" or text.startswith("\\\n", at):
            at += 2 if char == "\\" else 1
        elif char == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif match := OPERATOR.match(text, at):
            found.append(Word(at, match.end(), match[0], operator=True))
            at = match.end()
        else:
            word = _word(text, at)
            found.append(word)
            at = word.end
    return tuple(found)


def _word(text: str, start: int) -> Word:
    value: list[str] = []
    at = start
    expands = quoted = False
    while at < len(text):
        char = text[at]
        if char == "'":
            end = text.find("'", at + 1)
            end = len(text) if end < 0 else end
            value.append(text[at + 1 : end])
            at, quoted = end + 1, True
        elif char == '"':
            piece, at, inner = _double_quoted(text, at + 1)
            value.append(piece)
            expands, quoted = expands or inner, True
        elif char == "\\" and at + 1 < len(text):
            if text[at + 1] != "\n":
                value.append(text[at + 1])
            at += 2
        elif char in " \t\r\n;&|()<>":
            if char == "(" and value and value[-1].endswith("$"):
                end = _closing(text, at)
                value.append(text[at:end])
                at = end
                continue
            break
        else:
            if char == "`":
                end = text.find("`", at + 1)
                end = len(text) if end < 0 else end + 1
                value.append(text[at:end])
                at, expands = end, True
                continue
            if char in "$*?[":
                expands = True
            value.append(char)
            at += 1
    return Word(start, max(at, start + 1), "".join(value), expands=expands, quoted=quoted)


def _double_quoted(text: str, at: int) -> tuple[str, int, bool]:
    piece: list[str] = []
    expands = False
    while at < len(text) and text[at] != '"':
        if text[at] == "\\" and at + 1 < len(text) and text[at + 1] in '"\\$`\n':
            piece.append(text[at + 1])
            at += 2
            continue
        expands = expands or text[at] in "$`"
        piece.append(text[at])
        at += 1
    return "".join(piece), at + 1, expands


def _closing(text: str, at: int) -> int:
    depth = 0
    for index in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index + 1
    return len(text)


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command: assignments, then words; redirections apart."""

    words: tuple[Word, ...]  # program and arguments
    assignments: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()  # files of `<`
    writes: tuple[str, ...] = ()  # files of `>`
    background: bool = False

    @property
    def program(self) -> str:
        return self.words[0].value if self.words else ""

    @property
    def values(self) -> list[str]:
        return [word.value for word in self.words]


WRAPPERS = {
    "time",
    "env",
    "command",
    "exec",
    "nice",
    "nohup",
    "!",
    "then",
    "do",
    "else",
    "{",
    "if",
    "while",
    "until",
    "elif",
}


def simple_commands(text: str) -> tuple[Simple, ...]:
    """The simple commands of a line or script, wrappers such as `time` and keywords taken off."""
    source = without_heredocs(text)
    found: list[Simple] = []
    words: list[Word] = []
    reads: list[str] = []
    writes: list[str] = []
    redirect = ""

    def close(background: bool = False) -> None:
        assignments: list[str] = []
        rest = list(words)
        while rest:
            assigns = re.match(r"[A-Za-z_]\w*=", source[rest[0].start : rest[0].end])  # its value may be quoted
            if not assigns and (rest[0].quoted or rest[0].value not in WRAPPERS):
                break
            assignments.extend([rest[0].value] if assigns else [])
            rest.pop(0)
        if rest or assignments:
            found.append(Simple(tuple(rest), tuple(assignments), tuple(reads), tuple(writes), background))
        words.clear()
        reads.clear()
        writes.clear()

    for word in words_of(source):
        if word.operator:
            if REDIRECTION.match(word.value):
                redirect = word.value
                continue
            if re.match(r"\d?>>?&", word.value):
                continue
            close(background=word.value == "&")
            redirect = ""
        elif redirect:
            if redirect.startswith("<<"):
                pass
            elif redirect == "<":
                reads.append(word.value)
            else:
                writes.append(word.value)
            redirect = ""
        elif word.value == "}" and not word.quoted:
            continue
        else:
            words.append(word)
    close()
    return tuple(found)


# The repo's own package ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Package:
    """What belongs to the reviewed repo."""

    names: tuple[str, ...] = ()  # distributions
    modules: tuple[str, ...] = ()  # import packages, dotted
    scripts: dict[str, str] = field(default_factory=dict)  # command -> "module:function"
    repo_name: str = ""
    url: str = ""
    stand_ins: dict[str, str] = field(default_factory=dict)  # broken command -> what does its work (python -m module)

    def is_own_program(self, words: list[str]) -> bool:
        return self.own_words(words) > 0

    def own_words(self, words: list[str]) -> int:
        """How many of the first words name one of the repo's own programs: NAME, or python -m NAME."""
        if not words:
            return 0
        if words[0] in self.scripts:
            return 1
        if is_python(words[0]) and len(words) > 2 and words[1] == "-m" and self.has_module(words[2]):
            return 3
        return 0

    def has_module(self, module: str) -> bool:
        return any(module == own or module.startswith(own + ".") for own in self.modules)

    def is_own_name(self, requirement: str) -> bool:
        bare = re.split(r"[\[<>=!~;@ ]", requirement, maxsplit=1)[0]
        return canonical(bare) in {canonical(name) for name in self.names}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def is_python(program: str) -> bool:
    return bool(re.fullmatch(r"(?:python|python3|py)(?:\.?\d+)*", program))


# Judging ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judgement:
    """What to do with a command. Exactly one of `run`, `done` and `why_not` says so."""

    run: bool = False
    done: str = ""  # a no-op: what has already done it
    why_not: str = ""  # what it would need
    own: bool = False  # it calls the repo's own program


NEEDS = {
    "sudo", "su", "apt", "apt-get", "aptitude", "yum", "dnf", "pacman", "brew", "port", "conda", "mamba",
    "micromamba", "docker", "docker-compose", "podman", "kubectl", "helm", "terraform", "vagrant", "npm", "npx",
    "yarn", "pnpm", "node", "cargo", "go", "gem", "bundle", "make", "cmake", "ninja", "meson", "git", "gh", "hub",
    "svn", "hg", "curl", "wget", "ssh", "scp", "sftp", "rsync", "systemctl", "service", "snap", "choco", "scoop",
    "winget", "nix", "nix-env", "nix-shell", "guix", "heroku", "aws", "gcloud", "az", "crontab", "poetry", "pdm",
    "hatch", "tox", "nox", "pre-commit", "twine", "flit", "rye", "pixi", "uv", "uvx", "pipx", "pytest", "py.test",
    "coverage", "mypy", "flake8", "black", "ruff", "pylint", "sphinx-build", "mkdocs", "invoke", "inv", "fab",
    "just", "virtualenv", "pyenv", "asdf", "mkvirtualenv", "workon", "code", "xdg-open", "open", "start",
    "redis-server", "psql", "mysql", "gunicorn", "uvicorn", "celery", "createdb", "emacs", "chown", "mount", "kill",
    "killall", "pkill", "reboot", "shutdown", "dd",
}  # fmt: skip
INTERACTIVE = {"vim", "vi", "nano", "less", "more", "top", "htop", "tmux", "screen", "ipython", "jupyter",
               "jupyter-lab", "bpython", "ptpython", "man", "watch", "fzf"}  # fmt: skip
ALLOWED = {
    "cat", "echo", "printf", "cp", "mv", "mkdir", "ls", "cd", "touch", "export", "rm", "rmdir", "head", "tail", "wc",
    "sort", "uniq", "grep", "egrep", "fgrep", "sed", "awk", "tr", "cut", "diff", "cmp", "test", "[", "true", "false",
    "seq", "date", "find", "tee", "xargs", "pwd", "basename", "dirname", "sleep", "unset", "set", "paste", "column",
    "jq", "zip", "unzip", "tar", "gzip", "gunzip", "zcat", "sha256sum", "md5sum", "sha1sum", "base64", "file",
    "stat", "tree", "comm", "fold", "nl", "rev", "tac", "expr", "let", "read", "exit", "return", "pushd", "popd",
    "umask", "alias", "hash", "type", "which", "locale", "chmod", "ln", "od", "xxd", "hexdump", "bash", "sh", "for",
    "fi", "done", "esac", "case", "function", "local", "declare", "yes", "shuf", "split", "join", "iconv", "env",
    "whoami", "uname", "hostname",
}  # fmt: skip
PLACEHOLDER = re.compile(
    r"<[A-Za-z][\w .:/|-]*>|\bpath/to\b|/path\b|\byour[-_ ]?\w+|\bYOUR\w*|\bmy[-_]?(?:token|"
    r"key|secret|user|server|host)\b|"
    r"(?:^|\s)\[[A-Za-z-][^\]]*\]|(?<!\$)\{\w+\}(?!\S*['\"])|(?:^|[\s=/])(?:\.{3}|…)(?:\s|$|[)/])|"
    r"\bxxx+\b|\bfoo\.bar\.com\b|\bTODO\b",
    re.IGNORECASE,
)
SECRET = re.compile(
    r"\b[A-Z_]*(?:API_?KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)\b|--(?:api-key|token|password)\b", re.IGNORECASE
)
NETWORK = re.compile(
    r"\b(?:https?|ftp|ssh|git|s3|gs|redis|postgres(?:ql)?|mysql|mongodb|amqp|ws|wss)://|\bgit@", re.IGNORECASE
)
CAPITALS = re.compile(r"^[A-Z][A-Z_]{2,}(?:\.\w+)?$")
# Names that stand for something in nearly every usage line: literal only where the output has them as keys.
STANDS_FOR = re.compile(
    r"(?:(?:IN|OUT|CONFIG)?FILES?(?:NAME)?|PATHS?|DIR|DIRECTORY|FOLDER|SRC|SOURCE|DST|DEST|DESTINATION|TARGET|INPUT|OUTPUT"
    r"|UR[LI]|HOST|PORT|NAME|USER|USERNAME|KEY|VALUE|ARGS?|ARGUMENTS?|OPTIONS?|COMMAND|TEXT|STRING|NUMBER|PATTERN"
    r"|MODULE|PACKAGE|PROJECT|VERSION|TAG|BRANCH|QUERY|EXPR\w*)"
)
KEYS = re.compile(r"^[\s{,]*(?:export\s+)?[\"']?([A-Z][A-Z_]{2,})[\"']?\s*(?:=|:\s)\s*\S", re.MULTILINE)
ABOUT_USE = re.compile(r"usage|error|required|missing|invalid|argument|metavar|option", re.IGNORECASE)
WINDOWS = re.compile(r"^[A-Za-z]:\\|\\\w+\\|^\s*(?:set|PS>)\s|%\w+%")


def judge(text: str, package: Package, exists: Collection[str] = ()) -> Judgement:
    """What to do with that command. `exists`: names that are no placeholders whatever they look like, such as files."""
    commands = simple_commands(text)
    if not commands:
        return Judgement(why_not="there is no command in it")
    if done := _already_done(commands, text, package):
        return Judgement(done=done)
    if WINDOWS.search(text):
        return Judgement(why_not="needs Windows")
    if _pipes_into_shell(commands):
        return Judgement(why_not="needs a script from the network")
    own = any(package.is_own_program(command.values) for command in commands)
    for command in commands:
        if why := _why_not(command, package, exists):
            return Judgement(why_not=why, own=own)
    bare = without_heredocs(text)
    if SECRET.search(bare):
        return Judgement(why_not="needs a key or password", own=own)
    if NETWORK.search(bare):
        return Judgement(why_not="needs the network", own=own)
    if found := PLACEHOLDER.search(_outside_quotes(bare)):
        return Judgement(why_not=f"needs a value in place of {found[0].strip()}", own=own)
    return Judgement(run=True, own=own)


def literal_names(outputs: Iterable[str]) -> set[str]:
    """Words in capitals that outputs, as a document shows them, really use: they stand for themselves in its commands.

    A key with a value always does. Any other word does unless the text is about use, or it is what usage lines say.
    """
    found: set[str] = set()
    for output in outputs:
        lines = [line for line in output.splitlines() if not ABOUT_USE.search(line)]
        if re.search(r"^\s*usage\b", output, re.IGNORECASE | re.MULTILINE):
            continue
        found.update(KEYS.findall("\n".join(lines)))
        words = re.findall(r"(?<![\w<\[{$%-])[A-Z][A-Z_]{2,}(?![\w>\]}%])", "\n".join(lines))
        found.update(word for word in words if not STANDS_FOR.fullmatch(word))
    return found


def _outside_quotes(text: str) -> str:
    """Quoted words blanked, unless they are placeholders as a whole."""
    return re.sub(
        r"'[^']*'|\"[^\"]*\"", lambda found: found[0] if re.fullmatch(r".<[^<>]+>.", found[0]) else "''", text
    )


def _pipes_into_shell(commands: tuple[Simple, ...]) -> bool:
    programs = [command.program for command in commands]
    return any(first in ("curl", "wget") for first in programs) and any(
        name in ("sh", "bash", "python") for name in programs
    )


def _already_done(commands: tuple[Simple, ...], text: str, package: Package) -> str:
    """What makes the whole line a no-op, in words; empty when it is none."""
    reasons = [_no_op(command, package) for command in commands]
    return next((reason for reason in reasons if reason), "") if all(reasons) else ""


def _no_op(command: Simple, package: Package) -> str:
    words = command.values
    if is_python(command.program) and words[1:3] == ["-m", "pip"]:
        words = words[2:]
    if is_python(command.program) and words[1:3] == ["-m", "venv"]:
        return "the environment is there already"
    if re.fullmatch(r"pip(?:3(?:\.\d+)?)?", words[0] if words else ""):
        if "install" in words:
            own = [word for word in words if package.is_own_name(word) or re.fullmatch(r"\.(?:/.*)?(?:\[.*\])?", word)]
            return (
                f"{shlex.join(words)}: installed from this repo"
                if own
                else "installed by the preparation where it could be"
            )
        return (
            "installed by the preparation where it could be" if "uninstall" not in words else "nothing is uninstalled"
        )
    if words[:2] == ["git", "clone"]:
        return "this repo is there already" if any(_is_own_url(word, package) for word in words[2:]) else ""
    if words[:1] == ["source"] or words[:1] == ["."]:
        return "the environment is active already" if any("activate" in word for word in words[1:]) else ""
    if words[:1] in (["activate"], ["deactivate"]) or words[:2] in (["conda", "activate"], ["conda", "deactivate"]):
        return "the environment is active already"
    if (
        is_python(command.program)
        and words[1:2] == ["setup.py"]
        and {"install", "develop", "build", "build_ext"} & set(words)
    ):
        return "installed from this repo"
    if (
        words[:1] == ["cd"]
        and len(words) == 2
        and canonical(words[1].rstrip("/"))
        in {canonical(package.repo_name), *(canonical(name) for name in package.names)}
    ):
        return "this is the repo's folder already"
    return ""


def _is_own_url(word: str, package: Package) -> bool:
    def bare(url: str) -> str:
        return (
            re.sub(r"^(?:git\+)?(?:https?://|ssh://|git://)?(?:[\w.-]+@)?", "", url)
            .replace(":", "/")
            .removesuffix(".git")
            .rstrip("/")
            .lower()
        )

    mine = bare(package.url)
    tail = bare(word).rpartition("/")[2]
    return bool(mine and bare(word) == mine) or (
        bool(tail) and canonical(tail) in {canonical(package.repo_name), *(canonical(name) for name in package.names)}
    )


def _why_not(command: Simple, package: Package, exists: Collection[str]) -> str:
    program, words = command.program, command.values
    if command.background:
        return "runs in the background"
    if not program:
        return ""
    own = package.own_words(words)
    if not own and (why := _foreign(program, words, package)):
        return why
    for word in command.words[1:]:
        value = word.value
        if (
            CAPITALS.match(value)
            and value not in exists
            and not word.quoted
            and program not in ("echo", "printf", "export")
        ):
            return f"needs a value in place of {value}"
    return ""


def _foreign(program: str, words: list[str], package: Package) -> str:
    """Why a program that is not the repo's own cannot be run here; empty when it can."""
    if program in INTERACTIVE or (program in ("bash", "sh") and len(words) == 1):
        return f"needs a person at {program}"
    if is_python(program):
        if len(words) == 1 or words[1] == "-i":
            return "needs a person at the prompt"
        if words[1] == "-m" and len(words) > 2 and not package.has_module(words[2]) and words[2] != "json.tool":
            return f"needs python -m {words[2]}"
        if words[1] == "setup.py":
            return "needs setup.py, which the preparation runs"
        return ""
    if program in NEEDS:
        return f"needs {program}"
    if program in ALLOWED or "/" in program:
        return ""
    return f"needs {program}"


def own_invocations(text: str, package: Package) -> Iterator[tuple[Simple, int]]:
    """The repo's own programs in a command, with how many words name the program."""
    for command in simple_commands(text):
        if own := package.own_words(command.values):
            yield command, own
