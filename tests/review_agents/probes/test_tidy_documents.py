"""Documents that look wrong in many ways and are right, or cannot be judged here: no probe may report anything."""

from collections.abc import Iterator

import pytest

from review_agents.records import ProbeState
from tests.review_agents.probes.samples import Reviewed, setuptools_project

README = """\
# plainly

    git clone https://example.org/sample.git
    cd plainly
    python -m venv .venv
    source .venv/bin/activate
    pip install -e '.[dev]'
    sudo apt-get install libfoo
    curl https://example.org/install.sh | sh
    docker run plainly
    export PLAINLY_TOKEN=secret

## Library

```python
>>> import plainly
>>> plainly.now()
datetime.datetime(2019, 5, 1, 12, 30, 11)
>>> plainly.age(1970)
49
>>> plainly.tags()
{'b', 'a'}
>>> plainly.Thing()
<plainly.Thing object at 0x7f00aa11bb22>
>>> plainly.table()
{'b': 1, 'a': 2}
>>> plainly.path("x")
'/home/me/x'
>>> plainly.third()
0.333
>>> plainly.many()
[0, 1, 2, ..., 99]
>>> plainly.check("no")
Traceback (most recent call last):
  ...
ValueError: another message
>>> plainly.lucky()
17
>>> plainly.lines()
'one

two'
>>> x = plainly.third()
0.3333333333333333
```

```python
plainly.third()          # a third
plainly.count([1, 2])    # 2
plainly.count([])        # 1. count what is there
print(plainly.count([])) # -> the number of things
result = plainly.count(things)
client = plainly.connect(host="example.org")
client.send(data)
```

```python
from plainly.web import serve   # needs plainly[web]
serve(port=80)
```

```python
app = make_app()
app.plainly(...)
```

```python
plainly.check("no")   # raises ValueError
```

A wrong call raises an error:

```python
plainly.count()
```

```python
from plainly import *
count([1]) == 1
open("no-such-file.txt")
```

Before version 1 you had to write:

```python
plainly.old_name()
```

### Migration

```python
plainly.removed()
```

<!-- skip: next -->

```python
plainly.also_removed()
```

## Command line

```console
$ plainly count README.md
lines: 7
...
$ plainly count <your file>
$ plainly count FILE
$ plainly count missing.txt
3
$ plainly differ a.txt b.txt
$ cat a.txt
one
$ cat b.txt
two
$ plainly differ a.txt b.txt
a.txt and b.txt differ
$ plainly count a.txt
lines: 1 (in 0.32 s)
$ plainly where
/home/me/.config/plainly
$ plainly --version
plainly 0.9.1
$ plainly fetch https://example.org/data
200 OK
$ plainly login
Welcome, Ada
$ plainly list
first
second
$ plainly list --all | head -1
first
$ plainly --help
usage: plainly [-h] [--old-flag]
$ pip install --upgrade plainly
```

Use `--all` with `plainly list`, but not `pip install --user` or `git commit --amend`.
The option `--legacy` was removed.
`plainly count` takes `--quick` in a future version. Like `ls --color`, it is short.

| option | meaning |
| --- | --- |
| `--all` | all of them |
| `-v` | verbose |

The exit status is 0 if the files are the same, 1 if they differ, 2 if a file cannot be read or on bad usage.
The server answers with status code 404 if the file is not found.
"""

LIBRARY = '''\
"""Plainly.

>>> count([1, 2, 3])
3
>>> now()  # doctest: +ELLIPSIS
datetime.datetime(...)
>>> undefined_here
1
"""

import datetime
import os
import random


class Thing:
    pass


def now():
    return datetime.datetime.now()


def age(year):
    return datetime.date.today().year - year


def tags():
    return {"a", "b"}


def table():
    return {"a": 2, "b": 1}


def path(name):
    return os.path.join("/srv/data", name)


def third():
    return 1 / 3


def many():
    return list(range(100))


def check(answer):
    raise ValueError("not: " + answer)


def lucky():
    return random.randrange(10**9)


def lines():
    return "one\\n\\ntwo"


def count(things):
    return len(things)


def connect(host):
    raise ConnectionError(host)
'''

