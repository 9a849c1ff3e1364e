"""Parameters of modules as tensordicts: `from_module` reads them, `to_module` sets them.

The tensordict is nested like the module and holds its own parameters and buffers, not copies. Setting parameters is one
dictionary write each, by a cached plan (see `plan`); as a context manager, it is undone at the end of the block, also
after an error. Under ``torch.compile`` the same writes run without a plan, so that Dynamo can trace them.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter, is_lazy

from tensordict_core import LazyStackedTensorDict, TensorDict
from tensordict_core.extension import (
    Meta,
    annotate,
    deferred,
    dense,
    dense_locked,
    in_functorch,
    is_compiling,
    is_leaf_tensor,
    on_exit,
    to_entry,
)
from tensordict_nn import errors
from tensordict_nn.params.leaves import as_buffer
from tensordict_nn.params.mapped import Guard, file_among, warn_of_file
from tensordict_nn.params.optimizers import NOTED
from tensordict_nn.params.plan import Plan, Slot, bind, find_plan
from tensordict_nn.params.tensordict_params import TensorDictParams
from tensordict_nn.params.uninitialized import is_mapped_without_shape

_META = Meta(torch.Size(()))
_PARAMETER = {Parameter}


# out of modules -----------------------------------------------------------------------------------------------------


def _node(module: nn.Module, filter_empty: bool, lock: bool) -> Any:
    """Return the parameters and buffers of a module and its sub-modules; ``None`` if there are none to keep."""
    own = module.__dict__
    parameters, buffers, modules = own["_parameters"], own["_buffers"], own["_modules"]
    if not (parameters or buffers or modules):
        if type(module)._save_to_state_dict is not nn.Module._save_to_state_dict:
            _warn_of_packed(module)
        if filter_empty:
            return None
    table: dict[str, Any] = {}
    # loops and not comprehensions, which are calls: this runs for every module of a model
    if parameters:
        for name, value in parameters.items():
            if value is not None:
                table[name] = value
    if buffers:
        for name, value in buffers.items():
            if value is not None:
                table[name] = value
    nodes = []
    is_new = True
    if modules:
        for name, child in modules.items():
            if child is None:
                continue
            # a tensordict already, which sees later changes of the module (isinstance is slow for modules)
            if issubclass(type(child), TensorDictParams):
                table[name] = child
                is_new = False
                continue
            node = _node(child, filter_empty, lock)
            if node is not None:
                table[name] = node
                nodes.append(node)
    if filter_empty and not table:
        return None
    if not lock:
        return dense(table, _META)
    return dense_locked(table, _META, nodes) if is_new else dense(table, _META).lock_()


def _warn_of_packed(module: nn.Module) -> None:
    """Warn that a module has state outside of parameters and buffers, as quantized modules do."""
    state: dict[str, Any] = {}
    module._save_to_state_dict(state, "", True)
    if state:
        warnings.warn(errors.packed_state(module, state), stacklevel=2)


def _of_state(module: nn.Module) -> TensorDict:
    """Return the state dict of a module as a nested tensordict; extra states are non-tensor data."""
    td = TensorDict({})
    for name, value in module.state_dict(keep_vars=False).items():
        path = tuple(name.split("."))
        td.set(path, value) if isinstance(value, Tensor) else td.set_non_tensor(path, value)
    return td


def from_module(
    module: nn.Module,
    as_module: bool = False,
    lock: bool = True,
    use_state_dict: bool = False,
    filter_empty: bool = True,
) -> Any:
    """Return the parameters and buffers of a module as a tensordict, nested like the module.

    The leaves are the module's own tensors, so optimizer steps change both. Arithmetic makes new tensors:
    ``params * 0.99 + other * 0.01`` is an average of two models.

    Args:
        module: The module.
        as_module: Whether the result is a `TensorDictParams`, a module itself.
        lock: Whether the result is locked.
        use_state_dict: Whether to use ``module.state_dict()``, which runs its hooks. Then the leaves are detached,
            non-persistent buffers are left out, and extra states and packed parameters of quantized modules are
            included as non-tensor data. Otherwise packed parameters cause a warning.
        filter_empty: Whether sub-modules without parameters are left out.

    Raises:
        TypeError: ``module`` is not an ``nn.Module``.

    >>> import torch
    >>> params = from_module(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()))
    >>> params["0"].sorted_keys, params["0", "weight"].shape
    (['bias', 'weight'], torch.Size([4, 3]))
    """
    if not isinstance(module, nn.Module):
        raise errors.not_a_module(module, "from_module")
    if use_state_dict:
        td = _of_state(module)
    else:
        # new nodes have no other references, so they are locked when made; Dynamo does not trace weak references
        td = _node(module, filter_empty, lock and not as_module and not is_compiling())
        if td is None:
            td = TensorDict({})
    if as_module:
        return TensorDictParams(td, no_convert=True, lock=lock)
    return td.lock_() if lock else td


# into modules -------------------------------------------------------------------------------------------------------


def to_module(
    td: Any,
    module: nn.Module,
    *,
    inplace: bool | None = None,
    return_swap: bool = True,
    swap_dest: Any = None,
    use_state_dict: bool = False,
    non_blocking: bool = False,
    preserve_module_state: bool = True,
    memo: Any = None,
) -> Any:
    """Set the parameters and buffers of a module to the entries of a tensordict; as a context manager, for a block.

    At the end of a block, the tensordict has the tensors that the module changed or replaced in the block, such as
    buffers, and the module has its earlier ones.

    Without a block, the parameters of the module are replaced permanently. An optimizer that was built before holds the
    replaced parameters and does not train the new ones, and its next step issues a warning. Build the optimizer after
    this call, or write the values into the existing parameters with ``inplace=True``. Tensors of a saved folder that is
    mapped for writing also cause a warning, because training would change the files; ``load(path, mode="c")`` maps them
    copy-on-write.

    Args:
        td: The tensordict.
        module: A module with the structure of the tensordict; parameters without an entry are not changed.
        inplace: Whether values are written into the existing parameters instead of replacing them.
        return_swap: Whether the earlier parameters are returned.
        swap_dest: A tensordict in which the earlier parameters are stored.
        use_state_dict: Whether to use ``module.load_state_dict``, which runs its hooks.
        non_blocking: Whether copies may be asynchronous.
        preserve_module_state: Whether a plain tensor that replaces a parameter becomes a parameter, with the
            ``requires_grad`` of the old one, and a parameter that replaces a buffer becomes a buffer; tied weights stay
            tied if their new values are equal. Tensors that require gradients and tensors of ``torch.func`` transforms
            are set unchanged, so that gradients flow to them. With ``False``, plain tensors are plain attributes:
            ``parameters()`` and ``state_dict()`` leave them out.
        memo: Not accepted.

    Returns:
        The earlier parameters as a tensordict; ``None`` if ``return_swap`` is False.

    Raises:
        KeyError: The module has no parameter or buffer for an entry.
        RuntimeError: ``inplace`` and ``use_state_dict`` are both given.

    >>> import torch
    >>> module = torch.nn.Linear(3, 4)
    >>> with to_module(from_module(module) * 0, module):
    ...     module(torch.ones(3))
    tensor([0., 0., 0., 0.], grad_fn=<...>)
    """
    if memo is not None:
        raise errors.memo_given()
    if preserve_module_state is None:
        raise errors.no_module_state()
    if not isinstance(module, nn.Module):
        raise errors.not_a_module(module, "to_module")
    if use_state_dict:
        if inplace:
            raise errors.exclusive("inplace=True", "use_state_dict=True", "to_module")
        swap, undo = _load_state(td, module, return_swap)
    elif is_compiling():
        swap, undo = _swap_traced(td, module, inplace, non_blocking)
    elif inplace:
        swap, undo = _copy(td, module, non_blocking)
    else:
        swap, undo = _swap(td, module, preserve_module_state, return_swap, swap_dest)
    if not return_swap:
        return None
    if swap_dest is not None:
        try:
            swap_dest.update(swap)
        except BaseException:  # for example locked
            undo(swap)
            raise
        swap = swap_dest
    on_exit(swap, undo)
    return swap


Undo = Callable[[Any], None]


def _swap(td: Any, module: nn.Module, preserve: bool, is_block: bool, dest: Any) -> tuple[Any, Undo]:
    plan, leaves, held = find_plan(td, module)
    replaced = plan.replaced
    earlier = replaced.swap
    if earlier is not None and earlier is not NOTED:
        earlier = replaced.note(held)
    file = file_among(leaves) if plan.may_map else None
    guard = None
    if file is not None and is_block:
        guard = Guard(file)  # a block ends with `undo`
    elif file is not None:
        warn_of_file(file, 4)
    if preserve:
        if plan.parameters:
            leaves = _as_parameters(plan, leaves, held)
        if plan.buffers and not _PARAMETER.isdisjoint(map(type, map(leaves.__getitem__, plan.buffers))):
            leaves = list(leaves)
            for i in plan.buffers:
                leaves[i] = as_buffer(leaves[i]) if type(leaves[i]) is Parameter else leaves[i]
    move_back = None
    try:
        plan.write(module, leaves)
        # nothing lists the parameters of a module inside of a transform, except for lazy modules
        if (
            not preserve
            and (not in_functorch() or any(map(is_mapped_without_shape, leaves)))
            and (misplaced := plan.misplaced(leaves))
        ):
            move_back = plan.register_anew(module, misplaced, leaves)
    except BaseException:  # a module's own __setattr__ refused a value
        plan.restore(module, held)
        raise

    def undo(swap: Any) -> None:
        replaced.swap = earlier
        if guard is not None:
            guard.dismiss()
        if move_back is not None:
            move_back()
        try:
            # values that were read in a transform end with it
            if plan.makes and not in_functorch() and (stored := plan.leaves(td)) is not None:
                _write_into(td, zip(plan.paths, stored, leaves, strict=True))
        finally:
            _put_back(td, module, plan, leaves, held)

    swap = deferred(lambda: plan.structure.build(held), _META)
    # of a block, until it is undone: the tensordict that is entered
    replaced.swap = ref(swap if dest is None else dest)
    if guard is not None:
        annotate(swap, "guard", guard)
    return swap, undo


def _put_back(td: Any, module: nn.Module, plan: Plan, written: list[Any], held: list[Any]) -> None:
    """Restore the earlier values of a module; tensors that it replaced in the block go into the tensordict."""
    changed = plan.changed(written)
    plan.write(module, held)
    for path, value in changed:
        _keep(td, path, value)


@torch.no_grad()
def _write_into(td: Any, values: Iterable[tuple[tuple[str, ...], Tensor, Tensor | None]]) -> None:
    """Write in-place changes of a block into the entries of a tensordict that are not the changed tensors.

    Args:
        td: The tensordict.
        values: The path of each entry, the entry, and its value at the end of the block (``None``: as it is).
    """
    for path, old, value in values:
        # compared by value: batch norm writes its statistics without autograd's version counters
        if value is not None and value is not old and not is_lazy(old) and not _equal(value, old.to(value)):
            with torch.inference_mode(old.is_inference()):  # inference tensors can be written in inference mode only
                _owner(td, path)._put_entry(path[-1], None, value.detach())


def _owner(td: Any, path: tuple[str, ...]) -> Any:
    """Return the node that holds an entry."""
    for key in path[:-1]:
        td = td._get(key)
    return td


def _keep(td: Any, path: tuple[str, ...], value: Tensor) -> None:
    """Store a tensor that a module replaced, also in a locked tensordict: the keys stay the same."""
    _replace(_owner(td, path), path[-1], value)


def _replace(node: Any, key: str, value: Any) -> None:
    value = to_entry(node._meta, key, value)
    if isinstance(node, LazyStackedTensorDict):  # writes into the elements, which may be locked
        for element, part in zip(node.tensordicts, value.unbind(node.stack_dim), strict=True):
            _replace(element, key, part)
    else:
        node._set(key, value)


def _as_parameters(plan: Plan, leaves: list[Any], held: list[Any]) -> list[Any]:
    """Convert plain tensors that replace parameters to parameters."""
    if _PARAMETER.issuperset(map(type, map(leaves.__getitem__, plan.parameters))):
        return leaves
    plain = [i for i in plan.parameters if type(leaves[i]) is not Parameter]
    # a parameter cannot wrap the tensors of a transform
    if in_functorch():
        return leaves
    plain = [i for i in plain if not leaves[i].requires_grad and not isinstance(leaves[i], Parameter)]
    if not plain:
        return leaves
    leaves = list(leaves)
    made: dict[Any, tuple[Tensor, Parameter]] = {}
    for i in plain:
        leaf, old = leaves[i], held[i]
        requires_grad = leaf.is_floating_point() if old is None else old.requires_grad
        for key in {("given", id(leaf)), ("tied", id(old))} if old is not None else {("given", id(leaf))}:
            known = made.get(key)
            if known is not None and (known[0] is leaf or _equal(known[0], leaf)):
                leaves[i] = known[1]
                break
        else:
            # not Parameter(leaf), which some tensor subclasses do not support
            leaves[i] = Tensor._make_subclass(Parameter, leaf.detach(), requires_grad)
            made["given", id(leaf)] = made["tied", id(old)] = (leaf, leaves[i])
    return leaves


def _equal(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype or first.device != second.device:
        return False
    return first.is_meta or torch.equal(first, second)


def _check_fit(held: list[Any], leaves: list[Any], paths: list[tuple[str, ...]]) -> None:
    """Raise an error for values that cannot be written into the tensors of a module."""
    for old, new, path in zip(held, leaves, paths, strict=True):
        if old is None:
            raise errors.nothing_there(path)
        if new.is_meta and not old.is_meta:
            raise errors.without_values(path)
        if old.shape != new.shape:
            raise errors.other_shape(path, new.shape, old.shape)


@torch.no_grad()
def _write_over(held: list[Any], leaves: list[Any], non_blocking: bool = False) -> None:
    for old, new in zip(held, leaves, strict=True):
        if old is not new:
            old.copy_(new, non_blocking=non_blocking)


def _copy(td: Any, module: nn.Module, non_blocking: bool) -> tuple[Any, Undo]:
    plan, leaves, held = find_plan(td, module)
    _check_fit(held, leaves, plan.paths)
    before = [old.detach().clone() for old in held]
    try:
        _write_over(held, leaves, non_blocking)
    except BaseException:  # for example on the meta device
        _write_over(held, before)
        raise

    def undo(swap: Any) -> None:
        try:
            _write_into(td, zip(plan.paths, leaves, held, strict=True))
        finally:
            _write_over(held, before)
        if not plan.is_there(held):  # a module's own __setattr__ does not see writes of values
            _put_back(td, module, plan, held, held)

    return deferred(lambda: plan.structure.build(before), _META), undo


def _swap_traced(td: Any, module: nn.Module, inplace: bool | None, non_blocking: bool) -> tuple[Any, Undo]:
    """Do the work of `_swap` or `_copy` as Dynamo can trace it: without a plan, and without closures that change."""
    slots: list[Slot] = []
    leaves: list[Any] = []
    paths: list[tuple[str, ...]] = []
    bind(td, module, slots, leaves, [], paths)
    held = [table[name] for table, name in slots]
    written = held if inplace else leaves
    if inplace:
        _check_fit(held, leaves, paths)
        before = [old.detach().clone() for old in held]
        _write_over(held, leaves, non_blocking)
    else:
        before = held
        for (table, name), leaf in zip(slots, leaves, strict=True):
            table[name] = leaf
    swap = TensorDict({})
    for path, old in zip(paths, before, strict=True):
        if old is not None:
            swap.set(path, old)

    def undo(swap: Any) -> None:
        for i, (table, name) in enumerate(slots):
            now = table[name]
            table[name] = held[i]
            if now is not written[i]:
                _keep(td, paths[i], now)
        if inplace:
            # a trace cannot compare values; modules write only buffers by themselves
            buffers = [i for i, own in enumerate(held) if not isinstance(own, Parameter)]
            _write_over([leaves[i] for i in buffers], [held[i] for i in buffers])
            _write_over(held, before)

    return swap, undo


def _tensors(td: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield the tensors of a tensordict and their paths; the tensors of a lazy stack are stacked."""
    for key, value in td._items():
        if is_leaf_tensor(value):
            yield (*prefix, key), value
        elif not value._is_non_tensor:
            yield from _tensors(value, (*prefix, key))


