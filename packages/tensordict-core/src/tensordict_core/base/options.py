"""Options: what holds for a whole process, changed for good or for the length of a block or function.

The current values are attributes of one record, `current`; code that an option concerns reads them where it matters
and nowhere else. An option's class sets it for good with ``.set()``, for a block as a context manager, and for the
calls of a function as a decorator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, Self, TypeVar

__all__ = [
    "Setting",
    "capture_non_tensor_stack",
    "current",
    "get_defaults_to_none",
    "get_printoptions",
    "list_to_stack",
    "set_capture_non_tensor_stack",
    "set_get_defaults_to_none",
    "set_list_to_stack",
    "set_printoptions",
]

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
"""What ``verbose=False`` sets."""


class _Options:
    """The options of this process."""

    __slots__ = ("capture_non_tensor_stack", "get_defaults_to_none", "lazy_legacy", "list_to_stack", "printing")

    def __init__(self) -> None:
        self.list_to_stack = True
        self.capture_non_tensor_stack = True
        self.get_defaults_to_none = True
        self.lazy_legacy = False
        self.printing = PRINT_DEFAULTS


current: Final = _Options()
"""What holds now."""


class Setting:
    """An option and the value that it is to have."""

    _option: str

    def __init__(self, mode: bool) -> None:
        self._value: Any = bool(mode)
        self._before: list[Any] = []

    def set(self) -> None:
        """Set the option until it is set again."""
        setattr(current, self._option, self._value)

    def __enter__(self) -> Self:
        self._before.append(getattr(current, self._option))
        self.set()
        return self

    def __exit__(self, *exc: Any) -> None:
        setattr(current, self._option, self._before.pop())

    def __call__(self, function: F) -> F:
        """Return a function whose calls run with the option set."""

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]  # wraps keeps the signature


class set_list_to_stack(Setting):
    """Whether a list that is no numeric data becomes a `NonTensorStack` of its elements or one value.

    As long as it does (the default), a list of the length of the batch has an element for each position.

    Args:
        mode: Whether lists are taken apart.

    >>> with set_list_to_stack(False):
    ...     td = TensorDict({"s": ["a", "b"]}, batch_size=[2])
    >>> td["s"], td[0]["s"]
    (['a', 'b'], ['a', 'b'])
    """

    _option = "list_to_stack"


class set_capture_non_tensor_stack(Setting):
    """Whether equal non-tensor values stay one value when they are stacked or concatenated, or become a list.

    Args:
        mode: Whether equal values stay one (the default).

    >>> tds = [TensorDict({"s": "a"}), TensorDict({"s": "a"})]
    >>> torch.stack(tds)["s"]
    'a'
    >>> with set_capture_non_tensor_stack(False):
    ...     print(torch.stack(tds)["s"])
    ['a', 'a']
    """

    _option = "capture_non_tensor_stack"


class set_get_defaults_to_none(Setting):
    """Whether ``td.get(key)`` without a default gives ``None`` where there is no such entry, or raises a ``KeyError``.

    It holds from the call on; as a context manager or decorator, for the block or the function only.

    Args:
        set_to_none: Whether the default is ``None``.

    >>> with set_get_defaults_to_none(False):
    ...     TensorDict({"a": 1}).get("b", "absent")
    'absent'
    >>> TensorDict({"a": 1}).get("b") is None
    True
    """

    _option = "get_defaults_to_none"

    def __init__(self, set_to_none: bool = True) -> None:
        super().__init__(set_to_none)
        self._old = current.get_defaults_to_none
        self.set()

    def __enter__(self) -> Self:
        # the call set it already, so the block gives back what was before the call
        super().__enter__()
        self._before[-1] = self._old
        return self

    def __call__(self, function: F) -> F:
        """Return a function whose calls run with the option set."""
        setattr(current, self._option, self._old)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with type(self)(self._value):
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]  # wraps keeps the signature


class set_printoptions(Setting):
    """How tensordicts print.

    Args:
        verbose: Whether device and sharing show, and the dtypes of entries; shapes, batch sizes and keys show unless an
            option below says otherwise.
        **kwargs: Any of the options that ``get_printoptions`` lists: ``show_batch_size``, ``show_device``,
            ``show_is_shared`` for tensordicts; ``show_shape``, ``show_field_device``, ``show_dtype``,
            ``show_field_is_shared``, ``show_grad``, ``show_is_contiguous``, ``show_is_view``, ``show_storage_size`` for
            entries; ``plain`` adds the mean and the deviation of each entry; ``sort_keys`` is ``"alphabetical"`` or
            ``"insertion"``; ``compact`` prints one short line; ``html`` allows notebooks a folding view.

    Raises:
        TypeError: There is no such option.
        ValueError: ``sort_keys`` is something else.

    >>> with set_printoptions(compact=True):
    ...     print(TensorDict({"a": torch.zeros(3, 4), "b": {"c": torch.ones(3)}}, [3]))
    TensorDict(batch_size=[3], fields={a: f32[4], b: {c: f32[]}})
    """

    _option = "printing"

    def __init__(self, *, verbose: bool = True, **kwargs: Any) -> None:
        unknown = sorted(kwargs.keys() - PRINT_DEFAULTS.keys())
        if unknown:
            raise TypeError(f"there is no print option {unknown[0]!r}; choose from {sorted(PRINT_DEFAULTS)}")
        if kwargs.get("sort_keys") not in (None, "alphabetical", "insertion"):
            raise ValueError(f"sort_keys is 'alphabetical' or 'insertion', got {kwargs['sort_keys']!r}")
        self._changes = {**({} if verbose else BRIEF), **kwargs}
        self._before = []

    def set(self) -> None:
        """Set the options until they are set again."""
        current.printing = {**current.printing, **self._changes}


def list_to_stack(allow_none: bool = False) -> bool | None:
    """Whether a list that is no numeric data becomes a stack of its elements.

    Args:
        allow_none: Taken for compatibility; the option always has a value.

    >>> list_to_stack()
    True
    """
    return current.list_to_stack


def capture_non_tensor_stack(allow_none: bool = False) -> bool | None:
    """Whether equal non-tensor values stay one value when they are stacked.

    Args:
        allow_none: Taken for compatibility; the option always has a value.

    >>> capture_non_tensor_stack()
    True
    """
    return current.capture_non_tensor_stack


def get_defaults_to_none(set_to_none: bool = True) -> bool:
    """Whether ``td.get(key)`` without a default gives ``None`` where there is no such entry.

    Args:
        set_to_none: Taken for compatibility; it changes nothing (`set_get_defaults_to_none` does).

    >>> get_defaults_to_none()
    True
    """
    return current.get_defaults_to_none


def get_printoptions() -> dict[str, Any]:
    """The options that `set_printoptions` takes, with their values.

    >>> get_printoptions()["compact"]
    False
    """
    return dict(current.printing)
