import math

import pytest
import torch

from inference_node.kernels.plain.philox import noise, philox4x32

# The authors' known answers for philox4x32 with 10 rounds: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_words_are_the_authors_known_answers(counter, key, expected):
    words = philox4x32(tuple(torch.tensor([word]) for word in counter), *key)
    assert tuple(int(word) for word in words) == expected


def test_noise_depends_on_seed_position_and_id_only():
    ids = torch.arange(1000)
    whole = noise(7, 33, ids)
    assert torch.equal(noise(7, 33, ids[500:600]), whole[500:600])
    assert not torch.equal(noise(8, 33, ids), whole)
    assert not torch.equal(noise(7, 34, ids), whole)
    assert not torch.equal(noise(7 + 2**32, 33, ids), whole), "the seed's upper half counts"


def test_noise_is_never_plus_infinity_nor_nan():
    """Bug class: (r + 0.5) * 2^-24 rounds to 1.0 in fp32, infinite noise, a random tail token now and then."""
    values = torch.cat([noise(seed, position, torch.arange(250_000)) for seed in range(4) for position in range(4)])
    assert not values.isnan().any()
    assert float(values.max()) <= 33 * math.log(2) + 1e-3


def test_the_extreme_words_give_finite_or_harmless_noise():
    """The smallest word gives the largest noise, log(2^33); the largest word gives -inf, which is never picked."""
    word = torch.tensor([0, 2**32 - 1], dtype=torch.int64)
    uniform = word.to(torch.float32) * 2.0**-32 + 2.0**-33
    value = -torch.log(-torch.log1p(-uniform))
    assert float(value[0]) == pytest.approx(33 * math.log(2), rel=1e-6)
    assert float(value[1]) == -math.inf


def test_noise_follows_the_gumbel_law():
    values = noise(123, 5, torch.arange(400_000)).to(torch.float64)
    assert float(values.mean()) == pytest.approx(0.5772156649, abs=0.01)
    assert float(values.var()) == pytest.approx(math.pi**2 / 6, rel=0.01)
    # P(noise < x) = exp(-exp(-x)), compared over the whole range (Kolmogorov-Smirnov at 0.1 %)
    ordered = values.sort().values
    law = torch.exp(-torch.exp(-ordered))
    steps = torch.arange(1, len(ordered) + 1, dtype=torch.float64) / len(ordered)
    assert float((law - steps).abs().max()) < 1.95 / math.sqrt(len(ordered))
