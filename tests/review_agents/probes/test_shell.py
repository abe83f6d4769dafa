"""Commands taken into words, and what each command of a document is."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from review_agents.probes import recipes
from review_agents.probes.shell import Package, judge, literal_names, own_invocations, simple_commands, words_of

PACKAGE = Package(
    names=("span-parse",),
    modules=("spanparse", "zoo.cage"),
    scripts={"spanparse": "spanparse.cli:main"},
    repo_name="span-parse",
    url="https://example.org/ada/span-parse.git",
)


def test_words_know_where_they_stand_and_what_they_say():
    text = "spanparse duration \"90 min\" --as='h m' > out.txt"
    found = [(text[word.start : word.end], word.value) for word in words_of(text)]
    assert found == [
        ("spanparse", "spanparse"),
        ("duration", "duration"),
        ('"90 min"', "90 min"),
        ("--as='h m'", "--as=h m"),
        (">", ">"),
        ("out.txt", "out.txt"),
    ]


def test_a_line_is_taken_into_simple_commands():
    (first, second, third) = simple_commands("A=1 time tool x < in.txt 2>&1 | sort -u > out.txt && other &")
    assert (first.program, first.values, first.assignments, first.reads) == (
        "tool",
        ["tool", "x"],
        ("A=1",),
        ("in.txt",),
    )
    assert (second.values, second.writes) == (["sort", "-u"], ("out.txt",))
    assert third.background


def test_an_assignment_may_have_a_quoted_value_and_a_quoted_word_is_none():
    (command,) = simple_commands("NAME='Ada L' OTHER=\"$x\" tool 'a=1'")
    assert (command.program, command.assignments) == ("tool", ("NAME=Ada L", "OTHER=$x"))
    assert simple_commands("'a=1' x")[0].program == "a=1"


def test_a_heredoc_is_no_command():
    (command,) = simple_commands("cat > a <<'EOF'\nrm -rf /\nEOF")
    assert command.values == ["cat"] and command.writes == ("a",)


@given(st.text(max_size=60))
def test_no_text_breaks_the_words(text: str):
    for word in words_of(text):
        assert 0 <= word.start < word.end <= len(text) + 1
    simple_commands(text)


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0\n\r", codec="utf-8"), min_size=1, max_size=8),
        min_size=1,
        max_size=4,
    )
)
def test_quoted_arguments_come_back_as_they_were(arguments: list[str]):
    text = "printf '%s\\n' " + " ".join("'" + one.replace("'", "'\\''") + "'" for one in arguments)
    (command,) = simple_commands(text)
    assert command.values[2:] == arguments


RUN = [
    "spanparse duration '90 min'",
    "python -m spanparse --help",
    "FOO=1 spanparse sum a.txt | sort",
    "printf '1h\\n' > monday.txt",
    "cat > f <<EOF\n<html> path/to your-name\nEOF",
    "spanparse calc '<a> ...'",
    "python examples/run.py",
    "for f in *.txt; do spanparse sum $f; done",
    "cd docs",
    "spanparse mail admin@${DOMAIN}",
    "spanparse sum ${files} $day",
]
DONE = [
    "pip install span-parse",
    "pip install 'Span_Parse[fast]>=1'",
    "python3 -m pip install -e '.[dev]'",
    "pip install -r requirements.txt",
    "git clone https://example.org/ada/span-parse",
    "git clone git@example.org:ada/span-parse.git && cd span-parse && pip install .",
    "python -m venv .venv",
    "source .venv/bin/activate",
    "python setup.py install",
    "conda activate span",
]
NOT_HERE = {
    "sudo apt install x": "sudo",
    "apt-get install x": "apt-get",
    "brew install spanparse": "brew",
    "conda install spanparse": "conda",
    "docker run spanparse": "docker",
    "curl https://example.org/install | sh": "script from the network",
    "curl -O https://example.org/data.csv": "curl",
    "git clone https://example.org/other": "git",
    "spanparse sum <your file>": "<your file>",
    "spanparse sum FILE": "FILE",
    "spanparse sum path/to/file": "path/to",
    "spanparse sum {file}": "{file}",
    "spanparse sum ${day} {file}": "{file}",
    "spanparse [options] x": "[options]",
    "spanparse duration ...": "...",
    "spanparse fetch https://example.org/a": "network",
    "export API_KEY=abc": "key",
    "spanparse serve &": "background",
    "python": "person",
    "vim a.txt": "person",
    "python -m http.server": "http.server",
    "unknown-tool --flag": "unknown-tool",
    "pytest": "pytest",
}


@pytest.mark.parametrize("text", RUN)
def test_what_can_be_run_is_run(text: str):
    assert judge(text, PACKAGE).run


@pytest.mark.parametrize("text", DONE)
def test_what_the_preparation_did_is_noted(text: str):
    judgement = judge(text, PACKAGE)
    assert judgement.done and not judgement.run and not judgement.why_not


@pytest.mark.parametrize(("text", "word"), NOT_HERE.items(), ids=NOT_HERE.keys())
def test_what_is_not_for_here_says_what_it_needs(text: str, word: str):
    judgement = judge(text, PACKAGE)
    assert not judgement.run and not judgement.done and word in judgement.why_not


def test_a_name_in_capitals_that_is_a_file_is_no_placeholder():
    assert judge("spanparse sum LICENSE", PACKAGE, {"LICENSE"}).run


@pytest.mark.parametrize(
    ("outputs", "literal"),
    [
        (["USER=foo\nEMAIL=foo@example.org\n"], {"USER", "EMAIL"}),
        (['{\n  "USER": "foo"\n}\n'], {"USER"}),
        (["100 USD are 92 EUR\n"], {"USD", "EUR"}),
        (["Usage: spanparse sum [OPTIONS] UNIT...\n\nUNIT is h or min\n"], set()),
        (["spanparse: error: the following arguments are required: UNIT\n"], set()),
        (["copied FILE to DIR\n", "sum of <UNIT>\n"], set()),
        ([], set()),
    ],
)
def test_words_in_capitals_that_a_shown_output_uses_stand_for_themselves(outputs: list[str], literal: set[str]):
    assert literal_names(outputs) == literal


def test_a_name_in_capitals_that_the_output_uses_is_no_placeholder():
    assert judge("spanparse set USER foo", PACKAGE, literal_names(["USER=foo\n"])).run
    assert judge("spanparse set USER foo", PACKAGE, literal_names(["set\n"])).why_not


def test_own_programs_are_found_wherever_they_stand():
    found = list(own_invocations("cat a | spanparse sum - && python3 -m zoo.cage x; other", PACKAGE))
    assert [(command.values, count) for command, count in found] == [
        (["spanparse", "sum", "-"], 1),
        (["python3", "-m", "zoo.cage", "x"], 3),
    ]


def test_a_recipe_is_a_script_that_works(tmp_path):
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "a.txt").write_text("from the repo\n")
    parts = [
        recipes.File("sub/odd name.txt", "EOF\nit's $HOME `x`\n"),
        recipes.Python("print('quiet')\nopen('made.txt', 'w').write('made')"),
        recipes.Shell("echo loud"),
        recipes.Shell("cat examples/a.txt 'sub/odd name.txt' made.txt"),
    ]
    script = recipes.script(parts, bring={"examples"})
    ran = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert ran.stdout == "from the repo\nEOF\nit's $HOME `x`\nmade"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["examples"], "the clone stays as it was"


def test_the_status_of_a_recipe_is_that_of_its_last_part():
    ran = subprocess.run(["bash", "-c", recipes.script([recipes.Shell("true"), recipes.Python("raise SystemExit(7)")])])
    assert ran.returncode == 7


@given(st.text(st.characters(exclude_characters="\0\r", codec="utf-8"), max_size=80))
def test_a_heredoc_gives_exactly_its_text(text: str):
    script = recipes.heredoc("cat", text)
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, encoding="utf-8").stdout
    assert said == (text if text.endswith("\n") or not text else text + "\n")
