from review_agents.probes.manifest import find_projects, poetry_constraint, resolve_group
from review_agents.probes.needs import install_lines, nox_needs, plugins_for, sources, tox_needs

PROJECT = '[project]\nname = "a"\nversion = "1"\n'


def reader(files: dict[str, str]):
    return lambda path: files.get(path)


def test_test_needs_are_gathered_from_every_place():
    files = {
        "pyproject.toml": (
            '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
            '[project]\nname = "a"\nversion = "1"\n'
            '[project.optional-dependencies]\ntest = ["x"]\ndocs = ["sphinx"]\n'
            '[dependency-groups]\ndev = ["mypy", {include-group = "tests"}]\ntests = ["hypothesis"]\n'
            '[tool.hatch.envs.default]\ndependencies = ["coverage"]\n'
        ),
        "requirements/test.txt": "y",
        "docs/requirements.txt": "z",
        "requirements-dev.txt": "w",
        "tox.ini": (
            "[testenv]\ndeps =\n    pytest-mock\n    cov: pytest-cov\n    lint: ruff\n    -r x.txt\nextras = fast\n"
        ),
    }
    (manifest,) = find_projects(files, reader(files))
    found = sources(manifest, manifest.extras, files, reader(files))
    tiers = {source.label: source.tier for source in found}
    assert tiers == {
        "extra test": 1,
        "dependency group tests": 1,
        "requirements/test.txt": 1,
        "hatch environment default": 1,
        "tox.ini": 1,
        "dependency group dev": 2,
        "requirements-dev.txt": 2,
    }
    assert next(source for source in found if source.label == "tox.ini").requirements == ("pytest-mock", "pytest-cov")
    assert next(source for source in found if source.label == "dependency group dev").requirements == (
        "mypy",
        "hypothesis",
    )


def test_included_groups_are_followed_and_cycles_end():
    groups = {
        "a": ["x", {"include-group": "B"}],
        "b": ["y", {"include-group": "a"}],
        "c": [{"include-group": "nothing"}],
    }
    assert resolve_group(groups, "a") == ("x", "y")
    assert resolve_group(groups, "c") == ()


def test_poetrys_constraints_become_ordinary_ones():
    assert poetry_constraint("^1.2.3") == ">=1.2.3,<2"
    assert poetry_constraint("^0.3") == ">=0.3,<0.4"
    assert poetry_constraint("~1.2") == ">=1.2,<1.3"
    assert poetry_constraint("*") == ""
    assert poetry_constraint("1.4") == "==1.4"
    assert poetry_constraint(">=2") == ">=2"


def test_nox_sessions_for_tests_are_read_without_running_them():
    text = (
        "import nox\n\n@nox.session\ndef tests(session):\n"
        "    session.install('.[all]', 'pytest', '-e', 'requests>=2')\n\n"
        "@nox.session\ndef lint(session):\n    session.install('ruff')\n"
    )
    source = nox_needs(text)
    assert source is not None and source.requirements == ("pytest", "requests>=2") and source.extras == ("all",)
    assert nox_needs("def broken(:") is None
    assert tox_needs("not an ini file") is None


def test_plugins_that_pytests_settings_call_for():
    assert plugins_for("--cov=a -n auto -ra --timeout=5", ["asyncio_mode"], "pytest-mock>=3") == (
        "pytest-cov",
        "pytest-xdist",
        "pytest-timeout",
        "pytest-asyncio",
        "pytest-mock>=3",
    )
    assert plugins_for("-ra -q --strict-markers --nothing", ["testpaths"]) == ()


def test_pip_lines_of_a_readme_are_read_with_their_line():
    text = "Install:\n\n    $ pip install 'a[x,y]>=1' b  # both\n    python3 -m pip install -e '.[test]'\n"
    text += "pip install -r dev.txt\npip install --help\n"
    one, two, three, _ = install_lines(text, "README.md")
    assert (one.line, one.requirements) == (3, ("a[x,y]>=1", "b"))
    assert two.paths == (".[test]",)
    assert three.files == ("dev.txt",)


def test_a_broken_manifest_is_named_and_does_not_stop_the_reading():
    files = {"pyproject.toml": "[project\n"}
    (manifest,) = find_projects(files, reader(files))
    assert "not valid TOML" in manifest.problems[0]
    assert find_projects({"a.py": ""}, reader({})) == ()


def test_tox_settings_inside_pyproject_are_read_with_their_references():
    legacy = "[core]\ndeps =\n    pytest-cov\n[testenv]\ndeps =\n    {[core]deps}\n    numpy\n"
    files = {"pyproject.toml": f'[project]\nname = "a"\nversion = "1"\n[tool.tox]\nlegacy_tox_ini = """\n{legacy}"""\n'}
    (manifest,) = find_projects(files, reader(files))
    (source,) = sources(manifest, (), files, reader(files))
    assert source.requirements == ("pytest-cov", "numpy")
    modern = {"pyproject.toml": f'{PROJECT}[tool.tox.env_run_base]\ndeps = ["ddt"]\nextras = ["x"]\n'}
    (manifest,) = find_projects(modern, reader(modern))
    (source,) = sources(manifest, (), modern, reader(modern))
    assert (source.requirements, source.extras) == (("ddt",), ("x",))
