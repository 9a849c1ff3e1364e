"""Error messages on entries: keys, batch sizes, locks and in-place writes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tensordict_core.base.errors.types import (
    ExistingKeyError,
    InPlaceShapeError,
    InPlaceWriteError,
    KeyThroughLeafError,
    NotAKeyError,
    StackDimError,
)


def incomplete_container(cls: type, missing: Sequence[str]) -> TypeError:
    """Report that a container class lacks abstract methods of `Node`."""
    return TypeError(
        f"the container {cls.__name__} lacks {', '.join(missing)}; implement all abstract methods of Node, or "
        "define the class with abstract=True as a base of containers"
    )


def _short(key: Any) -> Any:
    """Return the name in a path of one level, and any other key unchanged."""
    return key[0] if isinstance(key, tuple) and len(key) == 1 else key


def missing_key(key: Any, keys: Iterable[Any], where: str = "TensorDict") -> KeyError:
    """Report that a key is missing; the message suggests similar keys."""
    names = [str(k) for k in keys]
    wanted = str(key if isinstance(key, str) else key[-1] if key else key)
    near = difflib.get_close_matches(wanted, names, n=3)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "; use get(key, default) for an optional key"
    shown = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
    only = _short(key)
    quoted = f'"{only}"' if isinstance(only, str) else repr(only)
    return KeyError(f"key {quoted} not found in {where} with keys [{shown}]{hint}")


def existing_key(key: Any, remedy: str = "pass safe=False to replace it") -> ExistingKeyError:
    """Report that the new name of an entry is a key that exists."""
    return ExistingKeyError(f"key {key} already present in TensorDict; {remedy}")


def keys_mismatch(only_left: Iterable[Any], only_right: Iterable[Any]) -> KeyError:
    """Report that two operands do not have the same leaves."""
    left, right = (sorted(str(_short(key)) for key in keys) for keys in (only_left, only_right))
    parts = [f"only the first has {left}"] * bool(left) + [f"only the second has {right}"] * bool(right)
    return KeyError(
        f"keys in tensordicts mismatch: {' and '.join(parts)}; "
        "select the common keys or pass default= where the operation takes it"
    )


def bad_key(key: Any, rule: str = "") -> NotAKeyError:
    """Report that the value is not a nested key; ``rule`` is the start of the message."""
    rule = rule and f"{rule}. "
    remedy = "name the entry, or index rows with td[index]"
    if isinstance(key, int):
        remedy += (
            "; for a dictionary with integer keys, such as the state of an optimizer, convert each key with str(key), "
            "or store it as one value with NonTensorData(dictionary); tensordict_memmap.save_checkpoint(path, "
            "optimizer=optimizer) saves it unchanged"
        )
    return NotAKeyError(
        f"{rule}Only NestedKeys are supported, and {key!r} of type {type(key).__name__} is not a key; key should be a "
        f"Sequence<NestedKey>, where a key is a string or a tuple of strings: {remedy}"
    )


def empty_key() -> NotAKeyError:
    """Report that the key is an empty tuple."""
    return NotAKeyError("Only NestedKeys are supported, and the empty tuple is not a key; name at least one level")


def not_a_node(key: Any, value: Any) -> KeyThroughLeafError:
    """Report that a nested key passes through a leaf."""
    return KeyThroughLeafError(
        f"{_short(key)!r} is a {type(value).__name__}, not a tensordict, and has no entries; "
        "delete that entry or use another key"
    )


def unbatched_at(path: Any) -> RuntimeError:
    """Report that an unbatched tensor is written at an index."""
    return RuntimeError(
        f"key {_short(path)!r} is an unbatched tensor, which has no batch dimensions and is not "
        "written at an index; write to its .tensor, or replace it with set()"
    )


def in_the_way(key: Any, value: Any) -> KeyThroughLeafError:
    """Report that a value is stored under a nested key that passes through a leaf."""
    name = _short(key)
    return KeyThroughLeafError(
        f"The entry {name} is already present in tensordict, where {name!r} is a {type(value).__name__}, not a "
        "tensordict, and has no entries; delete that entry or use another key"
    )


def start_of_a_key(key: Any) -> KeyError:
    """Report that a key is the start of another key, and its value has no entries."""
    return KeyError(
        f"key {_short(key)!r} is already present in the tensordict, with entries of its own; give one of them"
    )


def batch_mismatch(key: Any, shape: Sequence[int], batch_size: Sequence[int]) -> RuntimeError:
    """Report that the shape of an entry does not start with the batch size."""
    scalar = "; wrap a scalar with torch.full(batch_size, value) or NonTensorData" if not len(shape) else ""
    return RuntimeError(
        f"batch dimension mismatch, got self.batch_size=torch.Size({list(batch_size)}) and "
        f"value.shape=torch.Size({list(shape)}) for key {key!r}, which does not start with the batch size; expand the "
        f"value or pass a batch_size that is a prefix of its shape{scalar}"
    )


def batch_size_refused(key: Any, kind: type, shape: Sequence[int], batch_size: Sequence[int]) -> RuntimeError:
    """Report that a new batch size does not fit an entry."""
    return RuntimeError(
        f"the {kind.__name__} {key} has shape {torch.Size(shape)} which is incompatible with the batch-size "
        f"{torch.Size(batch_size)}; every entry must start with it"
    )


def locked(action: str) -> RuntimeError:
    """Report that an operation would change the entries of a locked tensordict."""
    return RuntimeError(
        f"Cannot modify locked TensorDict: {action}; call unlock_() first, "
        "or write in place with set_() or update_() to keys that exist"
    )


def moves_a_view(what: str) -> RuntimeError:
    """Report that the entries of a view would move to other memory, away from the tensordict that it shows."""
    return RuntimeError(
        f"{what} cannot be done, as they are parts of the tensors of its parent; call to_tensordict() first, or change "
        "the parent (view.parent)"
    )


def fixed_batch_size(new: Sequence[int], old: Sequence[int], remedy: str) -> StackDimError:
    """Report that the batch size of a lazy stack or of a view is set."""
    return StackDimError(
        f"Received a new batch size {torch.Size(new)} with an existing batch_size {torch.Size(old)} in a lazy TD. "
        f"Modifying the batch size of a lazy representation of a tensordict is not permitted; {remedy}"
    )


def stack_batch_size(got: Sequence[int], expected: Sequence[int]) -> RuntimeError:
    """Report that a lazy stack of elements is given another batch size."""
    return RuntimeError(
        f"batch_size={list(got)} is not {list(expected)}, the batch size of the stack of these elements; leave it out"
    )


def source_batch_size(got: Sequence[int], expected: Sequence[int], inplace: bool) -> RuntimeError:
    """Report that the source of an update has another batch size."""
    return RuntimeError(
        f"the batch size {list(got)} of the source is not {list(expected)}, that of the tensordict; "
        + (
            "an update in place cannot change it: leave out inplace=True"
            if inplace
            else "index or expand the source, or pass update_batch_size=True to take over its batch size"
        )
    )


def mapped_and_shared(method: str, now: str) -> RuntimeError:
    """Report that a tensordict in mapped files would move to shared memory, or the reverse."""
    return RuntimeError(
        f"memmap and shared memory are mutually exclusive features: {method}() would move tensors that are {now}, and "
        "which other processes may have open; call clone() first"
    )


def not_in_memory(method: str, td: Any) -> RuntimeError:
    """Report that entries that a file or a server keeps cannot move to other memory in place."""
    return NotImplementedError(
        f"Cannot call {method} on a {type(td).__name__}, whose entries stay in their file, on their server or in the "
        "tensordict that it is a view of; call to_tensordict() first, or memmap() for a copy in mapped files"
    )


def lock_of_a_view(locked: bool) -> RuntimeError:
    """Report that the lock of a view, or of a holder of one, would differ from that of the tensordict it shows."""
    verb = "lock" if locked else "unlock"
    return RuntimeError(
        f"Cannot {verb} a SubTensorDict, which has the lock of its parent. {verb.title()} the parent tensordict "
        "instead (view.parent), or store a clone() of the view"
    )


def locked_graph() -> RuntimeError:
    """Report that a child of a locked parent would be unlocked."""
    return RuntimeError(
        "Cannot unlock a tensordict that is part of a locked graph; unlock the root that holds it, "
        "or clone(False) it to change a copy"
    )


def in_place_shape(key: Any, got: Sequence[int], expected: Sequence[int]) -> InPlaceShapeError:
    """Report that an in-place write has another shape."""
    return InPlaceShapeError(
        f"Failed to update {key!r}, which has shape {list(expected)} and cannot take a value of shape {list(got)} in "
        "place; reshape the value, or use set() to replace the entry"
    )


def in_place_kind(key: Any, value: Any, entry: Any) -> InPlaceShapeError:
    """Report that a value of one kind is written in place into an entry of another."""
    return InPlaceShapeError(
        f"Failed to update {key!r}, a {type(entry).__name__}, which cannot take a {type(value).__name__} in place; "
        "use set() to replace the entry"
    )


def in_place_leaf(key: Any) -> InPlaceWriteError:
    """Report that an in-place write goes into a leaf that requires gradients."""
    return InPlaceWriteError(
        f"Failed to update {key!r}: a leaf Variable that requires grad is being used in an in-place operation; write "
        "under torch.no_grad(), or into td.data"
    )


def in_place_refused(key: Any, error: RuntimeError) -> InPlaceWriteError:
    """Report that torch refuses an in-place write."""
    return InPlaceWriteError(f"Failed to update {key!r}: {error}; use set() to replace the entry")


def indexed_write_shape(key: Any, got: Sequence[int], expected: Sequence[int]) -> InPlaceShapeError:
    """Report that an indexed write has another shape."""
    return InPlaceShapeError(
        f"key {key!r} takes values of shape {list(expected)} at this index, and the value of shape {list(got)} "
        "cannot be broadcast to it; reshape or expand the value"
    )


def indexed_write_dtype(key: Any, got: Any, expected: Any) -> RuntimeError:
    """Report that an indexed write, by an index with tensors, has another dtype."""
    return RuntimeError(
        f"key {key!r} has dtype {expected} and cannot take a value of dtype {got} at an index with tensors; "
        f"convert the value with .to({expected})"
    )


def no_dataclass(value: Any) -> TypeError:
    """Report that the argument of ``from_dataclass`` is something else."""
    return TypeError(
        f"Expected a dataclass input, got a {type(value)} input instead; use from_any for other structures"
    )


def ambiguous_bool(noun: str) -> RuntimeError:
    """Report that the truth value of a tensordict is undefined."""
    return RuntimeError(
        f"Converting a {noun} to boolean value is not permitted, as it has no truth value; use len(td.keys()) for "
        "its keys, td.is_empty() for its leaves, or (a == b).all() to compare"
    )


def entry_names(key: Any, got: Sequence[Any], expected: Sequence[Any]) -> RuntimeError:
    """Report that the dim names of a nested tensordict are not those of the tensordict that stores it."""
    return RuntimeError(
        f"key {key!r} has the dim names {list(got)}, and the tensordict that stores it has {list(expected)}; rename "
        "the dims of one of them"
    )
