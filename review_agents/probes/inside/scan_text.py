"""Lines of tracked text files that may speak to a reviewer, with the lines around them.

Arguments: list file, result file.
Coarse on purpose: what these lines mean is judged outside. Files are read as bytes, never executed, links not followed.
"""

import json
import os
import re
import sys

LARGEST = 1_500_000  # bytes of a file
MOST = 400  # hits
LONGEST = 600  # characters of a line
BEFORE, AFTER = 4, 8

WORDS = re.compile(
    r"(?:ignore|disregard|forget|override)\W+(?:\w+\W+){0,3}(?:previous|prior|above|earlier|system|existing|your)\b"
    r"|review(?:er|ing)|audit(?:or|ing)|\bgrader|evaluator|assessor|language model|\bLLMs?\b|"
    r"\bAI\b|chatgpt|\bclaude\b|\bcopilot\b"
    r"|\bgemini\b|(?:report|say|state|conclude|answer)\W+(?:\w+\W+){0,4}no\W+(?:issues|"
    r"findings|problems|bugs|vulnerab)",
    re.IGNORECASE,
)
INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\U000e0000-\U000e007f]")
BARE = str.maketrans(
    {code: None for code in (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF)}
)


def main(list_file, result_file):
    with open(list_file, encoding="utf-8") as names:
        paths = names.read().split("\0")
    hits = []
    for path in paths:
        if len(hits) < MOST and path and os.path.isfile(path) and not os.path.islink(path):
            hits += scan(path)
    with open(result_file, "w", encoding="utf-8") as out:
        json.dump(hits[:MOST], out)


def scan(path):
    if os.path.getsize(path) > LARGEST:
        return []
    with open(path, "rb") as file:
        raw = file.read()
    if b"\0" in raw[:4096]:
        return []
    lines = raw.decode("utf-8", "replace").split("\n")
    found = []
    last = -1
    for at, line in enumerate(lines):
        if at > last and (WORDS.search(plain(line)) or tags(line)):
            start, end = max(0, at - BEFORE), min(len(lines), at + AFTER + 1)
            last = end - 1
            found.append({"file": path, "line": start + 1, "lines": [text[:LONGEST] for text in lines[start:end]]})
    return found


def plain(line):
    """The line as it reads without characters that take no room."""
    return line.translate(BARE) if INVISIBLE.search(line) else line


def tags(line):
    """Whether text is written in Unicode's invisible tag characters."""
    return sum(0xE0020 <= ord(char) <= 0xE007E for char in line) >= 8


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
