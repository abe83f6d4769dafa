"""A repo whose README, help and docstrings say what is not so: each fault comes out once, with a proof that holds."""

from collections.abc import Iterator

import pytest

from review_agents.copied import stands
from review_agents.records import Candidate, Kind, ProbeState
from tests.review_agents.probes.samples import Reviewed, setuptools_project

README = """\
# keyfold

    pip install keyfold

## Library

```python
>>> from keyfold import double, Thing
>>> double(21)
43
>>> double(1)
2
```

```python
from keyfold import answer, halve
answer()          # -> 41
halve(4)          # 2.0
```

```python
from keyfold import vanished
```

```python
from keyfold import Thing
thing = Thing(3)
thing.gone()
```

```python
from keyfold import Thing
Thing(3, colour="red")
```

```python
from keyfold import double
for number in (1, 2):
    print("twice", double(number))
```

prints:

```
twice 2
twice 5
```

## Command line

```console
$ cat pairs.txt
a=1
b=22
$ keyfold show pairs.txt
a 1
b 2
$ keyfold show pairs.txt --key a
1
$ keyfold show pairs.txt --upper
A 1
B 22
$ keyfold list pairs.txt
a
b
$ keyfold show pairs.txt --form json
{"a": "1", "b": "22"}
```

| option | meaning |
| --- | --- |
| `--key NAME` | only that key |
| `-s`, `--silent` | print nothing |

```console
$ cat more.txt
c=3
dd=44
$ cp pairs.txt copy.txt
$ keyfold tidy copy.txt
2 pairs
```

```python
from keyfold import remember
remember("state.txt", lives=1500)   # a second and a half
```

```console
$ keyfold age state.txt
first: 1.5 s left
second: 60.0 s left
```

| exit status | meaning |
| --- | --- |
| 0 | all went well |
| 3 | the file cannot be read |
| 4 | bad usage |
"""

LIBRARY = '''\
"""Pairs.

>>> double(4)
9
"""


def double(number):
    """Twice.

    >>> double(2)
    4
    """
    return number * 2


def answer():
    return 42


def halve(number):
    return number / 2


class Thing:
    def __init__(self, size):
        self.size = size


def remember(path, lives):
    with open(path, "w") as file:
        file.write(f"first {lives}\\nsecond 60\\n")
'''

PROGRAM = """\
import argparse
import json
import sys


def read(path):
    pairs = {}
    with open(path) as file:
        for line in file:
            key, equals, value = line.strip().partition("=")
            if not equals:
                raise ValueError("no pair: " + line.strip())
            pairs[key] = value
    return pairs


def show(arguments):
    pairs = read(arguments.file)
    if arguments.key:
        print(pairs[arguments.key])
    elif arguments.form == "json":
        print(json.dumps(pairs))
    elif arguments.form == "ini":
        print("[pairs]" + pairs)
    else:
        for key, value in pairs.items():
            print(key, value)


def tidy(arguments):
    pairs = read(arguments.file)
    with open(arguments.file, "w") as file:
        if "b" not in pairs:
            raise ValueError("b is not there")
        file.writelines(f"{key}={value}\\n" for key, value in sorted(pairs.items()))
    print(len(pairs), "pairs")


def age(arguments):
    with open(arguments.file) as file:
        for line in file:
            name, lives = line.split()
            print(f"{name}: {float(lives):.1f} s left")


def main():
    parser = argparse.ArgumentParser(prog="keyfold")
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("show")
    one.add_argument("file")
    one.add_argument("--key")
    one.add_argument("--form", choices=["text", "json", "ini"])
    one.set_defaults(run=show)
    two = commands.add_parser("tidy")
    two.add_argument("file")
    two.set_defaults(run=tidy)
    three = commands.add_parser("age")
    three.add_argument("file")
    three.set_defaults(run=age)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except (OSError, ValueError) as problem:
        print("keyfold: error:", problem, file=sys.stderr)
        return 0 if isinstance(problem, OSError) else 1
    return 0
"""

FILES = {
    "pyproject.toml": setuptools_project("keyfold", more='\n[project.scripts]\nkeyfold = "keyfold.program:main"\n'),
    "README.md": README,
    "src/keyfold/__init__.py": LIBRARY,
    "src/keyfold/program.py": PROGRAM,
    "tox.ini": "[testenv]\ncommands = pytest --doctest-modules\n",
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reviewed]:
    reviewed = Reviewed(tmp_path_factory.mktemp("keyfold"), FILES)
    yield reviewed
    reviewed.close()


def found(reviewed: Reviewed, probe: str) -> dict[tuple[str, str], Candidate]:
    return {(one.rule, one.places[0].symbol): one for one in reviewed.candidates(probe)}


README_FAULTS = {
    ("readme.output-differs", "double"): (10, "43", "42"),
    ("readme.output-differs", "answer"): (17, "41", "42"),
    ("readme.example-fails", "keyfold.vanished"): (22, "vanished", "ImportError"),
    ("readme.example-fails", "Thing.gone"): (28, "thing.gone()", "AttributeError"),
    ("readme.example-fails", "Thing"): (33, "colour", "TypeError"),
    ("readme.output-differs", "keyfold show"): (57, "b 2", "b 22"),
    ("readme.unknown-option", "keyfold show --upper"): (60, "--upper", "unrecognized arguments"),
    ("readme.unknown-command", "keyfold list"): (63, "list", "invalid choice"),
    ("readme.output-differs", "keyfold age"): (91, "1.5 s", "1500.0 s"),
}