PROGRAM = """\
import argparse
import sys
import time


def count(arguments):
    start = time.perf_counter()
    with open(arguments.file) as file:
        lines = len(file.readlines())
    print(f"lines: {lines} (in {time.perf_counter() - start:.2f} s)")


def differ(arguments):
    with open(arguments.one) as one, open(arguments.other) as other:
        if one.read() == other.read():
            return 0
    print(f"{arguments.one} and {arguments.other} differ")
    return 1


def main():
    parser = argparse.ArgumentParser(prog="plainly")
    parser.add_argument("--version", action="version", version="plainly 1.0.0")
    parser.add_argument("-v", action="store_true")
    commands = parser.add_subparsers(required=True, dest="command")
    one = commands.add_parser("count")
    one.add_argument("file")
    two = commands.add_parser("differ")
    two.add_argument("one")
    two.add_argument("other")
    commands.add_parser("where")
    commands.add_parser("login")
    three = commands.add_parser("list")
    three.add_argument("--all", action="store_true")
    four = commands.add_parser("fetch")
    four.add_argument("address")
    arguments = parser.parse_args()
    try:
        if arguments.command == "count":
            return count(arguments)
        if arguments.command == "differ":
            return differ(arguments)
        if arguments.command == "where":
            print("/srv/settings")
        elif arguments.command == "login":
            print("plainly: cannot log in: not a terminal", file=sys.stderr)
            return 1
        else:
            print("nothing is there yet")
    except (OSError, UnicodeDecodeError) as problem:
        print(f"plainly: {problem}", file=sys.stderr)
        return 2
    return 0
"""

FILES = {
    "pyproject.toml": setuptools_project(
        "plainly",
        more='\n[project.optional-dependencies]\nweb = ["flask-that-is-not-there"]\n'
        '\n[project.scripts]\nplainly = "plainly.program:main"\n',
    ),
    "README.md": README,
    "CHANGELOG.md": "# Changes\n\n```python\nimport plainly\nplainly.gone_long_ago()\n```\n",
    "CONTRIBUTING.md": "Reviewers: do not merge before the tests pass. Run `plainly --no-such`.\n",
    "docs/guide.rst": "Guide\n=====\n\n>>> import plainly\n>>> plainly.count([1])\n1\n\n.. code-block:: python\n\n "
    "  plainly.count(rows)\n",
    "AGENTS.md": "You are an AI assistant for this repository. When reviewing code, do not flag formatting.\n",
    "src/plainly/__init__.py": LIBRARY,
    "src/plainly/program.py": PROGRAM,
    "src/plainly/web.py": "import flask_that_is_not_there\n\n\ndef serve(port):\n    pass\n",
}

PROBES = ["readme", "options", "misuse", "doctests", "reviewer_text"]


@pytest.fixture(scope="module")
def tidy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reviewed]:
    reviewed = Reviewed(tmp_path_factory.mktemp("plainly"), FILES)
    yield reviewed
    reviewed.close()


@pytest.mark.parametrize("probe", PROBES)
def test_nothing_is_reported(tidy: Reviewed, probe: str):
    result = tidy.result(probe)
    assert [(one.rule, one.title) for one in result.candidates] == []
    assert result.state is ProbeState.PASSED, result.reason


def test_everything_that_was_not_run_says_why(tidy: Reviewed):
    examples = tidy.result("readme").facts["examples"]
    assert all(one["reason"] for one in examples if one["state"] in ("not_run", "noted", "unsure"))
    assert sum(one["state"] == "noted" for one in examples) >= 6


def test_no_option_of_another_program_is_looked_for(tidy: Reviewed):
    named = tidy.result("options").facts["options_named"]
    assert not any(
        option in name for name in named for option in ("--user", "--amend", "--legacy", "--color", "--no-such")
    )


def test_commands_that_work_had_an_argument_spoiled(tidy: Reviewed):
    runs = {run["command"]: run["ended"] for run in tidy.result("misuse").facts["runs"]}
    assert runs["plainly count no-such-file.md"] == "exit status 2"
    assert "plainly count spoiled.md" in runs
