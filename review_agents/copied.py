"""What of the repo's own texts a proof repeats: the examples of a page, the sentence that a claim is about.

Such a proof is one as long as that text stands. Where it does not, the script still shows what the text of another day
gave, which says nothing about the text of today; only who reads it anew can tell (lifecycle.py).
"""

from hashlib import sha256

from review_agents.records import Copied


def down_to(file: str, text: str, line: int) -> Copied:
    """All of the file from its top to that line: what a reader has done when he comes there."""
    above = lines_of("\n".join(text.splitlines()[:line]))
    return Copied(file=file, top_lines=len(above), digest=digest_of(above))


def piece(file: str, text: str) -> Copied:
    """A passage, wherever in the file it stands."""
    return Copied(file=file, text=text)


def stands(copied: Copied, text: str | None) -> bool:
    """Whether it is in what the file holds now; white space and empty lines are no difference."""
    if text is None:
        return False
    if copied.top_lines:
        return digest_of(lines_of(text)[: copied.top_lines]) == copied.digest
    return " ".join(copied.text.split()) in " ".join(text.split())


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def digest_of(lines: list[str]) -> str:
    return sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
