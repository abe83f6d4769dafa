"""Exit statuses that documents name, and in which situation."""

import pytest

from review_agents.probes.documents import read_document
from review_agents.probes.statuses import Situation, expected_statuses, status_claims


def claims(text: str):
    return status_claims(read_document("README.md", text))


def said(text: str) -> set[tuple[int, str]]:
    return {(claim.status, situation.name) for claim in claims(text) for situation in claim.situations}


SENTENCES = {
    "The exit status is 0, or 1 if the file cannot be read or is not a snapshot.": {
        (1, "MISSING_FILE"),
        (1, "BAD_INPUT"),
    },
    "Exits with status 2 on bad usage.": {(2, "WRONG_USE")},
    "It returns exit code `3` when the input file does not exist.": {(3, "MISSING_FILE")},
    "If the config is malformed, the command exits with 4.": {(4, "BAD_INPUT")},
    "A line that cannot be read is left out, and the exit status is then 1.": {(1, "BAD_INPUT")},
    "The exit status is that of `diff`: 0 if the same, 1 if they differ, 2 if there is no such column.": {
        (2, "UNKNOWN_NAME")
    },
    "The exit status is 0 unless the file cannot be read.": set(),
    "The exit code is never 2 for bad usage.": set(),
    "Version 2 of the file format cannot be read.": set(),
    "The server returns status code 404 if the file is not found.": set(),
    "It exits after 3 seconds if the file cannot be read.": set(),
}


@pytest.mark.parametrize(("text", "expected"), SENTENCES.items(), ids=SENTENCES.keys())
def test_sentences_are_understood_or_left_alone(text: str, expected: set[tuple[int, str]]):
    assert said(text) == expected


TABLE = """\
| exit status | meaning |
| --- | --- |
| 0 | all of the input was understood |
| 1 | `sum` left lines out |
| 2 | a file cannot be read, or bad usage |
"""


def test_a_table_of_statuses_is_read_by_its_header():
    assert said(TABLE) == {(1, "BAD_INPUT"), (2, "MISSING_FILE"), (2, "WRONG_USE")}
    assert said(TABLE.replace("exit status", "option")) == set()


def test_a_list_below_a_heading_is_read():
    text = "## Exit codes\n\n- `0`: fine\n- `1`: the input file is missing\n- `64` - usage error\n"
    assert said(text) == {(1, "MISSING_FILE"), (64, "WRONG_USE")}


def test_a_condition_that_names_a_command_is_about_that_command():
    found = claims(TABLE)
    assert [claim.status for claim in expected_statuses(found, Situation.BAD_INPUT, ("tool", "sum"))] == [1]
    assert expected_statuses(found, Situation.BAD_INPUT, ("tool", "size")) == []


def test_the_line_of_a_claim_is_that_of_its_number():
    (claim,) = claims("Much text.\nMore of it. The exit status is\n1 if the file cannot be read.\n")
    assert claim.line == 3


def test_what_stood_in_an_old_version_is_no_claim():
    assert said("## Changes in 1.0\n\nThe exit status is 2 on bad usage.\n") == set()
