"""Error messages on operations: dimensions, indices, operands, stacks, conversions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from tensordict_core.base.errors.types import (
    DimensionError,
    IndexCountError,
    NotASourceError,
    NotAValueError,
    NotIterableError,
    OperandError,
    OutDtypeError,
    SizeError,
    SourceError,
    StackError,
    UnmatchedKeyError,
)


def no_batch_dim(what: str) -> DimensionError:
    """Report that the operation needs a batch dimension."""
    return DimensionError(
        f"Incompatible dim: {what} needs at least one batch dimension, and this tensordict has batch size []; set "
        "td.batch_size first"
    )


def holds_itself(key: Any) -> ValueError:
    """Report that a tensordict is stored in itself or in a nested tensordict."""
    return ValueError(
        f"Cannot set a tensordict inside itself: the value for key {key!r} contains it; store a copy, td.clone(False)"
    )


def indices_differ(shapes: Iterable[Sequence[int]]) -> IndexError:
    """Report that index tensors cannot be broadcast together."""
    return IndexError(
        f"index tensors of the shapes {[list(shape) for shape in shapes]} cannot be broadcast together; "
        "give them one shape, or index in two steps"
    )


def keys_as_index(keys: Sequence[str]) -> TypeError:
    """Report that an index is a list of keys."""
    names = ", ".join(repr(key) for key in keys)
    return TypeError(
        f"the keys [{names}] are not an index; an index list holds integers or bools, and td.select({names}) takes "
        "several entries"
    )


def bad_indexed_value(value: Any) -> TypeError:
    """Report that the value of an indexed write has a type that no leaf takes."""
    text = " ".join(repr(value).split())
    return SourceError(
        f"{text} of type {type(value).__name__} cannot be written at an index: __setitem__ only supports tensordicts, "
        "dictionaries, tensors, numbers and lists of numbers; name the entry with td[index] = {key: value}"
    )


def not_a_dim(dim: Any) -> TypeError:
    """Report that a dimension is not an integer."""
    return TypeError(f"{dim!r} is not a batch dimension; give an integer, such as 0 or -1")


def bad_dim(dim: int, batch_size: Sequence[int], extra: int = 0, rule: str = "") -> DimensionError:
    """Report that the dimension is outside the batch dimensions, which include ``extra`` new ones."""
    rule = rule and f"{rule}; "
    dims = len(batch_size) + extra
    where = f"{rule}Incompatible dim {dim} for tensordict with shape {torch.Size(batch_size)}"
    if not dims:
        return DimensionError(f"{where}, which has no batch dimensions; set td.batch_size to add some")
    return DimensionError(
        f"{where}{' and a new dimension' * bool(extra)}: Dimension out of range (expected to be in range of "
        f"[{-dims}, {dims - 1}], but got {dim}), as dim must be in the range {-dims} <= dim < {dims}"
    )


def bad_index_count(count: int, batch_size: Sequence[int], rule: str = "") -> IndexCountError:
    """Report that there are more indices than batch dimensions."""
    rule = rule and f"{rule}; "
    if not batch_size:
        return IndexCountError(
            f"{rule}too many indices for tensor of dimension 0, {count}: indexing a tensordict with td.batch_dims==0 "
            "is not permitted; index its entries, or set td.batch_size first"
        )
    return IndexCountError(
        f"{rule}too many indices for tensor of dimension {len(batch_size)}: got {count} for the batch size "
        f"{list(batch_size)}; index the entries for their own dimensions"
    )


def unmatched_key(key: Any, other: Any) -> UnmatchedKeyError:
    """Report that an operand lacks a leaf of the other one."""
    names = [str(k) for k in other._keys()] if hasattr(other, "_keys") else []
    return UnmatchedKeyError(
        f"keys in tensordicts mismatch: key {key!r} not found in the other one, which has the keys {names}; select the "
        "common keys, or pass default= where the operation takes it"
    )


def no_broadcast(shape: Sequence[int], batch_size: Sequence[int]) -> RuntimeError:
    """Report that a tensor operand cannot be broadcast to the batch size."""
    return RuntimeError(
        f"a tensor operand of shape {list(shape)} cannot be broadcast to the batch size {list(batch_size)}; it lines "
        "up with the batch dimensions: reshape it, or apply the operation to the entries with td.apply"
    )


def bad_mask(shape: Sequence[int], batch_size: Sequence[int]) -> RuntimeError:
    """Report that a mask cannot be expanded to the batch size."""
    return RuntimeError(
        f"a mask of shape {list(shape)} cannot be expanded to the batch size {list(batch_size)}; a mask lines up with "
        "the first batch dimensions: give a mask of that shape"
    )


def bad_where(condition: Sequence[int], batch_size: Sequence[int], result: Sequence[int]) -> RuntimeError:
    """Report that a condition and the operands broadcast to a shape that does not start with the batch size."""
    return RuntimeError(
        f"a condition of shape {list(condition)} and the operands give an entry of shape {list(result)}, which does "
        f"not start with the batch size {list(batch_size)}; expand the tensordict, or give a condition of that size"
    )


def no_condition(condition: Any) -> TypeError:
    """Report that a condition on non-tensor data is not a bool tensor."""
    got = getattr(condition, "dtype", type(condition).__name__)
    return TypeError(f"a condition of type {got} is not a bool tensor; compare it, or wrap it with torch.tensor")


def no_value_operand(name: str, operand: Any) -> TypeError:
    """Report that an operand of non-tensor data is a tensor or a tensordict."""
    return TypeError(
        f"{name} of non-tensor data takes non-tensor data or a plain value, got {type(operand).__name__}; wrap it in "
        "NonTensorData, or read the values with tolist()"
    )


def several_values(values: Sequence[Any]) -> AttributeError:
    """Report that the one value of non-tensor data is read, and there are several or none."""
    return AttributeError(
        f"Cannot get the non-unique data of a NonTensorStack, which has {len(values)} values; read them with tolist()",
        name="data",
    )


def values_shape(got: Sequence[int], expected: Sequence[int], *, one: bool = False) -> RuntimeError:
    """Report that batch sizes of non-tensor data differ, or that several values are written over one in place."""
    if one and list(got) == list(expected):
        return RuntimeError(
            f"NonTensorData of batch size {list(expected)} has one value for all positions and cannot take several in "
            "place; use a NonTensorStack, or the result without out"
        )
    return RuntimeError(
        f"values of batch size {list(got)} cannot replace values of batch size {list(expected)}; expand or index them "
        "to that batch size"
    )


def values_source(got: Sequence[int], expected: Sequence[int], *, one: bool) -> ValueError:
    """Report that the source of an update of non-tensor data has other positions."""
    if one:
        return SizeError(
            "Cannot update a NonTensorDataBase object with a NonTensorStack: NonTensorData has one value for all "
            f"positions, and the source one for each of the batch size {list(got)}; call maybe_to_stack() first"
        )
    return SizeError(
        f"values of batch size {list(got)} cannot replace values of batch size {list(expected)}; pass "
        "update_batch_size=True, or index them to that batch size"
    )


def part_of_value() -> SizeError:
    """Report that one position of non-tensor data with one value for all positions is to be written."""
    return SizeError(
        "Cannot update a part of a NonTensorDataBase object with one value for all elements; call "
        "maybe_to_stack() for one that holds a value for each, or write td[index] = other, which makes a "
        "NonTensorStack of the entry"
    )


def part_of_stored() -> RuntimeError:
    """Report a write to non-tensor data that were read from a stack in a file or in shared memory."""
    return RuntimeError(
        "Cannot update a leaf NonTensorDataBase that was read from a NonTensorStack in a file or in shared memory: the "
        "write would not reach it; write through the tensordict or the stack, with td[index] = source or "
        "stack[index] = value"
    )


def no_value_source(source: Any) -> TypeError:
    """Report that the source of an update of non-tensor data is something else."""
    return NotAValueError(
        f"the data type {type(source)} is not supported: the source of an update is NonTensorData or a NonTensorStack; "
        "wrap the value in NonTensorData, or assign it to .data"
    )


def not_a_source(source: Any) -> TypeError:
    """Report that the source of an update is neither a tensordict nor a mapping."""
    return NotASourceError(
        f"Cannot use object type {type(source)} to update values in tensordict, as it has no entries; pass a "
        "tensordict or a mapping, or use set(key, value) for one entry or td[index] = value for all entries"
    )


def no_source(source: Any) -> SourceError:
    """Report that the source of a new tensordict is neither a tensordict nor a mapping."""
    return SourceError(
        f"A TensorDict source is expected to be a tensordict or a Mapping, got {type(source).__name__}; "
        "use from_any for other structures"
    )


def not_iterable() -> NotIterableError:
    """Report that a tensordict without batch dimensions has no rows to iterate over."""
    return NotIterableError(
        "iteration over a 0-d tensordict, which has no rows; set td.batch_size first, or iterate over keys(), values() "
        "or items()"
    )


def bad_out(what: str, out: Any) -> TypeError:
    """Report that ``out`` is not a tensordict."""
    return TypeError(f"{what} writes into a tensordict as out, got {type(out).__name__}; pass a tensordict or None")


def bool_alpha(what: str) -> RuntimeError:
    """Report that ``alpha`` is a bool, and an operand is not."""
    return RuntimeError(f"{what} takes a bool as alpha for bool leaves only, as torch.{what}; pass a number")


def out_requires_grad(what: str) -> RuntimeError:
    """Report that a result that depends on gradients would be written into ``out``."""
    return RuntimeError(
        f"{what} with out= is not differentiable, and an operand requires gradients; leave out out=, or call it under "
        "torch.no_grad()"
    )


def out_dtype(what: str, key: Any, got: Any, expected: Any) -> OutDtypeError:
    """Report that an entry of ``out`` has a dtype that loses the values of the result."""
    return OutDtypeError(
        f"{what}: the result of key {key!r} has dtype {got}, which does not cast to {expected}, that of the entry of "
        "out; pass an out of the dtype of the result"
    )


def bad_split_sizes(sizes: Sequence[int], total: int, dim: int) -> SizeError:
    """Report that the sizes of the pieces do not add up to the size of the dimension."""
    rule = "Insufficient number of elements in split_size: " if sum(sizes) < total else ""
    if any(size < 0 for size in sizes):
        rule += "split_with_sizes expects split_sizes have only non-negative entries"
    else:
        rule += f"split_with_sizes expects split_sizes to sum exactly to {total}, the size of dimension {dim}"
    return SizeError(f"{rule}, but got split_sizes={list(sizes)}; change one of them")


def out_of_bounds(index: Any, dim: int, size: int) -> IndexError:
    """Report that an integer index is out of bounds."""
    return IndexError(
        f"index {index} is out of bounds for dimension {dim} with size {size}; "
        + (f"use one from {-size} to {size - 1}" if size else "an empty dimension has no row to index")
    )


def not_callable(what: str, function: Any) -> TypeError:
    """Report that an argument of the function ``what`` is not callable."""
    return TypeError(f"{what} takes a function, got {type(function).__name__}; pass a callable, such as torch.exp")


def bad_operand(name: str, operand: Any) -> TypeError:
    """Report that the operand of an operation has an unsupported type."""
    return TypeError(
        f"{name} takes a tensordict, a tensor or a number as operand, got {type(operand).__name__}; "
        "wrap it in a tensor first"
    )


def no_loss(name: str, operand: Any) -> TypeError:
    """Report that an operand of a loss is not a tensordict."""
    return OperandError(
        f"{name} takes two tensordicts, got {type(operand).__name__}; wrap it in a TensorDict under the same keys, or "
        "pass the entries one by one"
    )


def not_stackable(what: str, why: str) -> RuntimeError:
    """Report that entries cannot be combined densely; programs match the beginning of the message."""
    return StackError(
        f"{why}; cannot {what} densely: use lazy_stack or maybe_dense_stack to keep the tensordicts apart"
    )


def unbatched_values_differ(what: str, key: Any = None) -> RuntimeError:
    """Report that unbatched tensors of different values have no common one."""
    named = "an unbatched tensor has" if key is None else f"key {key!r} is an unbatched tensor, which has"
    return StackError(
        f"{named} one value for all rows, and the tensordicts to {what} have several; make it a tensor with the batch "
        "size, leave it out with exclude(), or keep the tensordicts apart with lazy_stack or maybe_dense_stack"
    )


def unbatched_column(key: Any) -> RuntimeError:
    """Report that the elements of a lazy stack have unbatched tensors of different values."""
    return StackError(
        f"key {key!r} is an unbatched tensor, which has one value for all rows, and the elements of the lazy stack "
        "have several; read them with get(key, as_list=True), or make it a tensor with the batch size in each"
    )


def keys_not_stackable(what: str, at: int, keys: Iterable[str], expected: Iterable[str]) -> RuntimeError:
    """Report that nodes of different keys cannot be combined densely."""
    mine, theirs = set(keys), set(expected)
    return not_stackable(
        what,
        f"The sets of keys in the tensordicts to stack are exclusive: tensordict {at} has keys {sorted(mine)} but "
        f"tensordict 0 has keys {sorted(theirs)}",
    )


def ragged(key: Any, shapes: Iterable[Any]) -> RuntimeError:
    """Report that an entry of a lazy stack has no dense form."""
    return StackError(
        f"Failed to stack tensors within a tensordict under the key {key!r}: their shapes are "
        f"{[list(shape) for shape in shapes]} in the elements of the lazy stack, which do not stack; read them with "
        "get(key, as_list=True), get(key, as_nested_tensor=True) or get(key, as_padded_tensor=True)"
    )


def exclusive_keys(what: str, keys: Mapping[int, Sequence[str]]) -> RuntimeError:
    """Report that some elements of a lazy stack have keys that others lack, and all elements make one result."""
    return RuntimeError(
        f"the method {what} cannot complete when there are exclusive keys: elements of the lazy stack have "
        f"{dict(keys)}, which others lack; exclude them, or convert each of the tensordicts"
    )


def mixed_column(key: Any) -> RuntimeError:
    """Report that some elements of a lazy stack hold a tensor under a key, others a nested tensordict."""
    return RuntimeError(
        f"key {key!r} is a tensor in some elements of the lazy stack and a nested tensordict in others; "
        "read it from each of its tensordicts"
    )


def no_empty_form(key: Any) -> RuntimeError:
    """Report that some elements of a lazy stack lack an entry that cannot be empty."""
    return RuntimeError(
        f"key {key!r} is missing in some elements of the lazy stack, and an entry without dimensions of its own has no "
        "empty form; give each element the key, or exclude it"
    )


def two_ways(one: str, other: str, what: str) -> ValueError:
    """Report that two arguments exclude each other."""
    return ValueError(
        f"Either {one} or {other} must be provided, but not both, as {one} and {other} both determine {what}; pass one "
        "of them"
    )


def not_convertible(function: str, expected: str, value: Any) -> TypeError:
    """Report that a function does not convert objects of this type."""
    kind = f"the type {value.__name__}" if isinstance(value, type) else type(value).__name__
    return TypeError(f"{function} takes {expected}, got {kind}; use from_any for other structures")


def missing_satellite(what: str, distribution: str) -> ImportError:
    """Report that a method needs a distribution that is not installed."""
    return ImportError(f"{what} needs {distribution}: pip install {distribution}")


def keys_collide(function: str, name: Any, first: Any, second: Any) -> KeyError:
    """Report that two entries would have one key."""
    rule = (
        f"Unflattening key(s) in tensordict will override an existing for unflattened key {name!r}"
        if function == "unflatten_keys"
        else f"Flattening keys in tensordict causes keys [{name!r}] to collide"
    )
    return KeyError(
        f"{rule}: {first!r} and {second!r} would both become {name!r} in {function}; rename one of them, or choose "
        "another separator"
    )


def not_of_the_block(size: Sequence[int], new: Sequence[int], old: Sequence[int]) -> RuntimeError:
    """Report that a new entry of a reshaped tensordict cannot be written back at the end of a ``with`` block."""
    return RuntimeError(
        f"an entry of size {list(size)} does not start with the batch size {list(new)}, so it cannot be written back "
        f"to {list(old)} at the end of the block; keep the batch size within the block"
    )


def state_mismatch(missing: Iterable[Any], unexpected: Iterable[Any]) -> RuntimeError:
    """Report that a state dict has other keys than the tensordict that it is loaded into."""
    return RuntimeError(
        f"Cannot load state-dict because the key sets don't match: missing {list(missing)}, unexpected "
        f"{list(unexpected)}; pass strict=False to load what matches and add what is new"
    )


def not_sendable(path: Any, leaf: Any) -> TypeError:
    """Report that a leaf is not stored in one contiguous block of memory."""
    return TypeError(
        f"key {path!r} is a tensor of layout {leaf.layout} and dtype {leaf.dtype}, "
        "which is not one block of memory; send a dense copy, or leave it out with exclude"
    )


def not_expandable(key: Any, shape: Any, target: Any) -> RuntimeError:
    """Report that a leaf cannot be expanded to the shape of another."""
    return RuntimeError(
        f"key {key!r} has shape {list(shape)} and cannot be expanded to its counterpart of shape {list(target)}; only "
        "sizes of 1 expand, so use repeat to copy rows, or unsqueeze to line the dimensions up"
    )


def device_of_element(device: Any, new: Any) -> ValueError:
    """Report that a new element of a lazy stack has another device than the stack."""
    return ValueError(
        f"Devices differ: this lazy stack has the device {device}, and the new element {new}; move the element with "
        "to() first"
    )


def devices_differ(first: Any, other: Any) -> RuntimeError:
    """Report that the elements of a lazy stack have different devices."""
    return RuntimeError(
        f"devices differ, got {first} and {other} for the elements of a lazy stack; move them to one device, or leave "
        "their devices unset with clear_device_()"
    )


def elements_differ(i: int, size: Sequence[int], first: Sequence[int]) -> RuntimeError:
    """Report that the batch sizes of the elements of a lazy stack differ."""
    return RuntimeError(
        f"the batch sizes of the elements of a lazy stack differ: element 0 has {list(first)} and element {i} has "
        f"{list(size)}; give elements of one batch size"
        + ("" if len(size) != len(first) else ", or pass strict_shape=False")
    )


def nested_stack_dim(dim: int) -> ValueError:
    """Report that a lazy stack cannot be read as a nested tensor of its batch size."""
    return SizeError(
        f"a nested tensor has its ragged components first, but the stack dim is {dim}; permute the stack dim to 0, "
        "or read the entry with as_list=True or as_padded_tensor=True"
    )


def name_of_nested(name: str, names: Sequence[Any]) -> ValueError:
    """Report that a dim name is that of a further dimension of a nested tensordict."""
    return ValueError(
        f"the dim name {name!r} is that of a dimension of a nested tensordict, with the names {list(names)}; rename "
        "one of the two"
    )


def names_differ(first: Any, other: Any, dims: int) -> ValueError:
    """Report that the elements of a lazy stack have different dim names."""
    return ValueError(
        f"the dim names of the elements of a lazy stack differ: {list(first or (None,) * dims)} and "
        f"{list(other or (None,) * dims)}; rename the dims of one of them"
    )


def no_elements(items: Any) -> TypeError:
    """Report that the source of a lazy stack is neither a list nor a dictionary of elements."""
    return TypeError(
        "LazyStackedTensorDict.from_dict takes a list of dictionaries, or a dictionary of them under the keys '0', "
        f"'1', ..., got {type(items).__name__}; use TensorDict.from_dict for one dictionary of entries"
    )


def only_first(name: str, value: Any) -> TypeError:
    """Report that a function of torch takes a tensordict as its first argument, and got one elsewhere."""
    return TypeError(
        f"torch.{name} takes a tensordict as its first argument only, got {type(value).__name__} there and a "
        "tensordict in another place; exchange them, or call it for each entry with apply()"
    )


def unknown_argument(name: str, argument: str) -> TypeError:
    """Report that a function of torch got an argument that it does not have for tensordicts."""
    return TypeError(
        f"torch.{name} got the argument {argument!r}, which it does not take for tensordicts; leave it out, or call it "
        "for each entry with apply()"
    )
