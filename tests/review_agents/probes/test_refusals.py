"""What parsers say when they refuse a command line."""

import pytest

from review_agents.probes.refusals import read_refusal

REFUSED = {
    "argparse option": (
        "tool sum a.txt --unit m",
        "usage: tool [-h] {sum} ...\ntool: error: unrecognized arguments: --unit m",
        ("option", "--unit", ""),
    ),
    "argparse command": (
        "tool totl a.txt",
        "usage: tool\ntool: error: argument command: invalid choice: 'totl' (choose from 'sum', 'total')",
        ("command", "totl", ""),
    ),
    "argparse value": (
        "tool --format xml a",
        "tool: error: argument -f/--format: invalid choice: 'xml' (choose from 'json', 'text')",
        ("value", "xml", "--format"),
    ),
    "argparse missing": (
        "tool sum",
        "tool sum: error: the following arguments are required: file",
        ("missing", "file", ""),
    ),
    "argparse extra": ("tool a b", "tool: error: unrecognized arguments: b", ("extra", "b", "")),
    "click option": (
        "tool diff -q a b",
        "Usage: tool diff [OPTIONS] OLD NEW\nTry 'tool diff --help' for help.\n\nError: No such option: -q",
        ("option", "-q", ""),
    ),
    "click option with a hint": (
        "tool --colour x",
        "Error: No such option: --colour Did you mean --color?",
        ("option", "--colour", ""),
    ),
    "click command": ("tool strat", "Error: No such command 'strat'.", ("command", "strat", "")),
    "click value": (
        "tool --level high",
        "Error: Invalid value for '--level': 'high' is not one of 'low', 'mid'.",
        ("value", "high", "--level"),
    ),
    "typer's box": (
        "tool run --fast",
        "╭─ Error ──────────╮\n│ No such option: --fast │\n╰──────────────────╯",
        ("option", "--fast", ""),
    ),
    "optparse": ("tool --old", "tool: error: no such option: --old", ("option", "--old", "")),
    "getopt": ("tool --old", "option --old not recognized", ("option", "--old", "")),
    "docopt": ("tool --old", "Usage:\n  tool [--new]", ("usage", "", "")),
}


@pytest.mark.parametrize(("command", "said", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_each_parser_is_understood(command: str, said: str, expected: tuple[str, str, str]):
    found = read_refusal(said, command)
    assert found is not None and (found.kind, found.word, found.option) == expected


def test_a_refusal_of_a_word_that_is_not_in_the_command_is_not_about_it():
    assert read_refusal("Error: No such option: --deep", "tool run") is None
    assert read_refusal("No such option: -q", "tool run --quick") is None


def test_a_short_option_in_a_bundle_is_found():
    found = read_refusal("No such option: -q", "tool -vq run")
    assert found is not None and found.word == "-q"


def test_ordinary_output_is_no_refusal():
    assert read_refusal("3 files read\nno error", "tool a") is None


def test_the_parsers_hint_is_kept():
    found = read_refusal("Error: No such option: --colour Did you mean --color?", "tool --colour")
    assert found is not None and found.hint == "--color"
