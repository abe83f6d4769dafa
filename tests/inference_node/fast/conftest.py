"""Fabricated models as fast targets."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from inference_node.fast.loading import FastLoaded, load_fast
from tests.inference_node.conftest import Fabricate

LoadFast = Callable[..., FastLoaded]


@pytest.fixture(scope="session")
def fast(fabricated: Fabricate) -> LoadFast:
    """fast(family, draft="june", **options) -> a fabricated pair as a fast target, loaded once per set of options.

    draft: a drafter's revision, or none or ngram. Tests reset the target before they use it.
    """

    @cache
    def load(
        family: str, draft: str = "june", weights: str = "fp32", rollback: str = "fold", **options: Any
    ) -> FastLoaded:
        plain = draft in ("none", "ngram")
        pair = fabricated(family) if plain else fabricated(family, draft)
        name = draft if plain else str(pair.drafter)
        block = options.pop("block", 8) if plain else None
        return load_fast(
            str(pair.target), name, weights=weights, rollback=rollback, block=block, prefix_bytes=1 << 22, **options
        )

    return load
