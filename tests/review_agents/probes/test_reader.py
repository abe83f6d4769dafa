import pytest

from review_agents.probes import recipes
from review_agents.probes.documents import read_document
from review_agents.probes.reader import Reader, variables_set
from review_agents.probes.shell import Package

TRACKED = ("msgpack/__init__.py", "data/a.txt", "notes.txt")


@pytest.mark.parametrize(
    ("part", "brought"),
    [
        (recipes.Python("import msgpack\nmsgpack.packb(1)"), set()),
        (recipes.Python("print(open('notes.txt').read(), 'data')"), {"data", "notes.txt"}),
        (recipes.Shell("python -m msgpack < notes.txt"), {"notes.txt"}),
        (recipes.Shell("ls data"), {"data"}),
        (recipes.Shell("cat msgpack/__init__.py"), {"msgpack"}),
    ],
)
def test_a_proof_brings_the_files_it_reads_and_not_the_package_it_imports(part: recipes.Part, brought: set[str]):
    reader = Reader(None, Package(modules=("msgpack",)), read_document("README.md", ""), tracked=TRACKED)  # type: ignore[arg-type]
    assert reader.brings([part]) == brought


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("DOMAIN=example.org", ["DOMAIN"]),
        ("a=1 b='2 3'; tool $a", ["a", "b"]),
        ("MODE=fast tool x", []),
        ("export DOMAIN=example.org", []),
        ("cat > f <<EOF\nDOMAIN=example.org\nEOF", []),
    ],
)
def test_only_an_assignment_of_its_own_sets_a_variable_for_what_follows(text: str, names: list[str]):
    assert variables_set(text) == names
