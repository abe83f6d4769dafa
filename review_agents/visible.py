"""Foreign text made safe to show to a model: nothing invisible, nothing that ends a quotation or opens a turn.

What a repo says reaches a model between two marks that nobody outside can know. Inside, terminal codes, zero-width
and bidirectional characters come out as names, and words that chat templates treat as control tokens are spelled with
other brackets. Nothing is taken away, so an attack can be read, quoted and reported.
"""

import re
from collections.abc import Callable

UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
NAMES = {0x00: "NUL", 0x07: "BEL", 0x08: "BS", 0x0D: "CR", 0x1B: "ESC", 0x7F: "DEL", 0x200B: "ZWSP", 0x202E: "RLO"}
# Control tokens and tags of the usual chat templates. Small letters in brackets are indices in code, so those are
# taken as they are written; for the others the letters' case makes no difference.
CONTROL = re.compile(
    r"<(\|[^<>\n]{1,60}\||\|[\w\"'/.:-]{1,60}|[\w\"'/.:-]{1,60}\|)>"
    r"|<(/?(?:[a-z]{1,20}:|longcat_)?(?:tool_calls?|tool_responses?|tool_results?|tool_outputs?|tool_code|tools|functions?"
    r"|function_calls?|invoke|param|parameter|arg_key|arg_value|observation|think|thinking|think_end|reasoning|role|system"
    r"|developer|assistant|user|human|model)(?:[= ][^<>\n]{0,80})?)>"
    r"|<(/?(?:s|bos|eos|pad|unk|mask|sep|cls|sop|eop|(?:start|begin|end)_of_[a-z]{1,20}|[a-z]{1,20}_token"
    r"|[a-z_]{1,20}_soft_token|(?:unused|extra_id_|reserved_)\d{1,5}|jupyter_[a-z]{1,20}))>"
    r"|(?-i:\[(/?(?:TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|AVAILABLE_TOOLS|SYSTEM_PROMPT|ARGS|CALL_ID|THINK|MODEL_SETTINGS"
    r"|PREFIX|SUFFIX|MIDDLE|IMG|IMG_BREAK|IMG_END|[gs]?MASK|BOS|EOS|CLS|SEP|PAD|UNK))\])"
    r"|\[(/?INST|/?SYS)\]"
    r"|\[(\|[a-z_]{1,30}\|)\]"
    r"|\](~!?b)[\]\[]"
    r"|\[(e~)\["
    r"|<<(/?SYS)>>"
    r"|<(｜[^<>\n]{1,60}｜)>",
    re.IGNORECASE,
)
OUTPUT_CHARS = 10_000  # of one tool result that a model sees


def visible(text: str) -> str:
    """The text with each unseen character replaced by its name or number."""
    text = text.replace("\r\n", "\n")
    if text.isascii() and text.isprintable():
        return text
    return UNSEEN.sub(lambda found: f"⟨{NAMES.get(ord(found[0]), f'U+{ord(found[0]):04X}')}⟩", text)


def defanged(text: str) -> str:
    """Visible, and without anything that a chat template could take for its own."""
    return without_control(visible(text))


def without_control(text: str) -> str:
    """The text with what chat templates use as their own in other brackets."""
    return CONTROL.sub(lambda found: f"‹{next(part for part in found.groups() if part is not None)}›", text)


def in_words(text: str, mark: str) -> str:
    """Words that may have foreign ones among them, as part of a sentence of ours: on one line, harmless."""
    return " ".join(defanged(text).replace(mark, "[mark]").split())


def quoted(text: str, *, mark: str, label: str) -> str:
    """Foreign text between marks. Inside, the mark itself cannot occur."""
    inside = defanged(text).replace(mark, "[mark]")
    return f"<<<{mark} {in_words(label, mark)[:200]}\n{inside}\n{mark}>>>"


def cut(text: str, *, most: int = OUTPUT_CHARS, advice: str | Callable[[str], str] = "") -> str:
    """Head and tail of a long text, cut at line ends, the gap in words. `advice` may depend on the head."""
    if len(text) <= most:
        return text
    half = most // 2
    head, tail = beginning(text, half), ending(text, half)
    said = advice if isinstance(advice, str) else advice(head)
    return f"{head}\n[... {len(text) - len(head) - len(tail)} characters left out here{said} ...]\n{tail}"


def beginning(text: str, most: int) -> str:
    """No more than so many characters, cut at the end of a line, or of a word, where that takes away less than half."""
    if len(text) <= most:
        return text
    head = text[:most]
    ends = next((at for mark in "\n " if (at := text.rfind(mark, 0, most + 1)) > most // 2), most)
    return head[:ends]


def ending(text: str, most: int) -> str:
    """As `beginning`, from the other end."""
    return beginning(text[::-1], most)[::-1]
