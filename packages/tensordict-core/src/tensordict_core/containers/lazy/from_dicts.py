"""Lazy stacks made of dictionaries, one for each element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from tensordict_core.base import errors
from tensordict_core.base.node import Node
from tensordict_core.base.signature import with_options
from tensordict_core.containers.collection import TensorDictBase
from tensordict_core.ops.io import from_python as build
from tensordict_core.ops.shape.combine import lazy_stack


class LazyBuilding(TensorDictBase, abstract=True):
    """``from_dict`` and ``from_list`` of lazy stacks."""

    __slots__ = ()

    @classmethod
    def from_dict(
        cls,
        input_dict: Mapping[str, Any] | Sequence[Any],
        *other: Any,
        auto_batch_size: bool | None = None,
        batch_size: Sequence[int] | int | None = None,
        device: Any = None,
        batch_dims: int | None = None,
        names: Sequence[str | None] | None = None,
        stack_dim_name: str | None = None,
        stack_dim: int = 0,
    ) -> Any:
        """Return a lazy stack of dictionaries, which may differ in shapes and keys.

        Args:
            input_dict: The list of dictionaries, or a dictionary of them under the keys ``"0"``, ``"1"``, ...
            *other: More dictionaries, which follow those.
            auto_batch_size: Whether the batch size grows to the longest that the entries of each element share.
            batch_size: The batch size of the stack.
            device: The device to which every entry is moved.
            batch_dims: The maximum number of batch dimensions; implies ``auto_batch_size`` unless that is ``False``.
            names: A name (or ``None``) for each batch dimension.
            stack_dim_name: The name of the stack dimension alone.
            stack_dim: The batch dimension along which the elements are stacked.

        Raises:
            TypeError: It is not a list of dictionaries.

        >>> from tensordict_core import LazyStackedTensorDict
        >>> td = LazyStackedTensorDict.from_dict([{"a": torch.zeros(3)}, {"a": torch.zeros(4)}], stack_dim_name="t")
        >>> td.batch_size, td.names, td[1]["a"].shape
        (torch.Size([2]), ['t'], torch.Size([4]))
        """
        tds = [
            build.from_dict(item, device=device, batch_dims=stack_dim if stack_dim > 0 else None)
            for item in (*_in_order(input_dict), *other)
        ]
        stack = lazy_stack(tds, stack_dim, stack_dim_name=stack_dim_name)
        options: build.BuildOptions = {
            "auto_batch_size": auto_batch_size,
            "batch_dims": batch_dims,
            "batch_size": batch_size,
            "names": names,
        }
        return build.sized(stack, options)

    @classmethod
    @with_options(build.BuildOptions, None)
    def from_list(cls, input: Sequence[Any], *, lazy: bool | None = None, **options: Unpack[build.BuildOptions]) -> Any:
        """Return a lazy stack of the dictionaries or tensordicts of a list (of lists), as `TensorDict.from_list`.

        Args:
            input: The list; elements that are lists add dimensions.
            lazy: Has no effect: the result is a lazy stack.
            auto_batch_size: Whether the batch size grows to the longest that all entries share.
            batch_size: The batch size of the stack.
            device: The device to which every entry is moved.
            batch_dims: The maximum number of batch dimensions; implies ``auto_batch_size`` unless that is ``False``.
            names: A name (or ``None``) for each batch dimension.

        >>> from tensordict_core import LazyStackedTensorDict
        >>> type(LazyStackedTensorDict.from_list([{"a": 1}, {"a": 2}])).__name__
        'LazyStackedTensorDict'
        """
        return build.from_list(input, lazy=True, **options)


def _in_order(items: Any) -> list[Any]:
    """Return the elements that a list holds, or a dictionary under their positions."""
    if isinstance(items, Mapping) and items and all(str(i) in items for i in range(len(items))):
        items = [items[str(i)] for i in range(len(items))]
    if isinstance(items, list | tuple) and all(isinstance(item, Mapping | Node) for item in items):
        return list(items)
    raise errors.no_elements(items)
