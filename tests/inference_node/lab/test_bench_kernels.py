import json

import pytest

from inference_node.lab import bench_kernels
from inference_node.lab.shapes import QWEN36_35B_A3B


@pytest.mark.parametrize(("woken", "rows"), bench_kernels.WOKEN)
def test_imposed_routing_wakes_exactly_as_many_experts_as_asked(woken, rows):
    shape = QWEN36_35B_A3B
    ids = bench_kernels.imposed(shape.experts, woken, rows, shape.experts_per_token)
    assert ids.unique().numel() == woken
    assert all(len(set(row.tolist())) == shape.experts_per_token for row in ids)


def test_what_cannot_be_woken_is_refused():
    with pytest.raises(ValueError, match="cannot wake 9"):
        bench_kernels.imposed(256, 9, 1, 8)


def test_every_case_runs_and_leaves_a_figure(tmp_path, capsys):
    """On a CPU the twins are timed: the same cases, at small shapes."""
    assert bench_kernels.main(["--device", "cpu", "--shape", "small", "--repeat", "1", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    written = json.loads((tmp_path / "kernels.json").read_text())["figures"]
    for name in (
        "delta_in_1",
        "attention_out_int8_16",
        "delta_out_16",
        "route_16",
        "expert_down_mxfp4_e8",
        "head_16_sampled",
    ):
        assert name in told and written[f"{name}_us"] > 0
    assert written["copy_tb_s"] > 0


def test_a_share_is_bytes_over_time_over_the_copy_rate():
    assert bench_kernels.Measured("x", us=10.0, bytes=20_000_000, launches=1).share(4.0) == pytest.approx(0.5)
