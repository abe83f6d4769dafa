"""Safetensors into tensors that exist already."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference_node.fast import reading
from inference_node.models.errors import BadModel
from inference_node.models.files import ModelFiles, find


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    generator = torch.Generator().manual_seed(0)
    for file in ("a", "b"):
        save_file(
            {
                f"{file}.wide": torch.randn(300, 700, generator=generator).to(torch.bfloat16),
                f"{file}.none": torch.zeros(0, 4),
                f"{file}.ids": torch.arange(10),
            },
            folder / f"{file}.safetensors",
        )
    return folder


def test_every_tensor_arrives_bit_for_bit_in_pieces(folder, monkeypatch):
    monkeypatch.setattr(reading, "PIECE", 1024)
    where = reading.stored(ModelFiles("m", folder))
    into = {name: torch.full(what.shape, 3, dtype=what.dtype) for name, what in where.items()}
    heard = []
    assert reading.read(into, where, lambda what, done: heard.append(done)) == 2 * (300 * 700 * 2 + 80)
    for file in ("a", "b"):
        for name, value in load_file(folder / f"{file}.safetensors").items():
            assert torch.equal(into[name], value)
    assert heard == sorted(heard) and heard[-1] == 1.0


def test_a_tensor_may_go_into_a_part_of_a_larger_one_and_into_another_type(folder):
    where = reading.stored(ModelFiles("m", folder))
    large = torch.zeros(2, 300, 700)
    reading.read({"b.wide": large[1]}, where)
    assert torch.equal(large[1], load_file(folder / "b.safetensors")["b.wide"].float()) and not large[0].any()


def test_a_place_of_another_shape_is_a_mistake_of_the_caller(folder):
    where = reading.stored(ModelFiles("m", folder))
    with pytest.raises(ValueError, match=r"a.wide: \(700, 300\)"):
        reading.read({"a.wide": torch.zeros(700, 300)}, where)


def test_a_file_that_ends_early_is_named(folder, tmp_path):
    whole = (folder / "a.safetensors").read_bytes()
    (tmp_path / "a.safetensors").write_bytes(whole)
    where = reading.stored(ModelFiles("m", tmp_path))
    (tmp_path / "a.safetensors").write_bytes(whole[:-100_000])
    with pytest.raises(BadModel, match=r"a\.safetensors.*an early end"):
        reading.read({"a.wide": torch.zeros(300, 700)}, where)


def test_a_whole_fabricated_model_is_found(fabricated):
    files = find(str(fabricated("qwen3_5_moe").target))
    where = reading.stored(files)
    assert set(where) == set(files.tensors().shapes())
    assert where["lm_head.weight"].dtype is torch.bfloat16
