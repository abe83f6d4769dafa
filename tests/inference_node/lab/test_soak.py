"""Two storms of those that docs/figures/soak.json records half an hour of; there speed is judged, here it is not."""

from collections.abc import Callable

import pytest

from inference_node.lab.fabricate import Fabricated
from inference_node.lab.soak import CLIENTS, REQUESTS, Probe, _compared, node, soak

Fabricate = Callable[..., Fabricated]


@pytest.mark.slow
def test_bad_company_leaves_the_node_as_it_was(fabricated: Fabricate) -> None:
    pair = fabricated("qwen3_5_moe")
    with node(pair.target, pair.drafter) as process:
        found = soak(process, 0.0, storms=2)
    assert found["unexpected"] == 0
    assert found["failed_in_engine"] == 0
    assert found["requests"] == 2 * CLIENTS * REQUESTS
    assert found["left_by_client"] > 0 and found["refused"] > 0
    assert found["cancelled_by_engine"] > 0
    assert found["memory_growth_mib"] < 64
    assert found["probes"] == 2


def test_the_last_tenth_is_compared_by_medians_and_memory_from_the_second_on() -> None:
    probes = [Probe(at, 10.0 - at / 10, 5.0, 1.0, 100.0 + (50 if at else 0) + at) for at in range(20)]
    found = _compared(probes)
    assert found["last_tenth_ratio"] == pytest.approx((10 - 1.85) / (10 - 0.05), abs=1e-4)
    assert found["memory_growth_mib"] == 16.0
    assert found["probes"] == 20
