import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from review_agents.probes.figures import from_file, from_output

# What a benchmark may print, and what it says.
LINES: list[tuple[str, dict[str, float]]] = [
    ("get_hit: 120 ns", {"get_hit": 120e-9}),
    ("parse = 1.5 ms per call", {"parse": 1.5e-3}),
    ("load      0.25 s", {"load": 0.25}),
    ("sort (1000 items): 3.2e2 µs", {"sort (1000 items)": 3.2e-4}),
    ("20000 loops, best of 5: 12.3 usec per loop", {"timeit": 12.3e-6}),
    ("parse   the whole: 2 seconds", {"parse the whole": 2.0}),
    ("first run = 7 secs", {"first run": 7.0}),
    ("throughput: 500 MB/s", {}),
    ("rate: 12 s/s", {}),
    ("done in 3 steps", {}),
    ("12 passed in 0.31s", {}),
]


@pytest.mark.parametrize(("line", "figures"), LINES)
def test_lines_with_a_name_a_number_and_a_unit_of_time_are_figures(line: str, figures: dict[str, float]):
    assert from_output(f"Benchmark of today\n{line}\n") == pytest.approx(figures)


def test_a_name_that_comes_twice_names_nothing():
    assert from_output("round: 5 ms\nround: 6 ms\nbest: 5 ms\n") == {"best": 0.005}


def test_files_of_each_tool_give_seconds():
    pytest_benchmark = {"benchmarks": [{"name": "test_a", "fullname": "t.py::test_a", "stats": {"median": 0.5}}]}
    pyperf = {
        "metadata": {"name": "sort"},
        "benchmarks": [{"runs": [{"warmups": [[1, 9.0]], "values": [0.2, 0.4]}, {"values": [0.3]}]}],
    }
    junit = (
        '<testsuites><testsuite><testcase classname="t" name="a" time="0.250"/>'
        '<testcase classname="t" name="b" time="0.1"><failure/></testcase></testsuite></testsuites>'
    )
    assert from_file(json.dumps(pytest_benchmark)) == {"t.py::test_a": 0.5}
    assert from_file(json.dumps(pyperf)) == {"sort": pytest.approx(0.3)}
    assert from_file(json.dumps({"seconds": {"time_x": 0.1}})) == {"time_x": 0.1}
    assert from_file(junit) == {"t::a": 0.25}


@given(
    st.text()
    | st.recursive(
        st.none() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["benchmarks", "seconds", "stats", "runs", "values", "metadata", "name"]), inner
            )
        ),
    ).map(json.dumps)
)
def test_nothing_that_a_repo_writes_breaks_the_reading(text: str):
    for figures in (from_file(text), from_output(text)):
        assert all(isinstance(value, float) and value > 0 for value in figures.values())
