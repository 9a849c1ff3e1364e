"""`TypedTensorDict`: a tensordict with declared keys, like a ``TypedDict``.

It is a mapping like every tensordict (``td["key"]``, ``**td``) and may hold other keys. Declared keys are also
attributes, which type checkers know, and keyword arguments of the constructor. An instance wraps a tensordict of any
kind, like a tensorclass.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired, Self, Unpack, get_origin

from tensordict_class import errors
from tensordict_class.fields import own_annotations
from tensordict_class.flags import flagged
from tensordict_class.forward import Forwarding, make_known
from tensordict_class.transform import Constructed, TransformingByKeyword
from tensordict_core import LazyStackedTensorDict, TensorDict, TensorDictBase
from tensordict_core.extension import BuildOptions, TensorCollection, with_options

_FLAGS = ("shadow", "frozen")
_WITHOUT_EFFECT = ("autocast", "nocast", "tensor_only")


class TypedTensorDict(Constructed, Forwarding, TensorDictBase, metaclass=TransformingByKeyword):
    """A tensordict whose keys are declared as annotations.

    Args:
        source: A dictionary or tensordict with the entries, instead of keywords.
        batch_size: The leading dimensions that all entries share.
        device: The device to which every entry is moved.
        names: A name (or ``None``) for each batch dimension.
        non_blocking: Whether moves to ``device`` may be asynchronous.
        lock: Whether the tensordict is locked.
        **fields: The entries by name; those without a default are required unless declared as ``NotRequired``.

    Class keywords (or brackets, ``TypedTensorDict["frozen"]``) are ``shadow``, which allows fields with the names of
    members, and ``frozen``, which locks instances.

    Raises:
        TypeError: A declared entry is missing, or a keyword is not declared.
        AttributeError: A field has the name of a method or attribute, and ``shadow`` is not set.

    >>> from tensordict_class import TypedTensorDict
    >>> class State(TypedTensorDict):
    ...     position: torch.Tensor
    ...     velocity: torch.Tensor
    >>> state = State(position=torch.zeros(5, 3), velocity=torch.ones(5, 3), batch_size=[5])
    >>> state[0].velocity, state["position"].shape
    (tensor([1., 1., 1.]), torch.Size([5, 3]))
    """

    __slots__ = ()

    _defaults: ClassVar[Mapping[str, Any]] = {}
    """The default of each declared key: ``MISSING`` if it is required, ``_ABSENT`` if it is not and has no default."""
    __expected_keys__: ClassVar[frozenset[str]] = frozenset()
    """The declared keys, as `typing.TypedDict` names them."""
    __required_keys__: ClassVar[frozenset[str]] = frozenset()
    """The keys that the constructor requires."""
    __optional_keys__: ClassVar[frozenset[str]] = frozenset()
    """The other declared keys."""
    _flags: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, *, shadow: bool = False, frozen: bool = False, **kwargs: Any) -> None:
        for name in _WITHOUT_EFFECT:
            if kwargs.pop(name, None):
                message = f"the flag {name} has no effect on a TypedTensorDict; drop it"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
        super().__init_subclass__(**kwargs)
        cls._flags = cls._flags | {name for name, given in (("shadow", shadow), ("frozen", frozen)) if given}
        defaults: dict[str, Any] = {}
        for base in reversed(cls.__mro__[1:]):
            defaults.update(base.__dict__.get("_defaults", {}))
        for name, annotation in own_annotations(cls).items():
            if _is_form(annotation, ClassVar, "ClassVar"):
                continue
            if hasattr(TypedTensorDict, name) and (name[0] == "_" or "shadow" not in cls._flags):
                raise errors.shadowing_name(cls, name)
            absent = _ABSENT if _is_form(annotation, NotRequired, "NotRequired") else dataclasses.MISSING
            defaults[name] = cls.__dict__.get(name, absent)
            setattr(cls, name, _attribute(name, defaults[name]))
        cls._defaults = defaults
        cls.__expected_keys__ = frozenset(defaults)
        cls.__required_keys__ = frozenset(name for name, value in defaults.items() if value is dataclasses.MISSING)
        cls.__optional_keys__ = cls.__expected_keys__ - cls.__required_keys__
        make_known(cls)

    def __class_getitem__(cls, item: Any) -> Any:
        flags = item if isinstance(item, tuple) else (item,)
        if not all(flag in (*_FLAGS, *_WITHOUT_EFFECT) for flag in flags):
            raise errors.unknown_option(item, _FLAGS, cls.__name__)
        return flagged(cls, flags)

    if not TYPE_CHECKING:  # type checkers derive the constructor from the annotations

        def __init__(
            self,
            source: Mapping[Any, Any] | TensorCollection | None = None,
            *,
            batch_size: Any = None,
            device: Any = None,
            names: Any = None,
            non_blocking: bool | None = None,
            lock: bool = False,
            **fields: Any,
        ) -> None:
            cls = type(self)
            if cls is TypedTensorDict:
                raise TypeError("Can't instantiate abstract class TypedTensorDict; define a subclass with fields")
            unknown = [name for name in fields if name not in cls._defaults]
            if unknown:
                raise TypeError(
                    f"{cls.__name__}() got unexpected field(s): {', '.join(unknown)}; declare them, or pass a "
                    "dictionary, which may hold other keys"
                )
            entries = fields if source is None else {**_items(source), **fields}
            if batch_size is None and isinstance(source, TensorCollection):
                batch_size, names = source.batch_size, source.names if names is None else names
            self._tensordict = TensorDict(entries, batch_size, device, names, non_blocking)
            _check_required(cls, self._tensordict)
            if lock or "frozen" in cls._flags:
                self.lock_()

    @classmethod
    def from_tensordict(cls, td: Any, *, check: bool = True) -> Self:
        """Wrap a tensordict of any kind without copying it.

        Args:
            td: The tensordict.
            check: Whether to raise an error if a required entry is missing; otherwise it may be set later.

        Raises:
            TypeError: ``td`` is not a tensordict, or a declared entry is missing.

        >>> from tensordict_class import TypedTensorDict
        >>> class State(TypedTensorDict):
        ...     position: torch.Tensor
        >>> td = TensorDict({"position": torch.zeros(3)})
        >>> State.from_tensordict(td).position is td["position"]
        True
        """
        if not isinstance(td, TensorCollection):
            raise TypeError(
                f"{cls.__name__}.from_tensordict takes a tensordict, got {type(td).__name__}; "
                f"give {cls.__name__}() a dictionary"
            )
        if check:
            _check_required(cls, td)
        return cls._wrap(td)

    @classmethod
    @with_options(BuildOptions, None)
    def from_dict(
        cls, input_dict: Mapping[Any, Any] | Any, *, check: bool = True, **options: Unpack[BuildOptions]
    ) -> Self:
        """Build an instance from a dictionary, as `TensorDict.from_dict` does.

        Args:
            input_dict: The dictionary; nested ones become nested tensordicts.
            check: Whether to raise an error if a required entry is missing; otherwise it may be set later.
            **options: Those of `TensorDict.from_dict`.

        Raises:
            TypeError: A declared entry is missing.

        >>> from tensordict_class import TypedTensorDict
        >>> class State(TypedTensorDict):
        ...     position: torch.Tensor
        >>> State.from_dict({"position": torch.zeros(3)}, auto_batch_size=True).batch_size
        torch.Size([3])
        """
        return cls.from_tensordict(TensorDict.from_dict(input_dict, **options), check=check)

    @classmethod
    def _lazy(cls, items: Sequence[Any], dim: int) -> Any:
        return LazyStackedTensorDict._make(items, dim)

    def _mapped(self, result: Any) -> Any:
        return self._wrap(result)

    def _disk_form(self) -> Any:
        # a save holds what a plain tensordict holds; a load by the class wraps it again
        return self._tensordict


_ABSENT = object()
"""The default of a key that is not required."""


def _attribute(name: str, default: Any) -> property:
    """Make the property of a declared key."""
    has_default = default is not dataclasses.MISSING and default is not _ABSENT
    given = default if has_default else None  # Dynamo cannot trace the markers

    def read(self: Any) -> Any:
        value = self._tensordict._get(name)
        if value is None:
            if not has_default:
                raise errors.unset_field(type(self), name)
            return given
        return value._entry_value() if isinstance(value, TensorCollection) else value

    def write(self: Any, value: Any) -> None:
        self.set(name, value)

    def delete(self: Any) -> None:
        self.del_(name)

    return property(read, write, delete, f"The entry {name!r}.")


def _is_form(annotation: Any, form: Any, name: str) -> bool:
    """Return whether an annotation is a typing form; postponed annotations are strings."""
    if isinstance(annotation, str):
        return annotation.split("[")[0].rsplit(".")[-1] == name
    return annotation is form or get_origin(annotation) is form


def _items(source: Mapping[Any, Any] | TensorCollection) -> dict[Any, Any]:
    return dict(source._items() if isinstance(source, TensorCollection) else source.items())


def _check_required(cls: type[TypedTensorDict], tensordict: Any) -> None:
    missing = [
        name
        for name, default in cls._defaults.items()
        if default is dataclasses.MISSING and tensordict._peek(name) is None
    ]
    if missing:
        raise TypeError(
            f"{cls.__name__}() missing required field(s): {', '.join(missing)}; give them, or declare them as "
            "NotRequired or with a default"
        )
