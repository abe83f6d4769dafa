import pytest

from inference_node.lab.whole.live import CYCLES, imposed_counts


@pytest.mark.parametrize("tau", [1.0, 4.9, 7.35, 14.0])
def test_imposed_acceptance_has_exactly_the_stated_mean(tau):
    """Drawn ones came out at 7.64 and 5.08 in place of 7.35 and 4.9, and the speeds with them."""
    counts = imposed_counts(tau, 15)
    assert len(counts) == CYCLES and sum(counts) + CYCLES == round(tau * CYCLES)
    assert all(0 <= count <= 15 for count in counts)
    assert tau in (1.0, 14.0) or len(set(counts)) > 8, "spread, not constant"
