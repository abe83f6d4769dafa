"""What is known to go wrong with a node, tried on the machine and the model at hand.

Each check says what was looked at, what was found, and what to do when it is not well. Nothing here trusts a promise of
a library: a rollback that reports success is compared with decoding anew, unreadable cache rows are filled with
rubbish, text is generated with speculation and without.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F

from inference_node.fast.loading import load_fast
from inference_node.fast.sizes import NotForFast
from inference_node.fast.target import FastTarget
from inference_node.kernels.plain.rows import bits
from inference_node.lab.fabricate import fabricate_pair
from inference_node.lab.lossless import POISONS, speak
from inference_node.lab.oracles import Oracle
from inference_node.models.target import TextModel
from inference_node.speculate.loading import load_reference
from inference_node.speculate.reference import ReferenceTarget
from inference_node.speculate.seam import NodeError, Sampling
from inference_node.state import recurrent
from inference_node.state.whole import SequenceState

PROMPT = 100
SPEED_TOKENS = 400
SLOWEST_LAST = 0.9  # of the speed of the first tenth, at equal context
SAMPLINGS = (Sampling(), Sampling(temperature=1.0, top_p=0.95, seed=1))


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. `advice` says what to do, when it is not well."""

    name: str
    well: bool
    found: str
    advice: str = ""


def examine(target: ReferenceTarget, tokens: int = 60, told: Callable[[str], None] = lambda what: None) -> list[Check]:
    """All checks over a loaded target. Its live sequence is lost. tokens: how many to generate per comparison."""
    checks = []
    for look in (_threads, _signed_zeros, _rows, _stale_cache_rows, _rollback, _same_text, _steady_speed):
        name = look.__name__.strip("_").replace("_", " ")
        told(name)
        try:
            with torch.inference_mode():
                checks += list(look(target, tokens))
        except NodeError as error:
            checks.append(
                Check(name, False, str(error), "The check itself could not be done: look at the others first.")
            )
    target.reset()
    return checks


def examine_graphs(target: FastTarget, tokens: int = 60) -> list[Check]:
    """Captured graphs against the same launches one by one: what to try first on a device that nobody has tried.

    A graph that reads an old address, or a kernel that may not be captured, gives other text and no error.
    """
    graphs = target.runner.graphs
    if not graphs.on:
        return [Check("captured graphs", True, "none on this device")]
    line = torch.randint(
        target.facts.known_ids, (PROMPT,), generator=torch.Generator().manual_seed(5)
    ).tolist()  # fmt: skip
    checks = []
    for sampling in (*SAMPLINGS, *SAMPLINGS[:1]):  # the first once more: a replay after other graphs
        name = f"captured graphs at temperature {sampling.temperature}"
        advice = "Serve with --engine reference on this device, and report this with the versions of torch and driver."
        try:
            graphs.on = False
            singly, *_ = speak(target, line, sampling, tokens, poison=False)
            graphs.on = True
            replayed, *_ = speak(target, line, sampling, tokens, poison=False)
        except Exception as error:  # whatever a driver says while capturing
            checks.append(Check(name, False, f"{type(error).__name__}: {error}"[:300], advice))
            break
        finally:
            graphs.on = True
        same = singly == replayed
        found = f"{len(singly)} tokens, the same" if same else f"text parts at token {_parted(singly, replayed)}"
        checks.append(Check(name, same, found, advice))
    return checks


def report(checks: Sequence[Check]) -> str:
    """For people: a line per check, and what to do below those that are not well."""
    lines = []
    for check in checks:
        lines.append(f"{'well' if check.well else 'BAD '}  {check.name}: {check.found}")
        if not check.well:
            lines.append(f"      {check.advice}")
    return "\n".join(lines)


def _threads(target: ReferenceTarget, tokens: int) -> Iterator[Check]:
    """Threads that share their cores with other work wait for each other at every operation."""
    if target.pair.model.device.type != "cpu":
        return
    threads = torch.get_num_threads()
    weight, x = torch.randn(1024, 1024), torch.randn(16, 1024)

    def timed(count: int) -> float:
        torch.set_num_threads(count)
        F.linear(x, weight)
        times = []
        for _ in range(30):
            began = time.perf_counter()
            F.linear(x, weight)
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    try:
        one, many = timed(1), timed(threads)
    finally:
        torch.set_num_threads(threads)
    yield Check(
        "threads",
        threads == 1 or many < 1.5 * one,
        f"a 16-row product takes {many * 1e6:.0f} us on {threads} threads, {one * 1e6:.0f} us on one",
        "Other work uses these cores, and threads that wait spin. Start the node with OMP_WAIT_POLICY=passive in its "
        "environment, or with fewer threads (LAMPNODE_THREADS).",
    )


