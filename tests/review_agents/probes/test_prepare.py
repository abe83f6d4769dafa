"""The preparation on every kind of project that Python packages come in, in real sandboxes with the real index."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from review_agents.probes.prepare import Distribution, Prepared, detect_languages, summary_of
from review_agents.records import ProbeState, RepoSettings
from tests.review_agents.probes.samples import Reviewed, setuptools_project

TEST = {"tests/test_it.py": "import kind_one\n\n\ndef test_it():\n    assert kind_one.answer() == 42\n"}
ANSWER = "def answer():\n    return 42\n"
C_SOURCE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, "42"}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_fast", "", -1, methods};
PyMODINIT_FUNC PyInit__fast(void) { return PyModule_Create(&module); }
"""
EXTENSION = (
    "from setuptools import Extension, setup\n\nsetup(name='kind-one', version='1.0', packages=['kind_one'], "
    "ext_modules=[Extension('kind_one._fast', ['kind_one/_fast.{end}'])])\n"
)


def project(backend: str, requires: str, more: str = "") -> str:
    return (
        f'[build-system]\nrequires = ["{requires}"]\nbuild-backend = "{backend}"\n\n'
        f'[project]\nname = "kind-one"\nversion = "1.0"\ndescription = "A sample"\n{more}'
    )


MODULE_SETUP = "from setuptools import setup\n\nsetup(name='kind-one', version='1.0', py_modules=['kind_one'])\n"
TIMEOUT = '\n[tool.hatch.envs.test]\ndependencies = ["pytest-timeout"]\n'

KINDS: dict[str, tuple[dict[str, str], str]] = {
    "flit": (
        {"pyproject.toml": project("flit_core.buildapi", "flit_core>=3.4"), "kind_one.py": f'"""One."""\n{ANSWER}'},
        "flit",
    ),
    "hatch": (
        {
            "pyproject.toml": project("hatchling.build", "hatchling", TIMEOUT),
            "src/kind_one/__init__.py": ANSWER,
        },
        "hatch",
    ),
    "poetry": (
        {
            "pyproject.toml": (
                '[tool.poetry]\nname = "kind-one"\nversion = "1.0"\ndescription = ""\n'
                'authors = ["Ann <ann@example.org>"]\n\n'
                '[tool.poetry.dependencies]\npython = "^3.9"\npackaging = ">=21"\n\n'
                '[tool.poetry.group.test.dependencies]\npytest-timeout = "^2.1"\n\n'
                '[build-system]\nrequires = ["poetry-core"]\nbuild-backend = "poetry.core.masonry.api"\n'
            ),
            "kind_one/__init__.py": ANSWER,
        },
        "poetry",
    ),
    "setup.py with a single module": (
        {
            "setup.py": MODULE_SETUP,
            "kind_one.py": ANSWER,
            "test-requirements.txt": "pytest-timeout\n",
        },
        "setuptools",
    ),
    "setup.cfg": (
        {
            "setup.cfg": "[metadata]\nname = kind-one\nversion = 1.0\n\n[options]\npackages = find:\n\n"
            "[options.extras_require]\ntesting = pytest-timeout\n",
            "setup.py": "from setuptools import setup\n\nsetup()\n",
            "kind_one/__init__.py": ANSWER,
        },
        "setuptools",
    ),
    "C extension": (
        {
            "setup.py": EXTENSION.format(end="c"),
            "kind_one/__init__.py": "from kind_one._fast import answer\n",
            "kind_one/_fast.c": C_SOURCE,
        },
        "setuptools",
    ),
    "Cython": (
        {
            "pyproject.toml": (
                '[build-system]\nrequires = ["setuptools", "cython"]\nbuild-backend = "setuptools.build_meta"\n'
            ),
            "setup.py": EXTENSION.format(end="pyx"),
            "kind_one/__init__.py": "from kind_one._fast import answer\n",
            "kind_one/_fast.pyx": ANSWER,
        },
        "setuptools",
    ),
}  # fmt: skip


def reviewed(folder: Path, files: Mapping[str, str], settings: RepoSettings | None = None) -> Reviewed:
    return Reviewed(folder, files, settings)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_project_is_installed_tested_and_free_of_findings(kind: str, tmp_path: Path):
    files, backend = KINDS[kind]
    one = reviewed(tmp_path, {**files, **TEST})
    try:
        prepared = one.prepared
        assert one.install.state is ProbeState.PASSED, (one.install.reason, one.install.log[-3000:])
        assert (prepared.distributions[0].name.replace("_", "-"), prepared.distributions[0].backend) == (
            "kind-one",
            backend,
        )
        assert prepared.import_packages == ("kind_one",)
        assert prepared.installed_plain and prepared.installed_test and prepared.editable
        assert "pytest" in prepared.resolved_test
        if "pytest-timeout" in str(files):
            assert "pytest-timeout" in prepared.resolved_test
        for name in ("wheel", "dependencies", "tests"):
            assert [found.title for found in one.result(name).candidates] == []
        assert one.result("tests").facts["passed"] == 1
        if kind == "flit":  # a module that is one file has functions of its own, too
            assert {entry["file"] for entry in one.result("profile").facts["functions"]} == {"kind_one.py"}
    finally:
        one.close()


