"""Errors: messages of this package, which name the offender, the rule and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import FrozenInstanceError
from typing import Any

__all__ = [
    "cannot_cast",
    "exclusive",
    "foreign_keys",
    "frozen_field",
    "list_length",
    "not_tensor_type",
    "other_class",
    "reserved_name",
    "unknown_attribute",
    "unknown_flag",
    "unset_field",
]


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


class UnknownFlagError(TypeError, ValueError):
    """Brackets hold something that is not a flag."""


def _shown(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def unknown_attribute(cls: type[Any], name: str, fields: Iterable[str], *, is_set: bool = False) -> UnknownFieldError:
    """Make the error for a name that is neither a field nor another attribute."""
    what = f"Cannot set the attribute {name!r}: {cls.__name__} has no such" if is_set else f"{cls.__name__} has no"
    return UnknownFieldError(
        f"{what} attribute or field {name!r}; its fields are {_shown(fields)}: declare it as one of them in the class",
        name=name,
    )


def no_fields() -> NotImplementedError:
    """Make the error for a call of `TensorClass` itself."""
    return NotImplementedError(
        "TensorClass has no fields and no instances; define a subclass with annotated fields, and call that"
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
        f"the field {name!r} of {cls.__name__} hides the member of that name of every {base}; rename the field, or "
        "pass shadow=True to hide the member",
        name=name,
    )


def exclusive(first: str, second: str) -> TypeError:
    """Make the error for two flags that exclude each other."""
    return TypeError(f"the flags {first} and {second} are exclusive; keep one of them")


def unknown_flag(flag: Any, flags: Iterable[str], base: str) -> UnknownFlagError:
    """Make the error for an unknown flag in brackets."""
    return UnknownFlagError(
        f"{flag!r} is not a flag: {base}[...] takes the flags {_shown(flags)}; derive a generic class from Generic too"
    )


def not_tensor_type(cls: type[Any], name: str, annotation: Any) -> TypeError:
    """Make the error for a field of a tensor-only class that is annotated with another type."""
    return TypeError(
        f"{cls.__name__}.{name} is annotated with {annotation!r}, and a tensor_only class has fields of tensor types "
        "only; annotate it as a Tensor or a tensordict, or drop tensor_only"
    )


def cannot_cast(name: str, value: Any, annotation: Any, error: Exception | None = None) -> CannotCastError:
    """Make the error for a value that cannot be cast to the annotated type."""
    why = f" ({error})" if error is not None and str(error) else ""
    return CannotCastError(
        f"Failed to cast: the field {name!r} takes {annotation!r} and cannot cast a "
        f"{type(value).__name__} to it{why}; convert the value first"
    )


def list_length(name: str, batch_size: Iterable[int]) -> ListLengthError:
    """Make the error for a list that does not have one value for each row."""
    return ListLengthError(
        f"the field {name!r} takes a list of one value for each row of the batch size {list(batch_size)}, nested for "
        "each dimension; give such a list, or wrap it in NonTensorData to hold it as one value"
    )


def foreign_keys(cls: type[Any], keys: Iterable[str], fields: Iterable[str]) -> ValueError:
    """Make the error for entries that are not fields."""
    return ValueError(
        f"Keys from the tensordict must be fields: the keys {_shown(sorted(keys))} are not fields of {cls.__name__}, "
        f"whose fields are {_shown(fields)}; exclude or rename them first"
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
        f"{cls.__name__} and {other.__name__} cannot be combined by {what}, which takes instances of one class; "
        "convert them with to_tensordict() first"
    )


def unset_field(cls: type[Any], name: str) -> AttributeError:
    """Make the error for a declared entry that is not set."""
    return AttributeError(
        f"{cls.__name__} declares the field {name!r}, but this instance has no such entry; set it "
        f"first, or read it with get({name!r})",
        name=name,
    )
