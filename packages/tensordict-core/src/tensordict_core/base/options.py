"""Options: process-wide settings, changed permanently, within a ``with`` block, or by a decorator.

The values are attributes of one object, `current`, for all threads. Blocks of several threads may end in any order: the
end of a block reverts only its own change, so that no value remains after the blocks that set it.

Each option has a class: its method ``set()`` changes the option permanently, an instance as a context manager changes
it for a block, and an instance as a decorator changes it during each call of a function.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any, Final, Self, TypeVar
from weakref import ref

from tensordict_core.base.tracing import is_compiling

F = TypeVar("F", bound=Callable[..., Any])

PRINT_DEFAULTS: Final[dict[str, Any]] = {
    "show_batch_size": True,
    "show_device": True,
    "show_is_shared": True,
    "show_shape": True,
    "show_field_device": True,
    "show_dtype": True,
    "show_field_is_shared": True,
    "show_grad": False,
    "show_is_contiguous": False,
    "show_is_view": False,
    "show_storage_size": False,
    "plain": False,
    "sort_keys": "alphabetical",
    "compact": False,
    "html": True,
}

BRIEF: Final = dict.fromkeys(
    ("show_device", "show_is_shared", "show_field_device", "show_dtype", "show_field_is_shared"), False
)
"""The print options that ``verbose=False`` sets."""

_DETAILS: Final = frozenset(PRINT_DEFAULTS) - {
    "compact",
    "html",
    "show_batch_size",
    "show_device",
    "show_dtype",
    "sort_keys",
}


class _Options:
    """The values of all options."""

    __slots__ = (
        "__weakref__",
        "capture_non_tensor_stack",
        "get_defaults_to_none",
        "lazy_legacy",
        "list_to_stack",
        "printing",
    )

    def __init__(self) -> None:
        self.list_to_stack = True
        self.capture_non_tensor_stack = False
        self.get_defaults_to_none = True
        self.lazy_legacy = False
        self.printing = PRINT_DEFAULTS


current: Final = _Options()
"""The values that are in effect."""


class _Change:
    """One change of an option: the new value, and the setting that may take it back."""

    __slots__ = ("setting", "value")

    def __init__(self, setting: Any, value: Any) -> None:
        self.setting = ref(setting)
        self.value = value


_changes: Final[dict[str, list[_Change]]] = {}
"""The changes of each option that are in effect, the latest last; the first are those at the start of the process."""

_lock: Final = threading.Lock()


class Setting(ContextDecorator):
    """A new value of one option; a context manager and a decorator."""

    _option: str

    def __init__(self, mode: bool) -> None:
        self._value: Any = bool(mode)
        self._before: list[Any] = []

    @property
    def mode(self) -> Any:
        """The new value.

        >>> set_list_to_stack(False).mode
        False
        """
        return self._value

    def set(self) -> None:
        """Set the option permanently, or until ``__exit__`` is called."""
        name = self._option
        if is_compiling():  # Dynamo traces neither locks nor weak references
            self._before.append(getattr(current, name))
            setattr(current, name, self._new_value())
            return
        with _lock:
            changes = _changes.setdefault(name, [_Change(current, getattr(current, name))])
            while len(changes) > 1 and changes[-1].setting() is None:
                if changes[-2].setting() is not None:
                    break
                del changes[-2]  # both are permanent, so nothing returns to the earlier one
            change = _Change(self, self._new_value())
            changes.append(change)
            setattr(current, name, change.value)
        self._before.append(change)

    def clone(self) -> Self:
        """Return another setting of the same value, which is not in effect yet.

        >>> with set_list_to_stack(False).clone():
        ...     list_to_stack()
        False
        """
        new = copy.copy(self)
        new._before = []
        return new

    def _new_value(self) -> Any:
        return self._value

    def __enter__(self) -> Self:
        self.set()
        return self

    def __exit__(self, *exc: Any) -> None:
        change = self._before.pop()
        if not isinstance(change, _Change):
            setattr(current, self._option, change)
            return
        with _lock:
            changes = _changes[self._option]
            if change in changes:
                changes.remove(change)
            setattr(current, self._option, changes[-1].value)


class set_list_to_stack(Setting):
    """Set whether a non-numeric list is stored as one value for each batch position or as a single value.

    By default, a list with as many elements as the first batch dimension becomes a `NonTensorStack` of its elements.

    Args:
        mode: Whether a list becomes a stack of its elements.

    >>> with set_list_to_stack(False):
    ...     td = TensorDict({"s": ["a", "b"]}, batch_size=[2])
    >>> td["s"], td[0]["s"]
    (['a', 'b'], ['a', 'b'])
    """

    _option = "list_to_stack"


class set_capture_non_tensor_stack(Setting):
    """Set whether stacking or concatenating equal non-tensor values returns one value or a list.

    Args:
        mode: Whether equal values become one value; by default each position has its own.

    >>> tds = [TensorDict({"s": "a"}), TensorDict({"s": "a"})]
    >>> torch.stack(tds)["s"]
    ['a', 'a']
    >>> with set_capture_non_tensor_stack(True):
    ...     print(torch.stack(tds)["s"])
    a
    """

    _option = "capture_non_tensor_stack"


class _GetDefaultsToNone(Setting):
    """The option of `set_get_defaults_to_none`, unset until its block starts."""

    _option = "get_defaults_to_none"


class set_get_defaults_to_none(_GetDefaultsToNone):
    """Set whether ``td.get(key)`` without a default returns ``None`` for a missing entry, or raises a ``KeyError``.

    Creating an instance sets the option immediately. As a context manager or a decorator, the instance restores the
    previous value after the block or the function call.

    Args:
        set_to_none: Whether the default is ``None``.

    >>> with set_get_defaults_to_none(False):
    ...     TensorDict({"a": 1}).get("b", "absent")
    'absent'
    >>> TensorDict({"a": 1}).get("b") is None
    True
    """

    def __init__(self, set_to_none: bool = True) -> None:
        super().__init__(set_to_none)
        self.set()

    def __enter__(self) -> Self:
        if not self._before:  # the first block ends what __init__ began
            self.set()
        return self

    def __call__(self, function: F) -> F:
        """Return a function whose calls run with the option set."""
        self.__exit__()
        return _GetDefaultsToNone(self._value)(function)


class set_printoptions(Setting):
    """Set how tensordicts are printed.

    Args:
        verbose: Whether to print devices, dtypes and whether memory is shared. Shapes, batch sizes and keys are printed
            unless an option below turns them off.
        **kwargs: Any of the options that ``get_printoptions`` lists: ``show_batch_size``, ``show_device``,
            ``show_is_shared`` for tensordicts; ``show_shape``, ``show_field_device``, ``show_dtype``,
            ``show_field_is_shared``, ``show_grad``, ``show_is_contiguous``, ``show_is_view``, ``show_storage_size`` for
            entries; ``plain`` adds the mean and the standard deviation of each entry; ``sort_keys`` is
            ``"alphabetical"``, ``"insertion"`` or the key function of a sort; ``compact`` selects the compact
            form, unless another option is given that only the long form has; ``html`` enables the collapsible view in
            notebooks.

    Raises:
        TypeError: An option is unknown.
        ValueError: ``sort_keys`` is another string.

    >>> with set_printoptions(show_device=False, show_field_is_shared=False, show_is_shared=False):
    ...     print(TensorDict({"a": torch.zeros(3, 4)}, [3]))
    TensorDict(
        fields={
            a: Tensor(shape=torch.Size([3, 4]), device=cpu, dtype=torch.float32)},
        batch_size=torch.Size([3]))
    """

    _option = "printing"

    def __init__(self, *, verbose: bool = True, **kwargs: Any) -> None:
        unknown = sorted(kwargs.keys() - PRINT_DEFAULTS.keys())
        if unknown:
            raise TypeError(f"{unknown[0]!r} is not a print option; choose from {sorted(PRINT_DEFAULTS)}")
        order = kwargs.get("sort_keys")
        if not callable(order) and order not in (None, "alphabetical", "insertion"):
            raise ValueError(f"sort_keys={order!r} is no order; pass 'alphabetical', 'insertion' or a function")
        # a detail that only the long form has selects that form
        form = {"compact": False} if kwargs.keys() & _DETAILS else {}
        self._changes = {**({} if verbose else BRIEF), **form, **kwargs}
        self._before = []

    def _new_value(self) -> dict[str, Any]:
        return {**current.printing, **self._changes}


def list_to_stack(allow_none: bool = False) -> bool | None:
    """Return whether a non-numeric list becomes a stack of its elements.

    Args:
        allow_none: Accepted for compatibility; the option always has a value.

    >>> list_to_stack()
    True
    """
    return current.list_to_stack


def capture_non_tensor_stack(allow_none: bool = False) -> bool | None:
    """Return whether stacking equal non-tensor values returns one value.

    Args:
        allow_none: Accepted for compatibility; the option always has a value.

    >>> capture_non_tensor_stack()
    False
    """
    return current.capture_non_tensor_stack


def get_defaults_to_none(set_to_none: bool = True) -> bool:
    """Return whether ``td.get(key)`` without a default returns ``None`` for a missing entry.

    Args:
        set_to_none: Accepted for compatibility and ignored; `set_get_defaults_to_none` changes the option.

    >>> get_defaults_to_none()
    True
    """
    return current.get_defaults_to_none


def get_printoptions() -> dict[str, Any]:
    """Return the options that `set_printoptions` takes, with their values.

    >>> get_printoptions()["compact"]
    False
    """
    return dict(current.printing)
