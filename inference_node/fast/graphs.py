"""Captured graphs: a piece of the cycle, recorded once and replayed.

A piece is a function without arguments that reads and writes fixed tensors only. Where the device has graphs it is run
a few times on the capture stream (libraries make handles and kernels are compiled then, which a capture cannot hold),
captured, and from then on replayed. Elsewhere, and when graphs are switched off, it is called.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM = 2
"""Runs before a capture. They are real: whoever captures sees to it that an even number of them changes nothing."""

Piece = Callable[[], None]


class Graphs:
    """Pieces by name."""

    def __init__(self, device: torch.device, *, on: bool = True) -> None:
        self.on = on and device.type == "cuda"
        self.device = device
        self._captured: dict[str, torch.cuda.CUDAGraph] = {}
        self._stream = torch.cuda.Stream(device) if self.on else None

    @property
    def captured(self) -> tuple[str, ...]:
        return tuple(self._captured)

    def missing(self, names: tuple[str, ...]) -> bool:
        """Whether one of these has to be captured before it can be replayed."""
        return self.on and any(name not in self._captured for name in names)

    def capture(self, name: str, piece: Piece) -> None:
        if not self.missing((name,)):
            return
        assert self._stream is not None
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            for _ in range(WARM):
                piece()
        torch.cuda.current_stream(self.device).wait_stream(self._stream)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._captured.values())).pool() if self._captured else None
        with torch.cuda.graph(graph, pool=pool, stream=self._stream):
            piece()
        self._captured[name] = graph

    def forget(self) -> None:
        """Capture anew: a tensor that pieces read is another one now."""
        self._captured.clear()

    def run(self, name: str, piece: Piece) -> None:
        """Replay it, or call it where there are no graphs."""
        if self.on:
            self._captured[name].replay()
        else:
            piece()
