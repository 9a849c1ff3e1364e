"""Casting: converts a value before it is stored in a field, by the flags of the class and the field's annotation.

Every field has one rule, made when its class is defined; reading needs no rule. Annotations are resolved when a rule
first needs them, because a class may name itself or classes that are defined later.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ForwardRef, Union, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from tensordict_class import errors
from tensordict_class.flags import Flags
from tensordict_core import NonTensorData, TensorDict
from tensordict_core.extension import (
    Meta,
    TensorCollection,
    constant_when_traced,
    is_compiling,
    is_tensordict,
    to_entry,
)

Rule = Callable[[Any, Meta], Any]
"""Takes a value (never ``None``) and the metadata of the instance, and returns the entry to store."""

_MISSING = object()
_NUMBERS = (bool, int, float, complex, np.generic)
_ENTRIES = (Tensor, TensorCollection, np.ndarray, *_NUMBERS)
"""The types of values that a tensordict stores as tensors, arrays of strings aside, and as nodes."""


class Annotation:
    """The annotation of one field, resolved on first use.

    Args:
        cls: The class that declares it.
        name: The field.
        raw: The annotation in the class body: a type, a string under postponed annotations, or a forward reference.
        local: The local names where the class was defined.

    Attributes:
        is_optional: Whether the annotation is a union of one type and ``None``, once it is resolved.
    """

    def __init__(self, cls: type[Any], name: str, raw: Any, local: Mapping[str, Any]) -> None:
        def find() -> bool:  # a function, because constant_when_traced takes no method
            return self._find()

        self.cls = cls
        self.name = name
        self.raw = raw
        self._local = local
        self.is_optional = False
        self._resolved: Any = _MISSING
        self._find_when_traced = constant_when_traced(find)

    def resolve(self) -> Any:
        """Return the annotated type, without ``None``; ``Any`` if it names something that is not defined (yet)."""
        # Dynamo would guard on an attribute that is read before it is resolved
        if is_compiling() or self._resolved is _MISSING:
            self._find_when_traced()
        return Any if self._resolved is _MISSING else self._resolved

    def is_resolved(self) -> bool:
        """Return whether all names of the annotation are defined."""
        return self._find()

    def _find(self) -> bool:
        """Resolve the annotation if all its names are defined, and return whether it is resolved."""
        if self._resolved is not _MISSING:
            return True
        found = self.raw
        while isinstance(found, str | ForwardRef):  # postponed annotations may nest one string in another
            scope = {**vars(builtins), **vars(sys.modules.get(self.cls.__module__, types)), **self._local}
            scope[self.cls.__name__] = self.cls
            try:
                found = _evaluate(found, scope)
            except Exception:  # a name of later code: the next value tries again
                return False
        self._resolved = _without_none(found, self)
        self.is_optional = self._resolved is not found
        return True


def _evaluate(annotation: str | ForwardRef, scope: dict[str, Any]) -> Any:
    if isinstance(annotation, str):
        return eval(annotation, scope)
    if sys.version_info >= (3, 14):  # it knows the variables of functions around the class
        return annotation.evaluate(globals=scope)
    return eval(annotation.__forward_arg__, scope)


def _without_none(annotation: Any, owner: Annotation) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        if len(parts) == 1:
            part = parts[0]
            return Annotation(owner.cls, owner.name, part, owner._local).resolve()
    return annotation


def _one_value(value: Any, meta: Meta) -> Any:
    """Make non-tensor data of the instance's batch size."""
    return NonTensorData(value, batch_size=meta.batch_size, device=meta.device)


def _as_value(value: Any, meta: Meta) -> Any:
    """Make non-tensor data of the instance's batch size; a list of the batch's length has one value per row."""
    if isinstance(value, list) and not _numeric(value):
        return to_entry(meta, None, value)
    return _one_value(value, meta)


def _numeric(value: Any) -> bool:
    if isinstance(value, list):
        return not value or _numeric(value[0])
    return isinstance(value, bool | int | float | complex | np.ndarray | np.generic | Tensor)


