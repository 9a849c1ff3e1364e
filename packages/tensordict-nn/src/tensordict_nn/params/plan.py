"""Swap plans: a cached mapping from the entries of a tensordict to the dictionaries of a module's parameters.

A module keeps its parameters and buffers in plain dictionaries, so replacing one is a dictionary write. Finding the
dictionary takes longer: it is a walk over modules, names and kinds. A `Plan` holds the result for one module and one
structure of tensordict. It is cached on the module, and checked at each use by comparing objects by identity: after a
sub-module or a dictionary was replaced or removed, a new plan is made. A plan refers to the sub-modules, but not to the
module itself: a cycle of references would keep a deleted module in memory until Python looks for cycles.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import getitem, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter

from tensordict_core import TensorDict
from tensordict_core.extension import Meta, Node, dense, entries, is_leaf_tensor
from tensordict_nn import errors
from tensordict_nn.params.mapped import maps_files
from tensordict_nn.params.optimizers import Replaced

Path = tuple[str, ...]
Slot = tuple[dict[str, Any], str]
# A node of a structure: the position of its parent, its key there, its type, its keys, and its keys of tensors.
Step = tuple[int, str, type[Any], list[str], list[str]]

NO_META = Meta(torch.Size(()))
_ATTRIBUTE = "_tensordict_plans"
_REGISTRIES = ("_parameters", "_buffers", "_modules")
_MOST = 4  # plans that are cached for one module
_DENSE = {TensorDict}
_get = dict.get


def _slot(module: nn.Module, path: Path) -> Slot:
    """Return the dictionary of a module that holds a name."""
    name = path[-1]
    if name in module._parameters:
        return module._parameters, name
    if name in module._buffers:
        return module._buffers, name
    if isinstance(module.__dict__.get(name), Tensor):
        return module.__dict__, name
    raise errors.no_slot(path, module, [*module._parameters, *module._buffers])


def bind(
    td: Any, module: nn.Module, slots: list[Slot], values: list[Any], owners: list[nn.Module], paths: list[Path]
) -> None:
    """Find the slot of every leaf, level by level: leaves of a node come before those of nested nodes.

    Args:
        td: The tensordict.
        module: The module of the same structure.
        slots: Receives the dictionary and the name of each leaf.
        values: Receives the leaves.
        owners: Receives the module of each leaf.
        paths: Receives the path of each leaf.

    Raises:
        KeyError: The module has no such parameter, buffer or sub-module.
        TypeError: An entry is non-tensor data.
    """
    level: list[tuple[Any, nn.Module, Path]] = [(td, module, ())]
    while level:
        below: list[tuple[Any, nn.Module, Path]] = []
        for node, owner, prefix in level:
            for key in node._keys():
                value = node._get(key)
                path = (*prefix, key)
                if is_leaf_tensor(value):
                    slots.append(_slot(owner, path))
                    values.append(value)
                    owners.append(owner)
                    paths.append(path)
                elif value._is_non_tensor:
                    raise errors.not_a_leaf(path, value._entry_value())
                else:
                    child = owner._modules.get(key)
                    if child is None:
                        raise errors.no_submodule(path, owner, owner._modules)
                    below.append((value, child, path))
        level = below


def _steps(td: Any) -> list[list[Step]]:
    """Return the structure of a tree, level by level."""
    levels = []
    level = [(-1, "", td)]
    position = 0
    while level:
        steps, below = [], []
        for parent, name, node in level:
            pairs = [(key, node._get(key)) for key in node._keys()]
            leaves = [key for key, value in pairs if not isinstance(value, Node)]
            steps.append((parent, name, type(node), [key for key, _ in pairs], leaves))
            below += [(position, key, value) for key, value in pairs if isinstance(value, Node)]
            position += 1
        levels.append(steps)
        level = below
    return levels


class _Structure:
    """The structure of a tree; reads the leaves of other trees of this structure."""

    __slots__ = ("_at", "_dense", "_levels", "_names", "_sizes", "steps")

    def __init__(self, td: Any) -> None:
        levels = _steps(td)
        self.steps = [step for level in levels for step in level]
        self._dense = all(kind is TensorDict for _, _, kind, _, _ in self.steps)
        # columns, because `map` over them is faster than a loop
        self._levels = [([step[0] for step in level], [step[1] for step in level]) for level in levels[1:]]
        self._sizes = [len(keys) for _, _, _, keys, _ in self.steps]
        self._at = [i for i, (_, _, _, _, leaves) in enumerate(self.steps) for _ in leaves]
        self._names = [key for _, _, _, _, leaves in self.steps for key in leaves]

    def leaves(self, td: Any) -> list[Any] | None:
        """Return the leaves of a tree in the order of `bind`; ``None`` if it has another structure."""
        try:
            return self._leaves_of_dense(td) if self._dense and type(td) is TensorDict else self._leaves_of_any(td)
        except KeyError:
            return None

    def _leaves_of_dense(self, td: TensorDict) -> list[Any] | None:
        tables = [entries(td)]
        for parents, names in self._levels:
            nodes = list(map(getitem, map(tables.__getitem__, parents), names))
            if not _DENSE.issuperset(map(type, nodes)):
                return None
            tables += map(entries, nodes)
        if list(map(len, tables)) != self._sizes:
            return None
        # the number of keys is equal, and every expected key is found, so there are no others
        return list(map(getitem, map(tables.__getitem__, self._at), self._names))

    def _leaves_of_any(self, td: Any) -> list[Any] | None:
        nodes: list[Any] = []
        out: list[Any] = []
        for parent, name, kind, keys, leaves in self.steps:
            node = td if parent < 0 else nodes[parent]._get(name)
            if (type(node) is not kind and parent >= 0) or {*node._keys()} != {*keys}:
                return None
            nodes.append(node)
            out += map(node._get, leaves)
        return out

    def build(self, values: Iterable[Any]) -> dict[str, Any]:
        """Return the entries of a tree of this structure with other leaves; ``None`` omits an entry."""
        rest = iter(values)
        tables: list[dict[str, Any]] = []
        for parent, name, _, keys, leaves in self.steps:
            table: dict[str, Any] = dict.fromkeys(keys)
            if parent >= 0:
                tables[parent][name] = dense(table, NO_META)
            tables.append(table)
            absent = []
            for key in leaves:
                value = table[key] = next(rest)
                if value is None:
                    absent.append(key)
            for key in absent:
                del table[key]
        return tables[0]


def _has_own_setattr(module: nn.Module) -> bool:
    return type(module).__setattr__ is not nn.Module.__setattr__


class Plan:
    """The slots in a module for the leaves of a structure; methods that need the module itself take it.

    Attributes:
        structure: The structure.
        paths: The path of each leaf.
        parameters: The positions of leaves that replace parameters.
        buffers: The positions of leaves that replace buffers.
        makes: Whether the tensordict makes tensors when they are read, as lazy stacks and views do.
        may_map: Whether leaves may be mapped onto files.
        custom: The positions of leaves whose module overrides ``__setattr__`` (recurrent layers keep a list of their
            weights that way).
        replaced: The parameters that were replaced, which optimizers may not have.
        shared: Whether two leaves share a slot, because a module has two names.
        in_attributes: Whether leaves are plain attributes of the module: their slots are in its ``__dict__``.
    """

    __slots__ = (
        "__weakref__", "_below", "_children", "_names", "_own", "_owners", "_parents", "_registries",
        "_registry_names", "_root", "_tables", "_types", "buffers", "custom", "in_attributes", "makes", "may_map",
        "parameters", "paths", "replaced", "shared", "structure",
    )  # fmt: skip  # shorter than one a line

    def __init__(self, td: Any, module: nn.Module) -> None:
        slots: list[Slot] = []
        values: list[Any] = []
        owners: list[nn.Module] = []
        paths: list[Path] = []
        bind(td, module, slots, values, owners, paths)
        self.structure = _Structure(td)
        self.paths = paths
        self.makes = not all(map(is_, self.structure.leaves(td) or (), values))
        # None stands for the module itself, to which a plan does not refer
        self._owners = [None if owner is module else owner for owner in owners]
        self.parameters = [i for i, (table, _) in enumerate(slots) if table is owners[i]._parameters]
        self.buffers = [i for i, (table, _) in enumerate(slots) if table is owners[i]._buffers]
        self.custom = [i for i, owner in enumerate(owners) if _has_own_setattr(owner)]
        self.shared = len({(id(table), name) for table, name in slots}) < len(slots)
        self.in_attributes = any(table is module.__dict__ for table, _ in slots)
        self._types = {type(value) for value in values}
        self.may_map = maps_files(self._types)
        self._tables = [table for table, _ in slots]
        self._names = [name for _, name in slots]
        self._root = [(name, module.__dict__[name]) for name in _REGISTRIES]
        self._own: list[dict[str, Any]] = []
        self._registry_names: list[str] = []
        self._registries: list[Any] = []
        self._parents: list[dict[str, Any]] = []
        self._below: list[str] = []
        self._children: list[Any] = []
        self._watch(td, module)
        self.replaced = Replaced(module, paths, self.parameters, self.read() or [], self.read)

    def _watch(self, td: Any, module: nn.Module) -> None:
        """Record the dictionaries and modules that must stay the same for the plan to hold."""
        own = module.__dict__
        below = [(key, value) for key in td._keys() if isinstance(value := td._get(key), Node)]
        for key, value in below:
            child = own["_modules"][key]
            self._parents.append(own["_modules"])
            self._below.append(key)
            self._children.append(child)
            for name in _REGISTRIES:
                if child.__dict__[name]:
                    self._own.append(child.__dict__)
                    self._registry_names.append(name)
                    self._registries.append(child.__dict__[name])
            self._watch(value, child)

    def holds(self, module: nn.Module) -> bool:
        """Return whether every module and dictionary of the plan is still in place."""
        own = module.__dict__
        for name, registry in self._root:
            if own[name] is not registry:
                return False
        return all(map(is_, map(getitem, self._own, self._registry_names), self._registries)) and all(
            map(is_, map(_get, self._parents, self._below), self._children)
        )

    def leaves(self, td: Any) -> list[Any] | None:
        """Return the leaves of a tensordict in the order of the slots; ``None`` if it has another structure."""
        out = self.structure.leaves(td)
        if out is None:
            return None
        if not self._types.issuperset(map(type, out)):
            if not all(isinstance(value, Tensor) for value in out):
                return None
            self._types.update(map(type, out))
            self.may_map = maps_files(self._types)
        return out

    def read(self) -> list[Any] | None:
        """Return the values in the slots; ``None`` if a slot does not exist any more."""
        try:
            return list(map(getitem, self._tables, self._names))
        except KeyError:
            return None

    def write(self, module: nn.Module, values: list[Any]) -> None:
        """Write values into the slots, and set attributes of modules that override ``__setattr__``."""
        self._store(values)
        for i in self.custom:
            put(self._owner(i, module), self._tables[i], self._names[i], values[i])

    def restore(self, module: nn.Module, values: list[Any]) -> None:
        """Write values after a module refused one: it may refuse others, too, and these errors are ignored."""
        self._store(values)
        for i in self.custom:
            with suppress(Exception):
                put(self._owner(i, module), self._tables[i], self._names[i], values[i])

    def _owner(self, i: int, module: nn.Module) -> nn.Module:
        owner = self._owners[i]
        return module if owner is None else owner

    def _store(self, values: list[Any]) -> None:
        for table, name, value in zip(self._tables, self._names, values, strict=True):
            table[name] = value

    def is_there(self, values: list[Any]) -> bool:
        """Return whether the slots hold these values, by identity."""
        return all(map(is_, map(_get, self._tables, self._names), values))

    def misplaced(self, values: list[Any]) -> list[int]:
        """Return the positions of parameters in other slots than those of parameters, and the reverse."""
        there = {*self.parameters}
        return [i for i, value in enumerate(values) if isinstance(value, Parameter) is not (i in there)]

    def register_anew(self, module: nn.Module, positions: list[int], values: list[Any]) -> Callable[[], None]:
        """Set attributes of modules as if they were new, so that parameters are registered and other tensors are not.

        Returns:
            A function that moves the values back into the slots of the plan, in the earlier order.
        """
        tables = {id(self._tables[i]): (self._tables[i], list(self._tables[i])) for i in positions}
        moved = [(self._owner(i, module), self._tables[i], self._names[i]) for i in positions]
        for (owner, _, name), i in zip(moved, positions, strict=True):
            _unregister(owner, name)
            setattr(owner, name, values[i])

        def move_back() -> None:
            for owner, table, name in moved:
                table[name] = _unregister(owner, name)
            for table, names in tables.values():
                ordered = {name: table.pop(name) for name in names if name in table} | table
                table.clear()
                table.update(ordered)

        return move_back

    def changed(self, values: list[Any]) -> list[tuple[Path, Any]]:
        """Return the paths and values of slots that hold other values than the written ``values``."""
        now = list(map(_get, self._tables, self._names))
        if all(map(is_, now, values)):
            return []
        if self.shared:  # of two leaves for one slot, the second one was written last
            slots = [(id(table), name) for table, name in zip(self._tables, self._names, strict=True)]
            last = dict(zip(slots, values, strict=True))
            values = [last[slot] for slot in slots]
        return [
            (path, value)
            for path, value, old in zip(self.paths, now, values, strict=True)
            if value is not old and isinstance(value, Tensor)
        ]


def _unregister(module: nn.Module, name: str) -> Any:
    """Remove an attribute from all stores of a module and return it."""
    found = None
    for store in (module._parameters, module._buffers, module.__dict__):
        if name in store:
            found = store.pop(name)
    return found


def put(module: nn.Module, table: dict[str, Any], name: str, value: Any) -> None:
    """Set an attribute of a module that overrides ``__setattr__``, and keep the value in its dictionary.

    ``nn.Module.__setattr__`` requires a parameter where one was, and moves other tensors to other dictionaries, so it
    sees empty dictionaries.
    """
    own = module.__dict__
    parameters, buffers = own["_parameters"], own["_buffers"]
    own["_parameters"], own["_buffers"] = {}, {}
    try:
        setattr(module, name, value)
    finally:
        own["_parameters"], own["_buffers"] = parameters, buffers
    if table is not own:
        own.pop(name, None)
    table[name] = value


class _Plans(list[Plan]):
    """The cached plans of one module, in its ``__dict__``; copies and pickles of the module have none."""

    module: Callable[[], nn.Module | None] = staticmethod(lambda: None)
    """A weak reference to that module, which differs from a shallow copy with the same ``__dict__``."""

    def __copy__(self) -> _Plans:
        return _Plans()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Plans:
        return _Plans()

    def __reduce__(self) -> Any:
        # a plain list, so that a pickled module loads where this package is not installed
        return list, ()


def find_plan(td: Any, module: nn.Module) -> tuple[Plan, list[Any], list[Any]]:
    """Return the plan for a tensordict and a module, the leaves of the tensordict, and the values in the slots.

    Raises:
        KeyError: The module has no such parameter, buffer or sub-module.
        TypeError: An entry is non-tensor data.
    """
    own = module.__dict__
    plans = own.get(_ATTRIBUTE)
    if type(plans) is _Plans and plans.module() is module:
        for plan in plans:
            leaves = plan.leaves(td)
            if leaves is not None:
                if plan.holds(module):
                    held = plan.read()
                    if held is not None:
                        return plan, leaves, held
                plans.remove(plan)
                break
    else:
        plans = _Plans()
        plans.module = weakref.ref(module)
    plan = Plan(td, module)
    if not plan.in_attributes:  # the plan would refer to the module
        own[_ATTRIBUTE] = plans
        plans.insert(0, plan)
        del plans[_MOST:]
    leaves, held = plan.leaves(td), plan.read()
    assert leaves is not None and held is not None, "a plan that was just made holds"
    return plan, leaves, held
