"""Shell text taken apart."""

import pytest

from review_agents.probes.transcripts import Command, has_prompts, read_script, read_transcript


def texts(commands: tuple[Command, ...]) -> list[str]:
    return [command.text for command in commands]


def test_each_command_of_a_transcript_has_the_output_below_it():
    first, second, third = read_transcript("$ a --b\none\ntwo\n\n$ c\n$ d\nthree", 10)
    assert (first.text, first.output, first.line, first.output_line) == ("a --b", "one\ntwo", 10, 11)
    assert (second.text, second.output, second.shows_output) == ("c", "", True)
    assert (third.line, third.output_line) == (15, 16)


@pytest.mark.parametrize(
    "prompt",
    ["$ ", "% ", "(venv) $ ", "user@host:~/x$ ", "[me@host dir]$ ", "~/src $ ", "❯ ", "  $ "],
)
def test_prompts_of_many_shells_are_taken_off(prompt: str):
    assert texts(read_transcript(f"{prompt}tool run\nout")) == ["tool run"]


def test_only_one_kind_of_prompt_starts_commands_in_a_block():
    (command,) = read_transcript("$ tool\n% done\n~/x % more")
    assert command.output == "% done\n~/x % more"


def test_lines_that_go_on_belong_to_the_command():
    commands = read_transcript("$ tool \\\n    --a \\\n>   --b\nout\n$ echo 'x\n> y'\nx\ny")
    assert texts(commands) == ["tool \\\n    --a \\\n  --b", "echo 'x\ny'"]
    assert [command.output for command in commands] == ["out", "x\ny"]


def test_a_heredoc_in_a_transcript_is_content_and_not_output():
    first, second = read_transcript("$ cat > a.txt <<EOF\n> one\n> $ two\n> EOF\n$ cat a.txt\none\n$5")
    assert first.text == "cat > a.txt <<EOF\none\n$ two\nEOF"
    assert second.output == "one\n$5"


def test_comments_at_a_prompt_are_no_commands():
    assert texts(read_transcript("$ # first do this\n$ tool\n")) == ["tool"]


def test_output_keeps_its_own_indentation():
    (command,) = read_transcript("  $ tool\n  a\n    b")
    assert command.output == "a\n  b"


def test_an_empty_prompt_ends_the_output():
    (command,) = read_transcript("$ tool\nout\n$")
    assert command.output == "out"


def test_a_script_is_split_at_whole_commands():
    script = (
        "a 1\nfor x in 1 2; do\n  b $x\ndone\nif true\nthen c; fi\nd | \\\n  e &&\nf\n# comment\ncat <<'X'\nfi\nX\n"
    )
    assert texts(read_script(script)) == [
        "a 1",
        "for x in 1 2; do\n  b $x\ndone",
        "if true\nthen c; fi",
        "d | \\\n  e &&\nf",
        "cat <<'X'\nfi\nX",
    ]


def test_marked_comments_of_a_script_are_output():
    first, second, third = read_script("a  # => 1\nb\n# -> 2\n# => 3\nc  # explains c")
    assert (first.text, first.output) == ("a", "1")
    assert (second.text, second.output) == ("b", "2\n3")
    assert (third.text, third.shows_output) == ("c  # explains c", False)


def test_a_hash_inside_quotes_is_no_comment():
    (command,) = read_script("printf '1h\\n45m # => call\\n' > monday.txt")
    assert command.output == "" and "call" in command.text


def test_words_such_as_done_as_arguments_do_not_confuse():
    assert texts(read_script("echo done\necho if\nfi.sh")) == ["echo done", "echo if", "fi.sh"]


def test_prose_with_a_dollar_amount_has_no_prompts():
    assert not has_prompts("it costs\n5$ a day")
