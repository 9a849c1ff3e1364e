"""`assert_close` for tensordicts: the message names every entry that differs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.errors.types import StackError
from tensordict_core.base.keys import NestedKey, unravel_key, unravel_key_to_tuple
from tensordict_core.base.node import Node, has_entries, is_leaf_tensor


def assert_close(
    actual: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    intersection: bool = False,
    msg: str = "",
    prefix: NestedKey = (),
) -> bool:
    """Assert that two tensordicts have the same keys, and leaves of equal shape, dtype and device and close values.

    Non-tensor values must be equal. Batch sizes, devices and the kinds of containers are not compared.

    Args:
        actual: The tensordict to check.
        expected: The expected tensordict.
        rtol: The relative tolerance; by default that of `torch.testing.assert_close` for the dtype.
        atol: The absolute tolerance; likewise, and given together with ``rtol``.
        equal_nan: Whether NaN equals NaN.
        intersection: Whether to compare only the keys that both have.
        msg: Text at the end of the message.
        prefix: A key that is prepended to the keys in the message.

    Returns:
        True.

    Raises:
        AssertionError: Entries differ; the message names each with its largest difference and the position of that.
        KeyError: Keys differ and not ``intersection``.
        TypeError: One of them is not a tensordict.

    >>> a = TensorDict({"x": torch.zeros(3), "y": {"z": torch.ones(3)}})
    >>> assert_close(a, a.clone())
    True
    >>> assert_close(a, a + 0.5)
    Traceback (most recent call last):
    AssertionError: the tensordicts are not close, in 2 of 4 comparisons:
      key 'x' does not match, got mse = 0.25, largest difference 0.5 at (0,) (3 of 3 elements differ by ...)
      key ('y', 'z') does not match, got mse = 0.25, largest difference 0.5 at (0,) (3 of 3 elements differ by ...)
    """
    for value in (actual, expected):
        if not isinstance(value, Node):
            raise TypeError(
                f"assert_close compares two tensordicts, got {type(value).__name__}; use torch.testing.assert_close"
            )
    at = unravel_key_to_tuple(prefix) if prefix else ()
    found: list[str] = []
    count = _compare(actual, expected, at, rtol, atol, equal_nan, intersection, found)
    if found:
        head = f"the tensordicts are not close, in {len(found)} of {count} comparisons:\n  " + "\n  ".join(found)
        raise AssertionError(f"{head}\n{msg}" if msg else head)
    return True


assert_allclose_td = assert_close
"""Earlier name of `assert_close`."""


def _stack_dim(td: Any) -> int | None:
    return None if td._lazy_stack is None else td._lazy_stack.stack_dim


def _entries(td: Any) -> dict[str, Any]:
    if (stack := td._lazy_stack) is not None:
        # a lazy stack is compared element by element, so entries that do not stack are compared too
        return {str(i): element for i, element in enumerate(stack.tensordicts)}
    return {key: td._get(key) for key in td._keys()}


def _columns(actual: Any, expected: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries of two stacks of different stack dimensions; their rows where entries do not stack."""
    try:
        left, right = ({key: td._get(key) for key in td._keys()} for td in (actual, expected))
    except StackError:
        if actual.batch_size != expected.batch_size:
            raise
        left, right = ({str(i): row for i, row in enumerate(td.unbind(0))} for td in (actual, expected))
    return left, right


def _compare(
    actual: Any,
    expected: Any,
    at: tuple[str, ...],
    rtol: float | None,
    atol: float | None,
    equal_nan: bool,
    intersection: bool,
    found: list[str],
) -> int:
    """Append a message for each difference to ``found``; return the number of comparisons."""
    if _stack_dim(actual) != _stack_dim(expected):
        left, right = _columns(actual, expected)
    else:
        left, right = _entries(actual), _entries(expected)
    if not intersection and left.keys() != right.keys():
        raise errors.keys_mismatch(
            [unravel_key((*at, key)) for key in left if key not in right],
            [unravel_key((*at, key)) for key in right if key not in left],
        )
    count = 1
    for key, mine in left.items():
        if key not in right:
            continue
        theirs, path = right[key], (*at, key)
        if has_entries(mine) and isinstance(theirs, Node):
            count += _compare(mine, theirs, path, rtol, atol, equal_nan, intersection, found)
            continue
        count += 1
        if is_leaf_tensor(mine) and is_leaf_tensor(theirs):
            difference = _difference(mine, theirs, rtol, atol, equal_nan)
        elif isinstance(mine, Node) and isinstance(theirs, Node):
            difference = _value_difference(mine, theirs)
        else:
            difference = f"{type(mine).__name__} instead of {type(theirs).__name__}"
        if difference:
            found.append(f"key {_show(path)} does not match, got {difference}")
    return count


def _show(path: tuple[str, ...]) -> str:
    return repr(unravel_key(path)) if path else "of the root"


def _value_difference(mine: Any, theirs: Any) -> str:
    same = mine == theirs
    if bool(same.all()):
        return ""
    return f"value {mine._entry_value()!r} instead of {theirs._entry_value()!r}"


def _nested_difference(mine: Tensor, theirs: Tensor, rtol: float | None, atol: float | None, equal_nan: bool) -> str:
    """Compare nested tensors by component: ragged sizes of two nested tensors never compare equal."""
    left, right = mine.unbind(), theirs.unbind()
    if len(left) != len(right):
        return f"{len(left)} components instead of {len(right)}"
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        if difference := _difference(a, b, rtol, atol, equal_nan):
            return f"component {i}: {difference}"
    return ""


def _difference(mine: Tensor, theirs: Tensor, rtol: float | None, atol: float | None, equal_nan: bool) -> str:
    if mine.is_nested and theirs.is_nested:
        return _nested_difference(mine, theirs, rtol, atol, equal_nan)
    for name in ("shape", "dtype", "device"):
        a, b = getattr(mine, name), getattr(theirs, name)
        if a != b:
            return f"{name} {list(a) if name == 'shape' else a} instead of {list(b) if name == 'shape' else b}"
    try:
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol, equal_nan=equal_nan)
    except AssertionError as error:
        if mine.is_nested or mine.layout is not torch.strided:
            return str(error).splitlines()[0]
    else:
        return ""
    default_rtol, default_atol = torch.testing._comparison.get_tolerances(mine, theirs, rtol=rtol, atol=atol)
    exact = mine.dtype is torch.bool or not (mine.is_floating_point() or mine.is_complex())
    a, b = (mine.long(), theirs.long()) if exact else (mine, theirs)
    gap = (a - b).abs()
    mse = gap.double().square().mean().item()
    far = ~torch.isclose(a, b, default_rtol, default_atol, equal_nan)
    gap = torch.where(far, torch.where(gap.isnan(), torch.full_like(gap, torch.inf), gap) if not exact else gap, 0)
    where = tuple(int(i) for i in torch.unravel_index(gap.argmax(), gap.shape)) if gap.ndim else ()
    limit = f"{default_atol:g} + {default_rtol:g} * |expected|"
    return (
        f"mse = {mse:.4g}, largest difference {gap.max().item():.6g} at {where} ({int(far.sum())} of {far.numel()} "
        f"elements differ by more than {limit})"
    )
