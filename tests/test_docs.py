"""What the pages for users say is so: every setting is there, and every link leads somewhere."""

import json
import re
from pathlib import Path

import pytest

from orchestrator.settings import PREFIX, Settings
from tests.bench import field, field_page, tables
from tests.bench.figures import FOLDER

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_setting_is_on_the_settings_page_and_no_other() -> None:
    said = re.findall(rf"^\| `({PREFIX}[A-Z_]+)`", (ROOT / "docs/settings.md").read_text(encoding="utf-8"), re.M)
    assert sorted(said) == sorted(PREFIX + name.upper() for name in Settings.model_fields)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_in_a_page_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing, f"{page.name} links to {missing}"


def test_the_page_of_figures_is_made_from_the_recorded_files() -> None:
    assert tables.PAGE.read_text(encoding="utf-8") == tables.page(), "run python -m tests.bench.tables"


def test_the_page_of_field_tests_is_made_from_what_was_reviewed_and_judged() -> None:
    assert field_page.PAGE.read_text(encoding="utf-8") == field_page.page(), "run python -m tests.bench.field_page"


def test_every_finding_of_the_field_tests_is_judged_and_the_figures_are_theirs() -> None:
    summaries, known = field.read_summary(), field.read_judged()
    assert list(field.to_judge(summaries, known)) == []
    recorded = json.loads((FOLDER / "field-tests.json").read_text(encoding="utf-8"))
    assert recorded["figures"] == field.as_figures(summaries, known)
    assert all((ROOT / one["test"]).exists() for one in known["mended"])
