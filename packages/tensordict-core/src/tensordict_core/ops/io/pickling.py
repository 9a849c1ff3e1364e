"""Pickling, deep copies, and the methods of state dicts.

A pickle holds the contents of a node and no references to its holders; unpickling restores locks from the tree.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_core.base.lock import _children, _hold
from tensordict_core.base.meta import CONSOLIDATED, WAS_LOCKED, Meta
from tensordict_core.base.node import Node
from tensordict_core.base.tracing import is_compiling, may_fuse
from tensordict_core.ops.io import state_dict as states
from tensordict_core.ops.parallel.packing import Slot, skeleton_over, unpack

_SURROUNDINGS = frozenset({"__weakref__", "__dict__", "_holders", "_last_exit"})
"""Slots that are not part of the contents of a node."""
_REMEMBERED = (str, int, float, bool, PurePath)
"""Types of annotations that are valid in another process."""
_SHARED = "shared_value"
"""The annotation that decides by itself what it is in another process."""


def _has_own_storage(tensor: Tensor) -> bool:
    """Return whether a plain tensor is all of its storage in order, so that a clone of it is a copy of both."""
    return (
        tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_nested or tensor.is_quantized or tensor.is_meta)
        and not (tensor.is_conj() or tensor.is_neg() or tensor.__dict__)
        and tensor.untyped_storage().nbytes() == tensor.nbytes
    )


@lru_cache(256)
def _slots(cls: Any) -> list[str]:
    """Return the names of the attributes that a node keeps; cached, because finding them takes a third of a pickle."""
    names: list[str] = []
    for base in cls.__mro__:
        own = base.__dict__.get("__slots__", ())
        names.extend((own,) if isinstance(own, str) else own)
    return [name for name in names if name not in _SURROUNDINGS]


def _new(cls: type[Any]) -> Any:
    """Return a node without contents, which ``__setstate__`` fills."""
    return cls._blank() if hasattr(cls, "_blank") else object.__new__(cls)


def _consolidated(skeleton: Any, buffer: torch.Tensor, _: bool) -> Any:
    """Return a tensordict whose leaves are views of a buffer, from what its pickle holds; it is not locked.

    The lock that ``consolidate`` adds keeps the buffer complete for the pickle. Who receives it may add keys. Pickles
    of earlier versions hold whether it was locked in any way, which is ignored.
    """
    return over_buffer(unpack(skeleton, buffer), buffer)


def _locked_consolidated(skeleton: Any, buffer: torch.Tensor) -> Any:
    """Return the same for a tensordict that was locked before it was consolidated: it is locked."""
    td = _consolidated(skeleton, buffer, False)
    td._annotations[WAS_LOCKED] = True
    return td.lock_()


def over_buffer(td: Any, buffer: torch.Tensor) -> Any:
    """Let pickles of a tensordict, whose leaves are views of a buffer, hold the buffer instead of each leaf.

    >>> buffer = torch.zeros(8, dtype=torch.uint8)
    >>> td = over_buffer(TensorDict({"a": buffer[:4], "b": buffer[4:]}), buffer)
    >>> copy.copy(td)["a"].data_ptr() == buffer.data_ptr()
    True
    """
    td._annotations = {CONSOLIDATED: buffer}
    return td


def trust(*classes: Any) -> None:
    """Let ``torch.load`` (and ``torch.export.load``) read pickles of these classes with ``weights_only=True``.

    Reading such a pickle only sets attributes of a node, so it is as safe as reading a tensor. Its contents are
    checked too: a value of a class that is not trusted is refused.
    """
    torch.serialization.add_safe_globals([_new, _consolidated, _locked_consolidated, Slot, Meta, *classes])


class Serialization(Node):
    """``state_dict``, ``load_state_dict`` and copying."""

    __slots__ = ()

    # state dicts -----------------------------------------------------------------------------------------------------

    def state_dict(
        self, destination: Any = None, prefix: str = "", keep_vars: bool = False, flatten: bool = True
    ) -> OrderedDict[str, Any]:
        """Return the contents as an ordered dictionary of tensors, as `torch.nn.Module.state_dict`.

        Nested keys are joined with dots. Non-tensor values and the stack dimension of a ragged lazy stack have entries
        under reserved names (``__value``, ``__stack_dim``). A lazy stack is stored as the dense tensordict that it
        stands for; where its elements do not stack, they have the keys ``"0"``, ``"1"``, ... The attribute
        ``_metadata``, which state dicts of modules have too, holds the batch size, the device and the dim names of each
        node.

        Args:
            destination: A dictionary that the entries are added to; if it has no ``_metadata``, batch sizes and dim
                names become entries too (``__batch_size``, ``__names``).
            prefix: The prefix of every key.
            keep_vars: Whether tensors stay attached to the autograd graph; otherwise they are detached. Both share
                memory with this tensordict.
            flatten: Whether the keys of nested tensordicts are joined; otherwise the result has nested dictionaries.

        Raises:
            KeyError: Two entries would get one key (a key holds a dot), or a key is a reserved name.

        >>> list(TensorDict({"a": torch.zeros(3), "b": {"c": torch.ones(3)}}, [3]).state_dict())
        ['a', 'b.c']
        """
        out: OrderedDict[str, Any] = states.new_state() if destination is None else destination
        if not isinstance(out, MutableMapping):
            raise TypeError(f"destination is a dictionary or None, got {type(destination).__name__}; pass a dictionary")
        if not isinstance(prefix, str):
            raise TypeError(f"prefix is a string, got {prefix!r}; pass the start of the keys")
        states.put(self, out, prefix, keep_vars, flatten, torch.Size([]), True)
        return out

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False, from_flatten: bool | None = None
    ) -> Self:
        """Load the contents of a state dict; an empty tensordict takes its keys and batch sizes too.

        Tensors are written into existing entries. A key with a dot names the entry of that exact key if this
        tensordict has one, and a nested entry otherwise. The types of nested containers and the devices of this
        tensordict do not change.

        Args:
            state_dict: The result of ``state_dict`` (nested or flat), or the state dict of a module.
            strict: Whether missing and unexpected keys are an error; otherwise unexpected keys are added and missing
                ones keep their values.
            assign: Whether the tensors themselves become the entries.
            from_flatten: ``False`` keeps keys with dots; by default they name nested entries.

        Returns:
            The tensordict itself.

        Raises:
            RuntimeError: The keys differ (``strict``), shapes differ (not ``assign``), or entries would be added to a
                locked tensordict.

        >>> td = TensorDict({"a": torch.ones(3), "b": {"c": "text"}}, [3])
        >>> TensorDict({}).load_state_dict(td.state_dict())["b", "c"]
        'text'
        """
        states.load(self, state_dict, strict, assign, from_flatten)
        return self

    # pickling and copying --------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Return the contents of the node: slots and ``__dict__``, without lock holders and open ``with`` blocks."""
        state: dict[str, Any] = {}
        cls: Any = type(self)  # mypy takes classes with a __hash__ of their own for unhashable
        for name in _slots(cls):
            if hasattr(self, name):
                state[name] = getattr(self, name)
        notes = state.get("_annotations")
        if notes is not None:
            kept = {k: v for k, v in notes.items() if isinstance(v, _REMEMBERED) or k == _SHARED}
            state["_annotations"] = kept or None
        if hasattr(self, "__dict__"):
            state["__dict__"] = self.__dict__
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the contents of the node, and register it as holder of the locked nodes below it."""
        # a container may override __setattr__, as tensorclasses do
        object.__setattr__(self, "_holders", None)
        object.__setattr__(self, "_last_exit", None)
        for name, value in state.items():
            if name == "__dict__":
                self.__dict__.update(value)
            else:
                object.__setattr__(self, name, value)
        if self._locked:
            _hold(self, _children(self))

    def __reduce__(self) -> Any:
        notes = self._annotations or {}
        buffer = notes.get(CONSOLIDATED)
        skeleton = None if buffer is None else skeleton_over(self, buffer)
        if skeleton is not None:
            if self._locked and notes.get(WAS_LOCKED):
                return _locked_consolidated, (skeleton, buffer)
            return _consolidated, (skeleton, buffer, False)
        state = self.__getstate__()  # called first, because it completes a deferred tensordict and so changes its class
        return _new, (type(self),), state

    def __deepcopy__(self, memo: dict[Any, Any]) -> Self:
        """Return an unlocked copy of nodes, tensors and values; objects that are shared within it stay shared.

        Tensors that autograd computed are cloned: torch copies leaves of the graph only. In compiled functions, the
        copy is that of ``clone``, which shares non-tensor values.
        """
        if is_compiling():
            return self._clone(True)  # Dynamo does not copy tensors otherwise
        state = self.__getstate__()
        new: Self = _new(type(self))
        memo[id(self)] = new
        meta = state.pop("_meta", None)  # never changed, so copies share it
        storages = memo.setdefault("torch", {})  # where torch looks for the copies of storages
        copies_whole = may_fuse()
        for value in state.get("_entries", {}).values():
            if copies_whole and type(value) is Tensor and _has_own_storage(value):
                storage = value.untyped_storage()._cdata
                if storage not in storages:  # a fifth of the time of torch's own copy
                    memo[id(value)] = copied = value.clone()
                    storages[storage] = copied.untyped_storage()
            elif isinstance(value, Tensor) and not value.is_leaf:  # torch copies leaves of autograd only
                memo.setdefault(id(value), value.clone())
        state = {name: copy.deepcopy(value, memo) for name, value in state.items()}
        if meta is not None:
            state["_meta"] = meta
        state["_locked"] = False
        new.__setstate__(state)
        return new
