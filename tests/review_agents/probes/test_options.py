import pytest

from review_agents.probes.documents import read_document
from review_agents.probes.help_texts import read_help
from review_agents.probes.options import named_options
from review_agents.probes.shell import Package

PACKAGE = Package(names=("lampy",), modules=("lampy",), scripts={"lampy": "lampy:main"})
TREE = {
    ("lampy",): read_help(("lampy",), "usage: lampy [-h] [--all] {light} ...\n\noptions:\n  --all  every lamp\n"),
    ("lampy", "light"): read_help(("lampy", "light"), "usage: lampy light [-h] [--slow]\n"),
}


def named(text: str) -> list[tuple[str, str]]:
    document = read_document("README.md", f"# lampy\n\n{text}\n")
    return [(" ".join(one.paths[0]), one.option) for one in named_options(document, TREE, PACKAGE)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Use `lampy --count` to count only.", [("lampy", "--count")]),
        ("Use `lampy light --count=3 -q here` in fog.", [("lampy light", "--count"), ("lampy light", "-q")]),
        ("Use `lampy -- --count` for a file of that name.", []),
        ("Use `lampy [--count]`.", []),
        ("Use `other --count` first.", []),
        ("The option of `lampy --count` was removed in 2.0.", []),
        ("Use `cat x | lampy --count`.", []),
    ],
)
def test_an_option_in_prose_that_is_named_with_its_command_is_checked(text: str, found: list[tuple[str, str]]):
    assert named(text) == found
