from review_agents.probes.data_paths import opened_paths


def texts(code: str, module: str = "pkg.mod", *, is_package: bool = False) -> list[str]:
    return [opened.text for opened in opened_paths(code, module, is_package=is_package)]


def test_paths_from_file_resources_and_pkgutil_are_read_relative_to_the_import_root():
    code = """
import os, pkgutil
from importlib import resources
from pathlib import Path
HERE = Path(__file__).resolve().parent
a = (HERE / "data" / "a.json").read_text()
b = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "b.txt"))
c = resources.files("pkg").joinpath("c", "c.txt").read_text()
d = pkgutil.get_data("pkg.sub", "d.bin")
e = resources.read_text(__package__, "e.txt")
f = Path(__file__).with_name("f.txt").read_text()
"""
    assert texts(code) == [
        "pkg",
        "pkg/data/a.json",
        "pkg/b.txt",
        "pkg/c/c.txt",
        "pkg/sub/d.bin",
        "pkg/e.txt",
        "pkg/f.txt",
    ]


def test_an_argument_stays_open_and_a_file_name_tells_its_value():
    code = """
from importlib.resources import files
def words(lang, strict=False):
    return files(__package__).joinpath("words", f"{lang}.json").read_text()
"""
    (opened,) = opened_paths(code, "pkg.mod", is_package=False)
    assert opened.matches("pkg/words/de.json") == {"lang": "de"}
    assert opened.matches("pkg/other/de.json") is None
    assert (opened.function, opened.arguments, opened.optional) == ("words", ("lang",), ("strict",))


def test_paths_above_the_package_leave_the_import_root():
    assert texts("from pathlib import Path\nV = (Path(__file__).parents[1] / 'VERSION').read_text()") == ["VERSION"]
    assert texts("from pathlib import Path\nV = open(Path(__file__).parents[2] / 'VERSION')") == ["../VERSION"]


def test_other_paths_and_unreadable_code_give_nothing():
    assert texts("from pathlib import Path\ndef f(folder):\n    return (Path(folder) / 'x.json').read_text()") == []
    assert texts("def broken(:\n") == []


def test_a_module_that_is_a_package_counts_from_its_own_folder():
    assert texts(
        "p = __file__\nimport os\nq = os.path.join(os.path.dirname(__file__), 'x')", "pkg", is_package=True
    ) == ["pkg/x"]
