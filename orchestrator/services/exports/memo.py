"""The memo of a review as Markdown; foreign texts escaped as in the review's own export."""

from collections.abc import Iterator

from orchestrator.services.exports.markdown import code, facts, table, text
from orchestrator.services.views import ReviewPage
from review_agents.memo import Memo

IN_THEIR_WORDS = "In the focuses' own words"


def write(review: ReviewPage, memo: Memo) -> str:
    return "\n".join(lines(review, memo)).rstrip() + "\n"


def lines(review: ReviewPage, memo: Memo) -> Iterator[str]:
    row = review.row
    yield f"# Memo on {text(row.repo_name)}"
    yield ""
    yield text(memo.verdict)
    yield ""
    yield from facts(
        ("Repository", code(review.repo_url)),
        ("Commit", code(row.commit) if row.commit else ""),
        ("Model", code(review.model) if review.model else "none, evidence only"),
    )
    if memo.scores:
        yield "## Scores"
        yield ""
        yield from table(
            ("Score", "Of 10", "From", "To", "By"),
            (
                (score.name, f"{score.value:g}", f"{score.low:g}", f"{score.high:g}", ", ".join(sorted(score.by)))
                for score in memo.scores
            ),
        )
    yield from listed("Agreed", memo.agreed)
    yield from listed("Disagreed", memo.disagreed)
    if memo.fixes:
        yield "## What to repair, most worth first"
        yield ""
        for number, fix in enumerate(memo.fixes, start=1):
            where = f"{fix.file}:{fix.line}" if fix.line else fix.file
            proof = fix.proof.replace("_", " ")
            yield f"{number}. {text(fix.title)} ({fix.severity}, {fix.effort} effort, {proof}; {code(where)})"
        if memo.more_fixes:
            yield f"\nand {memo.more_fixes} more in the review."
        yield ""
    yield from listed("What this review could not look at", memo.not_looked_at)
    if memo.more_not_looked_at:
        yield f"and {memo.more_not_looked_at} more, which the focuses name.\n"
    if memo.voices:
        yield f"## {IN_THEIR_WORDS}"
        yield ""
    for voice in memo.voices:
        yield f"### {text(voice.title)}"
        yield ""
        if voice.summary:
            yield text(voice.summary)
            yield ""
        if voice.reason:
            yield f"It ended early: {text(voice.reason)}"
            yield ""
        for word, said in (("Strong", voice.strengths), ("Weak", voice.weaknesses)):
            if said:
                yield f"- {word}: {'; '.join(map(text, said))}"
        if voice.recommendation:
            yield f"- First: {text(voice.recommendation)}"
        if voice.not_looked_at:
            yield f"- Not looked at: {'; '.join(map(text, voice.not_looked_at))}"
        yield ""


def listed(title: str, found: tuple[str, ...]) -> Iterator[str]:
    if found:
        yield f"## {title}"
        yield ""
        yield from (f"- {text(one)}" for one in found)
        yield ""
