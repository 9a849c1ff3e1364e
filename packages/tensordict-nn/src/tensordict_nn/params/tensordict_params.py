"""`TensorDictParams`: a tensordict whose entries are the parameters and buffers of a module.

A node keeps its entries in the dictionaries of ``nn.Module`` for parameters, buffers and sub-modules, and a nested node
is a sub-module. There is no second store: the tensordict sees every change by the module (moving, casting, loading a
state dict, copying, tracing, swapping parameters), and the module sees every change by the tensordict.

Operations return plain tensordicts, through which gradients reach the parameters; ``to`` returns new parameters, and
in-place operations change the values without a record in autograd.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from torch import Tensor, nn
from torch.nn.parameter import Buffer, Parameter

from tensordict_core import LazyStackedTensorDict, NestedKey, TensorDict
from tensordict_core.extension import (
    Delegating,
    Index,
    IsLeaf,
    Meta,
    TensorCollection,
    dense,
    is_leaf_tensor,
    is_tensordict,
    register_type,
    register_wrapper,
)
from tensordict_nn import errors
from tensordict_nn.params.leaves import as_buffer, as_parameter, can_be_trained, copy_tied, require_common_keys
from tensordict_nn.params.mapped import file_among, warn_of_file
from tensordict_nn.params.operations import add_operations, attribute_of, is_entry, pairs_of_leaves, plan_write
from tensordict_nn.params.state import check_names, joined_keys, keep_buffers, load_unbatched, save_unbatched

Hook = Callable[["TensorDictParams", Any], Any]


class TensorDictParams(Delegating, nn.Module):  # type: ignore[misc]  # both define `to` and others; the tensordict comes first
    """A tensordict that is an ``nn.Module``: its entries are registered parameters and buffers.

    Floating-point and complex tensors become parameters, other tensors buffers; existing parameters and buffers are not
    converted. If it is an attribute of a module, its entries are parameters of the module: optimizers train them, state
    dicts save them and ``module.to()`` moves them.

    Args:
        parameters: A tensordict or a dictionary; its structure is copied, and its tensors are shared.
        no_convert: Whether tensors that are not parameters become buffers.
        lock: Whether the tensordict is locked: entries cannot be added, replaced or removed.
        **kwargs: Entries by name, instead of ``parameters``.

    Raises:
        TypeError: An entry is neither a tensor, nor a dictionary, nor a plain value.

    >>> model = torch.nn.Module()
    >>> model.params = TensorDictParams(TensorDict({"layer": {"weight": torch.ones(2)}, "steps": torch.tensor(0)}))
    >>> [name for name, _ in model.named_parameters()], [name for name, _ in model.named_buffers()]
    (['params.layer.weight'], ['params.steps'])
    >>> type(model.params * 2).__name__
    'TensorDict'
    """

    _is_mapped_plainly = True

    _values: dict[str, Any]
    """The non-tensor entries."""
    _order: dict[str, None]
    """The keys, in the order of their entries."""
    _get_hooks: list[Hook]
    no_convert: bool
    """Whether tensors that are not parameters become buffers."""
    _attributes: int
    """The number of attributes of a new node; others may be tensors that replace parameters."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _register(cls, None)

    def __init__(
        self,
        parameters: Mapping[str, Any] | TensorCollection | None = None,
        *,
        no_convert: bool | str = False,
        lock: bool = False,
        **kwargs: Any,
    ) -> None:
        if parameters is not None and kwargs:
            raise errors.exclusive("a tensordict", "entries by name", "TensorDictParams")
        source = kwargs if parameters is None else parameters
        if not isinstance(source, Mapping | TensorCollection):
            raise errors.not_a_source(source)
        td: Any = source if is_tensordict(source) else TensorDict(source)
        self._begin(td._meta, bool(no_convert))
        self._fill(td, {})
        if (file := file_among(td._leaves())) is not None:
            warn_of_file(file, 2)
        if lock:
            self.lock_()

    def _begin(self, meta: Meta, no_convert: bool) -> None:
        super().__init__()
        # directly into the dictionary: nn.Module.__setattr__ is slow, and these are neither parameters nor modules
        self.__dict__.update(
            _meta=meta,
            _locked=False,
            _holders=None,
            _annotations=None,
            _last_exit=None,
            _values={},
            _order={},
            _get_hooks=[],
            no_convert=no_convert,
            _attributes=0,
        )
        self.__dict__["_attributes"] = len(self.__dict__)

    def _fill(self, td: Any, made: dict[Tensor, Tensor]) -> None:
        """Take the entries of a tensordict; a tensor under two keys becomes one parameter.

        Args:
            td: The tensordict.
            made: The result for each tensor so far. It keeps the tensors alive: lazy stacks make temporary ones, and a
                later one could reuse an ``id()``.
        """
        if isinstance(td, LazyStackedTensorDict):
            require_common_keys(td)
        buffers = td._buffers if isinstance(td, TensorDictParams) else ()
        for key, value in td._items():
            if is_leaf_tensor(value):
                made[value] = self._register(key, made.get(value, value), key in buffers)
            else:
                self._put_below(key, value, made, keep=not isinstance(td, TensorDictParams))

    def _register(self, key: str, value: Tensor, is_buffer: bool = False) -> Tensor:
        """Make a tensor a parameter or a buffer of this node; a tensor that replaces a buffer becomes a buffer."""
        store: dict[str, Any] = self._parameters
        if not isinstance(value, Parameter):
            is_buffer = is_buffer or isinstance(value, Buffer) or key in self._buffers
            if self.no_convert or is_buffer or not can_be_trained(value):
                value, store = as_buffer(value), self._buffers
            else:
                value = Parameter(value.detach())
        self._put(key, value, store)
        return value

    def _put_below(self, key: str, value: Any, made: dict[Tensor, Tensor], *, keep: bool = True) -> None:
        """Store a node: a tensordict becomes a sub-module, and a non-tensor value goes into ``_values``.

        Args:
            key: The key.
            value: The node.
            made: The result for each tensor so far.
            keep: Whether parameters stay the same module; otherwise their structure is copied.
        """
        if keep and isinstance(value, TensorDictParams):
            self._put(key, value, self._modules)
            return
        if value._is_opaque or value._is_non_tensor:
            self._put(key, value, self._values)
            return
        if not is_tensordict(value):
            raise errors.not_parameters(key, value)
        node = object.__new__(type(self))
        node._begin(value._meta, self.no_convert)
        node._fill(value, made)
        self._put(key, node, self._modules)

    def _put(self, key: str, value: Any, store: dict[str, Any]) -> None:
        """Store a value in one of the four stores, and remove the key from the others."""
        self._forget(key, store)
        store[key] = value

    def _forget(self, key: str, kept: Any) -> None:
        """Remove a key from all stores except the one in which it is replaced."""
        for store in (self._parameters, self._buffers, self._modules, self._values):
            if store is not kept:
                store.pop(key, None)
        if kept is None:
            self._order.pop(key, None)
        else:
            self._order[key] = None
        if isinstance(self.__dict__.get(key), Tensor):
            del self.__dict__[key]

    # entries ---------------------------------------------------------------------------------------------------------

    def _items(self) -> Iterable[tuple[str, Any]]:
        own = self.__dict__  # every operation reads the items, and attributes of a module are read slowly
        stores = (own["_parameters"], own["_buffers"], own["_modules"], own["_values"])
        used = [store for store in stores if store]
        items = [item for store in used for item in store.items() if item[1] is not None]
        if own["_modules"]:  # others are attributes of the module, and no entries
            items = [item for item in items if is_entry(item[1])]
        if len(own) != own["_attributes"]:
            items += self._views()
        if len(used) < 2:
            return items
        # modules add and remove entries without notice, so the order may lack some and have others
        order = dict.fromkeys(self._order)
        place = {key: i for i, key in enumerate(order)}
        return sorted(items, key=lambda item: place.get(item[0], len(place)))

    def _views(self) -> list[tuple[str, Tensor]]:
        """Return tensors that are plain attributes: sharding replaces parameters by views of a flat one."""
        return [(key, value) for key, value in self.__dict__.items() if isinstance(value, Tensor)]

    def _keys(self) -> Iterable[str]:
        return [key for key, _ in self._items()]

    def _get(self, key: str) -> Any:
        value: Any = self._parameters.get(key)
        if value is None:
            value = self._buffers.get(key)
        if value is None:
            value = self._modules.get(key)
            if not isinstance(value, TensorDictParams):
                value = self._values.get(key)
            if value is not None:
                return value
            value = self.__dict__.get(key)  # see `_views`
            if not isinstance(value, Tensor):
                return None
        return self._hooked(value) if self._get_hooks else value

    def _peek(self, key: str) -> Any:
        return dict(self._items()).get(key) if self._get_hooks else self._get(key)

    _pairs = pairs_of_leaves
    _plan_write = plan_write

    def _set(self, key: str, value: Any) -> None:
        if is_leaf_tensor(value):
            self._register(key, value)
        else:
            self._put_below(key, value, {})

    def _plan_leaf(self, path: NestedKey, key: str, leaf: Tensor, index: Index | None, value: Any, plan: Any) -> None:
        # the same memory without gradients, so that autograd does not record the write
        value = value.detach() if isinstance(value, Tensor) and value.requires_grad else value
        super()._plan_leaf(path, key, leaf.detach(), index, value, plan)

    def _del(self, key: str) -> None:
        self._forget(key, None)

    def _rename(self, old: str, new: str) -> None:
        value = self._peek(old)
        self._del(old)
        self._set(new, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(params={self._now()!r})"

    def _kind_in(self, parent: Any) -> str:
        return "" if isinstance(parent, TensorDictParams) else type(self).__name__

    def register_get_post_hook(self, hook: Hook) -> None:
        """Register a hook on reads of a tensor; a result that is not ``None`` replaces the value.

        >>> params = TensorDictParams({"a": torch.ones(1)})
        >>> params.register_get_post_hook(lambda params, value: value.detach() * 2)
        >>> params["a"]
        tensor([2.])
        """
        self._get_hooks.append(hook)
        for node in self._modules.values():
            if isinstance(node, TensorDictParams):
                node.register_get_post_hook(hook)

    # leaves and shapes, on a plain tensordict of the same tensors ----------------------------------------------

    def _now(self) -> Any:
        """Return a plain tensordict of the same tensors."""
        table = {key: value._now() if isinstance(value, TensorDictParams) else value for key, value in self._items()}
        td = dense(table, self._meta)
        return td.lock_() if self._locked else td

    @property
    def _param_td(self) -> Any:
        """The same parameters in a plain tensordict; published programs read it."""
        return self._now()

    def _solid(self, nested: bool = True) -> Any:
        return self

    # life ------------------------------------------------------------------------------------------------------------

    def _clone(self, recurse: bool) -> Self:
        made: dict[Tensor, Tensor] = {}
        return self._with(lambda leaf: copy_tied(leaf, made)) if recurse else self._with(lambda leaf: leaf)

    def _with(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Make parameters of the same structure with other tensors."""
        new = object.__new__(type(self))
        new._begin(self._meta, self.no_convert)
        for key, value in self._parameters.items():
            new._parameters[key] = None if value is None else as_parameter(function(value), value)
        for key, view in self._views():
            new._parameters[key] = Parameter(function(view).detach(), requires_grad=view.requires_grad)
        for key, buffer in self._buffers.items():
            new._buffers[key] = None if buffer is None else as_buffer(function(buffer))
        for key, node in self._modules.items():
            new._modules[key] = node._with(function) if isinstance(node, TensorDictParams) else node
        new._values.update((key, value._clone(True)) for key, value in self._values.items())
        new._order.update(self._order)
        return new

    def _set_meta(self, meta: Meta) -> None:
        self.__dict__["_meta"] = meta

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Apply a function to all tensors, as modules do when they are moved; update the device, keep the objects."""
        buffers = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch does not annotate it
        keep_buffers(self, buffers)
        if self._meta.device is not None:
            for node in self.modules():
                moved = next((leaf for leaf in (*node.parameters(), *node.buffers())), None)
                if moved is not None and isinstance(node, TensorDictParams) and moved.device != node._meta.device:
                    node._set_meta(node._meta.moved(moved.device))
        return self

    def _set_locked(self, locked: bool) -> None:
        self.__dict__["_locked"] = locked

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_holders": None, "_annotations": None, "_last_exit": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        nn.Module.__setstate__(self, state)
        if self._locked:
            holder = weakref.ref(self)
            for node in self._nodes():
                node._holders = [*(node._holders or ()), holder]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        new = object.__new__(type(self))
        memo[id(self)] = new
        meta = {"_meta": self._meta, "_locked": False}
        new.__setstate__(
            {**copy.deepcopy({k: v for k, v in self.__getstate__().items() if k != "_meta"}, memo), **meta}
        )
        return new

    # modules ---------------------------------------------------------------------------------------------------------

    def state_dict(self, *args: Any, flatten: bool = True, **kwargs: Any) -> Any:
        """Return the state as a module does, with joined keys, whatever ``flatten`` is."""
        return nn.Module.state_dict(self, *args, **kwargs)

    def load_state_dict(  # type: ignore[override]  # containers' method returns the container
        self, state_dict: Any, *args: Any, from_flatten: bool = True, **kwargs: Any
    ) -> Any:
        """Load a state as a module does, nested or with joined keys, whatever ``from_flatten`` is."""
        return nn.Module.load_state_dict(self, joined_keys(state_dict), *args, **kwargs)

    __getattr__ = attribute_of

    def __hash__(self) -> int:  # in Python, so that Dynamo traces `parameters()`, which puts modules into a set
        return id(self)

    # nn.Module refuses names with dots, which keys may have

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        check_names((*self._parameters, *self._buffers), destination, prefix)
        super()._save_to_state_dict(destination, prefix, keep_vars)
        save_unbatched(self._values, destination, prefix, keep_vars)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, meta: Any, strict: bool, missing: Any, unexpected: list[str], failed: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, meta, strict, missing, unexpected, failed)
        own = {prefix + name for name in (*self._parameters, *self._buffers)}
        own.update(load_unbatched(self._values, state_dict, prefix, missing, failed))
        unexpected[:] = [key for key in unexpected if key not in own]

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether the entries require gradients, in place, buffers included.

        ``requires_grad_`` of a module that contains this one changes only parameters.

        Raises:
            RuntimeError: An entry is an integer or a bool, and ``requires_grad`` is True.

        >>> params = TensorDictParams(TensorDict({"a": torch.nn.Parameter(torch.zeros(2))}))
        >>> params.requires_grad_(False)["a"].requires_grad
        False
        """
        leaves = self._leaves()
        fixed = [key for key, leaf in zip(self._leaf_keys(), leaves, strict=True) if not can_be_trained(leaf)]
        if requires_grad and fixed:
            raise errors.cannot_require_grad(fixed)
        for leaf in leaves:
            if can_be_trained(leaf):
                leaf.requires_grad_(requires_grad)
        return self

    def memmap_(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error, because mapped tensors are not parameters.

        Raises:
            RuntimeError: Always; ``memmap`` returns a mapped tensordict.

        >>> params = TensorDictParams(TensorDict({"a": torch.zeros(2)}))
        >>> params.memmap_("saved")
        Traceback (most recent call last):
        ...
        RuntimeError: ...
        """
        raise errors.not_in_place("memmap_")

    @classmethod
    def from_dict(cls, input_dict: Any, **options: Any) -> Any:
        """Make a `TensorDictParams` from a dictionary, see ``TensorDict.from_dict``.

        >>> type(TensorDictParams.from_dict({"a": torch.zeros(2)})["a"])
        <class 'torch.nn.parameter.Parameter'>
        """
        return cls(TensorDict.from_dict(input_dict, **options))

    @classmethod
    def from_any(cls, obj: Any, **options: Any) -> Any:
        """Make a `TensorDictParams` from a dictionary, and a tensordict from any other structure.

        >>> isinstance(TensorDictParams.from_any({"a": torch.zeros(2)}), TensorDictParams)
        True
        """
        made = TensorDict.from_any(obj, **options)
        return cls(made) if isinstance(obj, dict) else made

    @classmethod
    def _from_entries(cls, entries: Mapping[Any, Any], **options: Any) -> Any:
        return cls.from_dict(entries, **options)

    def values(  # a list where hooks change the values
        self, include_nested: bool = False, leaves_only: bool = False, is_leaf: IsLeaf | None = None, sort: bool = False
    ) -> Any:
        """Return the values, as the hooks of `register_get_post_hook` change them.

        Args:
            include_nested: Whether to include the values of nested nodes.
            leaves_only: Whether to leave out the nodes.
            is_leaf: Decides which values are leaves.
            sort: Whether values come in the alphabetical order of their keys.

        >>> params = TensorDictParams({"a": torch.zeros(2), "b": {"c": torch.ones(2)}})
        >>> [value.shape for value in params.values(True, True)]
        [torch.Size([2]), torch.Size([2])]
        """
        values = super().values(include_nested, leaves_only, is_leaf, sort)
        return [self._hooked(value) for value in values] if self._get_hooks else values

    def items(
        self, include_nested: bool = False, leaves_only: bool = False, is_leaf: IsLeaf | None = None, sort: bool = False
    ) -> Any:
        """Return the keys and the values, as the hooks of `register_get_post_hook` change them.

        Args:
            include_nested: Whether to include the entries of nested nodes.
            leaves_only: Whether to leave out the nodes.
            is_leaf: Decides which values are leaves.
            sort: Whether entries come in the alphabetical order of their keys.

        >>> params = TensorDictParams({"a": torch.zeros(2), "b": {"c": torch.ones(2)}})
        >>> [key for key, _ in params.items(True, True)]
        ['a', ('b', 'c')]
        """
        items = super().items(include_nested, leaves_only, is_leaf, sort)
        return [(key, self._hooked(value)) for key, value in items] if self._get_hooks else items

    def _hooked(self, value: Any) -> Any:
        """Return a tensor as the hooks change it, and a node unchanged."""
        for hook in self._get_hooks if isinstance(value, Tensor) else ():
            changed = hook(self, value)
            value = value if changed is None else changed
        return value

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error: parameters cannot be called.

        Raises:
            TypeError: Always; ``params.to_module(module)`` sets the parameters of a module.
        """
        raise errors.parameters_called()


add_operations(TensorDictParams)


def _register(cls: type[TensorDictParams], name: str | None) -> None:
    # results of transforms and the rows that `vmap` sees are plain tensordicts
    register_wrapper(cls, name, lambda params: (params._now(), None), lambda td, _: td)


register_type(TensorDictParams, name="TensorDictParams")
_register(TensorDictParams, "tensordict_nn.TensorDictParams")
