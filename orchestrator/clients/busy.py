"""What a node works on now, by what servers tell of it, each in its own way; and whether a request of ours waits there.

Servers queue: ours in silence but for comments, llama-server and vLLM in silence altogether. Who asks cannot tell a
long prompt of its own being read from work for somebody else, so it looks.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.clients.chat_wire import number

TIMEOUT_S = 10.0
FIRST_LOOK_S = 2.0  # what a look before each turn may take
LOOK_EVERY_S = 5.0  # whether ours still waits
OUTSIDE_EVERY_S = 1.0  # whether there is room for ours
READING = ": reading the prompt"  # our node's comment in the stream of a request that it has taken up
RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")  # llama-server's are told by its slots, and better


@dataclass(frozen=True, slots=True)
class Work:
    """What a server tells of its work at one moment."""

    running: bool
    full: bool = False  # what is asked now has to wait
    waiting: int = 0  # requests that wait, where it tells
    tasks: frozenset[int] | None = None  # that are in work; None: it does not tell them apart
    writing: frozenset[int] = frozenset()  # those that have written a token


class Onlooker:
    """Looks at one server. Remembers which of its pages tells, or that none does."""

    def __init__(self, base: str):
        self._base = base
        self._path = ""
        self._silent = False

    async def look(self, client: httpx.AsyncClient, model: str, *, timeout_s: float = TIMEOUT_S) -> Work | None:
        """None: it does not tell, or did not answer."""
        understood = True
        for path, read in places(model):
            if self._silent or self._path not in ("", path):
                continue
            try:
                reply = await client.get(f"{self._base}{path}", timeout=timeout_s)
                found = read(reply) if reply.status_code == 200 else None
            except httpx.TransportError:
                return None
            except (httpx.HTTPError, ValueError, AttributeError, RecursionError):
                continue  # another server's page of that name
            if found is not None:
                self._path = path
                return found
            understood = understood and reply.status_code < 500
        self._silent = understood and not self._path
        return None


def places(model: str) -> Iterator[tuple[str, Callable[[httpx.Response], Work | None]]]:
    yield "/health", by_health  # our node
    yield "/slots", by_slots  # llama-server
    if model:
        yield f"/upstream/{quote(model, safe='/:')}/slots", by_slots  # llama-server behind llama-swap
    yield "/metrics", by_metrics  # vLLM, SGLang, llama-server whose slots are not shown


def by_health(reply: httpx.Response) -> Work | None:
    told = reply.json()
    running, waiting = told.get("running"), told.get("waiting")
    if not isinstance(running, int):
        return None
    return Work(running > 0, full=running > 0, waiting=waiting if isinstance(waiting, int) else 0)  # one at a time


def by_slots(reply: httpx.Response) -> Work | None:
    slots = reply.json()
    if not isinstance(slots, list):
        return None
    busy = [slot for slot in slots if isinstance(slot, Mapping) and slot.get("is_processing")]
    tasks = {slot["id_task"]: written(slot) for slot in busy if isinstance(slot.get("id_task"), int)}
    return Work(
        running=bool(busy),
        full=0 < len(slots) == len(tasks),
        tasks=frozenset(tasks),
        writing=frozenset(task for task, tokens in tasks.items() if tokens > 0),
    )


def written(slot: Mapping[str, Any]) -> int:
    """Tokens of the slot's answer so far; newer servers list them for each sequence."""
    told = slot.get("next_token")
    each = told if isinstance(told, list) else [told]
    counts = [one.get("n_decoded") for one in each if isinstance(one, Mapping)]
    return sum(count for count in counts if isinstance(count, int))


def by_metrics(reply: httpx.Response) -> Work | None:
    samples = [sample for family in text_string_to_metric_families(reply.text) for sample in family.samples]
    running = [sample.value for sample in samples if sample.name in RUNNING]
    waiting = sum(number(sample.value) for sample in samples if sample.name in WAITING)
    return Work(any(running), full=waiting > 0, waiting=waiting) if running else None


def behind_others(work: Work, before: Work | None) -> bool:
    """Whether a request of ours of which nothing has come yet waits. `before` is what was seen before it was sent."""
    if work.tasks is None:
        return work.full and work.waiting > 0
    known = before.tasks if before is not None and before.tasks is not None else frozenset()
    return work.full and work.tasks <= known | work.writing


class Line:
    """One request of ours in the line before a node. It reports `begun`; who asked hears when it waited too long.

    The answers of a review are asked for one after another, so whatever else a node works on is not ours.
    """

    def __init__(self, look: Callable[[float], Awaitable[Work | None]], patience_s: float):
        self._look = look
        self._patience_s = patience_s
        self._before: Work | None = None
        self.others = 0  # that waited when it was last looked at, where the server tells
        self._since: float | None = None
        self._begun = asyncio.Event()
        self.began = time.monotonic()
        self.waited_s = 0.0  # behind others, as far as it was seen

    async def too_busy_to_send(self) -> bool:
        """True when it was so for too long.

        Our node and vLLM drop a request that is hung up on in their line, so ours may stand in it at once. llama-server
        notices only when it comes to it, and reads a batch of its prompt for nobody: there we wait outside.
        """
        while True:
            work = await self._look(FIRST_LOOK_S)
            self._before = work or self._before
            self.others = work.waiting if work is not None else self.others
            if self._is_too_long(work.full if work is not None else None):
                return True
            if work is None or not work.full or work.tasks is None:
                return False
            await asyncio.sleep(min(OUTSIDE_EVERY_S, max(0.1, self._patience_s / 4)))

    async def too_long(self) -> bool:
        """Comes back with True when ours has waited too long behind others, with False once it is worked on."""
        pause_s = min(LOOK_EVERY_S, max(0.1, self._patience_s / 4))
        while not await self._begins_within(pause_s):
            work = await self._look(TIMEOUT_S)
            self.others = max(0, work.waiting - 1) if work is not None else self.others
            if not self._begun.is_set() and self._is_too_long(behind_others(work, self._before) if work else None):
                return True
        return False

    @property
    def behind(self) -> bool:
        """Whether ours waited when it was last looked at."""
        return self._since is not None and not self._begun.is_set()

    def begun(self) -> None:
        """The node works on ours."""
        self._is_too_long(False)
        self._begun.set()

    async def _begins_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._begun.wait()
        except TimeoutError:
            return False
        return True

    def _is_too_long(self, waits: bool | None) -> bool:
        """Takes in what was seen; None is no answer, and says nothing."""
        now = time.monotonic()
        if self._begun.is_set() or waits is None:
            return False
        if not waits:
            self.waited_s += now - self._since if self._since is not None else 0.0
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now - self._since >= self._patience_s
