"""The nights of `python -m tests.bench replay` over one repo of scripts: real command, real sandbox, tiny probes."""

import copy
from collections.abc import Iterable
from pathlib import Path

import pytest

from review_agents.records import Entry
from review_agents.scripted import call
from tests.bench import minds, replay
from tests.bench.test_minds import HELD, conversation
from tests.support.boxes import bubblewrap, git, here
from tests.support.host_settings import isolated
from tests.support.tiny_agents import DONE, finding

KNOWN = "Not stored: it is known already"  # as one was told before two errors were two faults
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
README = "Run greet. It says hello.\n\n    entry=1500\n    echo $entry lives\n    -> 15 lives\n"
HALF = "def half(text):\n    number = int(text)\n    return 1 / number\n"
FAULTY = {
    "README.md": README,
    "greet.sh": "echo good morning\n",
    "add.sh": "echo $(($1 - $2))\n",
    "last.sh": 'head -n 1 "$1"\n',
    "upper.sh": "cat\n",
    "half.py": HALF,
}
MENDED = {
    **FAULTY,
    "README.md": README.replace("=1500", "=15"),  # not the line that the finding quotes
    "greet.sh": "echo hello\n",
    "add.sh": "echo $(($1 + $2))\n",
    "last.sh": 'tail -n 1 "$1"\n',
    "half.py": HALF.replace("int(text)", "int(text) if text.isdigit() else 1").replace("/ number", "/ (number or 1)"),
}


def made_repo(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "scripts")
    return folder


def shown(file: str, quote: str, command: str, output: str, **more: str) -> dict[str, object]:
    return finding(
        title=f"{file} gives {output} where {more.get('wanted', 'something else')} is right",
        experience=f"Whoever runs {file} gets {output}. That is wrong.",
        file=file,
        quote=quote,
        command=f"set -e\n{command}",
        output_contains=[output],
        control=f"test -f {file}",
        **{name: value for name, value in more.items() if name != "wanted"},
    )


def halved(text: str, error: str, quote: str) -> dict[str, object]:
    """One of two faults of one function: one kind, one rule, and another error."""
    script = f"python3 -c 'import half; half.half(\"{text}\")' 2>&1 | tail -n 1"
    return shown("half.py", quote, script, error, kind="reliability", rule="reliability_other")


