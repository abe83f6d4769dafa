"""The doctor finds a healthy target healthy, and each planted illness by its own name."""

import pytest
import torch

from inference_node.lab import doctor
from inference_node.state import recurrent
from inference_node.state.pages import PageTable
from tests.inference_node.speculate.test_lossless import Forgetful


def ill(checks: list[doctor.Check]) -> set[str]:
    return {check.name.split(" by ")[0].split(" at ")[0] for check in checks if not check.well} - {
        "steady speed",
        "threads",
    }


@pytest.mark.parametrize(("family", "draft"), [("qwen3_5_moe", "june"), ("qwen3_5", "mtp"), ("llama", "ngram")])
def test_a_healthy_target_is_found_healthy(loaded, family, draft):
    told: list[str] = []
    checks = doctor.examine(loaded(family, draft, "bf16").target, 20, told.append)
    assert ill(checks) == set(), doctor.report(checks)
    assert "same text" in told and len(checks) >= 9


def test_a_rollback_that_restores_nothing_is_named(loaded, monkeypatch):
    monkeypatch.setattr(recurrent, "notes", lambda rollback, fold: Forgetful())
    checks = doctor.examine(loaded("qwen3_5", "none", "fp32").target, 30)
    assert {"rollback", "text"} <= ill(checks)
    assert "Use the other --rollback" in doctor.report(checks)


def test_attention_that_reads_freed_rows_is_named(loaded, monkeypatch):
    whole = PageTable.splits

    def careless(self: PageTable, layer: int, end: int, since: int = 0):
        return [type(s)(s.k, s.v, s.first, s.k.shape[1]) for s in whole(self, layer, end, since)]

    monkeypatch.setattr(PageTable, "splits", careless)
    assert "stale cache rows" in ill(doctor.examine(loaded("qwen3", "none", "fp32").target, 20))


def test_rows_that_depend_on_their_neighbours_are_named(loaded, monkeypatch):
    target = loaded("qwen3", "none", "fp32").target
    logits = target.pair.model.logits
    monkeypatch.setattr(target.pair.model, "logits", lambda hidden: logits(hidden) + 1e-4 * hidden.abs().sum())
    assert "rows" in ill(doctor.examine(target, 20))


def test_row_functions_that_must_run_singly_are_told(loaded, monkeypatch):
    target = loaded("qwen3", "none", "fp32").target
    monkeypatch.setattr(type(target.pair.model.exact), "run_singly", ("mlp",))
    checks = doctor.examine(target, 20)
    assert ill(checks) == {"row functions"} and "mlp" in doctor.report(checks)


def test_the_number_of_threads_is_left_as_it_was(loaded):
    before = torch.get_num_threads()
    doctor.examine(loaded("qwen3", "none", "fp32").target, 5)
    assert torch.get_num_threads() == before


class Careless:
    """Graphs that a driver captured wrongly: a replay leaves the next anchor one id further on."""

    def __init__(self, target) -> None:
        self.on, self.target = True, target

    def missing(self, names) -> bool:
        return False

    def run(self, name, piece) -> None:
        piece()
        if self.on:
            self.target.runner.shared.block[0].add_(1).remainder_(500)


def test_captured_graphs_that_say_something_else_are_named(fast, monkeypatch):
    target = fast("qwen3", "none").target
    assert all(check.well for check in doctor.examine_graphs(target)), "a CPU has none"
    monkeypatch.setattr(target.runner, "graphs", Careless(target))
    checks = doctor.examine_graphs(target, 6)
    assert {check.name.split(" at ")[0] for check in checks if not check.well} == {"captured graphs"}
    assert "--engine reference" in doctor.report(checks)
