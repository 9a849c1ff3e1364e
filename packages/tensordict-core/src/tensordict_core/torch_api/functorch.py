"""``torch.vmap``: which batch dimension it removed from the leaves of a tree, or where it inserted one.

``vmap`` flattens a tree, removes or inserts one dimension in each leaf, and unflattens the tree. The event rank of a
leaf does not change, so one dimension less or more is a batch dimension. On the way in, torch knows which dimension it
maps. On the way out, the shape of a leaf before and after tells where the dimension is, and strides where sizes are
equal; the position is needed for names and for non-tensor values, and to refuse one behind the batch dimensions.

Functions of torch's ``vmap`` are wrapped, because the registry of pytrees does not say who flattens a tree. In inputs
and outputs of ``vmap``, unbatched tensors are passed whole and locks are kept; ``out_dims=(0,)`` means one
tensordict, as it means one tensor. An argument or a result that is a plain tensordict is not flattened at all, because
a pytree costs torch a microsecond for each leaf, several times in a call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch._functorch.vmap as torch_vmap
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.utils._pytree import tree_flatten, tree_unflatten

from tensordict_core.base.meta import Names, names_or_none
from tensordict_core.base.node import Node
from tensordict_core.base.tracing import is_compiling, mapped_dim, mapped_size, transform_level
from tensordict_core.containers.collection import TensorCollection
from tensordict_core.torch_api.flatten_context import FlattenContext
from tensordict_core.torch_api.vmap_plain import (
    PlainArgument,
    dim_functions,
    hidden_dim,
    plain_arguments,
    plain_outputs,
    shown_dim,
)


class _Thread(threading.local):
    flattens_for_vmap = False


_thread = _Thread()


def flattens_for_vmap() -> bool:
    """Return whether ``vmap`` flattens the inputs or outputs of a function at the moment; never in a trace.

    >>> flattens_for_vmap()
    False
    """
    return not is_compiling() and _thread.flattens_for_vmap


def register() -> None:
    """Wrap the functions of ``torch.vmap`` that flatten inputs and outputs."""
    for name in ("_process_batched_inputs", "_unwrap_batched", "_flatten_chunks_output"):
        setattr(torch_vmap, name, _for_vmap(getattr(torch_vmap, name)))
    process, create = torch_vmap._process_batched_inputs, torch_vmap._create_batched_inputs

    def process_batched_inputs(in_dims: Any, args: Any, func: Any) -> Any:
        plain = plain_arguments(in_dims, args)
        stand_ins = tuple(plain[i].leaf if i in plain else arg for i, arg in enumerate(args)) if plain else args
        size, dims, leaves, spec = process(in_dims, stand_ins, func)
        position = 0
        for i, child in enumerate(spec.children() if plain else ()):
            if i in plain:
                leaves[position] = plain[i]
            position += child.num_leaves
        return size, dims, leaves, spec

    def create_batched_inputs(dims: Any, leaves: Any, level: int, spec: Any) -> Any:
        if not any([type(leaf) is PlainArgument for leaf in leaves]):
            return create(dims, leaves, level, spec)
        hide, _ = dim_functions()
        mapped = [
            leaf.mapped(dim, level)
            if type(leaf) is PlainArgument
            else leaf
            if dim is None
            else add_batch_dim(leaf, dim, level)
            if isinstance(leaf, TensorCollection) and not isinstance(leaf, Tensor)
            else hide(leaf, dim, level)
            for leaf, dim in zip(leaves, dims, strict=True)
        ]
        return tree_unflatten(mapped, spec)

    setattr(torch_vmap, "_process_batched_inputs", process_batched_inputs)  # noqa: B010 (mypy knows the torch functions)
    setattr(torch_vmap, "_create_batched_inputs", create_batched_inputs)  # noqa: B010 (as above)
    concatenate = torch_vmap._concat_chunked_outputs

    def concat_chunked_outputs(out_dims: Any, spec: Any, chunks: Any) -> Any:
        return concatenate(_of_one(out_dims, spec.type), spec, chunks)

    setattr(torch_vmap, "_concat_chunked_outputs", concat_chunked_outputs)  # noqa: B010 (as above)
    setattr(TensorCollection, "_add_batch_dim", add_batch_dim)  # noqa: B010 (as above)
    setattr(TensorCollection, "_maybe_remove_batch_dim", maybe_remove_batch_dim)  # noqa: B010 (as above)


# pytorch#175852 lets containers take part in vmap as leaves, and programs replace functions of torch by those of it


def add_batch_dim(self: Any, in_dim: int, vmap_level: int) -> Any:
    """Return a container inside a ``vmap`` that does not flatten it: without the mapped dimension.

    Args:
        self: The container.
        in_dim: The dimension.
        vmap_level: The level of the ``vmap``.
    """
    if (inside := hidden_dim(self, in_dim, vmap_level)) is not None:
        return inside
    with temporarily_pop_interpreter_stack():  # so that it is flattened as outside
        leaves, spec = _flattening(tree_flatten, (self,))
    hide, _ = dim_functions()
    return tree_unflatten(
        [hide(leaf, in_dim, vmap_level) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec
    )


def maybe_remove_batch_dim(self: Any, func_name: str, vmap_level: int, batch_size: int, out_dim: int | None) -> Any:
    """Return a container outside of a ``vmap`` that does not flatten it: with the mapped dimension.

    Args:
        self: The container.
        func_name: The name of the mapped function.
        vmap_level: The level of the ``vmap``.
        batch_size: The size of the dimension.
        out_dim: Its position; ``None`` if the container is not mapped.
    """
    if out_dim is None:
        return self
    if (outside := shown_dim(self, out_dim, batch_size, vmap_level)) is not None:
        return outside
    leaves, spec = _flattening(tree_flatten, (self,))
    _, show = dim_functions()
    shown = [show(leaf, vmap_level, batch_size, out_dim) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return tree_unflatten(shown, spec)


def _of_one(out_dims: Any, kind: Any) -> Any:
    """Return ``out_dims`` of a function that returns an object of a type; of one tensordict, that in a tuple of one."""
    if type(out_dims) is tuple and len(out_dims) == 1 and isinstance(kind, type) and issubclass(kind, Node):
        return out_dims[0]
    return out_dims


def _for_vmap(function: Callable[..., Any]) -> Callable[..., Any]:
    unwraps = function.__name__ == "_unwrap_batched"

    def flatten(*args: Any) -> Any:
        plain: dict[int | None, Any] = {}
        if unwraps:
            outputs, out_dims, level, size, func = args
            out_dims = _of_one(out_dims, type(outputs))
            plain = plain_outputs(outputs, out_dims, size, level)
            if None in plain:
                return plain[None]
            if plain:
                outputs = tuple([() if i in plain else output for i, output in enumerate(outputs)])
            args = (outputs, out_dims, level, size, func)
        results = function(*args) if is_compiling() else _flattening(function, args)
        return tuple([plain.get(i, result) for i, result in enumerate(results)]) if plain else results

    return flatten


def _flattening(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    before, _thread.flattens_for_vmap = _thread.flattens_for_vmap, True
    try:
        return function(*args)
    finally:
        _thread.flattens_for_vmap = before


class BatchDimChange(NamedTuple):
    """A dimension that ``vmap`` removed from the leaves of a node, or inserted."""

    gained: bool
    """Whether the dimension was inserted."""
    dims: tuple[int, ...]
    """The dimension; several if no leaf distinguishes equal sizes."""
    size: int = 0
    """The size of an inserted dimension."""

    def within(self, batch_dims: int) -> BatchDimChange | None:
        """Return the change of a node of so many batch dimensions; ``None`` where only its event dimensions lost one.

        Raises:
            RuntimeError: Leaves lost different batch dimensions, or gained one behind the batch dimensions.
        """
        if self.gained:
            if self.dims and self.dims[-1] <= batch_dims:
                return self
            dims = tuple(dim for dim in self.dims if dim <= batch_dims)
            if not dims:
                raise RuntimeError(
                    f"vmap inserts its dimension behind the {batch_dims} batch dimensions of a tensordict, so its "
                    f"leaves do not share it; use out_dims from 0 to {batch_dims}"
                )
            return self._replace(dims=dims)
        if self.dims[0] >= batch_dims:
            return None
        if len(self.dims) > 1:
            raise RuntimeError(
                f"vmap removes different dimensions {list(self.dims)} from the leaves of a tensordict of {batch_dims} "
                "batch dimensions, because a negative in_dims is counted for each leaf; count it from the front"
            )
        return self

    def resized(self, size: torch.Size) -> torch.Size:
        """Return a batch size with the inserted dimension."""
        dim = self.dims[0]
        return torch.Size((*size[:dim], self.size, *size[dim:]))

    def renamed(self, names: Names) -> Names:
        """Return dim names after the change; ``None`` where the dimension is not certain."""
        if names is None or len(self.dims) > 1:
            return None
        dim = self.dims[0]
        return names_or_none((*names[:dim], None, *names[dim:]) if self.gained else (*names[:dim], *names[dim + 1 :]))


def batch_dim_change(children: Sequence[Any], context: FlattenContext) -> BatchDimChange | None:
    """Return the change by ``vmap`` of the leaves of a tree since it was flattened; ``None`` if there is none."""
    level = transform_level()
    if level is None:
        return None
    if context.level != level:  # flattened outside of the transform, unflattened inside
        lost = _lost_dims(children, context, level)
        return BatchDimChange(False, tuple(sorted(lost))) if lost else None
    size = mapped_size()
    gained = None if size is None else _gained_dims(children, context, level, size)
    return None if gained is None or size is None else BatchDimChange(True, tuple(sorted(gained)), size)


def _lost_dims(children: Sequence[Any], context: FlattenContext, level: int) -> set[int]:
    """Return the dimensions that ``vmap`` removed from the leaves."""
    lost = set()
    for child, shape in zip(children, context.shapes, strict=False):
        if shape is None or type(child) is int:
            continue
        tensor, ndim = child, child.ndim
        if type(child) is not Tensor and isinstance(child, Node):
            tensor = next(leaf for leaf in child._leaves() if isinstance(leaf, Tensor))
        dim = mapped_dim(tensor, level)
        if dim is not None and ndim == len(shape) - 1:
            lost.add(dim)
    return lost


def _gained_dims(children: Sequence[Any], context: FlattenContext, level: int, size: int) -> set[int] | None:
    """Return where ``vmap`` may have inserted a dimension of that size into the leaves; ``None`` if nowhere."""
    found: set[int] | None = None
    compiling = is_compiling()
    seen: tuple[torch.Size, torch.Size] | None = None
    fits: set[int] = set()
    for i, (child, before) in enumerate(zip(children, context.shapes, strict=False)):
        if before is None or type(child) is int:
            continue
        is_node = type(child) is not Tensor and isinstance(child, Node)
        shape = child._meta.batch_size if is_node else child.shape
        if seen != (shape, before):  # neighbouring leaves often have one shape
            seen = shape, before
            fits = {p for p, n in enumerate(shape) if n == size and shape[:p] + shape[p + 1 :] == before}
        # a trace cannot ask a tensor that depends on a gradient, so a shape that fits is enough there
        if not fits or (not is_node and not compiling and mapped_dim(child, level) is not None):
            return None
        sure = fits
        if len(fits) > 1 and (strides := (context.strides or {}).get(i)) is not None:
            # vmap moves its dimension without a copy, so the stride of the dimension is found where it went
            mapped, others = strides
            sure = {p for p in fits if child.stride() == (*others[:p], mapped, *others[p:])} or fits
        found = sure if found is None else found & sure
    return found
