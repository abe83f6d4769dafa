"""Puts a node together from its settings: model files, target, engine, application."""

import logging
from typing import Any

from inference_node.engine.engine import Engine, Load
from inference_node.engine.tokens import Tokens
from inference_node.server.app import Options
from inference_node.settings import Settings, check
from inference_node.speculate.seam import NodeError, Progress, Target

log = logging.getLogger("lamplighter.node")

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def open_engine(settings: Settings) -> Engine:
    """An engine that is loading. Raises SettingsError for what can be seen without loading."""
    return Engine(
        loader(settings),
        queue_limit=settings.queue,
        prefix_bytes=settings.prefix_bytes,
        stall_s=settings.stall_s,
    )


def loader(settings: Settings) -> Load:
    """How the engine's thread loads the model that the settings name."""
    check(settings)

    def load(told: Progress) -> tuple[Target, Tokens]:
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()  # ours tells the same, to every door

        if settings.threads:
            torch.set_num_threads(settings.threads)
        loaded = _load_target(settings, settings.device or ("cuda" if torch.cuda.is_available() else "cpu"), told)
        if loaded.tokenizer is None:
            raise NodeError(
                f"{settings.model} has no tokenizer files, so it cannot serve text. Add its tokenizer.json."
            )
        facts = loaded.target.facts
        return loaded.target, Tokens(loaded.tokenizer, facts.vocab, facts.stop_ids)

    return load


def _load_target(settings: Settings, device: str, told: Progress) -> Any:
    """With the engine asked for. By itself it takes the fast one on an accelerator, for the models that it knows."""
    from inference_node.fast.loading import load_fast
    from inference_node.fast.sizes import NotForFast
    from inference_node.speculate.loading import load_reference

    common: dict[str, Any] = {"device": device, "weights": settings.weights, "told": told}
    common |= {"context": settings.ctx or None, "block": settings.block or None}
    if settings.needs_fast or (settings.engine == "auto" and device != "cpu"):
        rollback = "fold" if settings.rollback == "auto" else settings.rollback
        try:
            return load_fast(
                settings.model,
                settings.draft,
                rollback=rollback,
                width=settings.width,
                prefix_bytes=settings.prefix_bytes,
                **common,
            )
        except NotForFast as error:
            if settings.needs_fast:
                raise
            log.info("the reference engine serves this: %s", error)
    rollback = "replay" if settings.rollback == "auto" else settings.rollback
    return load_reference(settings.model, settings.draft, rollback=rollback, **common)


def app_options(settings: Settings, *, states: bool = False) -> Options:
    """How the application shows itself; with `states` also to trainers. Raises SettingsError, NodeError."""
    from inference_node.models.files import find
    from inference_node.models.states import fingerprint

    return Options(
        name=settings.name,
        defaults={**recommended(settings.model), **settings.sampling},
        keys=settings.keys,
        hosts=settings.hosts,
        max_body_bytes=settings.max_body_bytes,
        states_bytes=settings.states_bytes,
        states_model=fingerprint(find(settings.model)) if states else "",
    )


def recommended(model: str) -> dict[str, Any]:
    """Sampling parameters that the model's own generation config names."""
    from inference_node.models.files import find

    config = find(model).generation_config
    if config.get("do_sample") is False:
        return {"temperature": 0.0}
    return {name: config[name] for name in SAMPLING if isinstance(config.get(name), int | float)}
