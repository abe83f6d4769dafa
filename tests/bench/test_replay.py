"""The nights of `python -m tests.bench replay` over one repo of scripts: real command, real sandbox, tiny probes."""

import copy
from pathlib import Path

import pytest

from review_agents.records import Entry
from review_agents.scripted import call
from tests.bench import minds, replay
from tests.bench.test_minds import HELD, conversation
from tests.support.boxes import bubblewrap, git, here
from tests.support.host_settings import isolated
from tests.support.tiny_agents import DONE, finding

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FAULTY = {
    "README.md": "Run greet. It says hello.\n",
    "greet.sh": "echo good morning\n",
    "add.sh": "echo $(($1 - $2))\n",
    "last.sh": 'head -n 1 "$1"\n',
    "upper.sh": "cat\n",
}
MENDED = {**FAULTY, "greet.sh": "echo hello\n", "add.sh": "echo $(($1 + $2))\n", "last.sh": 'tail -n 1 "$1"\n'}


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


def recording() -> dict[str, list[Entry]]:
    add = shown("add.sh", "echo $(($1 - $2))", "echo sum is $(bash add.sh 5 3)", "sum is 2", wanted="8")
    last = shown("last.sh", "head -n 1", "printf 'one\\ntwo\\n' >/tmp/t\necho got $(bash last.sh /tmp/t)", "got one")
    upper = shown("upper.sh", "cat", "echo got $(echo abc | bash upper.sh)", "got abc", kind="usability",
                  rule="surprising_behaviour")  # fmt: skip
    return {
        "focus:newcomer": conversation((call("record_finding", **upper), HELD), (DONE, "")),
        "focus:correctness": conversation(
            (call("run", command="bash add.sh 5 3"), "2"),
            (call("record_finding", **add), HELD),
            (call("record_finding", **last), HELD),
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
        command="tests.support.tiny_command",
        settings={name: value for name, value in isolated(work).items() if name != "LAMPLIGHTER_DATA"},
    )


def test_nothing_is_new_on_an_unchanged_commit_and_nothing_is_fixed_without_proof(found: replay.Nights) -> None:
    by_title = {one["id"]: one["places"][0]["file"] for one in found.open_before("mended").values()}
    mended = {key: file for key, file in by_title.items() if file != "upper.sh"}
    assert replay.counted(found, mended) == {
        "proved_at_first": 3,  # one of them by a probe
        "proved_at_first_by_agents": 2,
        "new_again": 0,
        "late_expected": 1,
        "seen_late": 1,
        "not_seen_late": 0,
        "filed_twice": 0,
        "dying_focuses": 2,
        "dying_fixed": 0,
        "dying_new": 0,
        "mended_faults": 3,
        "mended_fixed": 3,
        "mended_in_part": 0,
        "mended_left": 0,
        "mended_new": 0,
        "fixed_without_proof": 0,
        "fixed_beside": 0,
    }


def test_what_was_not_mended_stays_and_what_was_is_the_same_finding_as_before(found: replay.Nights) -> None:
    last = {one["places"][0]["file"]: one for one in found.findings("mended")}
    assert {file: one["lifecycle"] for file, one in last.items()} == {
        "README.md": "fixed",
        "add.sh": "fixed",
        "last.sh": "fixed",
        "upper.sh": "persisting",
    }
    ever = {one["id"] for export in found.exports.values() for one in export["findings"]}
    assert ever == {one["id"] for one in last.values()}


def test_counting_sees_a_fault_that_is_filed_twice_or_called_fixed_without_a_proof(found: replay.Nights) -> None:
    spoiled = copy.deepcopy(found)
    twice = copy.deepcopy(next(one for one in spoiled.findings("other") if one["lifecycle"] == "persisting"))
    spoiled.exports["other"]["findings"].append({**twice, "id": "another", "lifecycle": "new"})
    fixed = next(one for one in spoiled.findings("mended") if one["lifecycle"] == "fixed")
    fixed["verification"]["runs"] = []
    counts = replay.counted(spoiled, {})
    assert (counts["filed_twice"], counts["not_seen_late"], counts["fixed_without_proof"]) == (1, 1, 1)
    assert counts["fixed_beside"] == 3
