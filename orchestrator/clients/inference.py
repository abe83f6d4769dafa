"""A model behind any OpenAI-compatible server: our node, llama-server, llama-swap, vLLM.

One request at a time, streamed, so that it can be ended at any moment and a text that runs in circles is cut short.
What goes wrong comes out as one of the errors of `review_agents.ports`, told apart by whether the same request may
work later, would fit if it were shorter, or never will.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import httpx
import structlog

from orchestrator.clients.busy import READING, Line, Onlooker, Work
from orchestrator.clients.chat_wire import MOST, Assembly, body_of, is_number, objects
from review_agents.ports import (
    Ability,
    BrokenAnswer,
    ContextOverflow,
    NodeAway,
    NodeRefused,
    Stopped,
)
from review_agents.records import Answer, AnswerEnd, Message, Question, Role, Tool

log = structlog.get_logger(__name__)
T = TypeVar("T")

CONNECT_S = 10.0
BUSY_S = 60.0  # that a request waits at the node behind those of others
SILENCE_S = 1200.0  # a slow machine reads a long prompt for many minutes before its first word
LOOK_EVERY_S = 0.25  # whether to stop
TRIES = 4  # of a request that the node cannot take right now
FIRST_PAUSE_S = 2.0  # doubles
LONGEST_PAUSE_S = 30.0
GONE_WITHIN_S = 15.0  # a cancelled request must have left the node by then
LEFT_WITHIN_S = 5.0  # and its line, where it waited
LOOP_LOOK_CHARS = 2000  # how often a growing text is looked at
BUSY = (429, 502, 503, 504)
PROBE = Tool(
    name="ready",
    description="Say that you are ready.",
    parameters={"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
)
PROBE_TOKENS = 512  # a thinking model thinks first
# Servers say an overflow in many words; a limit on max_tokens or memory is none.
OVERFLOW = re.compile(
    r"exceed\w* (?:the )?(?:available |maximum |model'?s? )?context|context (?:length|size|window)[^.]{0,80}"
    r"(?:exceed|too|larger|longer|only|is \d)|maximum context length|prompt (?:is )?too long|"
    r"too (?:long|many tokens) for|exceed_context_size|"
    r"context_length_exceeded|does not fit (?:into |in )?(?:the )?context|input is too long",
    re.IGNORECASE,
)


class Busy(NodeAway):
    """The node answers, but not this request now; `after_s` is when it wants to be asked again, 0 where not said."""

    def __init__(self, message: str, after_s: float):
        super().__init__(message)
        self.after_s = after_s


class Occupied(Busy):
    """The node has worked for others for as long as we wait for that; nothing of ours is left with it."""

    def __init__(self, node: str, waited_s: float):
        super().__init__(f"the node at {node} has been busy with other requests for {waited_s:.0f} s", 0.0)


class HttpChatModel:
    """`tools` is auto (ask the endpoint), native or text. `repeats` says whether a text's end runs in circles."""

    def __init__(
        self,
        url: str,
        model: str = "",
        key: str = "",
        *,
        tools: str = "auto",
        temperature: float | None = None,
        repeats: Callable[[str], bool] = lambda text: False,
        silence_s: float = SILENCE_S,
        busy_s: float = BUSY_S,
        pause_s: float = FIRST_PAUSE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ):
        self._base = f"{url.rstrip('/').removesuffix('/v1')}"
        self._model = model
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._tools = tools
        self._temperature = temperature
        self._repeats = repeats
        self._silence_s = silence_s
        self._busy_s = busy_s
        self._onlooker = Onlooker(self._base)
        self._line: Line | None = None  # of the request that was sent last
        self._pause_s = pause_s
        self._transport = transport

    # What it can do -----------------------------------------------------------------------------

    def ability(self, *, cancelled: Callable[[], bool]) -> Ability:
        """Asks for its models, and with one small question whether it understands tools."""
        model, context = self._run(self._described(), cancelled)
        self._model = self._model or model
        native = self._tools == "native" or (self._tools == "auto" and self._calls_tools(cancelled))
        context = context or self._run(self._context_behind_llama_swap(), cancelled)
        return Ability(
            model=self._model, node=without_credentials(self._base), native_tools=native, context_tokens=context
        )

    def _calls_tools(self, cancelled: Callable[[], bool]) -> bool:
        """Whether a question with a tool is answered by a call of it. Also shows that the model really answers."""
        question = Question(
            messages=(Message(role=Role.USER, text="Call the tool `ready` with the word yes. Do nothing else."),),
            tools=(PROBE,),
            max_tokens=PROBE_TOKENS,
            conversation="probe",
        )
        try:
            answer = self.ask(question, cancelled=cancelled)
        except (BrokenAnswer, ContextOverflow):
            return False
        except NodeRefused as error:
            if re.search(r"tool|jinja|template|function", str(error), re.IGNORECASE):
                return False
            raise
        return any(call.name == PROBE.name for call in answer.calls)

    async def _described(self) -> tuple[str, int | None]:
        """The name of the model (the first, unless one is asked for) and how many tokens fit."""
        entries = await self._json("/v1/models")
        models = objects(entries.get("data"))
        names = [str(one.get("id")) for one in models]
        if self._model and names and self._model not in names:
            log.warning("the endpoint does not list the model", model=self._model, listed=names[:10])
        chosen = next((one for one in models if one.get("id") == self._model), models[0] if models else {})
        found = first_number(chosen, "max_model_len", "context_length", "n_ctx", "context_window", "max_context_length")
        if found is None:
            for path, keys in (("/props", ("default_generation_settings",)), ("/stats", ("model",))):
                inner: Any = await self._json(path, optional=True)
                for key in keys:
                    inner = inner.get(key) if isinstance(inner, Mapping) else None
                if isinstance(inner, Mapping):
                    found = first_number(inner, "n_ctx", "context", "max_context", "context_tokens")
                if found is not None:
                    break
        return str(chosen.get("id", "")), found

    async def _context_behind_llama_swap(self) -> int | None:
        """What llama-server says of itself, once llama-swap has loaded it."""
        found = await self._json(f"/upstream/{quote(self._model, safe='/:')}/props", optional=True)
        settings = found.get("default_generation_settings")
        return first_number(settings, "n_ctx") if isinstance(settings, Mapping) else None

    async def _json(self, path: str, *, optional: bool = False) -> dict[str, Any]:
        try:
            async with self._client() as client:
                reply = await client.get(f"{self._base}{path}", timeout=CONNECT_S)
                if reply.status_code == 200:
                    found = reply.json()
                    return dict(found) if isinstance(found, Mapping) else {}
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            if optional:
                return {}
            raise NodeAway(
                f"the node at {without_credentials(self._base)} does not answer ({in_words(error)})"
            ) from None
        if optional:
            return {}
        raise self._problem(reply.status_code, reply.text)

    # Asking ---------------------------------------------------------------------------------------

    def ask(self, question: Question, *, cancelled: Callable[[], bool]) -> Answer:
        """One turn, tried again with growing pauses while the node is away or busy."""
        pause = self._pause_s
        for attempt in range(1, TRIES + 1):
            if cancelled():
                raise Stopped
            try:
                answer = self._run(self._asked(question), cancelled)
                if answer.end is AnswerEnd.LOOP:
                    self._see_it_gone()  # we hung up on it
                return answer
            except BrokenAnswer:
                if attempt > 1:
                    raise
                question = question.model_copy(
                    update={"seed": question.seed + 1}
                )  # the same seed breaks in the same way
            except Occupied:
                self._see_it_out_of_line()
                raise
            except NodeAway as error:
                asked_for = error.after_s if isinstance(error, Busy) else 0.0
                if attempt == TRIES or asked_for > LONGEST_PAUSE_S:
                    raise
                log.info("the node cannot take the request now", reason=str(error), pause_s=max(pause, asked_for))
                wait(max(pause, asked_for), cancelled)
                pause = min(pause * 2, LONGEST_PAUSE_S)
            except Stopped:
                if self._line is not None and self._line.behind:  # the node is at work, and not for us
                    self._see_it_out_of_line()
                else:
                    self._see_it_gone()
                raise
        raise AssertionError("unreachable")

    async def _asked(self, question: Question) -> Answer:
        """Raises `Occupied` when the node works for others for too long before it begins with ours."""
        async with self._client() as client:
            line = Line(lambda timeout_s: self._onlooker.look(client, self._model, timeout_s=timeout_s), self._busy_s)
            self._line = line
            if await line.too_busy_to_send():
                raise Occupied(without_credentials(self._base), self._busy_s)
            answer = asyncio.ensure_future(self._answered(client, question, line))
            waiting = asyncio.ensure_future(line.too_long())
            try:
                await asyncio.wait({answer, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done() and waiting.result():
                    raise Occupied(without_credentials(self._base), self._busy_s)
                return await answer
            finally:  # a request that still waits is hung up on, so that the node never begins with it
                for task in (answer, waiting):
                    task.cancel()
                await asyncio.gather(answer, waiting, return_exceptions=True)

    async def _answered(self, client: httpx.AsyncClient, question: Question, line: Line) -> Answer:
        body = body_of(question, model=self._model, temperature=self._temperature)
        limits = httpx.Timeout(self._silence_s, connect=CONNECT_S)
        try:
            async with client.stream("POST", f"{self._base}/v1/chat/completions", json=body, timeout=limits) as reply:
                if reply.status_code != 200:
                    said = (await reply.aread()).decode("utf-8", "replace")
                    raise self._problem(reply.status_code, said, reply.headers.get("retry-after", ""))
                if "text/event-stream" not in reply.headers.get("content-type", ""):
                    whole = Assembly()
                    whole.take(read_json((await reply.aread()).decode("utf-8", "replace")))
                    line.begun()
                    return self._ended(whole, line, looped=False)
                return await self._streamed(reply, line)
        except httpx.HTTPError as error:
            raise NodeAway(f"the node at {without_credentials(self._base)} went away ({in_words(error)})") from None

    async def _streamed(self, reply: httpx.Response, line: Line) -> Answer:
        made = Assembly()
        looked = 0
        async for said in reply.aiter_lines():
            if said.startswith(("data:", READING)):
                line.begun()
            if not said.startswith("data:"):
                continue  # comments keep the connection alive while a long prompt is read
            data = said[5:].strip()
            if data == "[DONE]":
                break
            made.take(read_json(data))
            if made.failed:
                raise self._problem(500, made.failed)
            if made.chars - looked > LOOP_LOOK_CHARS:
                looked = made.chars
                if self._repeats(made.tail):
                    return self._ended(made, line, looped=True)
        if not made.finish:
            raise NodeAway("the node ended its answer in the middle")
        return self._ended(made, line, looped=False)

    def _ended(self, made: Assembly, line: Line, *, looped: bool) -> Answer:
        if made.failed:
            raise self._problem(500, made.failed)
        return made.answer(seconds=time.monotonic() - line.began, waited_s=line.waited_s, looped=looped)

    def _problem(self, status: int, text: str, retry_after: str = "") -> Exception:
        """What a refusal means."""
        error = error_of(text)
        message = str(error.get("message") or text[:500] or "no reason given").strip()
        said = f"the node answered {status}: {message[:500]}"
        prompt, context = error.get("n_prompt_tokens"), error.get("n_ctx")
        kind = f"{error.get('type', '')} {error.get('code', '')}"
        if status in (400, 413, 500) and (prompt is not None or OVERFLOW.search(message) or OVERFLOW.search(kind)):
            return ContextOverflow(said, prompt_tokens=whole(prompt), context_tokens=whole(context))
        if status in BUSY:
            return Busy(said, seconds_until(retry_after))
        return BrokenAnswer(said) if status >= 500 else NodeRefused(said)

    # Ending -----------------------------------------------------------------------------------------

    def _see_it_gone(self) -> None:
        """After we hung up: look whether the node has dropped the request, and say so when it has not."""
        if not gone_within(GONE_WITHIN_S, self.is_busy):
            log.warning("the node still works on a request that was hung up on", node=without_credentials(self._base))

    def _see_it_out_of_line(self) -> None:
        """The same of a request that waited. Somebody else's that came meanwhile may be taken for it."""
        if not gone_within(LEFT_WITHIN_S, lambda: asyncio.run(self._in_line())):
            log.warning(
                "a request that was hung up on may still wait at the node", node=without_credentials(self._base)
            )

    async def _in_line(self) -> bool:
        """Whether the last request still waits: more do than the others that did."""
        assert self._line is not None
        async with self._client() as client:
            work = await self._onlooker.look(client, self._model)
        return work is not None and work.waiting > self._line.others

    def is_busy(self) -> bool | None:
        """Whether the node works on something now; None when it does not tell."""
        return asyncio.run(self._busy())

    async def _busy(self) -> bool | None:
        async with self._client() as client:
            work: Work | None = await self._onlooker.look(client, self._model)
        return None if work is None else work.running

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(headers=self._headers, trust_env=False, transport=self._transport)

    def _run(self, work: Coroutine[Any, Any, T], cancelled: Callable[[], bool]) -> T:
        """The coroutine's result; when cancelled meanwhile, its connection is closed and `Stopped` rises."""
        return asyncio.run(until_cancelled(work, cancelled))


async def until_cancelled(work: Coroutine[Any, Any, T], cancelled: Callable[[], bool]) -> T:
    task = asyncio.ensure_future(work)
    while True:
        done, _ = await asyncio.wait({task}, timeout=LOOK_EVERY_S)
        if done:
            return task.result()
        if cancelled():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise Stopped


def gone_within(seconds: float, is_there: Callable[[], bool | None]) -> bool:
    """Whether it was seen to be gone in that time; None, for not known, is taken for that."""
    until = time.monotonic() + seconds
    while is_there():
        if time.monotonic() >= until:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def wait(seconds: float, cancelled: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if cancelled():
            raise Stopped
        time.sleep(min(left, LOOK_EVERY_S))


def seconds_until(retry_after: str) -> float:
    """What a Retry-After header asks for, in seconds or as a date; 0 where it says nothing that can be read."""
    try:
        return max(0.0, float(retry_after)) if retry_after.strip().isdigit() else until_date(retry_after)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def until_date(date: str) -> float:
    then = parsedate_to_datetime(date)
    return max(0.0, (then.replace(tzinfo=then.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def read_json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise NodeAway(f"the node sent something that is no JSON: {text[:80]!r}") from None
    return found if isinstance(found, dict) else {}


def error_of(text: str) -> Mapping[str, Any]:
    """The error object of a refusal, whatever it is wrapped in."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    for _ in range(3):
        if isinstance(found, Mapping) and isinstance(found.get("error"), Mapping | str):
            found = found["error"]
        elif isinstance(found, str) and found.lstrip().startswith("{"):
            try:
                found = json.loads(found)
            except (ValueError, RecursionError):
                break
    if isinstance(found, Mapping):
        return found
    return {"message": str(found)}


def whole(value: Any) -> int | None:
    return int(value) if is_number(value) else None


def first_number(found: Mapping[str, Any], *names: str) -> int | None:
    for place in (found, found.get("meta") or {}):
        for name in names:
            if isinstance(place, Mapping) and type(value := place.get(name)) is int and 0 < value < MOST:
                return value
    return None


def in_words(error: Exception) -> str:
    return str(error) or type(error).__name__


def without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