def _signed_zeros(target: ReferenceTarget, tokens: int) -> Iterator[Check]:
    """-0.0 and +0.0 must be treated alike alone and in a block: some matrix units do not (llama.cpp#26744)."""
    model = target.pair.model
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(256, 256, generator=generator).to(model.device, model.dtype)
    rows = torch.randn(model.rows, 256, generator=generator).to(model.device, model.dtype)
    rows[:, ::3] = -0.0
    rows[1] = -0.0
    block = model.exact("doctor", lambda x: F.linear(x, weight), rows)
    differing = []
    for row in range(model.rows):
        alone = torch.cat([rows[row : row + 1], rows[:1].expand(model.rows - 1, -1)])
        if not torch.equal(bits(model.exact("doctor", lambda x: F.linear(x, weight), alone)[0]), bits(block[row])):
            differing.append(row)
    yield Check(
        "signed zeros",
        not differing,
        f"rows {differing} differ between alone and in a block" if differing else "the same bits alone and in a block",
        "This device's matrix products treat -0.0 by place. Use another torch build; speculation is not exact here.",
    )


def _rows(target: ReferenceTarget, tokens: int) -> Iterator[Check]:
    """Logits of a row alone and in a block with others, across the end of a cache page."""
    model = target.pair.model
    start = 256 - model.rows // 2
    line = _prompt(model, start + target.facts.block)
    state = _prefilled(model, line[:start])
    together = model.logits(model.block(line[start:], state, recurrent.notes("replay", model.fold)).hidden)
    wrong = 0
    for row in range(target.facts.block):
        notes = recurrent.notes("replay", model.fold)
        alone = model.logits(model.block([line[start + row]], state, notes).hidden)
        wrong += not torch.equal(alone[0], together[row])
        state.commit_block([line[start + row]], notes)
    singly = model.exact.run_singly
    yield Check(
        "rows",
        wrong == 0,
        f"{wrong} of {target.facts.block} rows differ between alone and in a block",
        "Speculative text can part from plain text on this machine. Report this with the versions of torch and CPU.",
    )
    yield Check(
        "row functions",
        not singly,
        f"run row by row, because their rows depend on their place: {', '.join(singly)}" if singly else "all at once",
        "Exact all the same, but slow. A number of threads that is a power of two may help.",
    )


def _stale_cache_rows(target: ReferenceTarget, tokens: int) -> Iterator[Check]:
    """Rows that nothing may read, filled with NaN, -0.0 and huge numbers, must change no bit."""
    line = _prompt(target.pair.model, PROMPT)
    for sampling in SAMPLINGS[:1]:
        clean, *_ = speak(target, line, sampling, tokens, poison=False)
        dirty, *_ = speak(target, line, sampling, tokens, poison=True)
        yield Check(
            "stale cache rows",
            clean == dirty,
            f"filled with {', '.join(map(str, POISONS))}: "
            + ("no token changed" if clean == dirty else f"text changed at token {_parted(clean, dirty)}"),
            "Attention reads rows that were freed. Do not use this build.",
        )


