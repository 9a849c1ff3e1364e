"""The interface of tensorclasses to the fields of `NonTensorData`: their names, and construction from a tensordict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

__all__ = ["Record"]


@dataclasses.dataclass
class _Fields:
    data: Any
    _metadata: Any = None
    _is_non_tensor: bool = True


class Record:
    """``fields`` and ``from_tensordict``, which tensorclasses have too."""

    __slots__ = ()

    @classmethod
    def fields(cls) -> tuple[dataclasses.Field[Any], ...]:
        """Return the fields, as `dataclasses.fields` does.

        >>> from tensordict_core import NonTensorData
        >>> [field.name for field in NonTensorData.fields()]
        ['data', '_metadata', '_is_non_tensor']
        """
        return dataclasses.fields(_Fields)

    @classmethod
    def from_tensordict(
        cls, tensordict: Any, non_tensordict: Mapping[str, Any] | None = None, safe: bool | None = None
    ) -> Self:
        """Return the non-tensor data of the value under ``"data"``, or ``None``, with the batch size of a tensordict.

        Args:
            tensordict: The tensordict.
            non_tensordict: Values of fields that are no entries.
            safe: Has no effect, because keys are always checked.

        Raises:
            ValueError: A key is not a field.

        >>> from tensordict_core import NonTensorData
        >>> NonTensorData.from_tensordict(TensorDict({"data": "run"}, [2]))
        NonTensorData(data=run, batch_size=torch.Size([2]), device=None)
        """
        values = {"data": None} | dict(tensordict.items()) | dict(non_tensordict or {})
        known = [field.name for field in dataclasses.fields(_Fields)]
        if unknown := sorted(values.keys() - {*known}):
            raise ValueError(f"the keys {unknown} must be fields, which are {known}; exclude these keys")
        make: Any = cls
        made: Self = make(**values, batch_size=tensordict.batch_size, device=tensordict.device)
        return made
