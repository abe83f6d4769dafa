"""What a process is made of, as far as an operator's files decide it."""

import re
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient

from orchestrator import wiring
from orchestrator.services import reviews, submitting, working
from orchestrator.services.submitting import Submission
from orchestrator.settings import Settings, SettingsError
from orchestrator.store.session import Sessions
from orchestrator.web.app import make_app
from review_agents.scripted import ScriptedModel
from tests.support.tiny import Script, tiny_shop
from tests.support.tiny_agents import DONE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "agents.md"


def dropped_in(data: Path) -> str:
    """The example of the documentation, as a person would put it there."""
    (text,) = [
        one for one in re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S) if "mission" in one
    ]
    (data / "focuses").mkdir(parents=True)
    (data / "focuses" / "accessibility.toml").write_text(text, encoding="utf-8")
    return text


def test_a_person_adds_a_focus_by_dropping_in_a_file(sessions: Sessions, tmp_path: Path) -> None:
    dropped_in(tmp_path)
    focuses = wiring.focuses(Settings(data=tmp_path))
    assert list(focuses)[-1] == "accessibility", "in its order, behind ours"
    model = ScriptedModel({"focus:accessibility": [DONE]})
    shop = tiny_shop(sessions, tmp_path, script=Script(), chat=lambda: model, focuses=focuses)
    client = TestClient(make_app(shop, shop.settings), base_url="http://127.0.0.1")
    form = client.get("/").text
    assert 'value="accessibility"' in form and "Output that a screen reader can follow" in form
    made = submitting.submit(shop, Submission("https://git.example/team/tiny", focuses=("accessibility",)))
    working.do_one(shop, made)
    (step,) = [one for one in reviews.get(shop, made).steps if one.name.startswith("focus:")]
    assert (step.name, str(step.state)) == ("focus:accessibility", "done")
    (asked,) = model.asked
    assert "Find output that says something by colour or position alone." in asked.messages[-1].text


def test_the_template_of_a_dropped_focus_is_what_its_agent_is_told(sessions: Sessions, tmp_path: Path) -> None:
    text = dropped_in(tmp_path)
    folder = tmp_path / "focuses"
    (folder / "accessibility.toml").write_text(f'template = "accessibility.j2"\n{text}', encoding="utf-8")
    with pytest.raises(SettingsError, match=rf"{folder} is wrong\. accessibility\.toml: template: found 'acc"):
        wiring.focuses(Settings(data=tmp_path))
    (own,) = re.findall(r"```jinja\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    (folder / "accessibility.j2").write_text(own, encoding="utf-8")
    model = ScriptedModel({"focus:accessibility": [DONE]})
    focuses = wiring.focuses(Settings(data=tmp_path))
    shop = tiny_shop(sessions, tmp_path, script=Script(), chat=lambda: model, focuses=focuses)
    made = submitting.submit(shop, Submission("https://git.example/team/tiny", focuses=("accessibility",)))
    working.do_one(shop, made)
    (asked,) = model.asked
    told = asked.messages[-1].text
    assert "Your focus is Accessibility." in told and told.endswith("would read aloud.")


def test_a_mistake_in_a_dropped_file_stops_the_start_naming_file_and_key(tmp_path: Path) -> None:
    text = dropped_in(tmp_path)
    (tmp_path / "focuses" / "accessibility.toml").write_text(text.replace('"run"', '"fly"'), encoding="utf-8")
    with pytest.raises(SettingsError, match=r"accessibility\.toml: tools.*no tool 'fly'"):
        wiring.focuses(Settings(data=tmp_path))


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("", False),
        ("http://127.0.0.1:8751", True),
        ("http://localhost:8751/v1", True),
        ("http://[::1]:8751", True),
        ("http://Node:8751", True),
        ("http://10.8.0.1:8751", True),
        ("http://10.8.0.2:8751", False),
        ("https://node.example.com", False),
    ],
)
def test_measurements_say_when_a_node_thinks_on_the_same_machine(tmp_path: Path, url: str, here: bool) -> None:
    settings = Settings(data=tmp_path, model_url=url, model_beside=("NODE", "10.8.0.1"))
    assert wiring.note_of(settings) == (wiring.NODE_NOTE if here else "")


def test_only_the_operator_says_which_other_names_are_this_machine(tmp_path: Path) -> None:
    assert wiring.note_of(Settings(data=tmp_path, model_url="http://node:8751")) == ""


def test_compose_knows_the_name_that_it_gives_to_its_nodes() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert services["worker"]["environment"]["LAMPLIGHTER_MODEL_BESIDE"] == "${LAMPLIGHTER_MODEL_BESIDE:-node}"
    beside = [one for name, one in services.items() if name.startswith(("node-", "llama-"))]
    assert len(beside) == 5
    assert all(one["networks"]["outside"]["aliases"] == ["node"] for one in beside)
