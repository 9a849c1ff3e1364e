"""What this package says when something is wrong: the rule, the offender and the remedy in one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import FrozenInstanceError
from typing import Any

__all__ = [
    "cannot_cast",
    "exclusive",
    "foreign_keys",
    "frozen_field",
    "not_tensor_type",
    "other_class",
    "reserved_name",
    "unknown_attribute",
    "unknown_flag",
    "unset_field",
]


def _shown(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def unknown_attribute(cls: type[Any], name: str, fields: Iterable[str], action: str = "has no") -> AttributeError:
    """Neither a field nor anything else of the class."""
    return AttributeError(
        f"{cls.__name__} {action} attribute or field {name!r}; its fields are {_shown(fields)}: "
        "declare it as one of them in the class",
        name=name,
    )


def frozen_field(name: str) -> FrozenInstanceError:
    """A field of a frozen class was to be assigned."""
    return FrozenInstanceError(
        f"cannot assign to field {name!r} of a frozen class; make a changed copy with .replace({name}=...)"
    )


def reserved_name(cls: type[Any], name: str, base: str = "TensorClass") -> AttributeError:
    """A field would hide a member that every tensorclass has."""
    return AttributeError(
        f"the field {name!r} of {cls.__name__} would hide the member of that name that every {base} "
        "has; rename the field, or pass "
        "shadow=True to hide the member",
        name=name,
    )


def exclusive(first: str, second: str) -> TypeError:
    """Two flags contradict each other."""
    return TypeError(f"the flags {first} and {second} exclude each other; keep one of them")


def unknown_flag(flag: Any, flags: Iterable[str], base: str) -> TypeError:
    """Brackets hold something that is no flag."""
    return TypeError(
        f"{base}[...] takes the flags {_shown(flags)}, got {flag!r}; a generic class of yours derives from Generic too"
    )


def not_tensor_type(cls: type[Any], name: str, annotation: Any) -> TypeError:
    """A field of a tensor-only class is annotated with another type."""
    return TypeError(
        f"a tensor_only class has fields of tensor types only, but {cls.__name__}.{name} is annotated "
        f"with {annotation!r}; annotate it as a "
        "Tensor or a tensordict, or drop tensor_only"
    )


def cannot_cast(name: str, value: Any, annotation: Any, error: Exception | None = None) -> TypeError:
    """A value is not of the annotated type and cannot be made one."""
    why = f" ({error})" if error is not None and str(error) else ""
    return TypeError(
        f"the field {name!r} takes {annotation!r} and cannot cast a {type(value).__name__} to "
        f"it{why}; convert the value first"
    )


def foreign_keys(cls: type[Any], keys: Iterable[str], fields: Iterable[str]) -> ValueError:
    """Entries that are no fields."""
    return ValueError(
        f"the keys {_shown(sorted(keys))} are no fields of {cls.__name__}, whose fields are "
        f"{_shown(fields)}; exclude or rename them first"
    )


def other_class(what: str, cls: type[Any], other: type[Any]) -> TypeError:
    """Different classes cannot be combined."""
    return TypeError(
        f"{what} combines instances of one class, got {cls.__name__} and {other.__name__}; convert "
        "them with to_tensordict() first"
    )


def unset_field(cls: type[Any], name: str) -> AttributeError:
    """A declared entry is not there."""
    return AttributeError(
        f"{cls.__name__} declares the field {name!r}, but this instance has no such entry; set it "
        f"first, or read it with get({name!r})",
        name=name,
    )
