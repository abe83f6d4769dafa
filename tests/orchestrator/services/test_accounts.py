"""Accounts, logins and tokens on both databases; when anybody is asked at all; and what guessing costs."""

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from sqlalchemy import text

from orchestrator.services import accounts, passwords
from orchestrator.services.errors import BadInput, NotAllowed, NotNow, TooManyTries, UnknownAccount, WrongPassword
from orchestrator.services.workshop import Workshop
from orchestrator.settings import Settings
from orchestrator.store.session import Sessions
from tests.factories import Clock, make_shop

RIGHT = "correct horse 9"
ADDRESS = "203.0.113.9"


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "HASHER", PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))
    passwords.nobodys.cache_clear()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shop(each_sessions: Sessions, tmp_path: Path, clock: Clock) -> Workshop:
    return make_shop(each_sessions, tmp_path, clock=clock)


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, False),
        ({"host": "::1"}, False),
        ({"host": "localhost"}, False),
        ({"host": "127.8.8.8"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "192.168.1.4"}, True),
        ({"host": "some-name"}, True),
        ({"host": "0.0.0.0", "publish": "127.0.0.1"}, False),
        ({"host": "127.0.0.1", "publish": "0.0.0.0"}, True),
        ({"accounts": "required"}, True),
        ({"host": "0.0.0.0", "accounts": "none"}, False),
    ],
    ids=str,
)
def test_without_an_account_nobody_is_asked_only_where_only_this_machine_can_come(
    sessions: Sessions, tmp_path: Path, settings: dict[str, Any], asked: bool
) -> None:
    shop = make_shop(sessions, tmp_path, settings=settings)
    assert accounts.needed(shop) is asked
    assert accounts.needed(shop, forwarded=True) is (settings.get("accounts") != "none")
    accounts.create(shop, "ada", RIGHT, admin=True)
    assert accounts.needed(shop) is (settings.get("accounts") != "none")


def test_a_login_is_known_by_its_secret_until_it_ends(shop: Workshop, clock: Clock) -> None:
    made = accounts.create(shop, " Ada ", RIGHT, admin=True)
    first = accounts.log_in(shop, "ADA", RIGHT, ADDRESS)
    second = accounts.log_in(shop, "ada", RIGHT, ADDRESS)
    assert first != second
    assert accounts.who_logged_in(shop, first) == made
    accounts.log_out(shop, first)
    assert accounts.who_logged_in(shop, first) is None
    assert accounts.who_logged_in(shop, second) == made
    clock.forward(days=13)
    assert accounts.who_logged_in(shop, second) == made  # and the visit counts
    clock.forward(days=13)
    assert accounts.who_logged_in(shop, second) == made
    clock.forward(days=15)
    assert accounts.who_logged_in(shop, second) is None


def test_nothing_in_the_database_lets_anybody_in(shop: Workshop) -> None:
    account = accounts.create(shop, "ada", RIGHT, admin=True)
    login, token = accounts.log_in(shop, "ada", RIGHT, ADDRESS), accounts.make_token(shop, account.id, "ci")
    kept = []
    with shop.sessions.reading() as db:
        for table in ("accounts", "logins", "api_tokens"):
            kept += [str(value) for row in db.execute(text(f"SELECT * FROM {table}")) for value in row]
    assert not any(secret in value for value in kept for secret in (RIGHT, login, token))
    assert not [value for value in kept if accounts.who_logged_in(shop, value) or accounts.who_has_token(shop, value)]


def test_a_new_password_ends_all_other_logins(shop: Workshop) -> None:
    account = accounts.create(shop, "ada", RIGHT, admin=True)
    mine, other = (accounts.log_in(shop, "ada", RIGHT, ADDRESS) for _ in range(2))
    with pytest.raises(BadInput, match="not the present"):
        accounts.change_password(shop, account.id, "wrong", "another one 1")
    accounts.change_password(shop, account.id, RIGHT, "another one 1", keep=mine)
    assert accounts.who_logged_in(shop, mine) and accounts.who_logged_in(shop, other) is None
    with pytest.raises(WrongPassword):
        accounts.log_in(shop, "ada", RIGHT, ADDRESS)
    accounts.set_password(shop, "ada", "a third one 22")
    assert accounts.who_logged_in(shop, mine) is None


@pytest.mark.parametrize("password", ["", "short", "aaaaaaaaaaaa", "ada.lovelace", "x" * 201])
def test_a_password_that_is_guessed_at_once_is_refused(shop: Workshop, password: str) -> None:
    with pytest.raises(BadInput):
        accounts.create(shop, "ada.lovelace", password, admin=False)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "<b>", "ä", "-a", "a" * 65, "a\n"[:1] + "\x00"])
def test_a_name_that_could_mean_something_else_is_refused(shop: Workshop, name: str) -> None:
    with pytest.raises(BadInput):
        accounts.create(shop, name, RIGHT, admin=False)