def _flat(td: Any) -> dict[str, Any]:
    flat = {".".join(path): leaf for path, leaf in _tensors(td)}
    for key, value in td.non_tensor_items(include_nested=True):
        flat[key if isinstance(key, str) else ".".join(key)] = value._entry_value()
    return flat


def _load_state(td: Any, module: nn.Module, return_swap: bool) -> tuple[Any, Undo]:
    before = _of_state(module).apply(lambda leaf: leaf if is_lazy(leaf) else leaf.clone())

    def load(source: Any) -> None:
        state: Any = OrderedDict(_flat(source))
        # modules read the version of their state from the metadata; the tensordict has the current version
        state._metadata = {name: {"version": part._version} for name, part in module.named_modules()}
        unknown = module.load_state_dict(state, strict=False).unexpected_keys
        if unknown:
            raise errors.unknown_state(unknown, module)

    try:
        load(td)
    except BaseException:  # torch loads the entries that fit before it raises
        load(before)
        raise

    def undo(swap: Any) -> None:
        try:
            now = _of_state(module)
            _write_into(td, [(path, old, now.get(path, None)) for path, old in _tensors(td)])
        finally:
            load(before)

    # not `before`, which `undo` holds: a cycle of references would keep the earlier state in memory
    return before.copy() if return_swap else None, undo
