"""The program that runs Python examples inside, run here on examples of our own."""

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

DRIVER = str(resources.files("review_agents.probes.inside").joinpath("run_python.py"))
SURROUNDINGS = resources.files("review_agents.probes.inside").joinpath("surroundings.py").read_text()


def run(folder: Path, items: list[tuple[str, str]], own: tuple[str, ...] = ("ours",), **job: Any) -> dict[Any, Any]:
    content = {
        "items": [
            {"id": at, "kind": kind, "text": text, "file": "README.md", "line": 1}
            for at, (kind, text) in enumerate(items)
        ],
        "own": own,
        "seconds": job.pop("seconds", 10),
        **job,
    }
    (folder / "job.json").write_text(json.dumps(content))
    environment = {"PATH": os.environ["PATH"], **({"PYTHONPATH": job["late"]} if "late" in job else {})}
    subprocess.run(
        [sys.executable, DRIVER, "job.json", "result.jsonl"],
        cwd=folder,
        env=environment,
        timeout=60,
        stdout=subprocess.PIPE,
    )
    records = [json.loads(line) for line in (folder / "result.jsonl").read_text().splitlines()]
    return {record["id"]: record for record in records if "id" in record}


def test_each_statement_has_its_value_and_its_output(tmp_path: Path):
    (record,) = run(tmp_path, [("block", "x = 'a'\nx * 2\nprint(x)\nNone")]).values()
    assert [entry.get("value") for entry in record["statements"]] == [None, "'aa'", None, None]
    assert [entry["out"] for entry in record["statements"]] == ["", "", "a\n", ""]
    assert record["statements"][1]["string"] == "aa"


def test_names_go_on_from_example_to_example(tmp_path: Path):
    records = run(tmp_path, [("block", "x = 1"), ("session", ">>> x + 1\n2\n"), ("block", "y = _\n")])
    assert records[1]["examples"][0]["got"] == "2\n"
    assert records[2]["error"] is None or records[2]["error"]["type"] == "NameError"


def test_a_failure_does_not_stop_what_follows(tmp_path: Path):
    records = run(tmp_path, [("block", "x = 1\nboom()\nx = 2"), ("block", "x")])
    assert records[0]["error"]["type"] == "NameError" and len(records[0]["statements"]) == 2
    assert records[1]["statements"][0]["value"] == "1"


def test_code_that_does_not_parse_is_said_to_be_none(tmp_path: Path):
    records = run(tmp_path, [("block", "f(..."), ("session", ">>> f(\n"), ("block", "print 'x'")])
    assert records[0]["error"]["syntax"] and records[2]["error"]["syntax"]
    assert records[1]["examples"][0]["error"]["syntax"]


def test_an_example_that_hangs_or_asks_is_ended(tmp_path: Path):
    records = run(tmp_path, [("block", "while True: pass"), ("block", "input('?')"), ("block", "1")], seconds=1)
    assert records[0]["error"]["type"] == "TooLong" and records[1]["error"]["type"] == "EOFError"
    assert records[2]["statements"][0]["value"] == "1"


def test_what_was_done_before_the_interpreter_died_is_kept(tmp_path: Path):
    records = run(tmp_path, [("block", "1"), ("block", "import os; os._exit(3)"), ("block", "2")])
    assert list(records) == [0]


def test_await_at_the_top_runs(tmp_path: Path):
    (record,) = run(tmp_path, [("block", "import asyncio\nawait asyncio.sleep(0, 'x')")]).values()
    assert record["statements"][1]["value"] == "'x'"


def test_main_guards_run_and_classes_can_be_pickled(tmp_path: Path):
    text = (
        "import pickle\nclass A:\n    pass\nif __name__ == '__main__':\n    "
        "print(type(pickle.loads(pickle.dumps(A()))).__name__)"
    )
    (record,) = run(tmp_path, [("block", text)]).values()
    assert record["statements"][-1]["out"] == "A\n"


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "__init__.py").write_text(
        '"""Ours.\n\n>>> add(1, 2)\n3\n>>> add(2, 2)\n5\n"""\n'
        "class Box:\n    def __init__(self, size):\n        self.size = size\n\n"
        "def add(a, b):\n    '''\n    >>> add(1, 1)\n    2\n    '''\n    return a + b\n\n"
        "def deep():\n    return undefined_name\n"
    )
    return tmp_path


def test_a_missing_attribute_says_whose_it_is(ours: Path):
    records = run(
        ours, [("block", "import ours\nours.nothing"), ("block", "ours.Box(1).nothing"), ("block", "'x'.nothing")]
    )
    of = [records[at]["error"]["attribute"] for at in range(3)]
    assert [(one["of"], one["name"], one["own"]) for one in of] == [
        ("ours", "nothing", True), ("Box", "nothing", True), ("str", "nothing", False),
    ]  # fmt: skip


def test_a_wrong_call_says_whose_function_it_is(ours: Path):
    records = run(
        ours, [("block", "from ours import Box, add\nadd(1)"), ("block", "Box(1, color=2)"), ("block", "len(1, 2)")]
    )
    calls = [records[at]["error"]["calls"] for at in range(3)]
    assert calls[0][0]["own"] and calls[0][0]["signature"] == "(a, b)"
    assert calls[1][0]["own"] and not calls[2][0]["own"]


def test_a_missing_import_says_from_where(ours: Path):
    records = run(
        ours, [("block", "from ours import nothing"), ("block", "import ours.deeper"), ("block", "import elsewhere_zz")]
    )
    assert [records[at]["error"]["import"]["module"] for at in range(3)] == ["ours", "ours.deeper", "elsewhere_zz"]


def test_frames_of_the_package_are_counted_without_the_example(ours: Path):
    records = run(ours, [("block", "import ours\nours.deep()"), ("block", "undefined")])
    assert records[0]["error"]["own_frames"] == 1 and records[1]["error"]["own_frames"] == 0


def test_docstrings_are_run_with_the_names_of_their_module(ours: Path):
    record = run(ours, [], modules=["ours"])["ours"]
    found = {test["name"]: [(one["want"], one["got"]) for one in test["examples"]] for test in record["tests"]}
    assert found == {"ours": [("3\n", "3\n"), ("5\n", "4\n")], "ours.add": [("2\n", "2\n")]}


def test_an_assignment_whose_value_is_shown_gives_that_value(tmp_path: Path):
    (record,) = run(tmp_path, [("session", ">>> x = 1 + 1\n2\n")]).values()
    assert record["examples"][0]["assigned"] == "2"


def test_the_clock_is_years_ahead_in_other_surroundings(tmp_path: Path):
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "sitecustomize.py").write_text(SURROUNDINGS)
    text = (
        "import datetime, time\n"
        "datetime.date.today().year\ndatetime.datetime.now().year\ntime.gmtime().tm_year\n"
        "datetime.datetime(2003, 1, 2, tzinfo=datetime.timezone.utc)\ndatetime.date(2003, 1, 2)\n"
        "isinstance(datetime.datetime.strptime('2003', '%Y'), datetime.date)"
    )

    def values(**job: Any) -> list[str]:
        (record,) = run(tmp_path, [("block", text)], **job).values()
        return [entry["value"] for entry in record["statements"][1:]]

    now, later = values(), values(late=str(tmp_path / "late"))
    assert all(int(b) - int(a) in (3, 4) for a, b in zip(now[:3], later[:3], strict=True))
    assert (
        now[3:]
        == later[3:]
        == ["datetime.datetime(2003, 1, 2, 0, 0, tzinfo=datetime.timezone.utc)", "datetime.date(2003, 1, 2)", "True"]
    )
