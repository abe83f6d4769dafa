import pytest

from review_agents.probes.names import Names
from review_agents.probes.shell import Package


@pytest.fixture
def names() -> Names:
    known = Names(Package(modules=("furl",)))
    known.learn("import furl")
    known.learn("f = furl.furl('http://example.org')")
    return known


@pytest.mark.parametrize(
    ("code", "called"),
    [
        ("furl.furl('http://a/').url", "furl.furl"),
        ("f.set(path='a')", "f.set"),
        ("f.url", "url"),
        ("f.path.segments", "segments"),
        ("f", "f"),
        ("len([1])", ""),
        ("other.url", ""),
    ],
)
def test_examples_are_told_apart_by_what_they_call_or_read(names: Names, code: str, called: str):
    assert names.called_by(code) == called
