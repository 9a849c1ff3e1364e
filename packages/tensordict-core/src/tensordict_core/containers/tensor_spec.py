"""`TensorAttrs`: the device, dtype and shape of a tensor as a non-tensor value of a tensordict.

``td.attrs()`` returns one for each leaf, and ``td.to(attrs)`` moves and casts each leaf to the device and dtype under
its key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.index import Index
from tensordict_core.base.meta import as_device
from tensordict_core.base.registry.types import containers
from tensordict_core.base.write_plan import WritePlan
from tensordict_core.containers.nontensor.base import NonTensorDataBase
from tensordict_core.containers.nontensor.metadata import MetaData
from tensordict_core.ops.tensor_spec import FIELDS, describe_leaf


class Attrs(NamedTuple):
    """The fields of `TensorAttrs`; ``None`` means unspecified."""

    tgt_device: torch.device | None = None
    tgt_dtype: torch.dtype | None = None
    tgt_shape: torch.Size | None = None


def _field(name: str, doc: str) -> Any:
    def read(self: TensorAttrs) -> Any:
        return getattr(self._value, name)

    def write(self: TensorAttrs, value: Any) -> None:
        fields = {**self._value._asdict(), name: value}
        self._assign_data(type(self)(**fields))

    read.__annotations__ = {}
    return property(read, write, doc=doc)


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

    @classmethod
    def from_dict(cls, input_dict: Mapping[str, Any], *args: Any, **options: Any) -> Self:
        """Return the attributes of a dictionary, as ``to_dict`` makes it.

        Args:
            input_dict: The fields by name.
            *args: Options of `TensorDict.from_dict`, which have no effect.
            **options: The batch size, the device and the names.

        >>> TensorAttrs.from_dict({"tgt_dtype": torch.int8}).tgt_dtype
        torch.int8
        """
        return cls(**input_dict, **{key: options[key] for key in ("batch_size", "device", "names") if key in options})

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

    # the fields, which are read and written as those of a tensorclass ---------------------------------------------

    tgt_device = _field("tgt_device", "The device of the tensor.")
    tgt_dtype = _field("tgt_dtype", "The dtype of the tensor.")
    tgt_shape = _field("tgt_shape", "The shape of the tensor, batch dimensions included.")

    def _get(self, key: str) -> Any:
        return getattr(self._value, key) if key in Attrs._fields else None

    def get(self, key: Any, default: Any = None, **kwargs: Any) -> Any:
        """Return a field, or the default if it is ``None``.

        >>> TensorAttrs(tgt_dtype=torch.int8).get("tgt_dtype")
        torch.int8
        """
        value = self._get(key)
        return default if value is None else value

    def set(self, key: Any, item: Any, *args: Any, **kwargs: Any) -> Self:
        """Replace a field.

        Args:
            key: Its name.
            item: The new value.
            *args: Options of `TensorDict.set`, which have no effect on a field.
            **kwargs: The same by name.

        Raises:
            NoEntriesError: There is no such field.

        >>> TensorAttrs("cpu").set("tgt_dtype", torch.int8).tgt_dtype
        torch.int8
        """
        if key not in Attrs._fields:
            return super().set(key, item, *args, **kwargs)
        setattr(self, key, item)
        return self

    _store = set

    def keys(self, *args: Any, **kwargs: Any) -> Any:
        """Return the names of the fields that are not ``None``.

        >>> list(TensorAttrs(tgt_dtype=torch.int8).keys())
        ['tgt_dtype']
        """
        return self._as_fields().keys(*args, **kwargs)

    def values(self, *args: Any, **kwargs: Any) -> Any:
        """Return the fields that are not ``None``, as non-tensor data.

        >>> [value.data for value in TensorAttrs(tgt_dtype=torch.int8).values()]
        [torch.int8]
        """
        return self._as_fields().values(*args, **kwargs)

    def items(self, *args: Any, **kwargs: Any) -> Any:
        """Return the names and values of the fields that are not ``None``.

        >>> [(key, value.data) for key, value in TensorAttrs(tgt_dtype=torch.int8).items()]
        [('tgt_dtype', torch.int8)]
        """
        return self._as_fields().items(*args, **kwargs)

    def _as_fields(self) -> Any:
        entries = {name: MetaData(value) for name, value in self._value._asdict().items() if value is not None}
        return containers.dense(entries, batch_size=self._meta.batch_size, device=self._meta.device)

    def to_tensordict(self, *args: Any, **kwargs: Any) -> Any:
        """Return a tensordict of the fields that are not ``None``.

        >>> TensorAttrs(tgt_dtype=torch.int8).to_tensordict()["tgt_dtype"]
        torch.int8
        """
        return self._as_fields()

    def update(self, input_dict_or_td: Any = None, *args: Any, **kwargs: Any) -> Self:
        """Replace fields by those of a dictionary, a tensordict or other attributes.

        Args:
            input_dict_or_td: The fields by name.
            *args: Options of `TensorDict.update`.
            **kwargs: The same by name.

        Raises:
            NoEntriesError: There is no such field; none is replaced.

        >>> TensorAttrs("cpu").update({"tgt_dtype": torch.int8}).tgt_dtype
        torch.int8
        """
        if isinstance(input_dict_or_td, TensorAttrs) or input_dict_or_td is None:
            return super().update(input_dict_or_td, *args, **kwargs)
        fields = {
            key: value.data if isinstance(value, NonTensorDataBase) else value
            for key, value in input_dict_or_td.items()
        }
        for key in fields:
            if key not in Attrs._fields:  # before any field is replaced
                raise errors.NoEntriesError(f"key {key!r} is no field of TensorAttrs; use {', '.join(Attrs._fields)}")
        self._assign_data(type(self)(**{**self._value._asdict(), **fields}))
        return self

    def replace(self, *args: Any, **kwargs: Any) -> Self:
        """Return a copy with other fields.

        Args:
            *args: A dictionary or tensordict of them.
            **kwargs: Fields by name.

        >>> TensorAttrs("cpu").replace(tgt_dtype=torch.int8).tgt_device
        device(type='cpu')
        """
        new: Self = self._clone(True)
        for fields in (*args, kwargs):
            new.update(fields)
        return new

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
