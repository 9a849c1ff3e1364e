"""`TensorDictSequential`: runs modules one after the other on a tensordict, connected by their keys."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Self

from torch import nn

from tensordict_core import LazyStackedTensorDict, NestedKey, TensorDict
from tensordict_core.extension import Node, is_compiling
from tensordict_nn import errors
from tensordict_nn.modules.base import Keys, TensorDictModuleBase, as_keys
from tensordict_nn.modules.calls import has_global_hooks, has_selected_keys, may_call_forward
from tensordict_nn.modules.dispatch import dispatch
from tensordict_nn.modules.module import TensorDictModule, WrapModule, step, traced_step
from tensordict_nn.modules.skipping import may_skip, skips

_READ, _WRITTEN = TensorDictModule.in_keys, TensorDictModule.out_keys


def keys_read(module: Any) -> Keys:
    """Return the ``in_keys`` of a module, flat; as they are stored, without the list that reports changes.

    >>> from tensordict_nn import TensorDictModule
    >>> keys_read(TensorDictModule(abs, ["x"], ["y"]))
    ['x']
    """
    return as_keys(module._in_keys if getattr(type(module), "in_keys", None) is _READ else module.in_keys)


def keys_written(module: Any) -> Keys:
    """Return the ``out_keys`` of a module, as `keys_read` returns those that it reads.

    >>> from tensordict_nn import TensorDictModule
    >>> keys_written(TensorDictModule(abs, ["x"], ["y"]))
    ['y']
    """
    return as_keys(module._out_keys if getattr(type(module), "out_keys", None) is _WRITTEN else module.out_keys)


def chained_keys(modules: Sequence[Any]) -> tuple[Keys, Keys]:
    """Return the keys that modules in a row read and no earlier one writes, and the keys that they write.

    >>> from tensordict_nn import TensorDictModule
    >>> chained_keys([TensorDictModule(abs, ["a"], ["b"]), TensorDictModule(max, ["b", "c"], ["d"])])
    (['a', 'c'], ['b', 'd'])
    """
    in_keys: dict[Any, None] = {}
    out_keys: dict[Any, None] = {}
    for module in modules:
        for key in keys_read(module):
            if key not in out_keys:
                in_keys[key] = None
        for key in keys_written(module):
            out_keys.pop(key, None)  # a key takes the place of the last module that writes it
            out_keys[key] = None
    return list(in_keys), list(out_keys)


def copy_entries(source: Any, target: Any, keys: Keys) -> None:
    """Set the entries of some keys of a tensordict, as far as they exist, in another one.

    >>> target = TensorDict({})
    >>> copy_entries(TensorDict({"a": 0, "b": 1}), target, ["b", "c"])
    >>> target.sorted_keys
    ['b']
    """
    for key in keys:
        value = source.get(key, None)
        if value is not None:
            target.set(key, value)


def _covers(key: Any, keys: Collection[Any]) -> bool:
    """Return whether a key, or a prefix of it, is among keys."""
    return key in keys or (isinstance(key, tuple) and any(_prefix(key, depth) in keys for depth in range(1, len(key))))


def _prefix(key: tuple[str, ...], depth: int) -> str | tuple[str, ...]:
    return key[0] if depth == 1 else key[:depth]


class TensorDictSequential(TensorDictModule):
    """Modules that run one after the other; each reads entries that earlier ones wrote.

    ``in_keys`` are the keys that modules read and no earlier module writes, ``out_keys`` all keys that modules write.
    ``sequence[i]`` and ``sequence["name"]`` return modules and can be assigned and deleted; a slice is a sequence.

    Args:
        *modules: Modules, a list of modules, or a dictionary of modules by name. Callables without keys take and return
            a tensordict (see `WrapModule`).
        partial_tolerant: Whether a module with missing inputs is skipped; on a lazy stack it runs on the elements that
            have the inputs.
        selected_out_keys: The ``out_keys`` to keep, see `select_out_keys`.
        inplace: Where results are written: ``None`` returns the result of the last module; ``True`` writes into the
            tensordict, ``False`` into a new one, ``"empty"`` into an empty one of its batch size and device.

    >>> from tensordict_nn import TensorDictModule
    >>> sequence = TensorDictSequential(
    ...     TensorDictModule(lambda x: x + 1, in_keys=["x"], out_keys=["y"]),
    ...     TensorDictModule(lambda y, z: y * z, in_keys=["y", "z"], out_keys=["w"]),
    ... )
    >>> sequence.in_keys, sequence.out_keys
    (['x', 'z'], ['y', 'w'])
    >>> sequence(TensorDict({"x": 1, "z": 3}))["w"]
    tensor(6)
    """

    module: nn.ModuleList | nn.ModuleDict

    def __init__(
        self,
        *modules: Any,
        partial_tolerant: bool = False,
        selected_out_keys: Sequence[NestedKey] | None = None,
        inplace: bool | str | None = None,
    ) -> None:
        if inplace not in (True, False, None, "empty"):
            raise errors.bad_inplace(inplace, "True, False, None or 'empty'")
        held = self._held(modules)
        children = list(held.values() if isinstance(held, nn.ModuleDict) else held)
        super().__init__(held, *chained_keys(children), inplace=inplace)
        self.partial_tolerant = partial_tolerant
        if selected_out_keys is not None:
            self.select_out_keys(*selected_out_keys)

    @classmethod
    def _held(cls, modules: Sequence[Any]) -> nn.ModuleList | nn.ModuleDict:
        """Return the arguments of the constructor, which are modules, a list or a dictionary, as one module."""
        if len(modules) == 1 and isinstance(modules[0], dict):
            return nn.ModuleDict({name: cls._as_module(module) for name, module in modules[0].items()})
        if len(modules) == 1 and isinstance(modules[0], list | tuple):
            modules = modules[0]
        return nn.ModuleList(cls._as_module(module) for module in modules)

    @staticmethod
    def _as_module(module: Any) -> Any:
        if isinstance(module, TensorDictModule):
            return module
        compatible = TensorDictModuleBase.is_tdmodule_compatible(module)
        if compatible and isinstance(module, nn.Module):
            return module
        if not callable(module):
            raise errors.not_callable(module)
        keys = {"in_keys": module.in_keys, "out_keys": module.out_keys} if compatible else {}
        return WrapModule(module, **keys)

    @staticmethod
    def _compute_in_and_out_keys(modules: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the keys of a sequence of modules; subclasses of published programs call it."""
        return chained_keys(list(modules))

    def _connect(self) -> None:
        """Compute the keys from those of the modules."""
        selected = self.out_keys if self._out_keys_source is not None else None
        in_keys, out_keys = chained_keys(list(self))
        self.in_keys = in_keys
        if selected is None:
            self.out_keys = out_keys
        else:
            self._out_keys_source = out_keys
            self.out_keys = [key for key in selected if key in out_keys]

    # running ---------------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` and the hooks."""
        if is_compiling():
            has_selected_keys(self)
        elif may_call_forward(self, _FORWARD, args):
            return self._forward(args[0], **kwargs) if kwargs else self._forward(args[0], None)
        return super().__call__(*args, **kwargs)

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: Any, tensordict_out: Any = None, **kwargs: Any) -> Any:
        """Run the modules.

        Args:
            tensordict: The tensordict with the inputs.
            tensordict_out: The tensordict into which the results are written, regardless of ``inplace``.
            **kwargs: Not accepted; subclasses may pass them to modules.

        Returns:
            The tensordict with the results.

        Raises:
            RuntimeError: There are more keyword arguments.
        """
        return self._forward(tensordict, tensordict_out, **kwargs)

    def _forward(self, tensordict: Any, tensordict_out: Any = None, **kwargs: Any) -> Any:
        if may_skip() and tensordict_out is None and skips(self._in_keys, self.out_keys_source, tensordict):
            return tensordict
        if kwargs:
            self._check_kwargs(kwargs)
        inplace = self.inplace
        if tensordict_out is None:
            if inplace is None:
                return self._run(tensordict, kwargs)
            if inplace == "empty":
                tensordict_out = tensordict.empty()
            else:
                tensordict_out = tensordict if inplace else TensorDict({})
        result = self._run(tensordict if tensordict_out is tensordict else tensordict.copy(), kwargs)
        if result is not tensordict_out:
            copy_entries(result, tensordict_out, self.out_keys)
        return tensordict_out

    def _run(self, td: Any, kwargs: dict[str, Any]) -> Any:
        if self.partial_tolerant:
            for module in self:
                td = self._run_where_possible(module, td, kwargs)
            return td
        modules: Any = self._modules["module"]  # faster than `self.module`
        if is_compiling():  # without type checks, which would add guards to each call
            for module in modules._modules.values():
                td = traced_step(module, td, kwargs)
            return td
        if kwargs or has_global_hooks():
            for module in modules._modules.values():
                td = self._call(module, td, kwargs)
            return td
        for module in modules._modules.values():
            td = step(module, td) if type(module) is TensorDictModule and isinstance(td, Node) else module(td)
        return td

    def _check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Refuse keyword arguments, which a sequence has no module for."""
        raise errors.sequence_arguments(self, kwargs)

    def _call(self, module: Any, td: Any, kwargs: dict[str, Any]) -> Any:
        """Run one module with the keyword arguments of the call."""
        return module(td, **kwargs)

    def _run_where_possible(self, module: Any, td: Any, kwargs: dict[str, Any]) -> Any:
        in_keys = as_keys(module.in_keys)
        if all(key in td for key in in_keys):
            return self._call(module, td, kwargs)
        if isinstance(td, LazyStackedTensorDict):
            for one in td.tensordicts:
                result = self._run_where_possible(module, one, kwargs)
                if result is not one:  # the stack keeps its elements, so results elsewhere are copied into them
                    one.update(result)
        return td

    # parts -----------------------------------------------------------------------------------------------------------

    def _names(self) -> list[str] | None:
        return list(self.module) if isinstance(self.module, nn.ModuleDict) else None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.module.values() if isinstance(self.module, nn.ModuleDict) else self.module)

    def __len__(self) -> int:
        return len(self.module)

    def _with(self, modules: Any) -> Any:
        """Make the result of a slice: a sequence of other modules with the same options."""
        return self._subsequence(modules)

    def _subsequence(self, modules: Any) -> Self:
        """Make the result of `select_subsequence`: a sequence of this type, with the same options."""
        kind: Any = type(self)  # mypy takes classes with a __hash__ of their own for unhashable
        return self._like(modules) if _takes_modules(kind) else self._copied(modules)

    def _like(self, modules: Any, kind: Any = None) -> Any:
        """Call the constructor of a class, by default that of this sequence, with modules and the same options."""
        # only options that are set, because constructors of subclasses may take fewer
        options: dict[str, Any] = {"partial_tolerant": True} if self.partial_tolerant else {}
        if self.inplace is not None:
            options["inplace"] = self.inplace
        return (kind or type(self))(*([modules] if isinstance(modules, dict) else modules), **options)

    def _copied(self, modules: Any) -> Self:
        """Copy this sequence with other modules and without hooks, where the arguments of its class are not known."""
        made = type(self).__new__(type(self))
        nn.Module.__init__(made)
        kept = made.__dict__
        kept.update({name: value for name, value in self.__dict__.items() if name not in kept})
        for name in ("_parameters", "_buffers", "_modules"):
            kept[name].update(self.__dict__[name])
        made.training = self.training
        made._out_keys_source = None
        made.module = self._held([modules])
        made._connect()
        return made

    def _name(self, index: int | str) -> str:
        names = self._names()
        if isinstance(index, str):
            if names is None or index not in names:
                raise errors.no_such_module(index, names or range(len(self)))
            return index
        return (names or list(self.module._modules))[index]

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return self.module._modules[self._name(index)]
        names = self._names()
        modules = list(self)[index]
        return self._with(modules if names is None else dict(zip(names[index], modules, strict=True)))

    def __setitem__(self, index: int | str, module: Any) -> None:
        module = self._as_module(module)
        if isinstance(index, str) and isinstance(self.module, nn.ModuleDict):
            self.module[index] = module
        else:
            self.module._modules[self._name(index)] = module
        self._connect()

    def __delitem__(self, index: int | str) -> None:
        name = self._name(index)
        if isinstance(self.module, nn.ModuleDict):
            del self.module[name]
        else:
            del self.module[int(name)]
        self._connect()

    def insert(self, index: int, module: Any) -> None:
        """Insert a module before the one at an index.

        Args:
            index: The position, as for lists.
            module: The module.

        Raises:
            TypeError: The modules have names.

        >>> from tensordict_nn import TensorDictModule
        >>> sequence = TensorDictSequential(TensorDictModule(abs, ["y"], ["z"]))
        >>> sequence.insert(0, TensorDictModule(abs, ["x"], ["y"]))
        >>> sequence.in_keys, sequence.out_keys
        (['x'], ['y', 'z'])
        """
        if isinstance(self.module, nn.ModuleDict):
            raise errors.modules_have_names(self)
        self.module.insert(index, self._as_module(module))
        self._connect()

    def append(self, module: Any) -> Self:
        """Append a module; see `insert`.

        >>> from tensordict_nn import TensorDictModule
        >>> TensorDictSequential().append(TensorDictModule(abs, ["x"], ["y"])).out_keys
        ['y']
        """
        self.insert(len(self), module)
        return self

    def extend(self, modules: Iterable[Any]) -> Self:
        """Append several modules; see `insert`.

        >>> from tensordict_nn import TensorDictModule
        >>> TensorDictSequential().extend([TensorDictModule(abs, ["x"], ["y"])] * 2).out_keys
        ['y']
        """
        for module in modules:
            self.append(module)
        return self

    def select_subsequence(
        self, in_keys: Sequence[NestedKey] | None = None, out_keys: Sequence[NestedKey] | None = None
    ) -> Self:
        """Return a new sequence of the modules that can run from ``in_keys`` and that ``out_keys`` need.

        Args:
            in_keys: The keys to start from; by default those of the sequence.
            out_keys: The keys to compute; by default those of the sequence.

        Raises:
            ValueError: No module is left.

        >>> from tensordict_nn import TensorDictModule
        >>> a, b, c = (TensorDictModule(abs, [i], [o]) for i, o in ("xy", "yz", "xw"))
        >>> TensorDictSequential(a, b, c).select_subsequence(out_keys=["z"]).out_keys
        ['y', 'z']
        >>> TensorDictSequential(a, b, c).select_subsequence(in_keys=["y"]).out_keys
        ['z']
        """
        given = as_keys(in_keys) if in_keys is not None else self.in_keys
        wanted = as_keys(out_keys) if out_keys is not None else self.out_keys
        names = self._names()
        places = names or range(len(self))
        modules = [(place, m, keys_read(m), keys_written(m)) for place, m in zip(places, self, strict=True)]
        modules = self._backward(self._forward_from(modules, dict.fromkeys(given)), dict.fromkeys(wanted))
        if not modules:
            raise errors.empty_selection(given, wanted)
        parts = {place: module for place, module, _, _ in modules}
        return self._subsequence(list(parts.values()) if names is None else parts)

    @staticmethod
    def _forward_from(modules: list[Any], known: dict[Any, None]) -> list[Any]:
        """Return the modules that can run from some keys, each with its place and the keys that it reads and writes."""
        kept = []
        for place, module, read, written in modules:
            if isinstance(module, TensorDictSequential):
                try:
                    module = _part(module, in_keys=list(known))
                except ValueError:
                    continue
                read, written = keys_read(module), keys_written(module)
            elif not all(_covers(key, known) for key in read):
                continue
            kept.append((place, module, read, written))
            known.update(dict.fromkeys(written))
        return kept

    @staticmethod
    def _backward(modules: list[Any], wanted: dict[Any, None]) -> list[Any]:
        """Return the modules that some keys need."""
        kept = []
        for place, module, read, written in reversed(modules):
            if not any(_covers(key, wanted) or _covers_any(key, wanted) for key in written):
                continue
            if isinstance(module, TensorDictSequential):
                module = _part(module, out_keys=list(wanted))
                read, written = keys_read(module), keys_written(module)
            kept.append((place, module, read, written))
            wanted.update(dict.fromkeys(read))
        return kept[::-1]


_FORWARD = TensorDictSequential.forward


@lru_cache(256)
def _takes_modules(kind: type) -> bool:
    """Return whether the constructor of a class takes any number of modules, as that of `TensorDictSequential`."""
    parameters = inspect.signature(kind).parameters.values()
    return any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)


def _part(sequence: TensorDictSequential, **keys: Keys) -> TensorDictSequential:
    """Select a subsequence of a nested sequence; the sequence itself if all of its modules remain."""
    part = sequence.select_subsequence(**keys)
    return sequence if list(part) == list(sequence) else part


def _covers_any(key: Any, wanted: Iterable[Any]) -> bool:
    """Return whether a key is a prefix of a wanted key."""
    path = (key,) if isinstance(key, str) else key
    return any(isinstance(other, tuple) and other[: len(path)] == path for other in wanted)
