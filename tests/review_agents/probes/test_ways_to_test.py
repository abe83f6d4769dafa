from review_agents.probes.manifest import find_projects
from review_agents.probes.suites import base_of, pytest_ways
from review_agents.probes.ways_to_test import documented_commands, preparing_steps, runnable


def commands(files: dict[str, str]) -> list[str]:
    manifests = find_projects(files, files.get)
    return [one.text for one in documented_commands(tuple(files), manifests, files.get)]


def test_readme_tox_hatch_make_and_ci_are_read():
    files = {
        "README.md": "Run\n\n    $ pytest tests\n\nor `pytest`. See pytest for more.\n",
        "tox.ini": "[testenv]\ncommands =\n    python -m pytest {posargs:tests} \\\n        -q\n    ruff check\n",
        "pyproject.toml": (
            '[project]\nname = "a"\nversion = "1"\n[tool.hatch.envs.test.scripts]\nrun = "pytest -x"\nlint = "ruff"\n'
        ),
        "Makefile": "test:\n\tpython -m unittest discover\n",
        ".github/workflows/ci.yml": "    - run: pytest --cov\n    - name: pytest on latest versions\n",
    }
    assert commands(files) == [
        "pytest tests",
        "python -m pytest tests -q",
        "pytest -x",
        "python -m unittest discover",
        "pytest --cov",
    ]


def test_a_description_that_begins_with_a_runners_name_is_no_command():
    files = {
        "pyproject.toml": (
            '[project]\nname = "a"\nversion = "1"\n[tool.tox.env.lowest]\n'
            'description = "pytest on the lowest versions"\ncommands = [["pytest", "-v"]]\n'
        )
    }
    assert commands(files) == ["pytest -v"]


def test_commands_with_unknown_parts_are_left_out():
    assert runnable("pytest {envtmpdir}/x") == ""
    assert runnable("pytest tests/test_a.py::test_b") == ""
    assert runnable("pytest $(ARGS)") == "pytest"
    assert runnable("py.test  -q") == "pytest -q"


def test_single_files_and_selections_do_not_count_as_the_whole_run():
    from review_agents.probes.ways_to_test import Command

    texts = ["pytest tests/test_a.py", "pytest -k one", "coverage run --source a -m pytest", "pytest -q"]
    assert pytest_ways([Command(text=text, source="README.md") for text in texts]) == ("python -m pytest", "pytest -q")


def test_a_test_by_itself_keeps_only_the_options_that_decide_what_it_sees():
    assert base_of("pytest -vv --durations 25 tests -W error -p no:x --cov=a") == "pytest -W error -p no:x"
    assert base_of("python -m pytest -n auto --doctest-modules src") == "python -m pytest --doctest-modules"


def test_own_scripts_that_ci_runs_before_the_tests_are_named():
    files = {
        ".github/workflows/ci.yml": "run: ./retry.sh python update_data.py\nrun: python setup.py sdist\n",
        "tox.ini": "[testenv]\ncommands =\n    python tools/make_tables.py\n    python tests.py\n",
        "README.md": "    python examples/show.py\n",
        **dict.fromkeys(("update_data.py", "setup.py", "tools/make_tables.py", "tests.py", "examples/show.py"), ""),
    }
    assert preparing_steps(tuple(files), files.get) == (
        "`python update_data.py` of .github/workflows/ci.yml",
        "`python tools/make_tables.py` of tox.ini",
    )