@pytest.mark.slow
def test_a_namespace_package_is_followed_down_to_its_first_real_package(tmp_path: Path):
    files = {
        "pyproject.toml": setuptools_project("kind.one", more='\n[tool.setuptools.packages.find]\nwhere = ["src"]\n'),
        "src/kind/one/__init__.py": ANSWER,
        "src/kind/one/more.py": "from kind.one import answer\n",
    }
    one = reviewed(tmp_path, files)
    try:
        assert one.prepared.import_packages == ("kind.one",)
        assert one.result("imports").measurements[1].name == "import kind.one"
        assert not one.candidates("dependencies") and not one.candidates("wheel")
    finally:
        one.close()


@pytest.mark.slow
def test_a_monorepo_installs_its_packages_together(tmp_path: Path):
    files = {
        "packages/core/pyproject.toml": setuptools_project("mono-core"),
        "packages/core/src/mono_core/__init__.py": ANSWER,
        "packages/web/pyproject.toml": setuptools_project("mono-web", more='dependencies = ["mono-core"]\n'),
        "packages/web/src/mono_web/__init__.py": "from mono_core import answer\n",
        "packages/web/tests/test_web.py": TEST["tests/test_it.py"].replace("kind_one", "mono_web"),
        "tests/fixtures/sample/setup.py": "raise SystemExit('a fixture, not a project')\n",
    }
    one = reviewed(tmp_path, files)
    try:
        assert [found.name for found in one.prepared.distributions] == ["mono-core", "mono-web"]
        assert one.prepared.import_packages == ("mono_core", "mono_web")
        assert one.result("tests").facts["passed"] == 1
        assert not one.candidates("dependencies") and not one.candidates("wheel")
    finally:
        one.close()


@pytest.mark.slow
def test_a_build_that_fails_is_a_finding_with_the_line_and_the_error(tmp_path: Path):
    files = {
        "setup.py": (
            "from setuptools import setup\n\nlong = open('DESCRIPTION.txt').read()\n"
            "setup(name='broken', version='1.0', py_modules=['broken'])\n"
        ),
        "broken.py": ANSWER,
    }
    one = reviewed(tmp_path, files)
    try:
        assert one.install.state is ProbeState.FAILED
        found = one.only("install", "install.build-fails")
        assert "DESCRIPTION.txt" in found.title and found.places[0].line == 3
        assert one.result("wheel").state is ProbeState.COULD_NOT_RUN
        assert one.result("tests").state is ProbeState.NOT_APPLICABLE
    finally:
        one.close()


@pytest.mark.slow
def test_an_sdist_that_lacks_what_its_build_needs_is_a_finding(tmp_path: Path):
    files = {
        "setup.py": (
            "from setuptools import setup\n\nversion = open('VERSION.txt').read().strip()\n"
            "setup(name='thin', version=version, py_modules=['thin'])\n"
        ),
        "VERSION.txt": "1.0\n",
        "thin.py": ANSWER,
    }
    one = reviewed(tmp_path, files)
    try:
        found = one.only("wheel", "wheel.sdist-incomplete")
        assert "VERSION.txt" in found.title
    finally:
        one.close()


@pytest.mark.slow
def test_a_program_that_the_installation_needs_and_that_is_not_here_is_no_fault(tmp_path: Path):
    files = {"setup.py": MODULE_SETUP, "kind_one.py": ANSWER}
    settings = RepoSettings(install=("protoc-nobody-has --version",))
    one = reviewed(tmp_path, files, settings)
    try:
        assert one.install.state is ProbeState.COULD_NOT_RUN
        assert "needs" in one.install.reason and not one.install.candidates
    finally:
        one.close()


@pytest.mark.slow
def test_commands_of_the_settings_replace_the_detected_ones(tmp_path: Path):
    files = {
        "pyproject.toml": setuptools_project("chosen"),
        "src/chosen/__init__.py": ANSWER,
        "check.sh": "python -c 'import chosen; assert chosen.answer() == 41'\n",
    }
    settings = RepoSettings(
        install=("pip install .",), test=("sh check.sh",), benchmark={"answer": "python -c 'import chosen'"}
    )
    one = reviewed(tmp_path, files, settings)
    try:
        assert one.prepared.installed_plain and one.prepared.distribution == "chosen"
        assert one.result("tests").facts["commands"][0]["command"] == "sh check.sh"
        assert one.result("tests").state is ProbeState.FAILED
        assert "answer" in {taken.name for taken in one.result("benchmarks").measurements}
    finally:
        one.close()


def test_languages_are_told_by_their_manifests():
    assert detect_languages(["package.json", "index.js"]) == ("node",)
    assert detect_languages(["Cargo.toml", "pyproject.toml", "a/b.py"]) == ("python", "rust")
    assert detect_languages(["Makefile", "a.c"]) == ("make",)
    assert detect_languages(["README.md"]) == ()


def test_what_was_prepared_survives_json():
    prepared = Prepared(python="3.11.2", languages=("python",), resolved={"a": "1"})
    assert Prepared.model_validate_json(prepared.model_dump_json()) == prepared


def test_scripts_without_a_package_are_not_called_installed():
    prepared = Prepared(python="3.13.0", languages=("python",), resolved={"pip": "26.1"})
    assert summary_of(prepared).startswith("There is no package to install; Python 3.13.0, 1 distributions")
    named = prepared.model_copy(update={"distributions": (Distribution(name="pack", version="1.2"),)})
    assert summary_of(named).startswith("Installed pack 1.2; Python 3.13.0")
