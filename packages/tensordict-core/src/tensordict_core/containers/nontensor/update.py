"""Updates of non-tensor data: the values of other non-tensor data, or one value, take the place of the own ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from tensordict_core.base import errors
from tensordict_core.base.index import Index
from tensordict_core.containers.collection import TensorCollection
from tensordict_core.containers.nontensor.shared import SharesValues


class UpdatesValues(SharesValues, abstract=True):
    """The methods that replace the values of non-tensor data, part of the class `NonTensorDataBase`."""

    __slots__ = ()

    if TYPE_CHECKING:
        _is_shared: bool

        def _become(self, value: Any) -> None: ...

        def _set_flat(self, flat: list[Any]) -> None: ...

    def set(self, key: Any, item: Any, *args: Any, **kwargs: Any) -> Self:
        """Replace the value, whose key is ``"data"``.

        Args:
            key: The key.
            item: The new value.
            *args: Options of `TensorDict.set`, which have no effect on a value.
            **kwargs: The same by name.

        Raises:
            KeyError: This is another key.
            RuntimeError: The data are locked.

        >>> from tensordict_core import NonTensorData
        >>> NonTensorData("a").set("data", "b").data
        'b'
        """
        if key != "data":
            return super().set(key, item, *args, **kwargs)
        self._assign_data(item)
        return self

    _store = set

    def update(  # type: ignore[override]  # the source has a value and no entries
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        inplace: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Any = None,
        is_leaf: Any = None,
        update_batch_size: bool = False,
        ignore_lock: bool = False,
    ) -> Self:
        """Replace the values by those of other non-tensor data; a single value is set at all positions.

        Args:
            input_dict_or_td: The non-tensor data.
            clone: Has no effect, because values are never copied.
            inplace: Whether locked data are updated, too, as ``update_`` does.
            non_blocking: Has no effect.
            keys_to_update: Has no effect.
            is_leaf: Has no effect.
            update_batch_size: Whether a stack gets the batch size of the source.
            ignore_lock: Whether locked data are updated, too.

        Raises:
            RuntimeError: The data are locked, and the update is not in place.
            ValueError: The source has several values and this object a single one, or their batch sizes differ.
            TypeError: The source is not non-tensor data.

        >>> from tensordict_core import NonTensorStack
        >>> NonTensorStack("a", "b").update(NonTensorStack("c", "d")).tolist()
        ['c', 'd']
        """
        if self._locked and not (ignore_lock or inplace):
            raise errors.locked("update()")
        if update_batch_size and self._holds_values and is_values(input_dict_or_td):
            self._set_meta(input_dict_or_td._meta)
            self._set_flat(input_dict_or_td._flat_values())
            return self
        return self.update_(input_dict_or_td)

    def _in_place(self, result: Any, inplace: bool) -> Any:
        """Return the result of an operation; with ``inplace``, take over its batch size and values."""
        if not inplace or result is self:
            return result
        if self._locked:
            raise errors.locked("the operation replaces values")
        if self._holds_values:
            self._set_flat(result._flat_values())
        self._set_meta(result._meta)
        return self

    def update_(  # type: ignore[override]  # the source has a value and no entries
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Any = None,
    ) -> Self:
        """Replace the values in place, as ``update``; locked data allow it."""
        source = input_dict_or_td
        if not is_values(source):
            raise errors.no_value_source(source)
        own, size = self._meta.batch_size, source._meta.batch_size
        if not source._is_shared and (self._is_shared or own != size):
            raise errors.values_source(size, own, one=self._is_shared)
        self._refuse_part()
        self._become(source)
        return self

    def update_at_(
        self,
        input_dict_or_td: Any,
        idx: Any,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Any = None,
    ) -> Self:
        """Replace the values at the positions that ``idx`` selects; locked data allow it.

        Args:
            input_dict_or_td: The non-tensor data.
            idx: The index.
            clone: Has no effect, because values are never copied.
            non_blocking: Has no effect.
            keys_to_update: Has no effect.

        Raises:
            ValueError: This is `NonTensorData`, which has one value for all positions.
            TypeError: The source is not non-tensor data.

        >>> from tensordict_core import NonTensorData, NonTensorStack
        >>> NonTensorStack("a", "b").update_at_(NonTensorData("c"), 0).tolist()
        ['c', 'b']
        """
        if self._is_shared:
            raise errors.part_of_value()
        if not is_values(input_dict_or_td):
            raise errors.no_value_source(input_dict_or_td)
        self._index_put(Index(idx, self._meta.batch_size), input_dict_or_td)
        return self

    def _assign_data(self, value: Any) -> None:
        if self._locked and self._annotations is None:  # data in a file or in shared memory are always locked
            raise errors.locked("data")
        self._refuse_part()
        self._become(value)


def is_values(value: Any) -> bool:
    """Return whether a value is non-tensor data."""
    return isinstance(value, TensorCollection) and value._is_non_tensor
