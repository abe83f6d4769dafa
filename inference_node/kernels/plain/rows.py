"""Row functions whose rows do not depend on where in the block they stand.

Why: a token decoded alone is row 0 of a pass, the same token in a verify may be row 7. Both passes have the same number
of rows, so the library takes the same path, but even then a row's bits can depend on its index: matrix products split
their rows among threads unevenly (seen: MKL in fp32 with 5, 7 or 10 rows on two threads; never with 4, 8, 16, 64), a
product with one output column sums in another order, rows at odd addresses take other code, and element-wise functions
finish the last few elements of a thread's share with scalar code. None of that is promised anywhere, so it is tested
here: the first time a function is used with new shapes it is given one row many times. If the results are not all the
same bits, the function is run row by row from then on, which is slow and exact by construction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

RowFunction = Callable[..., Any]


ALIGNMENT = 64  # bytes; libraries choose other code for operands that start elsewhere


def aligned(name: str, *weights: torch.Tensor) -> str:
    """A name for `Rows` of a function whose weights may start at odd addresses, such as one expert of many."""
    return name if all(w.data_ptr() % ALIGNMENT == 0 for w in weights) else f"{name} unaligned"


class Rows:
    """Runs functions from rows to rows (a tensor or a tuple of tensors, rows first) with position-independent bits.

    Functions under one name must do the same work with weights of the same shapes and alignment.
    """

    def __init__(self) -> None:
        self.together: dict[tuple[Any, ...], bool] = {}  # by name, shapes and dtypes: whether all rows may go at once

    def __call__(self, name: str, function: RowFunction, *rows: torch.Tensor) -> Any:
        rows = tuple(_placed(row) for row in rows)
        key = (name, torch.get_num_threads(), *((row.shape, row.dtype, row.device.type) for row in rows))
        if key not in self.together:
            self.together[key] = _independent(function, rows)
        if self.together[key]:
            return function(*rows)
        return _stack([function(*(row[i : i + 1].clone() for row in rows)) for i in range(rows[0].shape[0])])

    @property
    def run_singly(self) -> tuple[str, ...]:
        """Names of the functions that this machine's libraries do not compute position-independently."""
        return tuple(sorted({key[0] for key, together in self.together.items() if not together}))


def _placed(rows: torch.Tensor) -> torch.Tensor:
    """At an aligned address, as a fresh tensor is."""
    return rows.contiguous() if rows.data_ptr() % ALIGNMENT == 0 else rows.clone(memory_format=torch.contiguous_format)


def _independent(function: RowFunction, rows: tuple[torch.Tensor, ...]) -> bool:
    count = rows[0].shape[0]
    for i in {0, count // 2}:
        same = tuple(row[i : i + 1].expand_as(row).contiguous() for row in rows)
        for result in _tuple(function(*same)):
            if not torch.equal(bits(result), bits(result[:1]).expand_as(result)):
                return False
    return True


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Integers, so that NaN equals itself and -0.0 differs from 0.0."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def _tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _stack(results: list[Any]) -> Any:
    if isinstance(results[0], tuple):
        return tuple(torch.cat(parts) for parts in zip(*results, strict=True))
    return torch.cat(results)
