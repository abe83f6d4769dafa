"""Text that grows: characters are never split, stop strings never leak, and cycles do not matter."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_node.engine.text import TextStream
from tests.inference_node.engine.toy import ids, toy


def run(text: str, stops: tuple[str, ...] = (), sizes: tuple[int, ...] = (1,)) -> tuple[list[str], TextStream]:
    """Feed the bytes of a text as tokens, in cycles of the given sizes; pieces and the stream."""
    stream = TextStream(toy().bytes_of, stops)
    pieces: list[str] = []
    tokens = ids(text)
    turn = 0
    while tokens and stream.stopped is None:
        size = sizes[turn % len(sizes)]
        for token in tokens[:size]:
            if stream.feed(token) is not None:
                break
        pieces.append(stream.take())
        tokens, turn = tokens[size:], turn + 1
    pieces.append(stream.finish())
    return pieces, stream


def test_a_character_is_shown_once_its_last_byte_is_there() -> None:
    pieces, _ = run("aé漢🙂")
    assert pieces == ["a", "", "é", "", "", "漢", "", "", "", "🙂", ""]


def test_bytes_that_are_no_character_show_as_one_replacement() -> None:
    stream = TextStream(lambda token: bytes([token]))
    shown = ""
    for byte in b"a\xff\xc3":
        stream.feed(byte)
        shown += stream.take()
    assert shown == "a�"
    assert stream.finish() == "�"


def test_a_stop_string_that_straddles_tokens_never_leaks() -> None:
    pieces, stream = run("Hello STOP world", ("STOP",))
    assert "".join(pieces) == "Hello "
    assert all(not "STOP".startswith(piece) for piece in pieces if piece)
    assert stream.stopped is not None
    assert stream.stopped.kept == len("Hello ")


def test_text_that_only_began_like_a_stop_string_is_shown_after_all() -> None:
    pieces, stream = run("a STOx b STO", ("STOP",))
    assert "".join(pieces) == "a STOx b STO"
    assert stream.stopped is None


def test_a_stop_string_inside_one_token_cuts_that_token() -> None:
    words = {0: b"good", 1: b"bye. Then", 2: b" more"}
    stream = TextStream(words.__getitem__, (". ",))
    assert stream.feed(0) is None
    stop = stream.feed(1)
    assert stop is not None
    assert stop.kept == 1  # the second token is not wholly before the stop
    assert stream.take() == "goodbye"


def test_the_stop_that_begins_first_wins_and_of_those_the_longest() -> None:
    words = {0: b"xabcdy"}
    stream = TextStream(words.__getitem__, ("cd", "bcd", "bc"))
    stop = stream.feed(0)
    assert stop is not None
    assert (stop.stop, stream.take()) == ("bcd", "xa")


def test_a_stop_string_that_looks_like_one_byte_of_a_character_does_not_match_it() -> None:
    """U+00C3 is what the first byte of é looks like in Latin-1."""
    pieces, stream = run("café", ("Ã", "\xa9"))
    assert "".join(pieces) == "café"
    assert stream.stopped is None


def test_a_stop_in_the_middle_of_a_character_sequence_keeps_only_whole_tokens() -> None:
    words = {0: b"ab\xf0\x9f", 1: b"\x99\x82", 2: b"z"}
    stream = TextStream(words.__getitem__, ("🙂",))
    assert stream.feed(0) is None
    stop = stream.feed(1)
    assert stop is not None
    assert stop.kept == 0  # the first token ends inside the character that the stop string is
    assert stream.take() == "ab"


def test_nothing_can_be_fed_after_the_end() -> None:
    _, stream = run("aSb", ("S",))
    with pytest.raises(ValueError, match="ended"):
        stream.feed(0)


def test_control_tokens_have_no_text() -> None:
    assert "".join(run("a<|im_start|>b")[0]) == "ab"


@given(
    text=st.text(alphabet="abS🙂é\n", max_size=40),
    stops=st.lists(st.text(alphabet="abS🙂\n", min_size=1, max_size=4), max_size=3),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
@settings(max_examples=300)
def test_the_text_does_not_depend_on_how_many_tokens_a_cycle_commits(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    one, single = run(text, tuple(stops))
    other, blocks = run(text, tuple(stops), tuple(sizes))
    assert "".join(one) == "".join(other)
    assert single.stopped == blocks.stopped
    begin = min((text.find(stop) for stop in stops if stop in text), default=None)
    if single.stopped is None:
        assert begin is None and "".join(one) == text
    else:
        shown = "".join(one)
        assert text.startswith(shown + single.stopped.stop)
        kept = ids(text)[: single.stopped.kept]
        assert toy().decode(kept) == shown  # one byte a token, so the kept tokens are exactly the shown text


@given(text=st.text(max_size=30), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
@settings(max_examples=200)
def test_tokens_are_complete_exactly_when_their_text_was_given_out(text: str, sizes: list[int]) -> None:
    text = "".join(char for char in text if not "\ud800" <= char <= "\udfff")
    stream = TextStream(toy().bytes_of, ("zz",))
    tokens, shown = ids(text), ""
    fed = 0
    for size in sizes * 40:
        for token in tokens[fed : fed + size]:
            if stream.feed(token) is not None:
                return
        fed = min(len(tokens), fed + size)
        shown += stream.take()
        complete = stream.complete_tokens()
        assert shown.encode().startswith(toy_bytes(tokens[:complete]))
        if fed == len(tokens):
            break


def toy_bytes(tokens: list[int]) -> bytes:
    return b"".join(toy().bytes_of(token) for token in tokens)
