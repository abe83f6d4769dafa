"""What the pages for users say is so: every setting is there, and every link leads somewhere."""

import re
from pathlib import Path

import pytest

from orchestrator.settings import PREFIX, Settings
from tests.bench import tables

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
