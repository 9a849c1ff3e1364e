"""The interface of tensorclasses to the fields of `NonTensorData`: their names, and construction from values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self, Unpack

from tensordict_core.base.signature import check_options, with_options
from tensordict_core.ops.io.from_python import BuildOptions


@dataclasses.dataclass
class _Fields:
    data: Any
    _metadata: Any = None
    _is_non_tensor: bool = True


class Record:
    """``fields``, ``from_tensordict``, ``from_dict`` and ``from_any``, which tensorclasses have too."""

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
        fields = dict(tensordict.items()) | dict(non_tensordict or {})
        made: Self = cls._of_fields(fields, tensordict.batch_size, tensordict.device)
        return made

    @classmethod
    @with_options(BuildOptions, None)
    def from_dict(cls, input_dict: Mapping[str, Any], **options: Unpack[BuildOptions]) -> Self:
        """Return the non-tensor data of the value under ``"data"``; the value is not converted.

        Args:
            input_dict: The values of the fields.
            batch_size: The batch size; none by default.
            device: The device.
            names: A name (or ``None``) for each batch dimension.
            auto_batch_size: Has no effect, because a value has no dimensions.
            batch_dims: Has no effect, for the same reason.

        Raises:
            ValueError: A key is not a field.

        >>> from tensordict_core import NonTensorData
        >>> NonTensorData.from_dict({"data": "run"}, batch_size=[2])
        NonTensorData(data=run, batch_size=torch.Size([2]), device=None)
        """
        check_options("from_dict", options, BuildOptions)
        data = cls._of_fields(dict(input_dict), options.get("batch_size") or (), options.get("device"))
        if (names := options.get("names")) is not None:
            data.names = names
        made: Self = data
        return made

    @classmethod
    def from_any(cls, obj: Any, **options: Any) -> Any:
        """Return the non-tensor data of the value under ``"data"``; other structures as `TensorDict.from_any`.

        Args:
            obj: The dictionary, or another structure.
            **options: Those of `TensorDict.from_any`.

        >>> from tensordict_core import NonTensorData
        >>> NonTensorData.from_any({"data": "run"})
        NonTensorData(data=run, batch_size=torch.Size([]), device=None)
        """
        if isinstance(obj, Mapping) and set(obj) == {"data"}:
            return cls.from_dict(obj, **options)
        general: Any = super()
        return general.from_any(obj, **options)

    @classmethod
    def _of_fields(cls, fields: dict[str, Any], batch_size: Any, device: Any) -> Any:
        known = [field.name for field in dataclasses.fields(_Fields)]
        if unknown := sorted(fields.keys() - {*known}):
            raise ValueError(f"the keys {unknown} must be fields, which are {known}; exclude these keys")
        make: Any = cls
        return make(**{"data": None} | fields, batch_size=batch_size, device=device)

    @classmethod
    def _from_entries(cls, entries: Mapping[Any, Any], **options: Any) -> Self:
        return cls.from_dict(entries, **options)
