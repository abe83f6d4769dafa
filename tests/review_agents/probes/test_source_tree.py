from review_agents.probes.prepared import Distribution, Prepared
from review_agents.probes.source_tree import SourceTree, is_test_path
from review_agents.records import Repo


class Files:
    def __init__(self, files: dict[str, str]):
        self.files = files

    def read(self, path: str, *, limit_bytes: int = 0) -> str:
        return self.files[path]


def tree_of(files: dict[str, str], *distributions: Distribution) -> SourceTree:
    repo = Repo(
        name="a",
        url="u",
        ref="main",
        commit="0" * 40,
        commit_date="2025-01-01T00:00:00+00:00",
        files=tuple(sorted(files)),
    )
    return SourceTree(Files(files), repo, Prepared(distributions=distributions))  # type: ignore[arg-type]


def test_an_installed_file_is_found_again_in_every_layout():
    for folder in ("src/pkg", "pkg", "python/pkg", "lib/pkg", "source/of/pkg"):
        one = Distribution(name="pkg", import_packages=("pkg",))
        tree = tree_of({f"{folder}/__init__.py": "", f"{folder}/a.py": ""}, one)
        assert tree.tracked_path("/venv/plain/lib/python3.11/site-packages/pkg/a.py") == f"{folder}/a.py"
        assert tree.path_root(one, "pkg") == (folder.rpartition("/")[0] or ".")


def test_single_modules_and_namespace_packages_are_found():
    one = Distribution(name="a", import_packages=("mod", "ns.pkg"))
    tree = tree_of({"mod.py": "", "src/ns/pkg/__init__.py": "", "src/ns/pkg/b.py": ""}, one)
    assert tree.folder_of(one, "mod") == "mod.py"
    assert tree.tracked_path("/x/site-packages/ns/pkg/b.py") == "src/ns/pkg/b.py"
    assert tree.import_root(one) is None  # two roots


def test_what_belongs_to_others_is_nobodys_path():
    one = Distribution(name="a", import_packages=("a",))
    tree = tree_of({"a/__init__.py": ""}, one)
    assert tree.tracked_path("/x/site-packages/other/a.py") == ""
    assert tree.tracked_path("/usr/lib/python3.11/json/__init__.py") == ""
    assert tree.tracked_path("/job/repo/a/__init__.py") == "a/__init__.py"


def test_a_place_quotes_the_line_and_names_what_is_around_it():
    text = "X = [\n    1,\n]\n\n\nclass A:\n    def b(self):\n        return 1\n"
    tree = tree_of({"a.py": text})
    assert (tree.place("a.py", 8).symbol, tree.place("a.py", 8).quote) == ("A.b", "return 1")
    assert tree.place("a.py", 2).symbol == "X"
    assert tree.place("a.py").quote == "X = ["
    assert tree.place("a.py", 99).line == 1


def test_test_files_are_told_by_name_and_folder():
    assert is_test_path("tests/data/a.py") and is_test_path("pkg/test_a.py") and is_test_path("pkg/tests.py")
    assert not is_test_path("pkg/testing_tools.py") and not is_test_path("pkg/latest.py")
