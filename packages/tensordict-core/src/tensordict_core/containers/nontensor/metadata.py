"""`MetaData`: one non-tensor value that describes a whole tensordict, and its types, such as ``MetaData[str]``."""

from __future__ import annotations

import functools
from typing import Any

from tensordict_core.containers.nontensor.data import NonTensorData


class MetaData(NonTensorData):
    """Non-tensor data about a whole tensordict: a stack of equal values keeps one of them, regardless of the options.

    ``MetaData[str]`` is the class of those that hold a string: for annotations, ``isinstance``, and to check a value.

    >>> torch.stack([TensorDict({"origin": MetaData("lab")}), TensorDict({"origin": MetaData("lab")})])["origin"]
    'lab'
    >>> MetaData[str]("lab").data, isinstance(MetaData("lab"), MetaData[str]), isinstance(MetaData(3), MetaData[str])
    ('lab', True, False)
    """

    __slots__ = ()

    _shares_when_stacked = True

    def __class_getitem__(cls, item: Any) -> Any:
        """Return the class of metadata whose value is of a type."""
        return _metadata_of(item)


class _TypedMeta(type):
    """The metaclass of ``MetaData[...]``: its instances are `MetaData` objects whose value has the type."""

    _of: Any

    def __call__(cls, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        made = MetaData(data, *args, **kwargs)
        if isinstance(cls._of, type) and not isinstance(made.data, cls._of):
            raise TypeError(
                f"{cls.__name__} holds a value of type {cls._of.__name__}, got {type(made.data).__name__}; convert the "
                "value, or use MetaData without a type"
            )
        return made

    def __instancecheck__(cls, instance: Any) -> bool:
        if not isinstance(instance, MetaData):
            return False
        return not isinstance(cls._of, type) or isinstance(instance._value, cls._of)

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__qualname__}'>"


@functools.cache
def _metadata_of(item: Any) -> Any:
    name = f"MetaData[{getattr(item, '__name__', item)}]"
    return _TypedMeta(name, (MetaData,), {"__slots__": (), "__module__": MetaData.__module__, "_of": item})
