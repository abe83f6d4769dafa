"""Whether a node works on something now, by what servers tell of it, each in its own way."""

from collections.abc import Callable, Iterator, Mapping
from urllib.parse import quote

import httpx
from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 10.0
RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")


async def is_busy(client: httpx.AsyncClient, base: str, model: str) -> bool | None:
    """None: it does not tell."""
    for path, read in places(model):
        try:
            reply = await client.get(f"{base}{path}", timeout=TIMEOUT_S)
            found = read(reply) if reply.status_code == 200 else None
        except httpx.TransportError:
            return None
        except (httpx.HTTPError, ValueError, AttributeError):
            continue  # another server's page of that name
        if found is not None:
            return found
    return None


def places(model: str) -> Iterator[tuple[str, Callable[[httpx.Response], bool | None]]]:
    yield "/health", by_health  # our node
    yield "/slots", by_slots  # llama-server
    if model:
        yield f"/upstream/{quote(model, safe='/:')}/slots", by_slots  # llama-server behind llama-swap
    yield "/metrics", by_metrics  # vLLM, SGLang, llama-server whose slots are not shown


def by_health(reply: httpx.Response) -> bool | None:
    running = reply.json().get("running")
    return bool(running) if isinstance(running, int) else None


def by_slots(reply: httpx.Response) -> bool | None:
    slots = reply.json()
    if not isinstance(slots, list):
        return None
    return any(isinstance(slot, Mapping) and slot.get("is_processing") for slot in slots)


def by_metrics(reply: httpx.Response) -> bool | None:
    samples = [sample for family in text_string_to_metric_families(reply.text) for sample in family.samples]
    running = [sample.value for sample in samples if sample.name in RUNNING]
    return any(running) if running else None