def test_every_fault_of_the_readme_comes_out_once(faulty: Reviewed):
    assert faulty.result("readme").state is ProbeState.FAILED
    assert set(found(faulty, "readme")) == set(README_FAULTS)
    assert len(faulty.candidates("readme")) == len(README_FAULTS)


@pytest.mark.parametrize("key", README_FAULTS, ids=lambda key: " ".join(key))
def test_a_fault_of_the_readme_names_its_line_and_holds(faulty: Reviewed, key: tuple[str, str]):
    line, shown, real = README_FAULTS[key]
    candidate = found(faulty, "readme")[key]
    assert candidate.places[0].line == line and candidate.places[0].file == "README.md"
    assert shown in candidate.title and real in candidate.description
    faulty.holds(candidate)


def test_two_wrong_examples_of_one_function_are_one_fault_with_two_places(faulty: Reviewed):
    assert [place.line for place in found(faulty, "readme")[("readme.output-differs", "double")].places] == [10, 46]


def test_the_facts_of_the_readme_tell_each_example(faulty: Reviewed):
    facts = faulty.result("readme").facts
    states = {fact["line"]: fact["state"] for fact in facts["examples"]}
    assert states[3] == "noted" and states[11] == "matched" and states[58] == "matched"


def test_options_that_the_parser_refuses_are_found_in_commands_and_tables(faulty: Reviewed):
    options = found(faulty, "options")
    assert ("readme.unknown-option", "keyfold show --silent") in options
    for candidate in options.values():
        faulty.holds(candidate)


def test_an_option_seen_by_two_probes_is_the_same_fault(faulty: Reviewed):
    key = ("readme.unknown-option", "keyfold show --upper")
    one, other = found(faulty, "readme")[key], found(faulty, "options")[key]
    assert (one.kind, one.rule, one.places[0].file, one.places[0].symbol, one.shape) == (
        other.kind, other.rule, other.places[0].file, other.places[0].symbol, other.shape,
    )  # fmt: skip


def test_a_value_that_the_help_offers_and_that_fails_is_found(faulty: Reviewed):
    candidate = found(faulty, "options")[("cli.traceback", "show")]
    assert "--form ini" in candidate.title and "TypeError" in candidate.description


def test_wrong_use_with_another_status_than_documented_is_found(faulty: Reviewed):
    candidate = found(faulty, "options")[("readme.exit-status", "keyfold wrong use")]
    assert candidate.kind is Kind.DOCUMENTATION and "exit status 4" in candidate.description
    assert candidate.reproduction is not None and candidate.reproduction.symptom.exit == 2


def test_spoiled_arguments_show_tracebacks_statuses_and_lost_input(faulty: Reviewed):
    spoiled = found(faulty, "misuse")
    assert set(spoiled) == {
        ("cli.traceback", "show"),
        ("readme.exit-status", "keyfold"),
        ("cli.input-destroyed", "tidy"),
    }
    assert len(spoiled[("readme.exit-status", "keyfold")].places) == 4, "three subcommands, one cause"
    for candidate in spoiled.values():
        faulty.holds(candidate)
    assert "KeyError" in spoiled[("cli.traceback", "show")].description
    assert spoiled[("cli.input-destroyed", "tidy")].kind is Kind.RELIABILITY


def test_a_docstring_that_is_wrong_is_found(faulty: Reviewed):
    candidate = faulty.only("doctests", "docstring.output-differs")
    assert candidate.places[0].file == "src/keyfold/__init__.py" and candidate.places[0].line == 3
    assert "tox.ini" in candidate.description


ABOUT_TEXT = ("readme.", "docstring.")  # how rules of claims about a text begin
PROBES_OF_TEXTS = ("readme", "options", "misuse", "doctests")


def test_every_claim_about_a_text_knows_the_text_and_no_other_claim_does(faulty: Reviewed):
    told = 0
    for candidate in (one for probe in PROBES_OF_TEXTS for one in faulty.candidates(probe)):
        proof, about = candidate.reproduction, candidate.rule.startswith(ABOUT_TEXT)
        assert proof is not None and bool(proof.copied) == about, candidate.title
        assert all(stands(one, FILES[one.file]) for one in proof.copied)
        told += about
    assert told >= len(README_FAULTS) + 3


@pytest.mark.parametrize(
    ("probe", "rule", "symbol", "mended"),
    [
        ("readme", "readme.output-differs", "keyfold age", ("lives=1500)", "lives=1.5)")),
        ("readme", "readme.output-differs", "keyfold age", ("1.5 s left", "1500.0 s left")),
        ("readme", "readme.example-fails", "keyfold.vanished", ("from keyfold import vanished", "import keyfold")),
        ("readme", "readme.example-fails", "Thing.gone", ("from keyfold import Thing\nthing", "import x\nthing")),
        ("options", "readme.unknown-option", "keyfold show --silent", ("| `-s`, `--silent` | print nothing |\n", "")),
        ("doctests", "docstring.output-differs", "keyfold", ("9\n", "8\n")),
    ],
)
def test_a_text_that_was_mended_makes_its_proof_one_of_another_text(
    faulty: Reviewed, probe: str, rule: str, symbol: str, mended: tuple[str, str]
):
    candidate = found(faulty, probe)[rule, symbol]
    assert candidate.reproduction is not None
    (copied,) = candidate.reproduction.copied
    text = FILES[copied.file]
    assert mended[0] in text and not stands(copied, text.replace(*mended, 1))
