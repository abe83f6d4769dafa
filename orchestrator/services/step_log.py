"""What a step says, on its way into the database: a chunk about once a second, a bounded number of bytes in all."""

import threading
from collections import deque
from contextlib import suppress
from uuid import UUID

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from orchestrator.services.claiming import Hold
from orchestrator.store import logs

CHUNK_CHARS = 64 << 10
SLACK_BYTES = 1 << 20  # the middle is taken out in pieces of at least this size


class StepLog:
    """One attempt of a step. `write` from any thread; `flush` puts down what has come since."""

    def __init__(self, hold: Hold, step_id: UUID, attempt: int):
        self._hold = hold
        self._step_id = step_id
        self._attempt = attempt
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._waiting: list[str] = []
        self._seq = 0
        self._head_bytes = 0
        self._tail: deque[tuple[int, int]] = deque()  # sequence number and bytes of chunks after the head
        self._tail_bytes = 0
        self._gap: tuple[int, int] | None = None  # first sequence number taken out, and bytes

    def write(self, text: str) -> None:
        with self._lock:
            self._waiting.append(text)

    def flush(self) -> None:
        with self._flushing:
            with self._lock:
                text, self._waiting = "".join(self._waiting), []
            if not text:
                return
            pieces = [text[at : at + CHUNK_CHARS] for at in range(0, len(text), CHUNK_CHARS)]
            first = self._seq + 1
            with suppress(IntegrityError):  # written already, and the answer was lost with the connection
                self._hold.write(lambda db: self._append(db, first, pieces))
            self._seq += len(pieces)
            self._count(first, pieces)
            self._take_out_middle()

    def _append(self, db: Session, first: int, pieces: list[str]) -> None:
        now = self._hold.shop.clock()
        for seq, piece in enumerate(pieces, first):
            logs.append(db, self._hold.review_id, self._step_id, self._attempt, seq, now, piece)

    def _count(self, first: int, pieces: list[str]) -> None:
        for seq, piece in enumerate(pieces, first):
            size = len(piece.encode("utf-8", "replace"))
            if self._head_bytes < logs.HALF_BYTES:
                self._head_bytes += size
            else:
                self._tail.append((seq, size))
                self._tail_bytes += size

    def _take_out_middle(self) -> None:
        if self._tail_bytes <= logs.HALF_BYTES + SLACK_BYTES:
            return
        first, gone = self._gap or (self._tail[0][0], 0)
        last = first
        while self._tail_bytes > logs.HALF_BYTES:
            last, size = self._tail.popleft()
            self._tail_bytes -= size
            gone += size
        words = f"\n[... {gone} bytes not kept ...]\n"
        self._hold.write(lambda db: logs.take_out(db, self._step_id, self._attempt, first, last, words))
        self._gap = (first, gone)
