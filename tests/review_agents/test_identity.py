import json
import string
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from review_agents.identity import SHAPE_CHARS, errors_in, fingerprint, fingerprint_of, fingerprints_of, shape
from review_agents.records import Candidate, Kind, Place, Severity

texts = st.text(max_size=200)


def candidate(*places: Place, **changed: object) -> Candidate:
    given: dict[str, object] = {
        "kind": Kind.CORRECTNESS,
        "rule": "tests.fail",
        "title": "t",
        "description": "d",
        "severity": Severity.HIGH,
        "places": places or (Place(file="a.py", symbol="f"),),
    }
    return Candidate.model_validate({**given, **changed})


def test_a_fingerprint_is_16_hex_digits_of_sha256_over_version_kind_rule_path_symbol_and_shape() -> None:
    parts = json.dumps(["1", "correctness", "tests.fail", "a.py", "f", "ValueError: N"])
    assert (
        fingerprint(Kind.CORRECTNESS, "tests.fail", "a.py", "f", "ValueError: N")
        == (sha256(parts.encode()).hexdigest()[:16])
    )


def test_the_fingerprint_stays_as_it_is_because_the_database_holds_it() -> None:
    assert fingerprint("correctness", "tests.fail", "src/a.py", "A.f", "ValueError: N") == "342ed2cb437d7c78"


@given(line=st.one_of(st.none(), st.integers(1)), quote=texts, title=texts, description=texts)
def test_lines_quotes_and_wording_are_no_part_of_the_identity(
    line: int | None, quote: str, title: str, description: str
) -> None:
    plain = candidate()
    other = candidate(Place(file="a.py", symbol="f", line=line, quote=quote), title=title, description=description)
    assert fingerprint_of(plain) == fingerprint_of(other)


@pytest.mark.parametrize(
    "path", ["src/a.py", "./src/a.py", "src//a.py", "/job/repo/src/a.py", "src\\a.py", " src/a.py "]
)
def test_a_path_counts_the_same_however_it_is_written(path: str) -> None:
    assert fingerprint("usability", "r", path, "s") == fingerprint("usability", "r", "src/a.py", "s")


@given(st.lists(texts, min_size=5, max_size=5), st.lists(texts, min_size=5, max_size=5))
def test_parts_never_run_into_each_other(one: list[str], other: list[str]) -> None:
    def parts(values: list[str]) -> list[str]:
        return [values[0], values[1], "p", " ".join(values[3].split()), values[4]]

    same = fingerprint(one[0], one[1], "p", one[3], one[4]) == fingerprint(other[0], other[1], "p", other[3], other[4])
    assert same == (parts(one) == parts(other))


@given(texts, texts, texts, texts, texts)
def test_any_text_has_a_fingerprint(kind: str, rule: str, path: str, symbol: str, form: str) -> None:
    found = fingerprint(kind, rule, path + "\ud800", symbol, form)
    assert len(found) == 16 and set(found) <= set(string.hexdigits.lower())


def test_each_place_has_its_own_fingerprint() -> None:
    both = candidate(Place(file="a.py", symbol="f"), Place(file="b.py", symbol="g"))
    assert len(fingerprints_of(both)) == 2
    assert fingerprint_of(candidate(Place(file="b.py", symbol="g"))) in fingerprints_of(both)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("list index 3 out of range", "list index 17 out of range"),
        ("No such file: '/tmp/abc/x.toml'", "No such file: '/job/repo/y.toml'"),
        ("cannot open /tmp/abc/x.toml now", "cannot open /job/repo/other.toml now"),
        ("cannot open C:\\Users\\me\\x.toml now", "cannot open ./x/y.toml now"),
        ("<Foo object at 0x7f0a12> is bad", "<Foo object at 0xdeadbeef> is bad"),
        ('got "a" and `b`', "got 'x' and ‘y’"),
        ("took 1.25 s at 12:30:01", "took 3e-4 s at 9:59:59"),
        ("shape (1, 2, 3) is wrong", "shape (4, 5) is wrong"),
        ("commit 0123456789abcdef0123456789abcdef01234567 is gone", "commit 89abcdef01234567 is gone"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id 00000000-0000-0000-0000-000000000000"),
        ("see https://a.example/x?y=1 for help", "see http://b.example for help"),
        ("\x1b[31mred\x1b[0m alert", "red alert"),
        ("two\n  lines", "two lines"),
        ("can't open 'a'", "can't open 'b'"),
    ],
)
def test_what_varies_from_run_to_run_is_no_part_of_the_shape(one: str, other: str) -> None:
    assert shape("ValueError", one) == shape("ValueError", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("division by zero", "list index out of range"),
        ("missing argument", "unexpected argument"),
        ("can't read", "can't write"),
    ],
)
def test_what_is_said_stays_in_the_shape(one: str, other: str) -> None:
    assert shape("ValueError", one) != shape("ValueError", other)


def test_the_exception_type_is_part_of_the_shape() -> None:
    assert shape("KeyError", "'a'") == "KeyError: '…'"
    assert shape("KeyError", "'a'") != shape("IndexError", "'a'")
    assert shape("SystemExit") == "SystemExit"


@given(texts, st.text(max_size=2000))
def test_a_shape_is_one_short_line_and_replacing_again_changes_nothing(exception: str, message: str) -> None:
    found = shape(exception, message)
    assert len(found) <= SHAPE_CHARS and found == " ".join(found.split())
    assert shape(found) == shape(shape(found))


@given(
    template=st.lists(st.sampled_from(["index", "failed", "in", "for", "{}", "value"]), min_size=1, max_size=10),
    one=st.integers(0, 10**6),
    other=st.integers(0, 10**6),
)
def test_only_the_numbers_differ_so_the_shape_does_not(template: list[str], one: int, other: int) -> None:
    text = " ".join(template)
    assert shape("E", text.replace("{}", str(one))) == shape("E", text.replace("{}", str(other)))


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    "hostile", ["a" * 10**6, "'" * 10**6, "/a" * 10**6, "1," * 10**6, "\x1b[" * 10**6, "ab" * 10**6]
)
def test_hostile_output_takes_no_time(hostile: str) -> None:
    shape("E", hostile)


@pytest.mark.parametrize(
    ("texts", "errors"),
    [
        (["load raised OverflowError and left 1 entry"], {"OverflowError"}),
        (["status 1: ValueError: embedded null byte", "deep: RecursionError"], {"ValueError", "RecursionError"}),
        (["embercache.snapshot.SnapshotError: no"], {"SnapshotError"}),
        (["File too large", "ROWS-LOST"], {"OSError"}),
        (["No space left on device"], {"OSError"}),
        (["PermissionError: [Errno 13]"], {"OSError"}),
        (["Error: no such key", "an error", "errors: 3", "KeyErrors", "status 1, Traceback"], set()),
        ([], set()),
    ],
)
def test_the_errors_that_an_output_names_are_found_and_all_of_files_and_devices_are_one(
    texts: list[str], errors: set[str]
) -> None:
    assert errors_in(texts) == errors
