"""States from a node on another machine: asked for before they are due, checked, asked for again when a line breaks.

The order of texts follows from the arm's seed and the step alone (batch.py), so nothing about the connection has to be
kept: a run that goes on from its checkpoint asks for the step after it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import torch
from torch import nn

from inference_node.models import states as form
from inference_node.models.errors import NodeError
from inference_node.models.states import CHECKSUM, BrokenBody
from inference_node.train import node
from inference_node.train.batch import Batch
from inference_node.train.features import States, check
from inference_node.train.sample import Sample

AHEAD = 2
"""Batches whose states are fetched before they are due."""

PATIENCE_S = 1800.0
"""How long a node may be away: it is restarted, or somebody has pulled a cable."""

SILENCE_S = 30.0
BROKEN_MOST = 3
LONGEST_PAUSE_S = 10.0


class RemoteTarget:
    """A `features.Source` whose states a node computes.

    The embedding, the final norm and the head are read here from the model's own files: both boxes need the files in
    any case for their fingerprint, and two gigabytes need not cross the cable. The node sends the last layer's output
    as it is; the final norm is applied here.
    """

    def __init__(
        self,
        url: str,
        module: nn.Module,
        taps: Sequence[int],
        *,
        layers: int,
        model: str,
        last: bool,
        device: torch.device,
        kind: str = "bf16",
        key: str = "",
        ahead: int = AHEAD,
        connections: int = 2,
        patience_s: float = PATIENCE_S,
        silence_s: float = SILENCE_S,
        told: Callable[[str], Any] = lambda text: None,
    ) -> None:
        """module: with embedding, norm and head in place. model: the fingerprint that the node's must have."""
        self.module, self.taps, self.model, self.device, self.kind = module, tuple(taps), model, device, kind
        self.asked = tuple(dict.fromkeys((*self.taps, layers - 1) if last else self.taps))  # each layer once
        self._last = layers - 1
        self.wants_last, self.ahead, self.patience_s, self.told = last, ahead, patience_s, told
        self.bytes = 0  # of states that arrived whole
        self._http = node.client(url, key, silence_s)
        self._pool = ThreadPoolExecutor(connections, thread_name_prefix="states")
        self._fetching: dict[Sample, Future[States]] = {}
        self._stopped = False

    @property
    def head(self) -> torch.Tensor:
        weight: torch.Tensor = self.module.lm_head.weight  # type: ignore[union-attr, assignment]
        return weight

    @property
    def embedding(self) -> torch.Tensor:
        body: Any = self.module.model
        weight: torch.Tensor = body.embed_tokens.weight
        return weight

    def coming(self, work: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches; the next ones' states are on their way while one is trained on."""
        line: deque[Batch] = deque()
        for batch in work:
            line.append(batch)
            for sample in batch.samples:
                self._ask(sample)
            if len(line) > self.ahead:
                yield line.popleft()
        yield from line

    def states(self, samples: Sequence[Sample]) -> list[States]:
        for sample in samples:
            self._ask(sample)
        arrived = [self._fetching[sample].result() for sample in samples]
        for sample in samples:
            self._fetching.pop(sample, None)
        body: Any = self.module.model
        found = []
        for states in arrived:
            feature = states.feature.to(self.device)
            last = None
            if states.last is not None:
                with torch.no_grad():
                    last = body.norm(states.last.to(body.norm.weight.device)).to(self.device)
            found.append(States(feature, last))
        check(samples, found, taps=len(self.taps))
        return found

    def close(self) -> None:
        self._stopped = True
        self._pool.shutdown(cancel_futures=True)
        self._http.close()

    def _ask(self, sample: Sample) -> None:
        if sample not in self._fetching:
            self._fetching[sample] = self._pool.submit(self._fetched, sample)

    def _fetched(self, sample: Sample) -> States:
        since, broken, pause, told = time.monotonic(), 0, 0.5, False
        while not self._stopped:
            try:
                rows = self._once(sample)
                if told:
                    self.told("the node answers again")
                return rows
            except _Busy as busy:
                pause, why = busy.retry_after_s, str(busy)
            except (httpx.TransportError, BrokenBody) as error:
                broken += isinstance(error, BrokenBody)
                if broken >= BROKEN_MOST:
                    raise
                why = str(error) or type(error).__name__
                if not told:
                    self.told(f"the node at {self._http.base_url} does not answer ({why}); asking on")
                    told = True
                pause = min(2 * pause, LONGEST_PAUSE_S)
            away_s = time.monotonic() - since
            if away_s > self.patience_s:
                raise NodeError(
                    f"The node at {self._http.base_url} has given no states for {away_s:.0f} s ({why}). The run goes "
                    "on from its checkpoint when it is started again."
                )
            time.sleep(pause)
        raise NodeError("The run is ending.")

    def _once(self, sample: Sample) -> States:
        asked = {"tokens": sample.tokens, "taps": self.asked, "form": self.kind, "model": self.model}
        reply = self._http.post("/states", json=asked)
        if reply.status_code in (429, 503):
            raise _Busy(reply)
        if reply.status_code == 404:
            raise NodeError(
                f"{self._http.base_url} serves no states. Start it with `lamplighter-node train states --model ...`."
            )
        if reply.status_code != 200:
            raise NodeError(f"{self._http.base_url} refused sample {sample.id!r}: {node.refusal(reply)}")
        rows = form.decode(
            reply.content, reply.headers.get(CHECKSUM, ""), model=self.model, tokens=sample.tokens, taps=self.asked
        )
        self.bytes += len(reply.content)
        feature = rows[:, [self.asked.index(tap) for tap in self.taps]].flatten(1)
        last = rows[:, self.asked.index(self._last)].clone() if self.wants_last else None  # a view would keep all taps
        return States(feature, last)


class _Busy(Exception):
    def __init__(self, reply: httpx.Response) -> None:
        super().__init__(node.refusal(reply))
        self.retry_after_s = node.retry_after(reply, 1.0, LONGEST_PAUSE_S)
