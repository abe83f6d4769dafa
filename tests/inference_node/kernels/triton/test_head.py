import pytest
import torch
import triton
import triton.language as tl

from inference_node.kernels.plain import head as plain
from inference_node.kernels.plain.linear import feed
from inference_node.kernels.plain.packed import Weight, pack_int8
from inference_node.kernels.plain.philox import noise, philox4x32
from inference_node.kernels.triton import head as fast
from inference_node.kernels.triton.philox import philox_noise
from inference_node.kernels.triton.tiles import Tile
from tests.inference_node.kernels.triton.helpers import (
    DEVICE,
    TYPES,
    close,
    is_a_kernel,
    normal,
    same_bits,
    unwritten,
    whole,
)

K, VOCAB = 48, 150
TILE = Tile(32, 32, 1, 1)


def words(seed: int) -> torch.Tensor:
    return whole(*(word - 2**32 if word >= 2**31 else word for word in (seed & 0xFFFFFFFF, seed >> 32)))


def mask(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, shape, generator=generator, dtype=torch.int64).to(torch.int32).to(DEVICE)


def run(module, x, weight, valid, *, heat=0.0, seed=11, first=100, logits=True, **options):
    """Choices, their logits, masses and all logits."""
    rows = x.shape[0]
    out = unwritten(rows, weight.shape[0]) if logits else None
    result = plain.chosen(weight.shape[0], DEVICE)
    more = {"tile": TILE} if module is fast else {}
    module.head(
        x,
        weight,
        whole(valid),
        torch.tensor([heat], device=DEVICE),
        words(seed),
        torch.arange(first, first + rows, dtype=torch.int32, device=DEVICE),
        result,
        logits=out,
        **options,
        **more,
    )
    return result.choice[:valid], result.logit[:valid], result.mass[:valid], out


@pytest.mark.parametrize("heat", [0.0, 0.8])
@pytest.mark.parametrize(("rows", "valid"), [(16, 16), (5, 3), (1, 1), (3, 0)])
def test_choices_are_the_twins(rows, valid, heat):
    x, weight = normal(rows, K, seed=1), Weight(normal(VOCAB, K, seed=2))
    expected, found = (run(module, x, weight, valid, heat=heat) for module in (plain, fast))
    assert torch.equal(found[0], expected[0])
    for a, b in zip(found[1:], expected[1:], strict=True):
        assert a is not None and b is not None and close(a, b, 1e-5)
    assert is_a_kernel(fast._tiles) and is_a_kernel(fast._pick)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("pack", [Weight, pack_int8])
def test_a_fed_norm_and_packed_weights(pack, dtype):
    x, factor = normal(3, K, seed=3, dtype=dtype), normal(K, seed=4).abs() + 0.5
    weight = pack(normal(VOCAB, K, seed=5, dtype=dtype))
    room = feed(3, factor, dtype)
    for row in range(3):
        room.write(row, x[row])
    fed = [run(module, room.scaled, weight, 3, squares=room.squares) for module in (plain, fast)]
    assert close(fed[1][3], fed[0][3], 1e-5) and torch.equal(fed[0][0], fed[1][0])


@pytest.mark.parametrize("heat", [0.0, 1.3])
def test_only_allowed_ids_are_chosen_and_counted(heat):
    """Known ids for all rows, a grammar's words per row; one row has nothing allowed, one a single id."""
    x, weight = normal(5, K, seed=6), Weight(normal(VOCAB, K, seed=7))
    known, allowed = mask(5, seed=8), mask(5, 5, seed=9)
    known[3] |= 1 << 4
    allowed[1], allowed[2] = 0, 0
    allowed[2, 3] = 1 << 4  # id 100 alone
    expected, found = (run(module, x, weight, 5, heat=heat, known=known, allowed=allowed) for module in (plain, fast))
    assert torch.equal(found[0], expected[0])
    assert int(found[0][1]) == -1 and int(found[0][2]) == 100
    finite = expected[2].isfinite()
    assert torch.equal(found[2].isfinite(), finite) and close(found[2][finite], expected[2][finite], 1e-5)
    assert close(found[3], expected[3], 1e-5), "bare logits are those of all ids"


def test_ties_go_to_the_lowest_id_inside_a_tile_and_among_tiles():
    x = torch.ones(2, K, device=DEVICE)
    weight = torch.zeros(VOCAB, K, device=DEVICE)
    weight[[41, 43, 140]] = 1.0
    assert run(fast, x, Weight(weight), 2)[0].tolist() == [41, 41]
    assert run(fast, x, Weight(torch.zeros_like(weight)), 2)[0].tolist() == [0, 0]


def test_a_row_alone_has_the_bits_of_the_row_in_a_block():
    x, weight, squares = normal(16, K, seed=10), Weight(normal(VOCAB, K, seed=11)), normal(16, K // 16, seed=12).abs()
    block = run(fast, x, weight, 16, heat=0.7, squares=squares)
    for row in (0, 6, 15):
        alone, own = unwritten(4, K), unwritten(4, K // 16)
        alone[0], own[0] = x[row], squares[row]
        found = run(fast, alone, weight, 1, heat=0.7, first=100 + row, squares=own)
        assert int(found[0][0]) == int(block[0][row])
        for a, b in zip(found[1:], block[1:], strict=True):
            assert a is not None and b is not None and same_bits(a[0], b[row])


def test_without_logits_the_choice_is_the_same():
    x, weight = normal(4, K, seed=13), Weight(normal(VOCAB, K, seed=14))
    with_them, without = (run(fast, x, weight, 4, heat=0.5, logits=logits) for logits in (True, False))
    assert torch.equal(with_them[0], without[0]) and same_bits(with_them[2], without[2])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_broken_logit_shows_in_the_mass(bad):
    """A logit of minus infinity too, which a sum of exponentials would take for an impossible token."""
    x, weight = normal(2, K, seed=15), normal(VOCAB, K, seed=16)
    weight[77, 0] = bad
    for module in (plain, fast):
        assert not bool(run(module, x, Weight(weight), 2)[2].isfinite().any())


@triton.jit
def _noise(p_out, p_position, p_seed, LIBRARY: tl.constexpr, N: tl.constexpr):
    o = tl.arange(0, N)
    b_position = tl.load(p_position + tl.arange(0, 1))
    b_noise = philox_noise(b_position[:, None], o[None, :], tl.load(p_seed), tl.load(p_seed + 1), LIBRARY)
    tl.store(p_out + o[None, :], b_noise)


@pytest.mark.parametrize(("seed", "position"), [(7, 33), (2**40 + 5, 100_000), (2**63 + 11, 0), (2**64 - 1, 2**31 - 1)])
def test_noise_is_the_twins(seed, position):
    """To the bit on an accelerator, where both use its library. The interpreter takes the logarithms in double
    precision, so there the words are compared exactly (through an inverse) and the noise to its last digits."""
    count = 1024
    found = unwritten(count)
    _noise[(1,)](found, whole(position), words(seed), LIBRARY=DEVICE.type == "cuda", N=count, enable_fp_fusion=False)
    ids = torch.arange(count, device=DEVICE)
    expected = noise(seed, position, ids)
    if DEVICE.type == "cuda":
        assert same_bits(found, expected)
        return
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-6)
    zero = torch.zeros_like(ids)
    word = philox4x32((zero + position, ids, zero, zero), seed & 0xFFFFFFFF, seed >> 32)[0].to(torch.float64)
    uniform = 1.0 - torch.exp(-torch.exp(-found.to(torch.float64)))
    assert float((uniform - word / 2**32).abs().max()) < 3e-7
