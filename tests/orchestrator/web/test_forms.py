"""Form fields as values."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from orchestrator.services.errors import BadInput
from orchestrator.web import forms


def test_an_empty_number_is_none_and_a_wrong_one_names_its_field() -> None:
    assert forms.whole_number("pause", " ") is None
    assert forms.whole_number("pause", " 12 ") == 12
    for given in ("1.5", "x", "-1", "0", "9" * 30, "\ud800"):
        with pytest.raises(BadInput) as caught:
            forms.whole_number("pause", given)
        assert caught.value.field == "pause"


def test_a_list_is_split_at_commas() -> None:
    assert forms.names(" a, b ,,") == ("a", "b")


def test_a_day_ends_at_its_midnight() -> None:
    assert forms.end_of_day("until", "2026-12-31") == datetime(2027, 1, 1, tzinfo=UTC)
    assert forms.end_of_day("until", "") is None
    for given in ("tomorrow", "2026-02-30", "9999-12-31"):
        with pytest.raises(BadInput, match="is not a day"):
            forms.end_of_day("until", given)


def test_only_an_identifier_is_an_identifier() -> None:
    assert forms.identifier("repo", str(UUID(int=1))) == UUID(int=1)
    with pytest.raises(BadInput):
        forms.identifier("repo", "' OR 1=1")