def recording() -> dict[str, list[Entry]]:
    add = shown("add.sh", "echo $(($1 - $2))", "echo sum is $(bash add.sh 5 3)", "sum is 2", wanted="8")
    last = shown("last.sh", "head -n 1", "printf 'one\\ntwo\\n' >/tmp/t\necho got $(bash last.sh /tmp/t)", "got one")
    words = halved("words", "ValueError", "number = int(text)")
    none = halved("0", "ZeroDivisionError", "return 1 / number")
    upper = shown("upper.sh", "cat", "echo got $(echo abc | bash upper.sh)", "got abc", kind="usability",
                  rule="surprising_behaviour")  # fmt: skip
    return {
        "focus:newcomer": conversation((call("record_finding", **upper), HELD), (DONE, "")),
        "focus:correctness": conversation(
            (call("run", command="bash add.sh 5 3"), "2"),
            (call("record_finding", **add), HELD),
            (call("record_finding", **last), HELD),
            (call("record_finding", **words), KNOWN),
            (call("record_finding", **none), HELD),
            (DONE, ""),
        ),
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> replay.Nights:
    bubblewrap(here())  # skips, loudly, where it does not work
    work = tmp_path_factory.mktemp("replay")
    minds.write(recording(), work / "recordings" / "scripts.json")
    return replay.nights(
        made_repo(work / "repos" / "scripts", FAULTY),
        made_repo(work / "fixed" / "scripts", MENDED),
        work / "recordings",
        work,
        command="tests.support.tiny_pages",
        settings={name: value for name, value in isolated(work).items() if name != "LAMPLIGHTER_DATA"},
    )


UPPER, PAGE, WORDS, NONE = "cat", "-> 15 lives", "number = int(text)", "return 1 / number"  # lines that are blamed


def by_line(findings: Iterable[replay.Finding]) -> dict[str, replay.Finding]:
    return {one["places"][0]["quote"]: one for one in findings}


def planted(found: replay.Nights) -> dict[str, str]:
    """By id, all but the one that is not mended."""
    return {one["id"]: line for line, one in by_line(found.open_before("mended").values()).items() if line != UPPER}


def test_nothing_is_new_on_an_unchanged_commit_and_nothing_is_fixed_without_proof(found: replay.Nights) -> None:
    assert replay.counted(found, planted(found), {}) == {
        "proved_at_first": 6,  # two of them by probes
        "proved_at_first_by_agents": 4,
        "new_again": 0,
        "late_expected": 1,
        "seen_late": 1,
        "late_lost": 0,
        "not_seen_late": 0,
        "filed_twice": 0,
        "dying_focuses": 2,
        "dying_fixed": 0,
        "dying_new": 0,
        "mended_faults": 6,
        "mended_fixed": 6,
        "mended_in_part": 0,
        "mended_left": 0,
        "mended_new": 0,
        "fixed_without_proof": 0,
        "fixed_beside": 0,
    }
    assert replay.in_words(found, planted(found), {}) == []


def test_what_was_not_mended_stays_and_what_was_is_the_same_finding_as_before(found: replay.Nights) -> None:
    last = by_line(found.findings("mended"))
    assert {line for line, one in last.items() if one["lifecycle"] == "persisting"} == {UPPER}
    assert {line for line, one in last.items() if one["lifecycle"] == "fixed"} == set(planted(found).values())
    ever = {one["id"] for export in found.exports.values() for one in export["findings"]}
    assert ever == {one["id"] for one in last.values()}


def test_an_example_is_fixed_when_the_page_above_the_quoted_line_was_mended(found: replay.Nights) -> None:
    fixed = by_line(found.findings("mended"))[PAGE]
    assert "probe:page looked there again" in fixed["verification"]["reason"]
    assert "1500 lives" in fixed["verification"]["runs"][0]["head"], "its script alone would show it for ever"


def test_the_second_of_two_errors_in_one_function_is_a_finding_of_its_own(found: replay.Nights) -> None:
    assert WORDS in by_line(found.findings("first")) and NONE not in by_line(found.findings("first"))
    late = by_line(found.fresh("other"))
    assert set(late) == {NONE} and late[NONE]["seen_late"]


def test_counting_sees_a_fault_that_is_filed_twice_or_called_fixed_without_a_proof(found: replay.Nights) -> None:
    spoiled = copy.deepcopy(found)
    twice = copy.deepcopy(next(one for one in spoiled.findings("other") if one["lifecycle"] == "persisting"))
    spoiled.exports["other"]["findings"].append({**twice, "id": "another", "lifecycle": "new"})
    fixed = next(one for one in spoiled.findings("mended") if one["lifecycle"] == "fixed")
    fixed["verification"]["runs"] = []
    counts = replay.counted(spoiled, {}, {})
    assert (counts["filed_twice"], counts["not_seen_late"], counts["fixed_without_proof"]) == (1, 1, 1)
    assert counts["fixed_beside"] == 6


def test_counting_sees_a_late_fault_that_was_lost_and_a_mended_one_that_was_left(found: replay.Nights) -> None:
    spoiled = copy.deepcopy(found)
    for export in spoiled.exports.values():
        export["findings"] = [one for one in export["findings"] if one["places"][0]["quote"] != NONE]
    page = by_line(spoiled.findings("mended"))[PAGE]
    page["lifecycle"], page["verification"]["state"] = "persisting", "confirmed"
    left = {page["id"]: planted(spoiled)[page["id"]]}
    counts = replay.counted(spoiled, planted(spoiled), left)
    assert (counts["late_lost"], counts["mended_left"], counts["mended_in_part"]) == (1, 1, 0)
    assert [line.partition(":")[0] for line in replay.in_words(spoiled, planted(spoiled), left)] == ["lost", "left"]
    assert replay.counted(spoiled, planted(spoiled), {})["mended_in_part"] == 1, "in the words of another fault"