def _plain(value: Any, meta: Meta) -> Any:
    """Convert numbers, arrays and lists of numbers to tensors; keep dictionaries, tuples and all else."""
    if isinstance(value, Tensor | TensorCollection):
        return value
    if isinstance(value, dict | tuple):
        return _as_value(value, meta)
    return value


def _by_annotation(annotation: Annotation) -> Rule:
    """Return the rule `_plain` for a field, but with batch dimensions, keep a number in a field of numbers as data."""

    def rule(value: Any, meta: Meta) -> Any:
        if type(value) is Tensor:
            return value
        if isinstance(value, _NUMBERS) and meta.batch_size:
            target = annotation.resolve()
            if _fits_no_batch(value, meta):
                return _one_value(value, meta)
            kinds = (target, int) if target is float else (target,)  # a float may be an int for type checkers, too
            if isinstance(target, type) and issubclass(target, _NUMBERS) and isinstance(value, kinds):
                return _one_value(value, meta)
        if isinstance(value, list) and meta.batch_size[:1] == (len(value),) and not _numeric(value):
            _check_rows(annotation.name, value, meta.batch_size)
        return _plain(value, meta)

    return rule


def _fits_no_batch(value: Any, meta: Meta) -> bool:
    """Return whether a value is one of the numbers that stay values in an instance with batch dimensions."""
    return isinstance(value, np.generic | complex) and bool(meta.batch_size)


def _check_rows(name: str, value: list[Any], batch_size: torch.Size) -> None:
    """Check that a list, nested for each batch dimension, has one value for each row.

    Raises:
        ListLengthError: A list has another length.
    """
    level: list[Any] = [value]
    for n in batch_size:
        if not all(isinstance(items, list) and len(items) == n for items in level):
            raise errors.list_length(name, batch_size)
        level = [item for items in level for item in items]


def _uncast(value: Any, meta: Meta) -> Any:
    """Store tensors as tensors, and all other values as non-tensor data."""
    return value if isinstance(value, Tensor | TensorCollection) else _as_value(value, meta)


def _tensor_only(value: Any, meta: Meta) -> Any:
    """Store values as a tensordict does: mappings of any kind become tensordicts."""
    return _as_dictionaries(value)


def _as_dictionaries(value: Any) -> Any:
    """Convert mappings to dictionaries, nested ones too; tensordicts stay."""
    if isinstance(value, Mapping) and not isinstance(value, TensorCollection):
        return {key: _as_dictionaries(item) for key, item in value.items()}
    return value


def _cast(annotation: Annotation) -> Rule:
    """Return the rule that casts to an annotated class; other annotations name no class to call, and cast nothing."""

    def rule(value: Any, meta: Meta) -> Any:
        target = annotation.resolve()
        if target is Tensor and isinstance(value, Tensor):
            return value
        origin = get_origin(target) or target
        is_class = isinstance(origin, type) and origin not in (object, Any, types.UnionType)
        if is_class and issubclass(origin, Tensor) and not isinstance(value, dict):
            return _to_tensor(annotation.name, value, target)
        if is_class and issubclass(origin, TensorCollection):
            return _to_collection(annotation.name, value, origin, meta)
        if isinstance(value, NonTensorData):
            value = value.data
        if not isinstance(value, dict) and not (is_class and _is_of(value, origin)):
            if not is_class or origin is not target or annotation.is_optional:
                is_entry = isinstance(value, _ENTRIES) and not _fits_no_batch(value, meta)
                return value if is_entry else _one_value(value, meta)
            value = _construct(annotation.name, value, origin, target)
        return _one_value(value, meta)

    return rule


def _is_of(value: Any, cls: type[Any]) -> bool:
    """Return whether a value is of a class; a bool is no number."""
    return type(value) is cls or (isinstance(value, cls) and not isinstance(value, bool))


def _to_tensor(name: str, value: Any, target: Any) -> Any:
    if isinstance(value, Tensor | TensorCollection):
        return value
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise errors.cannot_cast(name, value, target, error) from None


