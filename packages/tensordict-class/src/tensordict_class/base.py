"""`TensorClass`: the base of dataclasses whose instances behave like one tensor.

When a subclass is defined, its fields are read, its constructor is generated and its name is registered, so that saved
instances can be loaded. The decorator `tensorclass` makes a subclass of a plain class.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tensordict_class import errors
from tensordict_class.casting import Annotation, check_tensor_type, rule_for
from tensordict_class.construct import write_init
from tensordict_class.constructors import add_constructors
from tensordict_class.derive import convert_dataclass, take_flags
from tensordict_class.fields import Declaration, declare, install_readers
from tensordict_class.flags import BRACKET_FLAGS, NO_FLAGS, Flags, flagged
from tensordict_class.forward import Forwarding, hide_annotations, make_known
from tensordict_class.instance import Instance
from tensordict_class.shadow import reach_past
from tensordict_class.transform import Constructed, Transforming
from tensordict_core import TensorDict
from tensordict_core.extension import operations

add_constructors(Instance)

CastFilter = Callable[[tuple[str, ...], Any], bool]


class TensorClass(Constructed, Instance, metaclass=Transforming):
    """A dataclass of tensors that behaves like one tensor of its batch size.

    Subclass it and annotate fields, as with `dataclasses.dataclass`. A field holds a tensor, a tensordict, another
    tensorclass, or any other value as non-tensor data. Every operation of `TensorDict` works on instances and returns
    instances. The constructor takes the fields, by name or in order, and the keyword arguments ``batch_size``,
    ``device``, ``names`` and ``lock`` of `TensorDict`.

    A class sets flags by keywords (``class A(TensorClass, frozen=True)``) or brackets (``TensorClass["frozen"]``), and
    subclasses inherit them:

    Args:
        autocast: Values are cast to the annotated types, so that an ``int`` field holds integers.
        nocast: Numbers and arrays stay unchanged; by default they become tensors.
        frozen: Fields cannot be assigned once an instance is made.
        tensor_only: Every field is a tensor or a tensordict.
        shadow: Fields may have the names of methods and attributes (``mean``, ``keys``), which they hide.
        skip_post_init_on_rebuild: ``__post_init__`` is not called on the results of operations; by default it is.
        cast_filter: A function of nested key and leaf that returns whether ``to(dtype)``, ``float()`` and similar
            methods cast the leaf.
        kw_only: The fields that the class itself declares are keyword-only arguments of the constructor.

    Raises:
        AttributeError: A field has the name of a method or attribute, and ``shadow`` is not set.
        TypeError: Flags exclude each other, or only one of the class and its base is frozen.

    >>> from tensordict_class import TensorClass
    >>> class Digits(TensorClass):
    ...     image: torch.Tensor
    ...     label: torch.Tensor
    ...     source: str = "scanned"
    ...
    ...     def of(self, label):
    ...         return self[self.label == label]
    >>> digits = Digits(torch.zeros(4, 8, 8), torch.tensor([0, 1, 0, 1]), batch_size=[4])
    >>> digits.of(1).image.shape, digits[0].source
    (torch.Size([2, 8, 8]), 'scanned')
    """

    __expected_keys__: ClassVar[set[str]]
    """The names of the fields; subclasses of this class have it."""

    if not TYPE_CHECKING:  # type checkers derive constructors from the annotations

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            """Raise an error for this class, which has no fields; subclasses have their own constructor.

            Raises:
                NotImplementedError: The class is `TensorClass` itself.
            """
            if type(self) is TensorClass:
                raise errors.no_fields()

    def __init_subclass__(
        cls,
        *,
        autocast: bool | None = None,
        nocast: bool | None = None,
        frozen: bool | None = None,
        tensor_only: bool | None = None,
        shadow: bool | None = None,
        skip_post_init_on_rebuild: bool | None = None,
        cast_filter: CastFilter | None = None,
        kw_only: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        changes: dict[str, Any] = {
            "autocast": autocast,
            "nocast": nocast,
            "frozen": frozen,
            "tensor_only": tensor_only,
            "shadow": shadow,
            "skip_post_init_on_rebuild": skip_post_init_on_rebuild,
            "cast_filter": cast_filter,
            "kw_only": kw_only,
            **take_flags(cls),
        }
        kw_only, cast_filter = changes.pop("kw_only"), changes["cast_filter"]
        flags = _inherited(cls).with_changes(**changes)
        _check_frozen(cls, flags)
        declaration = declare(cls, base=TensorClass, shadow=flags.shadow, kw_only=kw_only, frozen=flags.frozen)
        _describe(cls, declaration, flags)
        cls.__expected_keys__ = set(declaration.names)
        added: dict[str, Any] = {}
        if "__init__" in cls.__dict__:
            added["__new__"] = _blank
        else:
            plain = Instance.__setattr__
            added["__init__"] = write_init(
                cls, declaration, casts=flags.autocast, frozen=flags.frozen, plain_setattr=plain
            )
        if flags.frozen and "__hash__" not in cls.__dict__:
            added["__hash__"] = _hash_of_fields
        if "fields" not in declaration.names and "fields" not in cls.__dict__:
            # (a method of the base would refuse a field of that name)
            added["fields"] = classmethod(dataclasses.fields)
        for name, member in added.items():
            setattr(cls, name, member)
        if cast_filter is not None:
            _filter_casts(cls, cast_filter)
        install_readers(cls, declaration)
        reach_past(cls, declaration.shadowed)
        make_known(cls)

    def __class_getitem__(cls, item: Any) -> Any:
        flags = item if isinstance(item, tuple) else (item,)
        if all(isinstance(flag, str) and flag in BRACKET_FLAGS for flag in flags):
            return flagged(cls, flags)
        parameters = getattr(super(), "__class_getitem__", None)
        if parameters is None:
            raise errors.unknown_flag(item, BRACKET_FLAGS, cls.__name__)
        return parameters(item)

    def __replace__(self, /, **changes: Any) -> Self:
        """Return a shallow copy with other values in some fields; ``copy.replace`` calls it."""
        return Instance.replace(self, **changes)  # a field of a class with `shadow` may have the name of the method

    @classmethod
    def from_dataclass(cls, dataclass: Any, **kwargs: Any) -> Self:
        """Make an instance with the values of a dataclass instance; fields that it lacks get their defaults.

        Args:
            dataclass: The dataclass instance.
            **kwargs: Options of `from_dataclass`: ``batch_size``, ``auto_batch_size``, ``batch_dims``, ``device``.

        >>> import dataclasses
        >>> from tensordict_class import TensorClass
        >>> @dataclasses.dataclass
        ... class Plain:
        ...     x: torch.Tensor
        >>> class Point(TensorClass):
        ...     x: torch.Tensor
        ...     label: str = "origin"
        >>> Point.from_dataclass(Plain(torch.zeros(2))).label
        'origin'
        """
        instance: Self = convert_dataclass(dataclass, TensorClass, dest_cls=cls, **kwargs)
        return instance


hide_annotations(TensorClass, Instance, Forwarding)


def _inherited(cls: type[Any]) -> Flags:
    """Return the flags that a class inherits: each from the first base that sets it."""
    flags = NO_FLAGS
    for base in reversed(cls.__mro__[1:]):
        own = base.__dict__.get("_flags")
        if own is not None:
            flags = flags.with_changes(**{name: value or None for name, value in own._asdict().items()})
    return flags


def _describe(cls: type[TensorClass], declaration: Declaration, flags: Flags) -> None:
    """Set the class attributes that instances read.

    Raises:
        TypeError: A class for tensors only has a field of another type.
    """
    cls._flags = flags
    for name in BRACKET_FLAGS:
        setattr(cls, f"_{name}", getattr(flags, name))  # published programs read single flags
    cls._declaration = declaration
    cls._types = _annotations(cls, declaration, flags)
    cls._rules = {name: rule_for(flags, cls._types[name]) for name in declaration.names}
    cls._casts = flags.autocast
    cls._plain = frozenset() if flags.autocast or flags.frozen else frozenset(declaration.names)
    cls._restarts = hasattr(cls, "__post_init__") and not flags.skip_post_init_on_rebuild
    if flags.tensor_only:
        for name in declaration.own:
            if name in cls._rules:
                check_tensor_type(cls._types[name])


def _check_frozen(cls: type[Any], flags: Flags) -> None:
    for base in cls.__bases__:
        if issubclass(base, TensorClass) and base._rules and base._flags.frozen != flags.frozen:
            this, other = ("frozen", "not frozen") if flags.frozen else ("not frozen", "frozen")
            raise TypeError(
                f"{cls.__name__} is {this}, so it cannot inherit from {base.__name__}, which is "
                f"{other}; make both frozen or neither"
            )


def _annotations(cls: type[Any], declaration: Declaration, flags: Flags) -> dict[str, Annotation]:
    """Return the annotation of each field; an inherited one belongs to the class that declares it."""
    known: dict[str, Annotation] = {}
    for base in reversed(cls.__mro__[1:]):
        known.update(base.__dict__.get("_types", ()))
    local = _local_types(cls.__module__) if flags.autocast or flags.tensor_only else {}
    for field in declaration.fields:
        if field.name in declaration.own or field.name not in known:
            known[field.name] = Annotation(cls, field.name, field.type, local)
    return known


def _local_types(module: str) -> dict[str, Any]:
    """Return the types among the local variables of the function that defines a class: annotations may name them."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") != module:
        frame = frame.f_back
    if frame.f_locals is frame.f_globals:
        return {}
    return {name: value for name, value in frame.f_locals.items() if isinstance(value, type)}


def _blank(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
    """Make an instance without fields, for a class with its own ``__init__``."""
    return cls._shell(TensorDict({}))


def _hash_of_fields(self: Any) -> int:
    return hash((type(self), *(getattr(self, f.name) for f in self._declaration.fields if f.compare)))


def _filter_casts(cls: type[Any], cast_filter: CastFilter) -> None:
    """Make a filter the default of ``to`` and of every cast among the operations."""
    for name in ("to", *(spec.name for spec in operations() if spec.family == "cast")):
        if name not in cls.__dict__:
            setattr(cls, name, _filtered(getattr(cls, name), cast_filter))


def _filtered(method: Callable[..., Any], cast_filter: CastFilter) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("cast_filter", cast_filter)
        return method(self, *args, **kwargs)

    return call
