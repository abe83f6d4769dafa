"""An inference node seen from the service: any server with the ordinary OpenAI-style HTTP interface."""

import time
from collections.abc import Mapping
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from review_agents.ports import NodeHealth, NodeWork

TIMEOUT_S = 4.0


class HttpNode:
    """The node at a base URL, with or without /v1 at its end."""

    def __init__(self, url: str, key: str = ""):
        self._url = url.rstrip("/").removesuffix("/v1").rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def health(self) -> NodeHealth:
        """Ask now which models it serves, and what it tells of its work."""
        started = time.monotonic()
        models: tuple[str, ...] = ()
        work: NodeWork | None = None
        problem = ""
        with httpx.Client(headers=self._headers, timeout=TIMEOUT_S, trust_env=False) as http:
            try:
                answer = http.get(f"{self._url}/v1/models")
                seconds = time.monotonic() - started
                answer.raise_for_status()
                models = tuple(str(one["id"]) for one in answer.json()["data"])
            except httpx.HTTPStatusError as error:
                problem = f"it answered {error.response.status_code} to {error.request.url}{_said(error.response)}"
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                why = f": {error}" if str(error) else f" ({type(error).__name__})"
                return NodeHealth(
                    reachable=False, problem=f"it does not answer{why}", seconds=time.monotonic() - started
                )
            except (ValueError, KeyError, TypeError):
                problem = f"its answer to {self._url}/v1/models is no list of models"
            work = self._work(http)
        return NodeHealth(reachable=not problem, problem=problem, models=models, seconds=seconds, work=work)

    def _work(self, http: httpx.Client) -> NodeWork | None:
        """Our own node's figures, else what vLLM, SGLang and llama-server show to Prometheus."""
        for path, read in (("/stats", _from_stats), ("/metrics", _from_metrics)):
            try:
                answer = http.get(f"{self._url}{path}")
                found = read(answer) if answer.status_code == 200 else None
            except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
                continue  # another server's page of that name, or none
            if found is not None:
                return found
        return None


def _said(answer: httpx.Response) -> str:
    """The message of an error in OpenAI's shape, as words to append."""
    try:
        return f": {str(answer.json()['error']['message'])[:300]}"
    except (ValueError, KeyError, TypeError):
        return ""


def _from_stats(answer: httpx.Response) -> NodeWork:
    stats: Mapping[str, Any] = answer.json()
    health, tokens, speculation = stats["health"], stats["tokens"], stats["speculation"]
    model = stats["model"] or {}
    return NodeWork(
        state=str(health["status"]),
        why=str(health["why"]),
        tau=speculation["tau"],
        tokens_per_s=tokens["per_second"],
        accepted_share=_share(speculation["accepted"], speculation["drafted"]),
        restored_share=_share(tokens["restored"], tokens["prompt"]),
        running=health["running"],
        waiting=health["waiting"],
        device=str(model.get("device", "")),
        drafter=str(model.get("drafter", "")),
    )


def _from_metrics(answer: httpx.Response) -> NodeWork | None:
    """Each server's own names; counters are summed over their labels, and tau counts from the server's start."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value

    def first(*names: str) -> float | None:
        return next((found[name] for name in names if name in found), None)

    drafts = first("vllm:spec_decode_num_drafts_total", "llamacpp:spec_decode_num_drafts_total")
    drafted = first("vllm:spec_decode_num_draft_tokens_total", "llamacpp:spec_decode_num_draft_tokens_total")
    accepted = first("vllm:spec_decode_num_accepted_tokens_total", "llamacpp:spec_decode_num_accepted_tokens_total")
    per_draft = _share(accepted, drafts)
    tau = first("sglang:spec_accept_length") if per_draft is None else 1 + per_draft
    running = first("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
    waiting = first("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred")
    speed = first("sglang:gen_throughput", "llamacpp:predicted_tokens_seconds")
    if not any(name.startswith(("vllm:", "sglang:", "llamacpp:")) for name in found):
        return None
    return NodeWork(
        tau=tau or None,  # a gauge at 0 has measured nothing
        tokens_per_s=speed or None,
        accepted_share=_share(accepted, drafted) if drafted is not None else first("sglang:spec_accept_rate"),
        running=None if running is None else int(running),
        waiting=None if waiting is None else int(waiting),
    )


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
