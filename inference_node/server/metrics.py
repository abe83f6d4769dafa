"""The engine's totals for Prometheus, read at each scrape. vLLM's names for speculation, ours for the rest.

tau = 1 + vllm:spec_decode_num_accepted_tokens_total / vllm:spec_decode_num_drafts_total, cut cycles included;
lampnode_tau leaves them out.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from inference_node.engine.api import Health, Node, NotReady, Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(node: Node, model: str) -> bytes:
    """The page that Prometheus scrapes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Totals(node, model))  # type: ignore[arg-type]
    return generate_latest(registry)


class _Totals:
    def __init__(self, node: Node, model: str) -> None:
        self._node = node
        self._model = model

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        stats, health = self._node.stats(), self._node.health()
        yield from _speculation(stats, self._model)
        yield from _requests(stats, health)
        yield from _prompts(stats)
        yield from _cycles(stats)
        yield from _store(stats)
        yield from self._facts()

    def _facts(self) -> Iterable[Metric]:
        try:
            facts = self._node.facts
        except NotReady:
            return
        names = ("model", "family", "engine", "device", "weights", "drafter", "rollback")
        info = GaugeMetricFamily("lampnode_model_info", "What is served; always 1.", labels=names)
        info.add_metric([facts.name, *(getattr(facts, name) for name in names[1:])], 1)
        yield info
        yield GaugeMetricFamily("lampnode_weight_bytes", "Bytes of weights.", facts.weight_bytes)


def _speculation(stats: Stats, model: str) -> Iterable[Metric]:
    figures = stats.speculation
    for name, text, value in (
        ("num_drafts", "Cycles that verified at least one draft.", figures.drafted_cycles),
        ("num_draft_tokens", "Drafts sent to verify.", figures.drafted),
        ("num_accepted_tokens", "Drafts accepted.", figures.accepted),
    ):
        counter = CounterMetricFamily(f"vllm:spec_decode_{name}", text, labels=["model_name"])
        counter.add_metric([model], value)
        yield counter
    positions = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Cycles that accepted the draft at this position, counted from 0.",
        labels=["model_name", "position"],
    )
    offered = CounterMetricFamily(
        "lampnode_drafts_offered_at", "Cycles that offered a draft at this position, from 0.", labels=["position"]
    )
    for position, count in enumerate(figures.offered_at):
        accepted = figures.accepted_at[position] if position < len(figures.accepted_at) else 0
        positions.add_metric([model, str(position)], accepted)
        offered.add_metric([str(position)], count)
    yield positions
    yield offered


def _requests(stats: Stats, health: Health) -> Iterable[Metric]:
    ended = CounterMetricFamily("lampnode_requests", "Requests that ended, by reason.", labels=["reason"])
    for reason, count in sorted(stats.endings.items()):
        ended.add_metric([reason.value], count)
    yield ended
    yield CounterMetricFamily(
        "lampnode_requests_refused_full", "Refused because the queue was full.", stats.refused_full
    )
    yield CounterMetricFamily("lampnode_out_of_memory", "Times the device was out of memory.", stats.out_of_memory)
    yield GaugeMetricFamily("lampnode_requests_running", "Requests being served.", health.running)
    yield GaugeMetricFamily("lampnode_requests_waiting", "Requests that wait.", health.waiting)
    yield GaugeMetricFamily("lampnode_up_seconds", "Seconds since the start.", stats.up_s)


def _prompts(stats: Stats) -> Iterable[Metric]:
    tokens = CounterMetricFamily("lampnode_prompt_tokens", "Prompt tokens by where they came from.", labels=["from"])
    tokens.add_metric(["store"], stats.restored_tokens)
    tokens.add_metric(["prefill"], stats.prompt_tokens - stats.restored_tokens)
    yield tokens
    yield CounterMetricFamily(
        "lampnode_prompt_tokens_known", "Prompt tokens that an earlier request had in common.", stats.known_tokens
    )
    yield CounterMetricFamily("lampnode_completion_tokens", "Tokens generated.", stats.speculation.tokens)
    why = CounterMetricFamily("lampnode_prefix", "Requests by how well the prefix store served them.", labels=["why"])
    for reason, count in sorted(stats.reuse_why.items()):
        why.add_metric([reason.value], count)
    yield why


def _cycles(stats: Stats) -> Iterable[Metric]:
    figures, spent = stats.speculation, stats.spent
    cycles = CounterMetricFamily("lampnode_cycles", "Verifies, by what cut them.", labels=["cut"])
    cycles.add_metric(["none"], figures.full_cycles)
    cycles.add_metric(["budget"], figures.cut_by_budget)
    cycles.add_metric(["stop"], figures.cut_by_stop)
    yield cycles
    if figures.tau is not None:
        yield GaugeMetricFamily("lampnode_tau", "Tokens per verify over cycles that nothing cut.", figures.tau)
    seconds = CounterMetricFamily("lampnode_seconds", "Seconds by part of the work.", labels=["part"])
    for part, value in (
        ("queued", spent.queued_s),
        ("prefill", spent.prefill_s),
        ("decode", spent.decode_s),
        ("draft", spent.draft_s),
        ("verify", spent.verify_s),
        ("commit", spent.commit_s),
    ):
        seconds.add_metric([part], value)
    yield seconds
    woken = GaugeMetricFamily(
        "lampnode_experts_woken", "Distinct experts a verify woke, mean of the last request.", labels=["layer"]
    )
    for layer, mean in enumerate(stats.experts_woken):
        woken.add_metric([str(layer)], mean)
    yield woken


def _store(stats: Stats) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "lampnode_prefix_budget_bytes", "Bytes the prefix store may hold.", stats.store.budget_bytes
    )
    yield GaugeMetricFamily("lampnode_prefix_held_bytes", "Bytes it holds.", stats.store.held_bytes)
    yield GaugeMetricFamily("lampnode_prefix_checkpoints", "Checkpoints it holds.", stats.store.checkpoints)
    gone = CounterMetricFamily("lampnode_prefix_given_up", "Checkpoints given up, by reason.", labels=["why"])
    for reason, count in sorted(stats.store.evicted.items()):
        gone.add_metric([reason.value], count)
    yield gone
