"""Who is next: clients take turns, each client's own requests stay in order, and the number that waits is limited."""

import threading
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Waiting items by client. Any thread may put or remove; one thread takes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()  # the client whose turn it is comes first
        self._count = 0
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self._count

    def put(self, client: str, item: T) -> bool:
        """False when the queue is full or closed."""
        with self._changed:
            if self._closed or self._count >= self._limit:
                return False
            self._lines.setdefault(client, deque()).append(item)
            self._count += 1
            self._changed.notify()
            return True

    def take(self) -> T | None:
        """The next item, waiting for one. None once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._count or self._closed)
            if self._closed:
                return None
            client, line = self._lines.popitem(last=False)
            item = line.popleft()
            self._count -= 1
            if line:
                self._lines[client] = line  # behind the others
            return item

    def remove(self, item: T) -> bool:
        """Take out an item that waits. False when it does not wait any more."""
        with self._changed:
            for client, line in self._lines.items():
                if item in line:
                    line.remove(item)
                    self._count -= 1
                    if not line:
                        del self._lines[client]
                    return True
            return False

    def close(self) -> list[T]:
        """Let nothing more in, wake the taker, and give back what waited."""
        with self._changed:
            self._closed = True
            left = [item for line in self._lines.values() for item in line]
            self._lines.clear()
            self._count = 0
            self._changed.notify_all()
            return left
