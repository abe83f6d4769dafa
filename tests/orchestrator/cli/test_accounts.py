"""`lamplighter accounts`: the operator's own way to accounts."""

import io
import sys

import pytest

from tests.orchestrator.cli.conftest import Command

RIGHT = "correct horse 9"


def test_accounts_are_made_listed_changed_and_removed(lamplighter: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    assert "no account" in lamplighter("accounts", "list").err
    typed(f"{RIGHT}\n")
    first = lamplighter("accounts", "add", "Ada", "--password-stdin")
    assert first.status == 0 and "is the admin" in first.err
    typed("short\n")
    refused = lamplighter("accounts", "add", "bob", "--password-stdin")
    assert refused.status == 2 and "10 to 200 characters" in refused.err
    typed(f"{RIGHT}\n")
    second = lamplighter("accounts", "add", "bob", "--password-stdin")
    assert (second.status, second.err) == (0, "bob may log in now.\n")
    listed = [line.split()[:2] for line in lamplighter("accounts", "list").out.splitlines()]
    assert listed == [["ada", "admin"], ["bob", "member"]]
    assert lamplighter("accounts", "token", "bob").out.startswith("lamp_")
    typed("another one 1\n")
    assert lamplighter("accounts", "password", "bob", "--password-stdin").status == 0
    assert lamplighter("accounts", "remove", "ada").status == 2  # the last admin
    assert lamplighter("accounts", "remove", "bob").status == 0
    assert lamplighter("accounts", "remove", "bob").status == 2
    typed("")
    assert "--password-stdin" in lamplighter("accounts", "add", "carol").err