def test_guessing_waits_longer_each_time_and_a_right_login_ends_it(shop: Workshop, clock: Clock) -> None:
    accounts.create(shop, "ada", RIGHT, admin=True)
    for _ in range(5):
        with pytest.raises(WrongPassword):
            accounts.log_in(shop, "ada", "wrong", ADDRESS)
    waits = []
    for _ in range(12):
        with pytest.raises(TooManyTries) as told:
            accounts.log_in(shop, "ada", RIGHT, ADDRESS)  # even the right one, or it would be told apart
        waits.append(told.value.wait_s)
        clock.forward(seconds=told.value.wait_s)
        with pytest.raises(WrongPassword):
            accounts.log_in(shop, "ada", "wrong", ADDRESS)
    assert waits[0] <= 3 and waits == sorted(waits) and waits[-1] == 15 * 60 + 1
    accounts.log_in(shop, "ada", RIGHT, "198.51.100.7")  # from elsewhere its owner still gets in
    clock.forward(minutes=16)
    accounts.log_in(shop, "ada", RIGHT, ADDRESS)
    with pytest.raises(WrongPassword):
        accounts.log_in(shop, "ada", "wrong", ADDRESS)


def test_guesses_at_many_names_and_from_many_addresses_are_counted_too(shop: Workshop, clock: Clock) -> None:
    accounts.create(shop, "ada", RIGHT, admin=True)

    def refused(name: str, address: str) -> bool:
        try:
            accounts.log_in(shop, name, "wrong", address)
        except TooManyTries:
            return True
        except WrongPassword:
            return False
        raise AssertionError

    assert sum(refused("ada", f"203.0.113.{number}") for number in range(40)) == 20
    clock.forward(hours=3)
    assert sum(refused(f"name{number}", ADDRESS) for number in range(80)) == 30
    clock.forward(hours=3)
    assert sum(refused(f"name{number}", "127.0.0.1") for number in range(80)) == 0  # a proxy's address is everybody's


def test_many_guesses_at_one_moment_are_many(shop: Workshop) -> None:
    accounts.create(shop, "ada", RIGHT, admin=True)
    looked: list[str] = []

    def guess() -> None:
        try:
            accounts.log_in(shop, "ada", "wrong", ADDRESS)
        except WrongPassword:
            looked.append("")
        except TooManyTries:
            pass

    threads = [threading.Thread(target=guess) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(looked) <= 5


def test_tokens_are_an_accounts_own_and_end_with_it(shop: Workshop) -> None:
    ada, bob = (accounts.create(shop, name, RIGHT, admin=name == "ada") for name in ("ada", "bob"))
    token = accounts.make_token(shop, bob.id, "nightly job")
    assert token.startswith("lamp_") and accounts.who_has_token(shop, token) == bob
    row = accounts.tokens(shop, bob.id)[0]
    assert (row.name, row.used_at) == ("nightly job", shop.clock())
    accounts.revoke_token(shop, ada.id, row.id)  # not hers
    assert accounts.who_has_token(shop, token) == bob
    accounts.revoke_token(shop, bob.id, row.id)
    assert accounts.who_has_token(shop, token) is None
    other, login = accounts.make_token(shop, bob.id, "x"), accounts.log_in(shop, "bob", RIGHT, ADDRESS)
    accounts.remove(shop, "bob")
    assert accounts.who_has_token(shop, other) is None and accounts.who_logged_in(shop, login) is None
    with pytest.raises(UnknownAccount):
        accounts.by_name(shop, "bob")


def test_the_last_admin_stays_while_there_are_others(shop: Workshop) -> None:
    accounts.create(shop, "ada", RIGHT, admin=True)
    bob = accounts.create(shop, "bob", RIGHT, admin=False)
    with pytest.raises(NotNow, match="last admin"):
        accounts.remove(shop, "ada")
    with pytest.raises(NotAllowed):
        accounts.must_be_admin(bob)
    accounts.must_be_admin(None)
    accounts.remove(shop, "bob")
    accounts.remove(shop, "ada")
    assert accounts.listed(shop) == ()


def test_the_first_account_is_made_once(shop: Workshop) -> None:
    accounts.create(shop, "ada", RIGHT, admin=True, only_first=True)
    with pytest.raises(NotNow):
        accounts.create(shop, "eve", RIGHT, admin=True, only_first=True)
    with pytest.raises(BadInput, match="already"):
        accounts.create(shop, "ADA", RIGHT, admin=False)


def test_the_hashes_are_as_dear_as_the_library_recommends() -> None:
    usual = PasswordHasher()
    assert (usual.memory_cost, usual.time_cost) >= (64 * 1024, 3)
    assert timedelta(days=1) < accounts.LOGIN_LASTS and Settings().accounts == "auto"