def _rollback(target: ReferenceTarget, tokens: int) -> Iterator[Check]:
    """The state after some rows of a block were refused, against decoding only the kept ones."""
    model = target.pair.model
    if not model.deltas:
        yield Check("rollback", True, "nothing recurrent in this model")
        return
    line = _prompt(model, PROMPT + target.facts.block)
    wrong = []
    for kept in (1, target.facts.block // 2, target.facts.block):
        block, plain = _prefilled(model, line[:PROMPT]), _prefilled(model, line[:PROMPT])
        notes = recurrent.notes(target.pair.rollback, model.fold)
        model.block(line[PROMPT:], block, notes)
        block.commit_block(line[PROMPT : PROMPT + kept], notes)
        for token in line[PROMPT : PROMPT + kept]:
            single = recurrent.notes(target.pair.rollback, model.fold)
            model.block([token], plain, single)
            plain.commit_block([token], single)
        pairs = zip(
            (*block.recurrent.conv, *block.recurrent.delta),
            (*plain.recurrent.conv, *plain.recurrent.delta),
            strict=True,
        )
        if not all(torch.equal(one, other) for one, other in pairs):
            wrong.append(kept)
    yield Check(
        f"rollback by {target.pair.rollback}",
        not wrong,
        f"the state is wrong after {wrong} kept rows" if wrong else "the same bits as decoding the kept rows alone",
        "Refused drafts stay in the recurrent state. Use the other --rollback.",
    )


def _same_text(target: ReferenceTarget, tokens: int) -> Iterator[Check]:
    """Text with speculation and without, from the same seed."""
    model = target.pair.model
    line = _prompt(model, PROMPT)
    own = target.pair.drafter
    for sampling in SAMPLINGS:
        plain, *_ = speak(target, line, sampling, tokens, poison=False, draft=False)
        try:
            for drafter in (own, Oracle("right then wrong", [*line, *plain], model.known_ids, target.facts.block)):
                target.pair.drafter = drafter
                said, *_ = speak(target, line, sampling, tokens, poison=False)
                yield Check(
                    f"text at temperature {sampling.temperature} with drafts {drafter.name}",
                    said == plain,
                    f"{len(plain)} tokens, the same" if said == plain else f"parts at token {_parted(plain, said)}",
                    "Speculation changes the text here. Serve with --draft none and report this.",
                )
        finally:
            target.pair.drafter = own


def _steady_speed(target: ReferenceTarget, tokens: int) -> Iterator[Check]:
    """Seconds per cycle at equal context, early and late in a session."""
    line = _prompt(target.pair.model, PROMPT)
    times = []
    for _ in range(math.ceil(max(20, min(SPEED_TOKENS, 4 * tokens)) / 10)):
        began = time.perf_counter()
        speak(target, line, Sampling(), 10, poison=False, draft=False)
        times.append(time.perf_counter() - began)
    tenth = max(1, len(times) // 10)
    first, last = min(times[tenth : 3 * tenth + 1]), min(times[-2 * tenth :])  # the quickest: least disturbed
    yield Check(
        "steady speed",
        first / last >= SLOWEST_LAST,
        f"the last rounds run at {first / last:.2f} of the first ones' speed",
        "Something fills up or heats up as a session goes on: look at memory, temperature and clock frequency.",
    )


def _prompt(model: TextModel, length: int) -> list[int]:
    return torch.randint(model.known_ids, (length,), generator=torch.Generator().manual_seed(5)).tolist()


def _prefilled(model: TextModel, tokens: Sequence[int]) -> SequenceState:
    state = SequenceState(model.shapes())
    for start in range(0, len(tokens), 64):
        model.tile(tokens[start : start + 64], state)
    return state


def _parted(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Try what is known to go wrong. Without --model: small ones.")
    parser.add_argument("--model", help="directory, hub id or package; its drafter by --draft")
    parser.add_argument("--draft", default="ngram")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--rollback", default="replay")
    parser.add_argument("--tokens", type=int, default=60, help="to generate per comparison")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        pairs = [(options.model, options.draft)] if options.model else _small_pairs(Path(folder))
        checks: list[Check] = []
        for model, draft in pairs:
            loaded = load_reference(
                model, draft, device=options.device, weights=options.weights, rollback=options.rollback
            )
            print(f"{loaded.target.facts.name}, drafts {loaded.target.facts.drafter}, on {loaded.target.facts.device}")
            found = examine(loaded.target, options.tokens)
            if options.device != "cpu":
                loaded.target.close()  # its weights make room for those of the fast engine
                found += _graphs_of(model, draft, options)
            print(report(found), flush=True)
            checks += found
    return 0 if all(check.well for check in checks) else 1


def _graphs_of(model: str, draft: str, options: argparse.Namespace) -> list[Check]:
    try:
        loaded = load_fast(model, draft, device=options.device, weights=options.weights)
    except NotForFast as refused:
        return [Check("captured graphs", True, f"not this model: {refused}")]
    try:
        return examine_graphs(loaded.target, options.tokens)
    finally:
        loaded.target.close()


def _small_pairs(folder: Path) -> list[tuple[str, str]]:
    """A hybrid with experts and a plain model, fabricated."""
    pairs = [fabricate_pair(folder / family, family) for family in ("qwen3_5_moe", "qwen3")]
    return [(str(pair.target), str(pair.drafter)) for pair in pairs]


if __name__ == "__main__":
    sys.exit(main())
