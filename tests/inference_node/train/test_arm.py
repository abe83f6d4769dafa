"""Arms and their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference_node.models.errors import NodeError
from inference_node.train import arm as arms


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_says_what_differs_and_the_rest_is_default(tmp_path: Path) -> None:
    arm = arms.read(write(tmp_path, "kl-mixed.toml", 'loss = "kl"\nattention = "mixed"\n'), seed=3)
    assert (arm.name, arm.loss, arm.attention, arm.weighting, arm.seed) == ("kl-mixed", "kl", "mixed", "exp", 3)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('loss = "mse"', "loss"),
        ("los = 1", "los"),
        ("block = 1", "block"),
        ('attention = "mixed"\nlayers = 1', "mixed needs at least 2 layers"),
        ("loss = ", "TOML"),
    ],
)
def test_what_does_not_fit_is_named_with_its_file(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(NodeError, match=r"odd\.toml") as caught:
        arms.read(write(tmp_path, "odd.toml", text))
    assert named in str(caught.value)


def test_a_grid_is_a_folder_of_arms_with_names_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, "b.toml", "")
    write(tmp_path, "a.toml", 'loss = "kl"')
    assert [arm.name for arm in arms.grid(tmp_path)] == ["a", "b"]
    write(tmp_path, "c.toml", 'name = "a"')
    with pytest.raises(NodeError, match='two arms are called "a"'):
        arms.grid(tmp_path)


def test_an_empty_grid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"\.toml"):
        arms.grid(tmp_path)


@pytest.mark.parametrize(
    ("layers", "taps", "expected"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (40, 5, (1, 10, 19, 28, 37)),
        (40, 8, (1, 6, 11, 16, 22, 27, 32, 37)),
        (36, 1, (18,)),
        (4, 3, (1, 2, 3)),
    ],
)
def test_taps_are_spread_as_the_released_files_have_them(layers: int, taps: int, expected: tuple[int, ...]) -> None:
    assert arms.made({"taps": taps}).tapped(layers) == expected


def test_the_weightings_decay_follows_the_block_size() -> None:
    assert [arms.made({"block": block}).slots_to_e for block in (8, 10, 16)] == [4.0, 5.0, 7.0]
