"""From what an agent records to a candidate: checked by code, placed by code, and only then stored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from review_agents.identity import SHAPE_CHARS, clean_path, errors_in, fingerprints_of, similar
from review_agents.probes.source_tree import around_line
from review_agents.records import Candidate, Environment, Place, Reproduction, Source, Symptom
from review_agents.rules import RULES, fits
from review_agents.tools import RecordFinding
from review_agents.visible import defanged, in_words, quoted

ReadSource = Callable[[str], str | None]  # a tracked file's text at the commit; None: no such file
NEAR_LINES = 3  # of a file, shown when a quote is not in it
TIMEOUT_S = 120.0
SHOWN_KNOWN = 3  # findings that one is taken for


class Refused(ValueError):
    """Why a finding is not stored, in words for the agent; `lines` are of the repo, and may help."""

    def __init__(self, why: str, lines: str = ""):
        super().__init__(why)
        self.lines = lines


def candidate_of(asked: RecordFinding, *, focus: str, source: ReadSource, control: str | None) -> Candidate:
    """The candidate that the agent means. Raises `Refused`.

    `control` is used when the agent gave none.
    """
    if not fits(asked.kind, asked.rule):
        raise Refused(f"rule {asked.rule} is not one of kind {asked.kind}: choose from {', '.join(RULES[asked.kind])}.")
    main = place_of(asked.file, asked.quote, source)
    others = [place_of(one.file, one.quote, source) for one in asked.more_places]
    promises = [place for place in others if is_text(place.file) and not is_text(main.file)]
    places = (main, *(place for place in others if place not in promises))
    return Candidate(
        kind=asked.kind,
        rule=asked.rule,
        title=" ".join(asked.title.split()),
        description="\n\n".join([asked.experience.strip(), *map(promised, promises)]),
        severity=asked.severity,
        severity_reason=" ".join(asked.severity_reason.split()),
        effort=asked.effort,
        places=tuple(dict.fromkeys(places)),
        reproduction=None if asked.opinion else reproduction_of(asked, control),
        opinion=asked.opinion,
        shape="" if asked.opinion else " ".join(sorted(errors_in(asked.output_contains)))[:SHAPE_CHARS],
        focus=focus,
        source=Source.AGENT,
        differs=" ".join(asked.differs.split()),
    )


def reproduction_of(asked: RecordFinding, control: str | None) -> Reproduction:
    texts = tuple(text for text in asked.output_contains if text.strip())
    if not asked.command.strip():
        raise Refused("there is no command that shows it. Give one, or set opinion if no script can show it.")
    if not texts:
        raise Refused(
            "output_contains is empty. Give a text that the script prints when the fault is there, "
            "best the wrong value itself."
        )
    if any(len("".join(text.split())) < 2 for text in texts):
        raise Refused("a text of output_contains is too short to tell anything. Have the script print a clear line.")
    return Reproduction(
        command=asked.command,
        expected=asked.expected or "not what output_contains says",
        observed=asked.observed or "; ".join(texts),
        environment=asked.environment,
        control=asked.control.strip() or (control if asked.environment is not Environment.NONE else None),
        symptom=Symptom(contains=texts, exit=asked.exit_status),
        timeout_s=TIMEOUT_S,
    )


def is_text(path: str) -> bool:
    return path.lower().endswith((".md", ".markdown", ".rst", ".txt"))


def promised(place: Place) -> str:
    """A sentence of the documentation that the fault contradicts. It is no place of the fault: many different ones may
    stand under one heading, and a place in common makes two findings one."""
    return f"It is written otherwise in `{place.file}`, line {place.line}: `{place.quote.replace('`', ' ')}`"


# Places ------------------------------------------------------------------------------------


def place_of(file: str, quote: str, source: ReadSource) -> Place:
    """The place of a quote, its line and symbol found by code. Raises `Refused` when it is not there."""
    path = clean_path(file)
    text = source(path)
    if text is None:
        raise Refused(f"there is no file {path!r} in the reviewed commit. Name a tracked file, relative to its root.")
    found = line_of(quote, text)
    if found is None:
        near = "\n".join(nearest(quote, text))
        hint = " The nearest lines are:" if near else ""
        raise Refused(f"the quote is not in {path}. Copy one line exactly as it stands there.{hint}", near)
    line, shown = found
    return Place(file=path, line=line, symbol=symbol_at(path, text, line), quote=shown)


def line_of(quote: str, text: str) -> tuple[int, str] | None:
    """Where a quote stands, white space folded: its first line's number, and that line as in the file.

    An agent copies what it was shown, where unseen characters and words of chat templates are spelled otherwise.
    """
    wanted = [" ".join(defanged(line).split()) for line in quote.strip().splitlines() if line.strip()]
    if not wanted:
        return None
    lines = text.splitlines()
    folded = [" ".join(defanged(line).split()) for line in lines]
    for at, line in enumerate(folded):
        if wanted[0] in line:
            after = [text for text in folded[at + 1 :] if text][: len(wanted) - 1]
            if len(after) == len(wanted) - 1 and all(map(str.__contains__, after, wanted[1:])):
                return at + 1, lines[at].strip()
    whole = " ".join(wanted)  # a sentence that runs over lines
    position = " ".join(line for line in folded if line).find(whole) if len(whole) >= 12 else -1
    if position < 0:
        return None
    counted = 0
    for at, line in enumerate(folded):
        counted += len(line) + (1 if line else 0)
        if counted > position:
            return at + 1, lines[at].strip()
    return None


def nearest(quote: str, text: str) -> list[str]:
    """Lines that share most words with the quote."""
    words = set(quote.split())
    scored = [(len(words & set(line.split())), -at, line) for at, line in enumerate(text.splitlines()) if line.strip()]
    best = sorted((one for one in scored if one[0]), reverse=True)[:NEAR_LINES]
    return [f"{-at + 1}: {line.strip()[:200]}" for _, at, line in best]


def symbol_at(path: str, text: str, line: int) -> str:
    """Qualified name around the line; in texts the headings above it."""
    if path.endswith((".py", ".pyi")):
        return around_line(text, line, with_locals=False)  # another line of the function is the same place
    if is_text(path):
        return headings_above(text, line)
    return ""


def headings_above(text: str, line: int) -> str:
    """The path of Markdown or underlined headings above a line."""
    path: dict[int, str] = {}
    lines = text.splitlines()[:line]
    fenced = False
    for at, one in enumerate(lines):
        if one.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        if fenced:
            continue
        stripped = one.strip()
        level = len(one) - len(one.lstrip("#"))
        if 0 < level <= 6 and one[level : level + 1] == " ":
            path = {depth: title for depth, title in path.items() if depth < level} | {level: one[level:].strip(" #")}
        elif at and stripped and len(set(stripped)) == 1 and stripped[0] in "=-~^" and len(stripped) >= 3:
            title, level = lines[at - 1].strip(), "=-~^".index(stripped[0]) + 1
            if title and not title.startswith("|"):
                path = {depth: kept for depth, kept in path.items() if depth < level} | {level: title}
    return " / ".join(path[level] for level in sorted(path))


# Told before ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Known:
    """A finding that a candidate is taken for."""

    number: int  # among all that is claimed, counted from 1
    candidate: Candidate
    why: str  # what they have in common, in words for the agent


def repeated(candidate: Candidate, known: Sequence[Candidate]) -> list[Known]:
    """What was claimed before and may be the same: a fingerprint, a proof or a quoted line in common, or much the same
    words about the same symbol."""
    return [Known(at, other, why) for at, other in enumerate(known, 1) if (why := in_common(candidate, other))]


def in_common(candidate: Candidate, other: Candidate) -> str:
    """Why the two are taken for one fault; "" when they are not."""
    if same_script(candidate, other):
        return "it has the same script"
    if candidate.kind is not other.kind:
        return ""
    place = candidate.places[0]
    here = [one for one in other.places if one.file == place.file]
    if any(one.quote == place.quote and one.line == place.line for one in here):
        return f"it is of the same kind and quotes the same line of {place.file}"
    where = f"`{place.symbol}` of {place.file}" if place.symbol else f"line {place.line} of {place.file}"
    if unshaped(candidate) & unshaped(other):
        return f"it has the same kind and rule in {where if place.symbol else place.file}"
    near = any((one.symbol or one.line) == (place.symbol or place.line) for one in here)
    if near and similar(candidate.title, other.title):
        return f"it is of the same kind, in {where}, with a similar title"
    return ""


def unshaped(candidate: Candidate) -> frozenset[str]:
    """Its fingerprints whatever error it shows; whether that makes another fault, its agent or its proof has to say."""
    return fingerprints_of(candidate.model_copy(update={"shape": ""}))


def same_script(candidate: Candidate, other: Candidate) -> bool:
    mine, theirs = candidate.reproduction, other.reproduction
    return mine is not None and theirs is not None and mine.command.split() == theirs.command.split()


def inseparable(candidate: Candidate, other: Candidate) -> str:
    """Why their proofs cannot tell the two apart, in words for the agent; "" when they may. What the scripts really
    show is for whoever can run them."""
    mine, theirs = candidate.reproduction, other.reproduction
    if mine is None:
        return "" if theirs is not None else "neither has a script, so nothing tells them apart"
    if theirs is None:
        return ""
    if same_script(candidate, other):
        return "both have the same script"
    texts = {" ".join(text.split()) for text in mine.symptom.contains}
    if theirs.symptom.contains and texts <= {" ".join(text.split()) for text in theirs.symptom.contains}:
        return f"both are known by the same text ({'; '.join(sorted(texts))}): name one that only this fault prints"
    return ""


def refusal(known: Sequence[Known], mark: str) -> str:
    """For the agent: what its finding is taken for, why, and what to do when that is wrong."""
    shown = known[:SHOWN_KNOWN]
    lines = [f"finding:{one.number} {in_a_line(one.candidate)}\n  {proof_in_a_line(one.candidate)}" for one in shown]
    why = in_words("; ".join(f"finding:{one.number} because {one.why}" for one in shown), mark)
    return (
        f"Not stored: it is known already, taken for {why}.\n"
        f"{quoted(chr(10).join(lines), mark=mark, label='known findings')}\n"
        "If it is the same fault, go on with something else. If it is another one, which would still be there when "
        "that one is mended, record it again and say in `differs` what differs. It is then stored when its proof holds "
        "and neither script shows the text of the other."
    )


def proof_in_a_line(candidate: Candidate) -> str:
    if candidate.reproduction is None:
        return "an opinion, without a script"
    texts = candidate.reproduction.symptom.contains
    return f"its script prints {', '.join(map(repr, texts))}" if texts else candidate.reproduction.observed[:200]


def whole(number: int, candidate: Candidate) -> str:
    """All that is known of a claim, for an agent that wants to read it."""
    places = [f"{one.file}:{one.line or ''} {one.quote}".rstrip() for one in candidate.places]
    parts = [in_a_line(candidate), candidate.description, "Places:", *places]
    if (proof := candidate.reproduction) is not None:
        parts += ["Script:", proof.command, f"Expected: {proof.expected}", f"Observed: {proof.observed}"]
        parts.append(proof_in_a_line(candidate))
    return f"finding:{number} " + "\n".join(parts)


def in_a_line(candidate: Candidate) -> str:
    place = candidate.places[0]
    where = f"{place.file}:{place.line}" if place.line else place.file
    return f"[{candidate.kind}, {candidate.severity}] {candidate.title} ({where})"


def listed(candidates: Sequence[Candidate], *, first: int = 1) -> list[str]:
    """A line each, numbered as they can be read."""
    return [f"{number}. {in_a_line(candidate)}" for number, candidate in enumerate(candidates, first)]
