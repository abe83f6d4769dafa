"""Small targets opened for training, and samples over their vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch

from inference_node.train.sample import Sample
from inference_node.train.target import OpenTarget, open_target
from tests.inference_node.conftest import Fabricate

Opened = Callable[[str], OpenTarget]


@pytest.fixture(scope="session")
def opened(fabricated: Fabricate) -> Opened:
    """opened(family) -> a fabricated target in fp32, opened once."""

    @cache
    def open_(family: str) -> OpenTarget:
        with torch.inference_mode(False):  # a test that asks first may be in it, and the next one trains
            return open_target(str(fabricated(family).target))

    return open_


def random_samples(lengths: tuple[int, ...], prompt: int = 4, seed: int = 5) -> list[Sample]:
    """Samples of these lengths with random tokens, supervised behind the prompt."""
    generator = torch.Generator().manual_seed(seed)
    return [
        Sample(f"s{i}", tuple(torch.randint(10, 400, (n,), generator=generator).tolist()), ((prompt, n),))
        for i, n in enumerate(lengths)
    ]
