"""The bench as a whole on the small shapes and a CPU, where it says nothing about speed: its parts run and its count of
time holds."""

import io
from contextlib import redirect_stdout

import pytest

from inference_node.lab import fast_bench
from inference_node.lab.whole.halves import TURNS


@pytest.fixture(scope="module")
def told():
    options = ["--device", "cpu", "--shape", "small", "--contexts", "256", "--repeat", "1"]
    with redirect_stdout(io.StringIO()) as out:
        assert fast_bench.main([*options, "--parts", "margins,endurance,halves", "--positions", "8"]) == 0
    lines = out.getvalue().splitlines()
    return dict(line.split(" = ") for line in lines if " = " in line), lines[-1]


def test_teacher_forced_in_fp32_the_engine_says_what_transformers_says(told):
    """In bf16 both differ from it; in one type nothing may."""
    figures, _ = told
    assert float(figures["margin_tokens"]) >= 64
    assert float(figures["fast_disagreement"]) == float(figures["transformers_disagreement"]) == 0.0


def test_a_long_generation_is_held_against_the_bytes_of_its_context(told):
    figures, _ = told
    assert float(figures["endurance_tokens"]) > 150
    assert 0.2 < float(figures["endurance_last_over_first"]) < 5.0


def test_both_ways_of_the_experts_second_product_are_timed(told):
    figures, last = told
    for turn in TURNS:
        assert all(float(figures[f"with_{turn}_{piece}_ms"]) > 0 for piece in ("decode", "draft", "cycle"))
    assert float(figures["halves_bit_mismatches"]) == 0
    assert last.endswith("missing: nothing")


def test_a_model_from_files_is_timed_as_a_random_one_is(fabricated):
    pair = fabricated("qwen3_5_moe")
    options = ["--device", "cpu", "--contexts", "64", "--repeat", "1", "--parts", "verify,draft,constrained"]
    with redirect_stdout(io.StringIO()) as out:
        assert fast_bench.main([*options, "--model", str(pair.target), "--draft", str(pair.drafter)]) == 0
    lines = out.getvalue().splitlines()
    figures = dict(line.split(" = ") for line in lines if " = " in line)
    assert lines[-1].endswith("missing: nothing")
    assert all(float(figures[name]) > 0 for name in ("decode_ms", "draft_ms", "constrained_tok_s_tau_7_35"))


def test_what_only_a_random_model_has_is_refused_for_files(capsys):
    with pytest.raises(SystemExit):
        fast_bench.main(["--device", "cpu", "--model", "somewhere", "--parts", "copy,bits"])
    assert "bits: only a random model has these parts" in capsys.readouterr().err


def test_a_part_for_which_no_time_is_left_is_named_and_not_begun(capsys):
    assert fast_bench.run(None, ["copy"], lambda: None, until=0.0) == ["copy"]
    assert "copy: not begun" in capsys.readouterr().out


def test_a_part_that_fails_is_named_and_the_next_one_runs(capsys, monkeypatch):
    class Bare:
        target = None

    done = []
    monkeypatch.setitem(fast_bench.PARTS, "copy", (lambda bench: 1 / 0, 1))
    monkeypatch.setitem(fast_bench.PARTS, "text", (done.append, 1))
    assert fast_bench.run(Bare(), ["copy", "text"], lambda: done.append("recorded")) == ["copy"]
    assert len(done) == 3 and done[0] == done[2] == "recorded"
    assert "ZeroDivisionError" in capsys.readouterr().out
