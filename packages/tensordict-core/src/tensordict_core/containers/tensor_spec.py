"""`TensorAttrs`: the device, dtype and shape of a tensor as a non-tensor value of a tensordict.

``td.attrs()`` returns one for each leaf, and ``td.to(attrs)`` moves and casts each leaf to the device and dtype under
its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from tensordict_core.base.index import Index
from tensordict_core.base.meta import as_device
from tensordict_core.base.registry.types import containers
from tensordict_core.base.write_plan import WritePlan
from tensordict_core.containers.nontensor.base import NonTensorDataBase
from tensordict_core.containers.nontensor.metadata import MetaData
from tensordict_core.ops.tensor_spec import FIELDS, describe_leaf

__all__ = ["TensorAttrs"]


class Attrs(NamedTuple):
    """The fields of `TensorAttrs`; ``None`` means unspecified."""

    tgt_device: torch.device | None = None
    tgt_dtype: torch.dtype | None = None
    tgt_shape: torch.Size | None = None


class TensorAttrs(MetaData):
    """The device, dtype and shape of a tensor; each may be ``None``.

    The names start with ``tgt_`` because ``device``, ``dtype`` and ``shape`` are attributes of the container.

    Args:
        tgt_device: The device or its name.
        tgt_dtype: The dtype.
        tgt_shape: The shape.
        batch_size: The batch size; replaced by that of a tensordict that stores the object.
        device: The device of the tensordict that stores the object.
        names: A name (or ``None``) for each batch dimension.

    Raises:
        TypeError: ``tgt_dtype`` is not a dtype.

    >>> attrs = TensorDict({"a": torch.zeros(3, dtype=torch.int32)}).attrs()
    >>> attrs["a"].tgt_dtype, attrs["a"].tgt_shape
    (torch.int32, torch.Size([3]))
    >>> TensorDict({"a": 1.0, "b": 2.0}).to(attrs)
    TensorDict(
        fields={
            a: Tensor(shape=torch.Size([]), device=cpu, dtype=torch.int32, is_shared=False),
            b: Tensor(shape=torch.Size([]), device=cpu, dtype=torch.float32, is_shared=False)},
        batch_size=torch.Size([]),
        device=None,
        is_shared=False)
    """

    __slots__ = ()

    _value: Attrs

    def __init__(
        self,
        tgt_device: torch.device | str | None = None,
        tgt_dtype: torch.dtype | None = None,
        tgt_shape: Sequence[int] | None = None,
        *,
        batch_size: Sequence[int] | int | None = None,
        device: torch.device | str | None = None,
        names: Sequence[str | None] | None = None,
    ) -> None:
        if not (tgt_dtype is None or isinstance(tgt_dtype, torch.dtype)):
            raise TypeError(f"tgt_dtype is a torch.dtype or None, got {tgt_dtype!r}; pass, for example, torch.int8")
        shape = None if tgt_shape is None else torch.Size(tgt_shape)
        value = Attrs(as_device(tgt_device), tgt_dtype, shape)
        super().__init__(value, batch_size=batch_size, device=device, names=names)

    @classmethod
    def from_tensor(cls, tensor: Tensor, *, fields: Sequence[str] = FIELDS) -> Self:
        """Return the device, dtype and shape of a tensor.

        Args:
            tensor: The tensor.
            fields: Some of ``"device"``, ``"dtype"`` and ``"shape"``; the others are ``None``.

        Raises:
            TypeError: ``tensor`` is not a tensor.
            ValueError: A field is unknown.

        >>> TensorAttrs.from_tensor(torch.zeros(2, 3), fields=("dtype",))
        TensorAttrs(tgt_device=None, tgt_dtype=torch.float32, tgt_shape=None)
        """
        if not isinstance(tensor, Tensor):
            raise TypeError(f"from_tensor takes a tensor, got {type(tensor).__name__}; use td.attrs() for a tensordict")
        described: Self = describe_leaf(tensor, fields)
        return described

    def _entry_value(self, holder: Any = None, key: str = "") -> Any:
        return self

    def _plan_value(
        self, holder: Any, key: str, index: Index | None, value: Any, plan: WritePlan, prefix: tuple[str, ...]
    ) -> None:
        self._check(value)
        super()._plan_value(holder, key, index, value, plan, prefix)

    def _replace_value(self, value: Any) -> None:
        self._check(value)
        self._value = value._value

    def _check(self, value: Any) -> None:
        if not isinstance(value, TensorAttrs):
            got = value._entry_value() if isinstance(value, NonTensorDataBase) else value
            raise TypeError(f"TensorAttrs takes another TensorAttrs in place, got {got!r}; use set() to replace it")

    @property
    def tgt_device(self) -> torch.device | None:
        """The device of the tensor.

        >>> TensorAttrs("cpu").tgt_device
        device(type='cpu')
        """
        return self._value.tgt_device

    @property
    def tgt_dtype(self) -> torch.dtype | None:
        """The dtype of the tensor.

        >>> TensorAttrs("cpu").tgt_dtype is None
        True
        """
        return self._value.tgt_dtype

    @property
    def tgt_shape(self) -> torch.Size | None:
        """The shape of the tensor, batch dimensions included.

        >>> TensorAttrs(tgt_shape=[3, 4]).tgt_shape
        torch.Size([3, 4])
        """
        return self._value.tgt_shape

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return the three fields by name.

        >>> TensorAttrs(tgt_dtype=torch.int8).to_dict()
        {'tgt_device': None, 'tgt_dtype': torch.int8, 'tgt_shape': None}
        """
        return self._value._asdict()

    def __repr__(self) -> str:
        device, dtype, shape = self._value
        said = ", ".join(f"{name}={value}" for name, value in zip(Attrs._fields, (device, dtype, shape), strict=True))
        return f"{type(self).__name__}({said})"


containers.attrs = TensorAttrs
