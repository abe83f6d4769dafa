"""The engine: one thread that owns the target and serves one request after the other.

The thread reads one cycle behind: it starts the next cycle before it looks at the last one's tokens. So a stop string
is seen late; what was computed after it is taken back. While text is held back that may become a stop string, the next
cycle waits, so that a stop of up to two tokens can always be taken back, whatever a cycle commits.
"""

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from itertools import count

from inference_node.engine.api import (
    EmptyPrompt,
    Ended,
    Ending,
    Event,
    Health,
    NotReady,
    Past,
    PromptTooLong,
    QueueFull,
    Reason,
    Request,
    Reuse,
    Speculation,
    Spent,
    Started,
    State,
    StatesRead,
    StatesRequest,
    Stats,
    Ticket,
    UnknownToken,
)
from inference_node.engine.constrain import Compiler, Grammar
from inference_node.engine.prefix import Found, PrefixStore, Why
from inference_node.engine.queue import FairQueue
from inference_node.engine.reading import Reading
from inference_node.engine.reading import check as check_states
from inference_node.engine.sequence import Live, add_speculation, add_spent
from inference_node.engine.text import TextStream
from inference_node.engine.tokens import Tokens
from inference_node.speculate.seam import CHUNK, Cycle, NodeError, OutOfMemory, Progress, Target, TargetFacts

log = logging.getLogger("lamplighter.node.engine")

Load = Callable[[Progress], tuple[Target, Tokens]]

TAKE_BACK = 2
"""Tokens of a stop string that can be taken back however few tokens a cycle commits. With more, no checkpoint is made
at the end of the turn: whether one could be made would depend on the drafter, and so would the next turn's bits."""

LOAD_ENDS_S = 5.0
"""How long a close waits for a model that is still being loaded."""

MOST_CHECKPOINTS = 32
"""Checkpoints made while one prompt is read: the first message boundary (a shared system prompt) and the last ones."""


