"""Text in the repo that addresses automated reviewers and gives them orders, above all where a person does not see it.

Ordinary guides for contributors, human or not, are no fault. Two things together are: somebody who reviews, audits or
scores is spoken to, and is told what to find. Or such orders are hidden: in comments that no page shows, in invisible
characters, behind terminal codes that erase what was printed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from review_agents.ports import Workspace
from review_agents.probes.prepare import Prepared
from review_agents.probes.recipes import quoted
from review_agents.probes.within import InsideFailed, run_inside
from review_agents.records import (
    Candidate,
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

NAME = "reviewer_text"

MACHINE = (
    r"(?:(?:AI|LLM|automated|automatic|autonomous|machine|AI[- ]based|AI[- ]powered|"
    r"robotic)[ -]+(?:code |security |review(?:ing)? |static )*"
    r"(?:reviewers?|auditors?|graders?|evaluators?|assessors?|judges?|scanners?|"
    r"analy[sz]ers?|agents?|assistants?|models?|tools?|bots?|systems?|reviews?|"
    r"audits?"
    r"|inspectors?|critics?|checkers?)|language models?|LLMs?|AIs?\b|(?:coding|code) (?:agents?|assistants?)"
    r"|(?:code[- ])?review(?:ing)? (?:agents?|bots?|tools?|systems?|services?|models?|"
    r"assistants?)|review(?:er)? bots?|chatbots?|ChatGPT|GPT-?\d\S*|Claude|Copilot"
    r"|Gemini|agents? (?:reading|reviewing|auditing|scoring) this)"
)
PERSON_OR_MACHINE = r"(?:code |security )?(?:reviewers?|auditors?|graders?|evaluators?|assessors?)"


def _addressed(who: str) -> re.Pattern[str]:
    """Ways to speak to somebody."""
    return re.compile(
        rf"\b(?:notes?|messages?|instructions?|notice|attention|important|reminder|hints?|"
        rf"hello|hi|dear|info\w*|directions?|orders?)\b\W{{0,3}}"
        rf"(?:to|for|of)?\W{{0,3}}(?:all |any |every |the |our )*{who}"
        rf"|(?:^|[.!?:;>*#/-]\s*|\n\s*)(?:all |any |every |dear |the |to )*{who}\s*[:,—–]"
        rf"|\b(?:all |any |every |the )?{who}\s+(?:must|should|shall|may|can|are|is|need|"
        rf"needs|please|will|have|has|ought|who|that|reading|reviewing)\b"
        rf"|\bif (?:you are|you're|you be) (?:an? |the |some )?{who}"
        rf"|\byou are (?:now )?(?:an? |the )?{who}"
        rf"|\b(?:as|for) (?:an? |any |all |the )?{who}\s*[,:]",
        re.IGNORECASE,
    )


TO_MACHINE, TO_REVIEWER = _addressed(MACHINE), _addressed(PERSON_OR_MACHINE)
WHILE_REVIEWING = re.compile(
    r"\bto (?:whoever|anyone|everyone|everybody|whatever) (?:who |that )?(?:review|"
    r"audit|analy[sz]|scor|evaluat|grad|assess|scan)\w*|"
    r"\b(?:when|while|if|before|in) (?:you are |you )?(?:review|audit|analy[sz]|scor|"
    r"evaluat|grad|assess|scann?|inspect)\w* (?:of )?(?:this|the|our) "
    r"(?:\w+ )?(?:repo\w*|code\w*|project|files?|packages?|commits?|PR|pull request|module|folder|software)\b",
    re.IGNORECASE,
)
FINDINGS = (
    r"(?:issues?|findings?|problems?|bugs?|vulnerabilit\w+|faults?|defects?|"
    r"weakness\w*|concerns?|flaws?|errors?|warnings?|anything|it|this|these|them|that|"
    r"those)"
)
# What a reviewer is never to be told.
ORDERS = (
    re.compile(
        r"\b(?:ignore|disregard|forget|override|bypass)\W+(?:all |any |of |the |your |"
        r"these |every |each )*(?:previous|prior|above|earlier|preceding|system|existing|"
        r"other|your)\W+(?:\w+\W+){0,2}(?:instructions?|rules?|prompts?|guidelines?|"
        r"directions?|orders?|context|messages?)\b",
        re.IGNORECASE,
    ),
    re.compile(
        rf"\b(?:do not|don't|never|must not|mustn't|should not|shouldn't|shall not|may not|"
        rf"need not|are not to|is not to|not to|without|refrain from|avoid)\s+(?:\w+ly )?"
        rf"(?:report|flag|mention|list|raise|record|note|file|disclose|include|mark|"
        rf"criticis|criticiz|complain)\w*\b[^.!?]{{0,50}}\b{FINDINGS}\b",
        re.IGNORECASE,
    ),
    re.compile(
        r"\b(?:report|say|state|answer|output|respond|reply|conclude|return|write|claim|"
        r"declare|confirm|summari[sz]e)\w*\b[^.!?]{0,40}\b(?:no|zero|free of|without)\W+"
        r"(?:\w+\W+){0,3}(?:issues?|findings?|problems?|bugs?|vulnerabilit\w+|faults?|concerns?|defects?)\b",
        re.IGNORECASE,
    ),
    re.compile(
        r"\b(?:give|assign|award|rate|score|grade|mark|classify|label|treat|consider|rank|"
        r"assess|deem)\b[^.!?]{0,60}\b(?:full|highest|perfect|top|maximum|max|10/10|"
        r"100(?: ?%| points|/100)|A\+|five[- ]star\w*|5/5|safe|secure|clean|passed|"
        r"passing|approved|excellent|verified|trusted|benign|harmless|false positives?|"
        r"positively)\b",
        re.IGNORECASE,
    ),
    re.compile(
        r"\b(?:approve|accept|pass|certify|endorse)\s+(?:this|the|it|all|"
        r"every)\b(?:\s+\w+){0,3}(?:pull request|PR|commit|change|repo\w*|code|project|"
        r"package|without|as)\b",
        re.IGNORECASE,
    ),
    re.compile(
        r"\b(?:skip|exclude|leave out|omit|do not (?:review|audit|analy[sz]e|inspect|scan|"
        r"read|open|look))\b[^.!?]{0,30}\b(?:this|these|the)\b[^.!?]{0,20}\b(?:files?|"
        r"folder|directory|"
        r"section|module|review|audit|check|part|code)\b",
        re.IGNORECASE,
    ),
    re.compile(r"\b(?:stop|end|abort|terminate|finish)\s+(?:the |your |this )?(?:review|analysis|"
               r"audit|evaluation|scan)\b", re.IGNORECASE),
)  # fmt: skip
ABOUT_STYLE = re.compile(
    r"\b(?:style|formatt?ing|lint\w*|naming|whitespace|white space|typos?|line length|nits?)\b", re.IGNORECASE
)
STRONG = (ORDERS[0], ORDERS[2])
SCORING = ORDERS[3]
SUPPRESSES = re.compile(
    r"\b(?:not|never|don't)\s+(?:\w+ly )?(?:report|flag|mention|list|raise|"
    r"disclose)\w*\b[^.!?]{0,50}\b(?:vulnerabilit\w+|security|bugs?|findings?|issues?|"
    r"problems?|faults?)\b",
    re.IGNORECASE,
)
AGENT_FILES = re.compile(
    r"(?:^|/)(?:AGENTS|CLAUDE|GEMINI|COPILOT|CONVENTIONS|SKILL)\.md$|(?:^|"
    r"/)\.(?:cursor\w*|windsurf\w*|clinerules|aider\w*|coderabbit\w*|claude|codex|"
    r"gemini|continue|roo)"
    r"|copilot-instructions|(?:^|/)\.github/(?:instructions|prompts|agents|"
    r"chatmodes)/|(?:^|/)prompts?/|(?:^|/)skills?/",
    re.IGNORECASE,
)
ABOUT_INJECTION = re.compile(
    r"prompt[- ]injection|jailbreak|guardrails?|red[- ]team|adversarial prompts?|llm security", re.IGNORECASE
)
SAMPLES = re.compile(
    r"(?:^|/)(?:tests?|testing|fixtures?|data\w*|samples?|examples?|benchmarks?|"
    r"evals?|corpus|corpora|payloads?)(?:/|$)",
    re.IGNORECASE,
)
ERASES = re.compile(
    r"(?:\x1b|\\x1b|\\033|\\e|\\u001b|␛)\[(?:\d*[KJ]|\d*[AF]|8m|[0-9;]*8m|30;40m|1;30;40m)", re.IGNORECASE
)
INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
HIDING_STYLE = re.compile(
    r"display:\s*none|font-size:\s*0|visibility:\s*hidden|color:\s*(?:white|#fff\w*|transparent)|opacity:\s*0\b",
    re.IGNORECASE,
)
QUOTED = re.compile(r"(?<![\w`])(?:`[^`\n]{8,}`|“[^”\n]{8,}”|\"[^\"\n]{12,}\")")


@dataclass(frozen=True, slots=True)
class Hit:
    """Lines around something that may speak to a reviewer."""

    file: str
    line: int  # of the first of them
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Address:
    """What was found in a hit."""

    file: str
    first: int  # lines of the text
    last: int
    text: str  # as a person should read it: control characters visible
    quote: str  # a stretch of its line that is in the file as it is
    why: str
    hidden: str  # how it is hidden; empty when everybody sees it


def probe(workspace: Workspace, repo: Repo, prepared: Prepared) -> ProbeResult:
    if not repo.files:
        return ProbeResult(probe=NAME, state=ProbeState.NOT_APPLICABLE, reason="the repo holds no files")
    workspace.write("/tmp/lamplighter-files", "\0".join(repo.files))
    try:
        found = run_inside(workspace, "scan_text", "/tmp/lamplighter-files", environment=Environment.NONE)
    except InsideFailed as problem:
        return ProbeResult(probe=NAME, state=ProbeState.COULD_NOT_RUN, reason=str(problem))
    hits = [Hit(one["file"], one["line"], tuple(one["lines"])) for one in found]
    about_injection = any(
        ABOUT_INJECTION.search(" ".join(hit.lines)) for hit in hits if hit.file.lower().startswith("readme")
    )
    addresses = [address for hit in hits if (address := read_hit(hit, about_injection)) is not None]
    candidates = tuple(candidates_of(addresses))
    summary = f"{len(repo.files)} files looked through, {len(addresses)} place(s) that give reviewers orders"
    return ProbeResult(
        probe=NAME,
        state=ProbeState.FAILED if candidates else ProbeState.PASSED,
        summary=summary,
        facts={"looked_at": len(hits), "places": [f"{one.file}:{one.first}" for one in addresses]},
        candidates=candidates,
    )


# Judging ---------------------------------------------------------------------------------


def read_hit(hit: Hit, about_injection: bool = False) -> Address | None:
    """The paragraph that gives orders to reviewers, or None when there is none."""
    for first, last in paragraphs(hit.lines):
        lines = hit.lines[first:last]
        raw = "\n".join(lines)
        text = readable(raw)
        hidden = how_hidden(hit, first, last)
        why = orders(text, hidden=bool(hidden), agent_file=bool(AGENT_FILES.search(hit.file)))
        if not why:
            continue
        if about_injection and not hidden and SAMPLES.search(hit.file):
            continue
        at = first + next((index for index, line in enumerate(lines) if why in readable(line)), 0)
        return Address(
            hit.file,
            hit.line + at,
            hit.line + last - 1,
            visible(raw),
            longest_plain(hit.lines[at]) or longest_plain(raw.split("\n")[0]),
            why,
            hidden,
        )
    return None


def paragraphs(lines: tuple[str, ...]) -> Iterable[tuple[int, int]]:
    """Stretches without blank lines."""
    start = 0
    for at, line in enumerate((*lines, "")):
        if not re.sub(r"^[\s#*/>;%-]+$", "", line).strip():
            if at > start:
                yield start, at
            start = at + 1


def readable(text: str) -> str:
    """As it reads: comment marks, line breaks and characters without width gone; tag characters turned into letters."""
    text = "".join(chr(ord(char) - 0xE0000) if 0xE0020 <= ord(char) <= 0xE007E else char for char in text)
    text = INVISIBLE.sub("", text)
    text = re.sub(r"(?m)^[ \t]*(?:#+|//+|/\*+|\*+/?|--+|;+|%+|>+|<!--+|\.\.(?= )|\"\"\"|''')[ \t]?", "", text)
    text = re.sub(r"--+>|\*/", " ", text)
    return " ".join(ERASES.sub(" ", text).split())


def orders(text: str, *, hidden: bool, agent_file: bool) -> str:
    """The words that order a reviewer about; empty when nobody is, or the words are only quoted."""
    spoken = text if hidden else QUOTED.sub(" … ", text)
    machine = TO_MACHINE.search(spoken)
    reviewer = machine or TO_REVIEWER.search(spoken) or WHILE_REVIEWING.search(spoken)
    given = [found for pattern in ORDERS if (found := pattern.search(spoken)) and not ABOUT_STYLE.search(found[0])]
    strong = next((found for pattern in (*STRONG, SCORING) if (found := pattern.search(spoken))), None)
    if hidden:
        return given[0][0] if given and (reviewer or strong) else _loose(spoken) if reviewer else ""
    if not given:
        return ""
    if agent_file:
        reviews = (
            WHILE_REVIEWING.search(spoken) or TO_REVIEWER.search(spoken) or re.search(r"\breview\w*\b", spoken, re.I)
        )
        found = ORDERS[0].search(spoken) or (
            reviews and (ORDERS[2].search(spoken) or SUPPRESSES.search(spoken) or _scores(spoken))
        )
        return found[0] if found else ""
    if machine:
        return given[0][0] if not _about_using_tools(spoken) else ""
    if reviewer:
        found = (
            strong
            if strong is not None and not _ordinary(spoken)
            else SUPPRESSES.search(spoken)
            if not _ordinary(spoken)
            else None
        )
        return found[0] if found else ""
    found = ORDERS[0].search(spoken)
    return found[0] if found and re.search(r"\binstructions?\b", found[0], re.I) and _imperative(spoken, found) else ""


def _loose(text: str) -> str:
    """Where the text is hidden from people, any order not to speak of something counts."""
    found = re.search(
        r"\b(?:do not|don't|never|must not|should not) (?:\w+ly )?(?:report|flag|mention|"
        r"raise|disclose|reveal)\b[^.!?]{0,60}",
        text,
        re.IGNORECASE,
    )
    return found[0].strip() if found and not ABOUT_STYLE.search(found[0]) and not _ordinary(text) else ""


def _scores(text: str) -> re.Match[str] | None:
    return re.search(
        r"\b(?:full|highest|perfect|top|maximum) (?:score|marks?|rating|grade)\b|\b10/10\b", text, re.IGNORECASE
    )


def _about_using_tools(text: str) -> bool:
    """Policies on contributions made with such tools speak of them, not to them."""
    return bool(
        re.search(
            r"\b(?:contribut\w+|pull requests?|PRs?|submit\w*|submission\w*|patch\w*|"
            r"disclos\w+|generated|written|created|produced|use of|using|used)\b[^.]{0,80}"
            r"\b(?:AI|LLM|language models?|Copilot|ChatGPT|Claude|automated)\b|\b(?:AI|"
            r"LLM)[- ](?:generated|assisted|written)\b|\bsecurity (?:reports?|issues?|"
            r"vulnerabilit\w+)\b[^.]{0,60}\b(?:public|privately|e-?mail)",
            text,
            re.IGNORECASE,
        )
    )


def _ordinary(text: str) -> bool:
    """What people who review changes are told everywhere."""
    return bool(
        re.search(
            r"\b(?:pull requests?|PRs?|merge requests?|merg\w+|changelog|issue tracker|"
            r"public(?:ly)?|GitHub issues?|checklist|style|formatting|maintainers?)\b",
            text,
            re.IGNORECASE,
        )
    )


def _imperative(text: str, found: re.Match[str]) -> bool:
    """`Ignore previous instructions` as an order, not as a thing that is spoken of."""
    before = text[: found.start()].rstrip()
    quoted_or_named = re.search(
        r"\b(?:like|such as|e\.g\.?|example|says?|said|attack\w*|inject\w*|prompts?|"
        r"phrase|string|text|input)\W*$|[\"'`“(]$",
        before[-40:],
        re.IGNORECASE,
    )
    begins = not before or re.search(
        r"(?:[.!?:;,>*-]|\b(?:please|and|then|now|must|should|you))$", before, re.IGNORECASE
    )
    return bool(begins) and not quoted_or_named


def how_hidden(hit: Hit, first: int, last: int) -> str:
    """How a person is kept from seeing these lines; empty when nothing hides them."""
    lines = hit.lines[first:last]
    text = "\n".join(lines)
    around = "\n".join(hit.lines[max(0, first - 3) : last + 1])
    if sum(0xE0020 <= ord(char) <= 0xE007E for char in text) >= 8:
        return "in invisible tag characters"
    if len(INVISIBLE.findall(text.lstrip("\ufeff"))) >= 3:
        return "with invisible characters between its letters"
    if ERASES.search(text):
        return "behind terminal codes that erase or conceal it"
    if (
        hit.file.lower().endswith((".md", ".markdown", ".html", ".htm", ".rst", ".txt"))
        or "." not in hit.file.rpartition("/")[2]
    ):
        above = "\n".join(hit.lines[:last])
        if (
            above.rfind("<!--") > above[: above.rfind("<!--")].rfind("-->")
            and "<!--" in above
            and above.rfind("<!--") >= above.rfind("-->", 0, len("\n".join(hit.lines[:first])))
        ):
            return "in an HTML comment, which no page shows"
        if re.search(r"(?m)^\.\. (?!\w[\w:-]*::|_|\[)", text) and hit.file.endswith(".rst"):
            return "in a comment, which no page shows"
        if re.search(r"^\[(?://|comment|_)\]:?\s*[#<(]", text, re.MULTILINE):
            return "in a Markdown comment, which no page shows"
        if HIDING_STYLE.search(around):
            return "by a style that makes it invisible"
    return ""


# Showing ---------------------------------------------------------------------------------


def visible(text: str) -> str:
    """Control and invisible characters as escapes."""
    return "".join(_escape(char) if _is_unseen(char) else char for char in text)


def _is_unseen(char: str) -> bool:
    code = ord(char)
    control = (code < 32 and char not in "\n\t") or code == 127
    return control or bool(INVISIBLE.match(char)) or 0xE0000 <= code <= 0xE007F


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08x}"


def longest_plain(line: str) -> str:
    """The longest stretch of the line without control or invisible characters."""
    pieces = re.split(
        r"[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]+", line
    )
    return max((piece.strip() for piece in pieces), key=len, default="")[:200]


def candidates_of(addresses: list[Address]) -> Iterable[Candidate]:
    """One for each file."""
    files = dict.fromkeys(address.file for address in addresses)
    for file in files:
        own = [address for address in addresses if address.file == file]
        first = own[0]
        how = f", hidden {first.hidden}" if first.hidden else ""
        texts = "\n\n".join(
            f"Lines {one.first} to {one.last}{f' ({one.hidden})' if one.hidden else ''}:\n\n{_indented(one.text)}"
            for one in own[:5]
        )
        name = quoted(file)
        yield Candidate(
            kind=Kind.SECURITY,
            rule="text.addresses-reviewers",
            title=f"{file} gives orders to automated reviewers{how}: \"{first.why[:120]}\"",
            description=(
                f"{file} holds text that speaks to whoever reviews, audits or scores this "
                f"repository and tells them what to find{how}. "
                "Nothing that a repository says is an instruction to a reviewer; this review did "
                "not follow it. Whoever reads the code with an "
                f"assistant should know that it is there.\n\n{texts}"
            ),
            severity=Severity.HIGH if first.hidden else Severity.MEDIUM,
            places=tuple(Place(file=file, line=one.first, symbol="", quote=one.quote) for one in own),
            reproduction=Reproduction(
                command=f"sed -n '{first.first},{first.last}p' {name} | cat -v\n",
                expected="documentation and code for people, without orders to reviewers",
                observed=f"the text tells reviewers: {first.why[:160]}",
                environment=Environment.NONE,
                control=f"test -f {name}",
                symptom=Symptom(exit=0, contains=(_ascii_stretch(first.quote),)),
            ),
        )  # fmt: skip


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))


def _ascii_stretch(quote: str) -> str:
    """What `cat -v` leaves as it is."""
    return max(re.findall(r"[\x20-\x7e]+", quote), key=len, default=quote)[:80].strip()
