"""Fabricated models, made once per session, and targets over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_node.fast.loading import FastLoaded, load_fast
from inference_node.lab.fabricate import Fabricated, fabricate_drafter, fabricate_target
from inference_node.speculate.loading import Loaded, load_reference

Fabricate = Callable[..., Fabricated]
Load = Callable[..., Loaded]
LoadFast = Callable[..., FastLoaded]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Small models gain nothing from threads, and on a busy machine they wait for each other for seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def fabricated(tmp_path_factory: pytest.TempPathFactory) -> Fabricate:
    """fabricated(family, revision="june", block=8) -> folders of a small pair, made once each."""

    @cache
    def target(family: str) -> Path:
        return fabricate_target(tmp_path_factory.mktemp(family) / "target", family)

    @cache
    def pair(family: str, revision: str = "june", block: int = 8) -> Fabricated:
        folder = tmp_path_factory.mktemp(f"{family}-{revision}") / "drafter"
        return Fabricated(target(family), fabricate_drafter(folder, target(family), revision, block=block))

    return pair


@pytest.fixture(scope="session")
def loaded(fabricated: Fabricate) -> Load:
    """loaded(family, draft="june", **options) -> a fabricated pair as a target, loaded once per set of options.

    draft: a drafter's revision, or none, ngram, mtp. Tests reset the target before they use it.
    """

    @cache
    def load(
        family: str, draft: str = "june", weights: str = "fp32", rollback: str = "replay", **options: int
    ) -> Loaded:
        plain = draft in ("none", "ngram", "mtp")
        pair = fabricated(family) if plain else fabricated(family, draft)
        name = draft if plain else str(pair.drafter)
        block = options.pop("block", 8) if plain else None
        return load_reference(str(pair.target), name, weights=weights, rollback=rollback, block=block, **options)

    return load


@pytest.fixture(scope="session")
def fast(fabricated: Fabricate) -> LoadFast:
    """fast(family, draft="june", **options) -> a fabricated pair as a fast target, loaded once per set of options.

    draft: a drafter's revision, or none, ngram, mtp. Tests reset the target before they use it.
    """

    @cache
    def load(
        family: str, draft: str = "june", weights: str = "fp32", rollback: str = "fold", **options: Any
    ) -> FastLoaded:
        plain = draft in ("none", "ngram", "mtp")
        pair = fabricated(family) if plain else fabricated(family, draft)
        name = draft if plain else str(pair.drafter)
        block = options.pop("block", 8) if plain else None
        return load_fast(
            str(pair.target), name, weights=weights, rollback=rollback, block=block, prefix_bytes=1 << 22, **options
        )

    return load
