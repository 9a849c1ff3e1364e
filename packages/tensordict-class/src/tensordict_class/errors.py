"""Errors: messages of this package, which name the offender, the rule and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import FrozenInstanceError
from typing import Any

from tensordict_core.extension import is_compiling


class CannotCastError(TypeError, ValueError, RuntimeError):
    """A value cannot be cast to the annotated type of its field."""


class ListLengthError(ValueError, RuntimeError):
    """A list of values does not have one value for each row."""


class UnexpectedArgumentError(TypeError, AttributeError):
    """A constructor got a keyword argument that is not a field."""


class StateKeyError(KeyError, RuntimeError):
    """A state dict has an entry that is not a field."""


class UnknownFieldError(AttributeError, ValueError):
    """A name is neither a field nor another attribute."""


class LockedFieldError(UnknownFieldError, RuntimeError):
    """A name that is no field is set in a locked instance."""


class ForeignKeyError(UnknownFieldError, KeyError):
    """A source has keys that are not fields."""

    __str__ = Exception.__str__  # that of KeyError shows the representation of the message


class MissingFieldError(KeyError, ValueError):
    """A field is read by its name in brackets, and it is not set, or is ``None``."""


class UnknownFlagError(TypeError, ValueError):
    """Brackets hold something that is not a flag."""


def _shown(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def unknown_attribute(
    cls: type[Any], name: str, fields: Iterable[str], *, is_set: bool = False, is_locked: bool = False
) -> UnknownFieldError:
    """Make the error for a name that is neither a field nor another attribute."""
    rule = f"{cls.__name__!r} object has no attribute or field {name!r}"
    if is_set:
        rule = f"Cannot set the attribute {name!r}: {cls.__name__} has no such field"
    if is_locked:
        rule = f"Cannot modify locked TensorDict, and {rule[0].lower()}{rule[1:]}"
    error = LockedFieldError if is_locked else UnknownFieldError
    text = f"{rule}; its fields are {_shown(fields)}: declare it as one of them in the class"
    return error(text) if is_compiling() else error(text, name=name)  # Dynamo traces no exception with keywords


def no_fields() -> NotImplementedError:
    """Make the error for a call of `TensorClass` itself."""
    return NotImplementedError(
        "TensorClass is an abstract base class and cannot be instantiated directly; define a subclass with annotated "
        "fields, and call that"
    )


def unexpected_arguments(cls: type[Any], names: Iterable[str], fields: Iterable[str]) -> UnexpectedArgumentError:
    """Make the error for keyword arguments of a constructor that are not fields."""
    return UnexpectedArgumentError(
        f"Cannot set the attribute {_shown(names)}: {cls.__name__}.__init__() got an unexpected keyword argument "
        f"{_shown(names)}; its fields are "
        f"{_shown(fields)}: declare it as one of them in the class"
    )


def frozen_field(name: str) -> FrozenInstanceError:
    """Make the error for an assignment to a field of a frozen class."""
    return FrozenInstanceError(
        f"cannot assign to field {name!r} of a frozen class; make a changed copy with .replace({name}=...)"
    )


def reserved_name(cls: type[Any], name: str, base: str = "TensorClass") -> AttributeError:
    """Make the error for a field with the name of a member that every tensorclass has."""
    return AttributeError(
        f"Attribute name {name} can't be used with @tensorclass or {base}: the field of {cls.__name__} hides the "
        "member of that name; rename the field, or pass shadow=True to hide the member",
        name=name,
    )


def shadowing_name(cls: type[Any], name: str) -> AttributeError:
    """Make the error for a field of a `TypedTensorDict` with the name of a member of every tensordict."""
    return AttributeError(
        f"Field {name!r} shadows a TensorDictBase attribute in {cls.__name__}; rename it, or use "
        "TypedTensorDict['shadow'] to hide the attribute",
        name=name,
    )


def unknown_option(flag: Any, flags: Iterable[str], base: str) -> UnknownFlagError:
    """Make the error for an unknown flag in the brackets of a `TypedTensorDict`."""
    return UnknownFlagError(f"Unknown {base} option: {flag!r}; the options are {_shown(flags)}")


def exclusive(first: str, second: str) -> TypeError:
    """Make the error for two flags that exclude each other."""
    rule = "tensor_only and autocast or nocast are exclusive features"
    if "tensor_only" not in (first, second):
        rule = f"{first} is exclusive with {second}"
    return TypeError(f"{rule}, and {first} and {second} are set; keep one of them")


def unknown_flag(flag: Any, flags: Iterable[str], base: str) -> UnknownFlagError:
    """Make the error for an unknown flag in brackets."""
    return UnknownFlagError(
        f"{flag!r} is not a flag: {base} is not a generic class, so {base}[...] only accepts the flags "
        f"{_shown(flags)}; derive a generic class from Generic too"
    )


def not_tensor_type(cls: type[Any], name: str, annotation: Any) -> TypeError:
    """Make the error for a field of a tensor-only class that is annotated with another type."""
    return TypeError(
        f"tensor_only requires types to be Tensor, Tensor-subtypes or None, and {cls.__name__}.{name} is annotated "
        f"with {annotation!r}; annotate it as a Tensor or a tensordict, or drop tensor_only"
    )


def cannot_cast(name: str, value: Any, annotation: Any, error: Exception | None = None) -> CannotCastError:
    """Make the error for a value that cannot be cast to the annotated type."""
    why = f" ({error})" if error is not None and str(error) else ""
    return CannotCastError(
        f"Failed to cast the value {name} to the type annotation {annotation!r}: a {type(value).__name__} cannot be "
        f"cast{why}; convert it first"
    )


def list_length(name: str, batch_size: Iterable[int]) -> ListLengthError:
    """Make the error for a list that does not have one value for each row."""
    return ListLengthError(
        f"the field {name!r} takes a list of one value for each row of the batch size {list(batch_size)}, nested for "
        "each dimension; give such a list, or wrap it in NonTensorData to hold it as one value"
    )


def foreign_keys(cls: type[Any], keys: Iterable[str], fields: Iterable[str]) -> ForeignKeyError:
    """Make the error for entries that are not fields."""
    return ForeignKeyError(
        f"Keys from the tensordict ({_shown(sorted(keys))}) must correspond to the class attributes of {cls.__name__} "
        f"({_shown(fields)}); exclude or rename the others first"
    )


def foreign_state(cls: type[Any], names: Iterable[str], fields: Iterable[str]) -> StateKeyError:
    """Make the error for entries of a state dict that are not fields."""
    return StateKeyError(
        f"the state dict has the unexpected entries {_shown(names)}, which are not fields of {cls.__name__}, whose "
        f"fields are {_shown(fields)}; remove them, or pass strict=False to ignore them"
    )


def lacks_fields(cls: type[Any], other: type[Any], missing: Iterable[str]) -> ValueError:
    """Make the error for rows of a tensorclass that has fewer fields than the one they are written to."""
    return ValueError(
        f"{other.__name__} lacks the fields {_shown(sorted(missing))} of {cls.__name__}, so its instances cannot be "
        "written to rows of it; convert them with to_tensordict() to write the fields that both have"
    )


def other_class(what: str, cls: type[Any], other: type[Any]) -> TypeError:
    """Make the error for instances of different classes that are combined."""
    return TypeError(
        f"Multiple dispatch failed for 'torch.{what}', which takes instances of one class, and not of {cls.__name__} "
        f"and {other.__name__}; convert them with to_tensordict() first"
    )


def unset_field(cls: type[Any], name: str) -> AttributeError:
    """Make the error for a declared entry that is not set."""
    return AttributeError(
        f"{cls.__name__!r} has field {name!r} declared but not set; set it first, or read it with get({name!r})",
        name=name,
    )
