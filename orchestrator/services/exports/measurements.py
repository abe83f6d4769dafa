"""All measurements of a repo as files: a table, one line a night and figure, and JSON as the API has it."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter

from orchestrator.services.errors import UnknownRepo
from orchestrator.services.measurements import Measurements, get
from orchestrator.services.workshop import Workshop
from orchestrator.store import measurements, repos
from orchestrator.store.measurements import Night

WHOLE = TypeAdapter(Measurements)
IN_ONE_GO = 5_000  # rows that are read together
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would calculate
OF_NIGHT = ("name", "unit", "machine_key", "at", "commit", "review", "median", "spread", "good", "void", "note")
OF_VERDICT = ("verdict", "ratio", "low", "high")  # against the base of that night; empty where nothing was compared


def as_json(shop: Workshop, repo_id: UUID) -> bytes:
    return WHOLE.dump_json(get(shop, repo_id))


def as_csv(shop: Workshop, repo_id: UUID) -> Iterator[str]:
    """Newest first, in pieces, so that years of nights need no memory. Raises `UnknownRepo` at once."""
    with shop.sessions.reading() as db:
        if repos.get(db, repo_id) is None:
            raise UnknownRepo(repo_id)
    return pieces(shop, repo_id)


def pieces(shop: Workshop, repo_id: UUID) -> Iterator[str]:
    yield written([(*OF_NIGHT, *OF_VERDICT)])
    before: tuple[datetime, UUID] | None = None
    while True:
        with shop.sessions.reading() as db:
            nights = measurements.nights(db, repo_id, newest=IN_ONE_GO, before=before)
            verdicts = measurements.verdicts(db, repo_id, nights[0].at, nights[-1].at) if nights else {}
        if not nights:
            return
        yield written(cells(night, verdicts.get(night.id) or {}) for night in reversed(nights))
        assert nights[0].id is not None  # we asked for it
        before = nights[0].at, nights[0].id


def cells(one: Night, verdict: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        harmless(one.name),
        harmless(one.unit),
        harmless(one.machine_key),
        one.at.isoformat(),
        one.commit,
        one.review_id,
        one.median,
        one.spread,
        one.good,
        one.void,
        harmless(one.note),
        *(verdict.get(part) for part in OF_VERDICT),
    )


def harmless(text: str) -> str:
    """A name out of a repo must not be calculated by whoever opens the file."""
    return f"'{text}" if text.startswith(FORMULA) else text


def written(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()
