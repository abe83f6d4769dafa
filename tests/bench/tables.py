"""docs/benchmarks.md, made from docs/figures/*.json: `python -m tests.bench.tables`. No figure is typed."""

import json
from collections.abc import Iterator
from typing import Any

from tests.bench.figures import FOLDER, ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
OPENING = """# Recorded figures

Made by `python -m tests.bench.tables` from the files in [figures/](figures/), each written by the command
that measured it. Only what was measured is here.
"""


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    return "\n".join(
        [OPENING, *(line for file in sorted(FOLDER.glob("*.json")) for line in section(json.loads(file.read_text())))]
    )


def section(record: dict[str, Any]) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    yield f"## {record['name']}\n"
    commit, changed, rest = record["commit"].partition("+")
    yield f"{record['date']}, commit `{commit[:12]}{changed}{rest}`, {record['machine']}. {versions}."
    yield f"Measured by `{record['command']}`" + (f"; model: {record['model']}." if "model" in record else ".") + "\n"
    yield "| figure | value |\n| --- | --- |"
    yield from (f"| {name} | {value:g} |" for name, value in record["figures"].items())
    yield ""
    if note := record.get("note"):
        yield f"{note}\n"
    if table := record.get("table"):
        yield from (f"| {' | '.join(map(str, row))} |" for row in (table["head"], ["---"] * len(table["head"])))
        yield from (f"| {' | '.join(map(str, row))} |" for row in table["rows"])
        yield ""


if __name__ == "__main__":
    main()
