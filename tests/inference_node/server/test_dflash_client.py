"""z-lab's own benchmark client, unchanged, against the running server. Only its data set is a local stand-in."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.inference_node.models.oracle_environment import oracle_python
from tests.inference_node.server.conftest import Served

Serve = Callable[..., Served]

DATASETS = '''
"""Stands in for the datasets package: the client asks for one set, from a hub that tests cannot reach."""


class Rows(list):
    def shuffle(self, seed):
        return self

    def select(self, rows):
        return Rows(self[row] for row in rows)

    def map(self, change, **_):
        return Rows({**row, **change(row)} for row in self)

    @property
    def column_names(self):
        return list(self[0])


def load_dataset(*_, **__):
    return Rows({"question": f"What is {n} plus {n}?"} for n in range(6))
'''


@pytest.mark.parametrize("reasoning", [(), ("--reasoning", "off"), ("--reasoning", "high")])
def test_dflash_benchmark_openai_prints_an_acceptance_length(
    serve: Serve, tmp_path: Path, reasoning: tuple[str, ...]
) -> None:
    """facts/dflash.md 4.3: it reads meta_info at the top level; unknown-field rejection would break it."""
    served = serve("hm\n</think>\n\nTwice as much, of course.", accepts=(3,))
    (tmp_path / "datasets.py").write_text(DATASETS)
    command = [str(oracle_python()), "-c", "from dflash.cli import main; main()", "benchmark", "openai"]
    command += ["--model", "scripted", "--dataset", "gsm8k", "--num-prompts", "8", "--concurrency", "2"]
    command += ["--max-new-tokens", "50", "--temperature", "0.7", "--top-k", "20", "--base-url", served.url, *reasoning]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = re.search(r"Accept length:\s+([\d.]+)", ran.stdout)
    assert found is not None, ran.stdout
    stats = served.engine.stats().speculation
    assert float(found[1]) == pytest.approx(stats.tokens / stats.cycles, rel=0.02)  # warm-up and rounding aside
    assert re.search(r"Spec verify ct:\s+\d+", ran.stdout)
