"""The node's settings: where they come from, and that a wrong one stops the start by name."""

from pathlib import Path

import pytest

from inference_node import settings
from inference_node.settings import SettingsError


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith(settings.PREFIX)]:
        monkeypatch.delenv(name)


def test_options_come_before_the_environment_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "node.toml"
    file.write_text('model = "from file"\ndraft = "ngram"\nport = 1\n')
    monkeypatch.setenv("LAMPNODE_CONFIG", str(file))
    monkeypatch.setenv("LAMPNODE_PORT", "2")
    found = settings.load(model="given", name=None)
    assert (found.model, found.draft, found.port) == ("given", "ngram", 2)


def test_a_misspelt_variable_stops_the_start_and_the_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMPNODE_PROT", "1")
    with pytest.raises(SettingsError, match=r"LAMPNODE_PROT is not a setting. Did you mean LAMPNODE_PORT\?"):
        settings.load()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("PORT", "99999", "LAMPNODE_PORT"),
        ("ENGINE", "quick", "'reference'"),
        ("WIDTH", "wide", "adaptive"),
        ("TEMPERATURE", "hot", "LAMPNODE_TEMPERATURE"),
        ("PREFIX_BYTES", "-1", "LAMPNODE_PREFIX_BYTES"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_found(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(f"LAMPNODE_{name}", value)
    with pytest.raises(SettingsError) as refused:
        settings.load()
    assert told in str(refused.value)
    assert value in str(refused.value)


def test_an_unknown_name_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('modle = "x"\n')
    with pytest.raises(SettingsError, match=r"node.toml names modle, which is not a setting. Did you mean model\?"):
        settings.load(config=file)


@pytest.mark.parametrize("content", ["not toml", None])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "node.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match=r"node\.toml"):
        settings.load(config=file)


def test_keys_come_one_a_line_from_their_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\ntwo\n\n")
    assert settings.load(api_key_file=file).keys == ("one", "two")
    assert settings.load().keys == ()


@pytest.mark.parametrize("content", ["", "\n", None])
def test_a_key_file_without_keys_does_not_open_the_node_to_all(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match="API key file"):
        _ = settings.load(api_key_file=file).keys


def test_host_names_are_limited_on_a_loopback_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "localhost" in settings.load().hosts
    assert settings.load(host="0.0.0.0").hosts == ()
    monkeypatch.setenv("LAMPNODE_ALLOWED_HOSTS", "node.lan, 10.0.0.5")
    assert settings.load(host="0.0.0.0").hosts == ("node.lan", "10.0.0.5")
    monkeypatch.setenv("LAMPNODE_ALLOWED_HOSTS", "*")
    assert settings.load().hosts == ()


def test_importing_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMPNODE_NONSENSE", "1")
    import importlib

    importlib.reload(settings)
