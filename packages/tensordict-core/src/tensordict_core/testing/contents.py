"""Contents of a container in a form that all containers share: position by position, key by key.

A container of batch size ``[2, 3]`` has six rows, and a row is a dictionary from paths to tensors and values. Ragged
stacks have no dense form, but they have rows. Therefore the suite tests properties of rows, such as that indexing
selects certain rows unchanged, which hold for every container.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tensordict_core.base.node import Node

Row: TypeAlias = dict[tuple[str, ...], Any]


def contents(td: Any, prefix: tuple[str, ...] = ()) -> Row:
    """Return tensors and the values of non-tensor data by their paths.

    >>> contents(TensorDict({"a": {"b": 1}, "s": "text"}))
    {('a', 'b'): tensor(1), ('s',): 'text'}
    """
    out: Row = {}
    for key, value in td.items():
        path = (*prefix, key)
        if not isinstance(value, Node):
            out[path] = value
        elif value._is_non_tensor:
            # one value for all positions equals a list of as many equal values
            out[path] = value.tolist()
        elif value._is_opaque:
            out[path] = value._entry_value()
        else:
            out.update(contents(value, path))
    return out


def positions(batch_size: torch.Size) -> Tensor:
    """Return the number of each position of a batch; an operation must move rows as it moves these numbers.

    >>> positions(torch.Size([2, 2]))
    tensor([[0, 1],
            [2, 3]])
    """
    return torch.arange(batch_size.numel(), device="cpu").reshape(batch_size)


def rows(td: Any) -> list[Row]:
    """Return the contents of each position of the batch, in order.

    >>> [row["a",].item() for row in rows(TensorDict({"a": torch.arange(2)}, [2]))]
    [0, 1]
    """
    places = itertools.product(*(range(n) for n in td.batch_size))
    return [{path: _copied(value) for path, value in contents(td[place] if place else td).items()} for place in places]


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def map_rows(function: Callable[..., Any], *tables: list[Row]) -> list[Row]:
    """Return the rows with a function applied to each tensor (and to the tensors at its place in other tables)."""
    out = []
    for group in zip(*tables, strict=True):
        first, *others = group
        out.append(
            {
                path: function(value, *(other[path] for other in others)) if isinstance(value, Tensor) else value
                for path, value in first.items()
            }
        )
    return out


def assert_tensor(got: Tensor, expected: Tensor, where: Any) -> None:
    """Raise where two tensors differ by more than rounding; the message names the place.

    Raises:
        AssertionError: Shapes, dtypes or values differ.
    """
    if expected.dtype is torch.complex32 and got.dtype is expected.dtype:
        got, expected = torch.view_as_real(got), torch.view_as_real(expected)  # nothing compares such numbers
    if got.dtype == expected.dtype and torch.equal(got, expected):
        return  # much faster than the full comparison, and nearly always enough
    torch.testing.assert_close(got, expected, equal_nan=True, msg=lambda text: f"at {where}: {text}")


def assert_row(got: Mapping[Any, Any], expected: Mapping[Any, Any], where: Any = ()) -> None:
    """Raise where two rows differ; the message names the place and the path.

    Raises:
        AssertionError: Keys, shapes, dtypes or values differ.
    """
    assert set(got) == set(expected), f"at {where}: paths {sorted(got)} instead of {sorted(expected)}"
    for path, value in expected.items():
        if isinstance(value, Tensor):
            assert_tensor(got[path], value, f"{where}, {path}")
        else:
            assert got[path] == value, f"at {where}, {path}: {got[path]!r} instead of {value!r}"


def assert_rows(td: Any, expected: list[Row], numbers: Tensor | None = None) -> None:
    """Raise where the rows of ``td`` are not the expected ones (chosen and ordered by ``numbers``).

    Raises:
        AssertionError: The batch size or a row differs.
    """
    if numbers is not None:
        assert td.batch_size == numbers.shape, f"batch size {list(td.batch_size)} instead of {list(numbers.shape)}"
        expected = [expected[i] for i in numbers.reshape(-1).tolist()]
    got = rows(td)
    assert len(got) == len(expected)
    for where, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert_row(one, other, where)