def _to_collection(name: str, value: Any, target: Any, meta: Meta) -> Any:
    value = _as_dictionaries(value)
    if isinstance(value, target) or not isinstance(value, dict | TensorCollection):
        return _plain(value, meta)
    wraps = getattr(target, "from_tensordict", None)
    if wraps is None or not hasattr(target, "__dataclass_fields__"):
        return TensorDict(value, batch_size=meta.batch_size, device=meta.device)
    source = (
        value if isinstance(value, TensorDict) else TensorDict(value, batch_size=meta.batch_size, device=meta.device)
    )
    try:
        return wraps(source)
    except (TypeError, ValueError) as error:
        raise errors.cannot_cast(name, value, target, error) from None


def _construct(name: str, value: Any, origin: Any, target: Any) -> Any:
    if origin is np.ndarray:
        return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if isinstance(value, Tensor) and origin in (int, float, complex, bool):
        if value.numel() != 1:
            raise ValueError(
                f"the field {name!r} takes one {origin.__name__}, got a tensor of shape "
                f"{list(value.shape)}; index it first"
            )
        return origin(value.item())
    try:
        return origin(value)
    except (TypeError, RuntimeError) as error:
        raise errors.cannot_cast(name, value, target, error) from None


def class_of(annotation: Annotation) -> Any:
    """Return the tensorclass that a field is annotated with, or ``None``."""
    target = annotation.resolve()
    return target if isinstance(target, type) and hasattr(target, "_rules") else None


def as_annotated(annotation: Annotation, value: Any, meta: Meta) -> Any:
    """Return a dictionary or a tensordict as an instance of the annotated tensorclass, if it has the keys for it."""
    target = class_of(annotation)
    if target is None or not all(key in target._rules for key in value.keys()):  # noqa: SIM118  # loops over a tensordict give rows
        return value
    if isinstance(value, dict):
        return target.from_dict(value, batch_size=meta.batch_size, device=meta.device)
    return target.from_tensordict(value)


def has_classes(types: Mapping[str, Annotation], items: Iterable[tuple[Any, Any]]) -> bool:
    """Return whether `as_annotated` converts one of the values of fields."""
    return any(
        [
            (isinstance(value, dict) or is_tensordict(value)) and name in types and class_of(types[name]) is not None
            for name, value in items
        ]
    )


def with_classes(types: Mapping[str, Annotation], tensordict: Any) -> Any:
    """Convert nested tensordicts to the classes that the fields are annotated with; a copy if any is converted."""
    out = tensordict
    for name, entry in tensordict._peek_items():
        if is_tensordict(entry) and (target := class_of(types[name])) is not None:
            out = tensordict._clone(False) if out is tensordict else out
            out._set(name, target.from_tensordict(tensordict._get(name)))
    return out


def rule_for(flags: Flags, annotation: Annotation) -> Rule:
    """Return the rule of a field.

    >>> rule = rule_for(Flags(nocast=True), Annotation(object, "x", int, {}))
    >>> rule(3, Meta(torch.Size([2]))).data
    3
    """
    if flags.autocast:
        return _cast(annotation)
    if flags.nocast:
        return _uncast
    return _tensor_only if flags.tensor_only else _by_annotation(annotation)


def check_tensor_type(annotation: Annotation) -> None:
    """Check that a field of a tensor-only class is annotated with a tensor type.

    Raises:
        TypeError: The annotation is resolved and does not name a tensor type.
    """
    if not annotation.is_resolved():
        return
    target = annotation.resolve()
    is_union = get_origin(target) in (Union, types.UnionType)
    for part in get_args(target) if is_union else (target,):
        kind = get_origin(part) or part
        if (is_union and kind is type(None)) or isinstance(kind, type(torch.IntTensor)):
            continue
        if not (isinstance(kind, type) and issubclass(kind, Tensor | TensorCollection)):
            raise errors.not_tensor_type(annotation.cls, annotation.name, annotation.raw)