class Engine:
    """See `api.Node`. Loading happens on the engine's own thread; until it is done requests are refused."""

    def __init__(
        self,
        load: Load,
        *,
        queue_limit: int = 64,
        prefix_bytes: int = 1 << 30,
        slice_rows: int = 512,
        stall_s: float = 120.0,
        history: int = 64,
    ) -> None:
        """slice_rows: prompt rows between two looks at whether the client is still there; a multiple of CHUNK."""
        if slice_rows % CHUNK or slice_rows <= 0:
            raise ValueError(f"slice_rows={slice_rows}; expected a multiple of {CHUNK}")
        self._load = load
        self._queue: FairQueue[Live | Reading] = FairQueue(queue_limit)
        self._store = PrefixStore(prefix_bytes)
        self._slice_rows = slice_rows
        self._stall_s = stall_s
        self._ids = count(1)
        self._lock = threading.Lock()  # guards everything below that callers read
        self._state = State.LOADING
        self._why = "starting"
        self._progress = 0.0
        self._running: Live | Reading | None = None
        self._beat = time.monotonic()
        self._started = time.monotonic()
        self._past: deque[Past] = deque(maxlen=history)
        self._endings: Counter[Reason] = Counter()
        self._reuse_why: Counter[Why] = Counter()
        self._refused_full = 0
        self._out_of_memory = 0
        self._tokens_in = (0, 0, 0)  # prompt, restored, known
        self._speculation = Speculation()
        self._spent = Spent(first_token_s=0.0)
        self._experts: tuple[float, ...] = ()
        self._kept = self._store.kept()
        self._target: Target | None = None
        self._tokens: Tokens | None = None
        self._compiler: Compiler | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # What callers use, from any thread.

    @property
    def facts(self) -> TargetFacts:
        return self._loaded()[0].facts

    @property
    def template(self) -> Tokens:
        return self._loaded()[1]

    def check(self, grammar: Grammar) -> None:
        self._loaded()
        assert self._compiler is not None, "made with the target"
        self._compiler.matcher(grammar)

    def submit(self, request: Request, deliver: Callable[[Event], None]) -> Ticket:
        target, tokens = self._loaded()
        facts = target.facts
        live = self._live(request, deliver, facts, tokens)
        self._wait(request.client, live)
        return Ticket(live.id, lambda: self._cancel(live))

    def read_states(self, request: StatesRequest, deliver: Callable[[StatesRead], None]) -> Ticket:
        target, _ = self._loaded()
        check_states(request, target.facts)
        reading = Reading(next(self._ids), request, deliver)
        self._wait(request.client, reading)
        return Ticket(reading.id, lambda: self._cancel(reading))

    def _wait(self, client: str, job: Live | Reading) -> None:
        if not self._queue.put(client, job):
            if self._closing.is_set():
                raise NotReady("The node is being closed.")
            with self._lock:
                self._refused_full += 1
                waiting, typical_s = len(self._queue), self._typical_s()
            raise QueueFull(waiting=waiting, retry_after_s=max(1, min(120, math.ceil(typical_s))))

    def health(self) -> Health:
        with self._lock:
            silent_s = time.monotonic() - self._beat
            stalled = self._running is not None and silent_s > self._stall_s
            return Health(
                state=self._state,
                why=self._why,
                progress=self._progress,
                running=int(self._running is not None),
                waiting=len(self._queue),
                stalled_s=silent_s if stalled else 0.0,
            )

    def stats(self) -> Stats:
        with self._lock:
            prompt, restored, known = self._tokens_in
            return Stats(
                endings=dict(self._endings),
                refused_full=self._refused_full,
                prompt_tokens=prompt,
                restored_tokens=restored,
                known_tokens=known,
                speculation=self._speculation,
                spent=self._spent,
                reuse_why=dict(self._reuse_why),
                out_of_memory=self._out_of_memory,
                experts_woken=self._experts,
                store=self._kept,
                past=tuple(self._past),
                up_s=time.monotonic() - self._started,
            )

    def wait_until_loaded(self, timeout_s: float | None = None) -> Health:
        """Block until the engine is ready or has failed; for the command line and tests."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (health := self.health()).state is State.LOADING:
            if deadline is not None and time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return health

    def close(self) -> None:
        with self._lock:
            self._closing.set()
            loading = self._state is State.LOADING
        for job in self._queue.close():
            self._turn_away(job, NotReady("The node is being closed."))
        running = self._running
        if running is not None:
            running.cancelled.set()
        if threading.current_thread() is not self._thread:
            # A load ends at its next step; one that is inside a library's call for longer ends with the process.
            self._thread.join(LOAD_ENDS_S if loading else None)

    # Callers' side of the work.

    def _loaded(self) -> tuple[Target, Tokens]:
        with self._lock:
            if self._state is not State.READY or self._target is None or self._tokens is None:
                raise NotReady(f"The node is {self._state.value}: {self._why}.")
            return self._target, self._tokens

    def _live(self, request: Request, deliver: Callable[[Event], None], facts: TargetFacts, tokens: Tokens) -> Live:
        if not request.prompt:
            raise EmptyPrompt()
        known = min(facts.known_ids, facts.vocab)
        wrong = next((token for token in request.prompt if not 0 <= token < known), None)
        if wrong is not None:
            raise UnknownToken(wrong, known=known)
        if len(request.prompt) > facts.context:
            raise PromptTooLong(prompt_tokens=len(request.prompt), context=facts.context)
        room = facts.context - (len(request.prompt) - 1)
        assert self._compiler is not None, "made with the target"
        return Live(
            id=next(self._ids),
            request=request,
            deliver=deliver,
            text=TextStream(tokens.bytes_of, request.stop),
            stop_ids=frozenset() if request.ignore_stop_ids else frozenset(tokens.stop_ids),
            matcher=self._compiler.matcher(request.grammar) if request.grammar else None,
            budget=room if request.max_tokens is None else min(room, request.max_tokens),
        )

    def _cancel(self, job: Live | Reading) -> None:
        job.cancelled.set()
        if self._queue.remove(job):
            self._turn_away(job)

    def _turn_away(self, job: Live | Reading, error: NodeError | None = None) -> None:
        """End what was not begun: with an error, or because its caller left."""
        if isinstance(job, Reading):
            job.tell(StatesRead(error=error or NodeError("The request was cancelled.")))
        else:
            self._end(job, job.ending(Reason.FAILED, error) if error else job.ending(Reason.CANCELLED))

    def _typical_s(self) -> float:
        """Seconds until a place is free, by how long the last requests took."""
        last = list(self._past)[-8:]
        return sum(past.ended_s - past.began_s for past in last) / len(last) if last else 1.0

    # The engine thread.

    def _run(self) -> None:
        try:
            target, tokens = self._load(self._told)
        except NodeError as error:
            if self._closing.is_set():
                with self._lock:
                    self._state, self._why = State.CLOSED, "closed"
            else:
                self._fail(str(error))
            return
        except Exception as error:
            log.exception("loading failed")
            self._fail(f"{type(error).__name__}: {error}")
            return
        with self._lock:
            self._target, self._tokens = target, tokens
            self._compiler = Compiler(tokens.grammar_tokenizer, target.facts.vocab)
            self._state, self._why, self._progress = State.READY, "", 1.0
        while (job := self._queue.take()) is not None:
            with self._lock:
                self._running, self._beat = job, time.monotonic()
            done = self._read(job, target) if isinstance(job, Reading) else self._serve(job, target, tokens)
            with self._lock:
                self._running, self._kept = None, self._store.kept()
            if isinstance(job, Reading):
                assert isinstance(done, StatesRead), "a reading's"
                job.tell(done)
            else:
                assert isinstance(done, Ending), "a request's"
                self._end(job, done)
            if self._state is State.FAILED:
                return
        self._store.drop_all()
        with self._lock:
            self._state, self._why = State.CLOSED, "closed"
        target.close()

    def _told(self, what: str, done: float) -> None:
        with self._lock:
            if self._closing.is_set():
                raise NotReady("The node is being closed.")
            self._why, self._progress = what, done

    def _fail(self, why: str) -> None:
        """Nothing can be served any more; whoever waits is told."""
        with self._lock:
            self._state, self._why = State.FAILED, why
        for job in self._queue.close():
            self._turn_away(job, NotReady(f"The node has failed: {why}."))

    def _read(self, reading: Reading, target: Target) -> StatesRead:
        """States over a text from its first token; what was held of another sequence is dropped before and after."""
        try:
            read = reading.run(target, max(self._slice_rows, target.facts.slice_rows), self._alive)
            target.reset()
            return read
        except Exception as error:
            if isinstance(error, OutOfMemory):
                with self._lock:
                    self._out_of_memory += 1
                self._store.drop_all(Why.MEMORY)
            elif not isinstance(error, NodeError):
                log.exception("the states of request %d failed", reading.id)
            self._recover(target)
            return StatesRead(error=error)

    def _serve(self, live: Live, target: Target, tokens: Tokens) -> Ending:
        live.began = time.monotonic()
        try:
            try:
                return self._generate(live, target, tokens)
            except OutOfMemory:
                with self._lock:
                    self._out_of_memory += 1
                if not self._store.drop_all(Why.MEMORY) or live.completion:
                    raise
                log.warning("out of memory: the prefix store was emptied, and the request is tried once more")
                target.reset()
                return self._generate(live, target, tokens)
        except NodeError as error:
            self._recover(target)
            return live.ending(Reason.FAILED, error)
        except Exception as error:
            log.exception("request %d failed", live.id)
            self._recover(target)
            return live.ending(Reason.FAILED, error)

    def _recover(self, target: Target) -> None:
        try:
            target.reset()
        except Exception as error:
            log.exception("the target cannot be reset")
            self._fail(f"the device does not recover: {type(error).__name__}: {error}")

    def _generate(self, live: Live, target: Target, tokens: Tokens) -> Ending:
        self._prefill(live, target)
        live.prefilled = time.monotonic()
        if live.cancelled.is_set():
            return live.ending(Reason.CANCELLED)
        self._decode(live, target, tokens)
        ending = live.ending(live.reason or Reason.CANCELLED)
        try:
            self._keep_turn(live, target)
        except OutOfMemory:  # the answer is complete; only the next turn has lost something
            with self._lock:
                self._out_of_memory += 1
            self._store.drop_all(Why.MEMORY)
        return ending

    def _prefill(self, live: Live, target: Target) -> None:
        """Restore what is known and compute the rest, up to the last prompt token, whose row is the first cycle's."""
        prompt = live.request.prompt
        found = self._store.find(prompt)
        if found.checkpoint is not None:
            target.restore(found.checkpoint)
        else:
            target.reset()
        if live.reuse is None:
            live.reuse = _reuse(len(prompt), found)
            live.tell(Started(live.reuse))
        checkpoints = self._places(live.request, target.position)
        rows = max(self._slice_rows, target.facts.slice_rows)
        for end in [*checkpoints, len(prompt) - 1]:
            while target.position < end and not live.cancelled.is_set():
                slice_end = min(end, (target.position // rows + 1) * rows)
                target.prefill(prompt[target.position : slice_end])
                self._alive()
            if target.position in checkpoints or live.cancelled.is_set():
                self._keep(prompt[: target.position], target)
            if live.cancelled.is_set():
                return

    def _places(self, request: Request, position: int) -> list[int]:
        """Where to make checkpoints on the way: the last multiple of CHUNK before each message, and before the end."""
        if not self._store.on:
            return []
        last = len(request.prompt) - 1
        wanted = sorted({min(at, last) // CHUNK * CHUNK for at in (*request.boundaries, last)})
        missing = [at for at in wanted if at > position and not self._store.has(request.prompt[:at])]
        return missing if len(missing) <= MOST_CHECKPOINTS else [missing[0], *missing[1 - MOST_CHECKPOINTS :]]

    def _decode(self, live: Live, target: Target, tokens: Tokens) -> None:
        request = live.request
        target.begin(
            request.prompt,
            request.sampling,
            budget=live.budget,
            stop_ids=tuple(live.stop_ids),
            constraint=live.matcher,
            logprobs=request.logprobs,
            draft=request.draft,
        )
        live.decoding = time.monotonic()
        pending: Cycle = target.cycle()
        while True:
            ahead = None if live.text.holding or live.cancelled.is_set() else target.cycle()
            live.take(pending.read(), tokens.bytes_of)
            self._alive()
            if live.reason is not None or live.cancelled.is_set():
                break
            pending = ahead or target.cycle()
        if ahead is not None:
            ahead.read()

    def _keep_turn(self, live: Live, target: Target) -> None:
        """Keep the state after the answer: all its rows but the last token's, as a sequence always stands."""
        if not self._store.on:
            return
        committed = [*live.request.prompt, *live.kept]
        cut_off = len(live.completion) - len(live.kept)
        if cut_off <= TAKE_BACK:
            if target.position > len(committed) - 1:
                target.truncate(len(committed) - 1)
            self._keep(committed[:-1], target)
        self._store.remember(committed)

    def _keep(self, tokens: "list[int] | tuple[int, ...]", target: Target) -> None:
        if self._store.on and tokens and not self._store.has(tokens):
            self._store.keep(tokens, target.checkpoint())

    def _alive(self) -> None:
        with self._lock:
            self._beat = time.monotonic()

    def _end(self, live: Live, ending: Ending) -> None:
        now = time.monotonic()
        with self._lock:
            self._endings[ending.reason] += 1
            prompt, restored, known = self._tokens_in
            if live.reuse is not None:
                reuse = live.reuse
                self._reuse_why[reuse.why] += 1
                self._tokens_in = (prompt + reuse.prompt_tokens, restored + reuse.restored, known + reuse.known)
            self._speculation = add_speculation(self._speculation, ending.speculation)
            self._spent = add_spent(self._spent, ending.spent)
            self._experts = ending.experts_woken or self._experts
            self._past.append(
                Past(
                    id=live.id,
                    arrived_s=live.arrived - self._started,
                    began_s=(live.began or now) - self._started,
                    first_token_s=live.first_token - self._started if live.first_token is not None else None,
                    ended_s=now - self._started,
                    ending=ending,
                )
            )
        live.tell(Ended(ending))


def _reuse(prompt_tokens: int, found: Found) -> Reuse:
    return Reuse(
        prompt_tokens=prompt_tokens,
        restored=found.checkpoint.position if found.checkpoint is not None else 0,
        known=found.known,
        why=found.why,
        parted_at=found.parted_at,
        stored=found.stored,
        found=found.found,
        exact=found.checkpoint is None or found.checkpoint.from_prefill,
    )
