"""Error messages: every sentence that this package says when something is wrong, built in one place.

A message names the rule, the offender and the remedy in one sentence. Builders return exceptions, so call sites read
``raise errors.no_slot(...)`` and tests can name what they expect.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = [
    "exclusive",
    "memo_given",
    "no_modules",
    "no_slot",
    "no_submodule",
    "not_a_leaf",
    "not_a_module",
    "other_shape",
    "uninitialized",
    "unknown_state",
]


def _list(names: Iterable[Any]) -> str:
    shown = [repr(name) for name in names]
    return "[" + ", ".join(shown[:20]) + (", ..." if len(shown) > 20 else "") + "]"


def _nearest(name: str, names: Iterable[Any]) -> str:
    near = difflib.get_close_matches(name, [str(n) for n in names], n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _where(path: tuple[str, ...]) -> str:
    return ".".join(path) if path else "the root"


def not_a_module(value: Any, what: str) -> TypeError:
    """Something else than a module was given where parameters are taken from one or put into one."""
    return TypeError(f"{what} takes an nn.Module, got {type(value).__name__}; pass the module that has the parameters")


def no_slot(path: tuple[str, ...], module: Any, names: Iterable[str]) -> KeyError:
    """The module has no parameter or buffer for an entry."""
    names = list(names)
    return KeyError(
        f"key {path!r} has no parameter or buffer to go to: {type(module).__name__} at {_where(path[:-1])} has "
        f"{_list(names)}{_nearest(path[-1], names) or '; remove it with exclude()'}"
    )


def no_submodule(path: tuple[str, ...], module: Any, names: Iterable[str]) -> KeyError:
    """The module has no sub-module for a nested tensordict."""
    names = list(names)
    return KeyError(
        f"key {path!r} holds a tensordict, for which {type(module).__name__} at {_where(path[:-1])} has no sub-module; it"
        f" has {_list(names)}{_nearest(path[-1], names) or '; remove it with exclude()'}"
    )


def not_a_leaf(path: tuple[str, ...], value: Any) -> TypeError:
    """A non-tensor entry was to become a parameter."""
    return TypeError(
        f"key {path!r} holds non-tensor data ({type(value).__name__}), which is no parameter and no buffer; "
        "remove it with exclude(), or pass use_state_dict=True if it is an extra state"
    )


def memo_given() -> RuntimeError:
    """The reference accepted a memo once."""
    return RuntimeError("to_module takes no memo: shared modules are found without one; leave it out")


def exclusive(first: str, second: str, where: str) -> RuntimeError:
    """Two options contradict each other."""
    return RuntimeError(f"{where} takes {first} or {second}, not both; leave one out")


def no_modules() -> RuntimeError:
    """Nothing was given to stack."""
    return RuntimeError(
        "from_modules stacks the parameters of at least one module, got none; pass the modules one by one"
    )


def uninitialized(path: tuple[str, ...]) -> RuntimeError:
    """Lazy parameters have no shape to stack."""
    return RuntimeError(
        f"key {path!r} is a parameter without shape yet and cannot be stacked; run each lazy module once before"
    )


def unknown_state(names: Iterable[str], module: Any) -> KeyError:
    """A state dict has keys that the module does not know."""
    return KeyError(
        f"{type(module).__name__} has no entries {_list(names)} in its state dict; remove them with exclude()"
    )


def other_shape(path: tuple[str, ...], got: Iterable[int], expected: Iterable[int]) -> RuntimeError:
    """A value does not fit the parameter it is written into."""
    return RuntimeError(
        f"key {path!r} has shape {list(got)} and cannot be written into the parameter of shape {list(expected)} that is"
        " there; leave inplace=True out to put it in its place"
    )
