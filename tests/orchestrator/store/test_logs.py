from datetime import timedelta

from sqlalchemy import func, select

from orchestrator.store import logs
from orchestrator.store.logs import HALF_BYTES, Log, LogChunk
from orchestrator.store.reviews import ReviewState
from orchestrator.store.session import Sessions
from tests.factories import NOON, make_chunk, make_review, make_step


def test_a_log_of_more_than_eight_mebibytes_keeps_both_ends_and_says_how_much_is_missing(
    each_sessions: Sessions,
) -> None:
    chunk = "é" * (1 << 19)  # 1 MiB of UTF-8, so that a cut may fall inside a character
    with each_sessions.begin() as db:
        step = make_step(db, make_review(db), "prepare")
        make_chunk(db, step, "first x")
        for _ in range(12):
            make_chunk(db, step, chunk)
        make_chunk(db, step, "last")
        logs.pack(db, step.id)
    with each_sessions.reading() as db:
        text = logs.text_of(db, step.id)
        packed = db.get_one(Log, step.id)
    whole = 12 * (1 << 20) + 11
    assert packed.bytes == whole
    assert text.startswith("first xé") and text.endswith("élast")
    assert f"\n[... {whole - 2 * HALF_BYTES} bytes not kept ...]\n" in text
    assert 2 * HALF_BYTES - 8 <= len(text.encode()) <= 2 * HALF_BYTES + 60


def test_a_log_of_just_eight_mebibytes_is_whole() -> None:
    text = "x" * (2 * HALF_BYTES)
    assert logs.cut(text) == text
    assert "1 bytes not kept" in logs.cut(text + "x")


def test_each_attempt_after_the_first_is_announced(sessions: Sessions) -> None:
    with sessions.begin() as db:
        step = make_step(db, make_review(db), "prepare")
        make_chunk(db, step, "died", attempt=1, seq=0)
        make_chunk(db, step, "again", attempt=2, seq=0)
        assert logs.text_of(db, step.id) == "died\n[... attempt 2 ...]\nagain"


def test_packing_again_after_another_attempt_replaces_the_blob(each_sessions: Sessions) -> None:
    with each_sessions.begin() as db:
        step = make_step(db, make_review(db), "prepare")
        make_chunk(db, step, "one")
        logs.pack(db, step.id)
    with each_sessions.begin() as db:
        make_chunk(db, step, "two")
        logs.pack(db, step.id)
    with each_sessions.reading() as db:
        assert logs.text_of(db, step.id) == "onetwo"


def test_chunks_are_forgotten_once_packed_and_old(each_sessions: Sessions) -> None:
    with each_sessions.begin() as db:
        done = make_review(db, state=ReviewState.DONE, finished_at=NOON)
        packed, loose = make_step(db, done, "prepare"), make_step(db, done, "merge")
        living = make_step(db, make_review(db, state=ReviewState.RUNNING), "prepare")
        for step in (packed, loose, living):
            make_chunk(db, step)
        logs.pack(db, packed.id)
        logs.pack(db, living.id)
        logs.forget_chunks(db, NOON)
        assert count(db) == 3
        logs.forget_chunks(db, NOON + timedelta(seconds=1))
        assert count(db) == 2
        assert logs.text_of(db, packed.id) == "a line\n"


def count(db) -> int:  # type: ignore[no-untyped-def]
    return db.scalar(select(func.count()).select_from(LogChunk)) or 0


def test_an_empty_log_is_empty(sessions: Sessions) -> None:
    with sessions.begin() as db:
        step = make_step(db, make_review(db), "prepare")
        assert logs.text_of(db, step.id) == ""
        logs.pack(db, step.id)
        assert logs.text_of(db, step.id) == ""
