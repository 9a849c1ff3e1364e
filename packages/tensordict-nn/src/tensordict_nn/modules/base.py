"""`TensorDictModuleBase`: the base of modules on tensordicts, with the keys that they read and write.

``forward`` takes a tensordict and returns one. ``in_keys`` and ``out_keys`` name the entries that it reads and writes,
so that sequences can be connected and divided by keys. Selecting output keys is a forward hook, which works for every
``forward``.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import nn

from tensordict_core import NestedKey, unravel_key
from tensordict_core.extension import TensorCollection
from tensordict_nn import errors
from tensordict_nn.modules.pickling import carried, restored

Keys = list[Any]


def as_keys(keys: NestedKey | Sequence[NestedKey] | None) -> Keys:
    """Convert one key or several to a list of keys.

    >>> as_keys("a"), as_keys(("a", "b")), as_keys(["a", ("b", "c")])
    (['a'], [('a', 'b')], ['a', ('b', 'c')])
    """
    if keys is None:
        return []
    # a tuple is one nested key; several keys are a list
    return [unravel_key(keys)] if isinstance(keys, str | tuple) else [unravel_key(key) for key in keys]


def checked_keys(keys: NestedKey | Sequence[NestedKey], name: str) -> Keys:
    """Convert one key or several, as an argument of a constructor, to a list of keys.

    Args:
        keys: A string, a tuple of strings, or a list of these.
        name: The name of the argument.

    Raises:
        InvalidKeysError: The argument is anything else.

    >>> checked_keys([("a", ("b",))], "in_keys")
    [('a', 'b')]
    """
    if not isinstance(keys, str | tuple | list) or keys == ():
        raise errors.bad_keys(name, keys)
    try:
        flat = as_keys(keys)
    except (TypeError, ValueError, KeyError, RuntimeError):
        raise errors.bad_keys(name, keys) from None
    if () in flat:  # tuples of anything but strings name no entry
        raise errors.bad_keys(name, keys)
    return flat


def require_inputs(module: Any, keys: Iterable[Any], td: Any, cause: Exception | None = None) -> None:
    """Check that a tensordict has the inputs of a module.

    Raises:
        KeyError: A key is missing; ``cause`` is the error that the module raised without it.

    >>> require_inputs(torch.nn.Linear(1, 1), ["a"], TensorDict({"a": 0}))
    """
    absent = [key for key in keys if key not in td]
    if absent:
        raise errors.missing_inputs(module, absent, td.keys()) from cause


def _drop_unselected(module: Any, args: Any, output: Any) -> Any:
    """Remove the outputs that `TensorDictModuleBase.select_out_keys` did not select; inputs stay."""
    if isinstance(output, TensorCollection):
        kept = {*module.out_keys, *module.in_keys}
        unselected = [key for key in module.out_keys_source if key not in kept and key in output]
        for key in unselected:
            output.del_(key)
            for depth in range(len(key) - 1, 0, -1) if isinstance(key, tuple) else ():
                if output.get(key[:depth]).is_empty():
                    output.del_(key[:depth])
    return output


class _NameOfClass:
    """The attribute ``__name__`` of instances: the name of the class, until another one is assigned."""

    def __get__(self, instance: Any, owner: type[Any]) -> str:
        return owner.__name__


class TensorDictModuleBase(nn.Module):
    """The base of modules that read ``in_keys`` from a tensordict and write ``out_keys``.

    Subclasses set both as class attributes or in ``__init__``, and define a ``forward`` that takes and returns a
    tensordict.

    >>> class AddOne(TensorDictModuleBase):
    ...     in_keys, out_keys = ["a"], ["b", "c"]
    ...     def forward(self, tensordict):
    ...         return tensordict.update({"b": tensordict["a"] + 1, "c": tensordict["a"] + 2})
    >>> AddOne().select_out_keys("c")(TensorDict({"a": 0})).sorted_keys
    ['a', 'c']
    """

    _out_keys_source: Keys | None = None

    # loggers and decorators read the names of functions, and a module is called as one
    __name__ = _NameOfClass()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # class bodies may spell nested keys in any form, as assignments to instances may
        for name in ("in_keys", "out_keys"):
            keys = cls.__dict__.get(name)
            if isinstance(keys, list | tuple) and (flat := [unravel_key(key) for key in keys]) != keys:
                setattr(cls, name, flat)

    @property
    def in_keys(self) -> Keys:
        """The keys that are read.

        >>> from tensordict_nn import TensorDictModule
        >>> TensorDictModule(torch.nn.Linear(3, 4), in_keys=["x"], out_keys=[("out", "y")]).in_keys
        ['x']
        """
        return self._in_keys

    @in_keys.setter
    def in_keys(self, value: Any) -> None:
        self._in_keys: Keys = as_keys(value)

    @property
    def out_keys(self) -> Keys:
        """The keys that are written, after `select_out_keys`.

        >>> from tensordict_nn import TensorDictModule
        >>> TensorDictModule(lambda x: (x, x), in_keys=["x"], out_keys=["y", "z"]).select_out_keys("z").out_keys
        ['z']
        """
        return self._out_keys

    @out_keys.setter
    def out_keys(self, value: Any) -> None:
        self._out_keys: Keys = as_keys(value)

    @property
    def out_keys_source(self) -> Keys:
        """The keys that are written, before `select_out_keys`.

        >>> from tensordict_nn import TensorDictModule
        >>> TensorDictModule(lambda x: (x, x), in_keys=["x"], out_keys=["y", "z"]).select_out_keys("z").out_keys_source
        ['y', 'z']
        """
        return self.out_keys if self._out_keys_source is None else self._out_keys_source

    @staticmethod
    def is_tdmodule_compatible(module: Any) -> bool:
        """Return whether an object has ``in_keys`` and ``out_keys``.

        >>> TensorDictModuleBase.is_tdmodule_compatible(torch.nn.Linear(1, 1))
        False
        """
        return hasattr(module, "in_keys") and hasattr(module, "out_keys")

    def select_out_keys(self, *out_keys: NestedKey) -> Self:
        """Select the ``out_keys`` that the result keeps; all outputs are still computed.

        Args:
            *out_keys: The keys to keep.

        Returns:
            The module itself.

        Raises:
            ValueError: A key is not among the ``out_keys``. Call `reset_out_keys` first to select keys that an earlier
                selection removed.

        >>> from tensordict_nn import TensorDictModule
        >>> module = TensorDictModule(lambda x: (x + 1, x + 2), in_keys=["x"], out_keys=["y", "z"])
        >>> module.select_out_keys("z")(torch.zeros(()))
        tensor(2.)
        """
        source = list(self.out_keys_source)
        selected = as_keys(list(out_keys))
        current = list(self.out_keys)
        absent = [key for key in selected if key not in current]
        if absent:
            raise errors.unknown_out_keys(self, absent, current)
        if self._out_keys_source is None:
            self._out_keys_source = source
            self._selection = self.register_forward_hook(_drop_unselected)
        self.out_keys = selected
        return self

    def reset_out_keys(self) -> Self:
        """Undo `select_out_keys`.

        Returns:
            The module itself.

        >>> from tensordict_nn import TensorDictModule
        >>> module = TensorDictModule(lambda x: (x, x), in_keys=["x"], out_keys=["y", "z"]).select_out_keys("z")
        >>> module.reset_out_keys().out_keys
        ['y', 'z']
        """
        source = self._out_keys_source
        if source is not None:
            self._selection.remove()
            self._out_keys_source = None
            self.out_keys = source
        return self

    def reset_parameters_recursive(self, parameters: Any = None) -> Any:
        """Call ``reset_parameters`` of every sub-module that has it.

        Args:
            parameters: External parameters to reset in place instead of the module's own.

        Returns:
            ``None``; with ``parameters``, a tensordict of tensors that share their memory and, except for buffers,
            require gradients.

        Raises:
            RuntimeError: ``parameters`` has batch dimensions.

        >>> from tensordict_nn import TensorDictModule
        >>> module = TensorDictModule(torch.nn.Linear(2, 3), in_keys=["x"], out_keys=["y"])
        >>> before = module.module.weight.clone()
        >>> module.reset_parameters_recursive()
        >>> before.equal(module.module.weight)
        False
        """
        if parameters is None:
            if not self._reset(self):
                warnings.warn(
                    f"{type(self).__name__}.reset_parameters_recursive found no sub-module with reset_parameters; "
                    "nothing was reset",
                    stacklevel=2,
                )
            return None
        if parameters.ndim:
            raise errors.batched_parameters(parameters.batch_size)
        buffers = {unravel_key(tuple(name.split("."))) for name, _ in self.named_buffers(remove_duplicate=False)}

        def detached(key: Any, leaf: Any) -> Any:
            trained = key not in buffers and (leaf.is_floating_point() or leaf.is_complex())
            return leaf.detach().requires_grad_(trained)

        sample = parameters.named_apply(detached, nested_keys=True)
        with sample.to_module(self):
            self._reset(self)
        return sample

    def _reset(self, module: nn.Module) -> bool:
        found = False
        for child in module.children():
            reset: Any = getattr(child, "reset_parameters", None)
            if reset is not None:
                reset()
                found = True
            else:
                found = self._reset(child) or found
        return found

    def __getstate__(self) -> dict[str, Any]:
        return carried(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(restored(state))  # type: ignore[no-untyped-call]  # torch does not annotate it

    def __repr__(self) -> str:
        extra = [self.extra_repr()] if type(self).extra_repr is not nn.Module.extra_repr else []
        keys = {name: getattr(self, name, None) for name in ("in_keys", "out_keys")}
        return format_module(self, *extra, **dict(self.named_children()), **keys)


def format_module(module: object, /, *lines: str, **fields: Any) -> str:
    """Return the representation of a module on tensordicts: its name, and its fields below one another.

    >>> print(format_module(torch.nn.Identity(), in_keys=["a"], out_keys=["b"]))
    Identity(
        in_keys=['a'],
        out_keys=['b'])
    """
    shown = ",\n".join([*lines, *(f"{name}={value}" for name, value in fields.items())])
    return f"{type(module).__name__}(\n{textwrap.indent(shown, '    ')})"


def device_of(module: nn.Module) -> torch.device:
    """Return the device of the first parameter or buffer; the CPU if there is none.

    >>> device_of(torch.nn.Linear(1, 1))
    device(type='cpu')
    """
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")
