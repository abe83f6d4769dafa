import pytest

from review_agents.probes.generated_sources import cython_command, cython_wanted, generated
from review_agents.probes.manifest import Manifest

SAID = "x86_64-linux-gnu-gcc: fatal error: pack/_pack.{}: No such file or directory\ncompilation terminated."


@pytest.mark.parametrize(
    ("missing", "tracked", "source", "by_cython"),
    [
        ("c", {"pack/_pack.pyx", "setup.py"}, "pack/_pack.pyx", True),
        ("cpp", {"pack/_pack.pyx"}, "pack/_pack.pyx", True),
        ("h", {"pack/_pack.pyx"}, "pack/_pack.pyx", False),  # by the compiler of another module, in an order of its own
        ("c", {"pack/_pack.y"}, "pack/_pack.y", False),
        ("h", {"pack/_pack.h.in"}, "pack/_pack.h.in", False),
    ],
)
def test_a_missing_source_is_traced_to_what_it_is_made_from(missing, tracked, source, by_cython):
    found = generated(SAID.format(missing), tracked)
    assert found is not None and (found.source, found.by_cython) == (source, by_cython)


def test_a_header_of_the_system_is_made_from_nothing_in_the_repo():
    assert generated("fatal error: ffi.h: No such file or directory", {"pack/_pack.pyx"}) is None


def test_sources_beside_it_are_translated_where_they_can_be_but_those_that_are_tracked():
    found = generated(SAID.format("cpp"), {"pack/_pack.pyx"})
    assert found is not None
    tracked = {"pack/_pack.pyx", "pack/included.pyx", "pack/kept.pyx", "pack/kept.cpp", "bench/other.pyx"}
    install, first, *others = cython_command(found, tracked, "cython==3.2.5", "-m pip", "python").splitlines()
    assert install.startswith("python -m pip install --target /tmp/") and install.endswith("cython==3.2.5 || exit 1")
    assert first.endswith("-m cython -3 --cplus pack/_pack.pyx || exit 1")
    assert [line.split(" --cplus ")[1] for line in others] == ["pack/included.pyx || true"]


def test_the_cython_that_the_repo_names_is_taken():
    files = {"requirements/dev.txt": "pytest\ncython==3.2.5  # pinned\n", "docs/requirements.txt": "sphinx\n"}
    project = Manifest(root=".", files=("pyproject.toml",), backend="setuptools", build_requires=("Cython>=3",))
    assert cython_wanted(files, files.get, ()) == "cython==3.2.5"
    assert cython_wanted(files, files.get, (project,)) == "Cython>=3"
    assert cython_wanted({}, files.get, ()) == "cython"
