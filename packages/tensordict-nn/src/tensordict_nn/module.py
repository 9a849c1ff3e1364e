"""`TensorDictModule`: any callable, reading its arguments from a tensordict and writing its results into it.

What is known about keys is worked out when they are set, so a call reads with one operation a key, runs the module and
writes with one operation a key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tensordict_core import NestedKey, TensorDict, unravel_key
from tensordict_core.extension import Primitives, TensorCollection, is_compiling

from . import errors
from .base import Keys, TensorDictModuleBase, as_keys, device_of
from .calls import CALL, is_bare, watched
from .dispatch import dispatch
from .skipping import MODE, skips

__all__ = ["TensorDictModule", "TensorDictModuleWrapper", "WrapModule"]

_POLICIES = "True, False or 'empty'"


def _mapping(in_keys: dict[Any, Any], out_to_in_map: bool) -> tuple[Keys, list[str]]:
    """The keys to read and the names of the arguments that they go to."""
    pairs = in_keys.items() if out_to_in_map else [(name, key) for key, name in in_keys.items()]
    return [unravel_key(key) for _, key in pairs], [str(name) for name, _ in pairs]


class TensorDictModule(TensorDictModuleBase):
    """A callable that reads ``in_keys`` from a tensordict and writes its results at ``out_keys``.

    Called with tensors instead (see `dispatch`) it returns tensors. Attributes that it does not have are those of the
    module.

    Args:
        module: An ``nn.Module`` or any callable. A tuple or a list that it returns is one value for each output key; a
            dictionary or a tensordict that holds all ``out_keys`` is read by key.
        in_keys: The keys of its arguments in order; or a dictionary from names of arguments to keys.
        out_keys: The keys of its results in order; ``"_"`` drops one.
        out_to_in_map: The direction of a dictionary: ``False`` reads it as keys to names of arguments.
        inplace: Where results go: into the tensordict (``True``), into a new one without batch size (``False``), or
            into an empty one of its batch size and device (``"empty"``).
        method: The name of the method to call.
        method_kwargs: Arguments by name for each call.
        strict: Whether an input that is not there is an error before the call; otherwise the module gets ``None``, and
            if it fails the error names what was missing.
        get_kwargs: Arguments for ``get``, which reads the inputs.

    Raises:
        ValueError: ``module`` cannot be called, or ``inplace`` is none of these.

    >>> module = TensorDictModule(torch.nn.Linear(3, 4), in_keys=["x"], out_keys=[("out", "y")])
    >>> module(TensorDict({"x": torch.ones(2, 3)}, [2]))["out", "y"].shape
    torch.Size([2, 4])
    >>> TensorDictModule(lambda a, *, b: a - b, in_keys={"a": "x", "b": "x"}, out_keys=["y"])(x=torch.ones(1))
    tensor([0.])
    """

    def __init__(
        self,
        module: Callable[..., Any],
        in_keys: NestedKey | Sequence[NestedKey] | dict[Any, Any],
        out_keys: NestedKey | Sequence[NestedKey],
        *,
        out_to_in_map: bool | None = None,
        inplace: bool | str = True,
        method: str | None = None,
        method_kwargs: dict[str, Any] | None = None,
        strict: bool = False,
        get_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if not callable(module) and not (method and hasattr(module, method)):
            raise errors.not_callable(module)
        if inplace not in (True, False, "empty"):
            raise errors.bad_inplace(inplace, _POLICIES)
        self._arguments: list[str] | None = None
        if isinstance(in_keys, dict):
            self.in_keys, self._arguments = _mapping(in_keys, out_to_in_map is not False)
        else:
            self.in_keys = in_keys
        self.out_keys = out_keys
        self.module = module
        self.inplace = inplace
        self.method = method
        self.method_kwargs = method_kwargs or {}
        self.strict = strict
        self._get_kwargs = get_kwargs or {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` and the hooks."""
        if len(args) == 1 and not kwargs and isinstance(args[0], Primitives) and not watched():
            return self._step(args[0])
        return super().__call__(*args, **kwargs)

    def _step(self, tensordict: Any) -> Any:
        """What a call with a tensordict does where no hooks for all modules are there."""
        if not is_compiling():
            own = self.__dict__
            if is_bare(own) and type(self).forward is _FORWARD and "forward" not in own:
                return self._run(tensordict, None, {}, True)
        return CALL(self, tensordict)

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: Any, *args: Any, tensordict_out: Any = None, **kwargs: Any) -> Any:
        """Read, run the module, write.

        Args:
            tensordict: Where inputs come from.
            *args: None are taken; the signature is that of all modules.
            tensordict_out: Where results go, whatever ``inplace`` says.
            **kwargs: More arguments for the module.

        Returns:
            The tensordict with the results.

        Raises:
            KeyError: An input is not there (``strict``, or the module failed without it).
            RuntimeError: The module returned more or fewer values than there are ``out_keys``.
        """
        if args:
            raise errors.too_many_arguments(self, len(args) + 1, ["tensordict"])
        return self._run(tensordict, tensordict_out, kwargs, False)

    def _run(self, tensordict: Any, tensordict_out: Any, kwargs: dict[str, Any], directly: bool) -> Any:
        """Read, run the module, write.

        Args:
            tensordict: Where inputs come from.
            tensordict_out: Where results go, if it is given.
            kwargs: More arguments for the module.
            directly: Whether the ``forward`` of a bare module is called, see `calls`.
        """
        # modules are not attributes for Python, so `self.module` would be looked for in vain first
        module: Any = self._modules.get("module")
        if module is None:
            module = self.__dict__["module"]
            directly = False
        in_keys = self._in_keys
        out_keys = self._out_keys if self._out_keys_source is None else self._out_keys_source
        if (
            (MODE.value is not False or MODE.threads)
            and tensordict_out is None
            and skips(in_keys, out_keys, tensordict)
        ):
            return tensordict
        values = []
        for key in in_keys:
            value = tensordict._get(key) if type(key) is str and not self._get_kwargs else self._read(tensordict, key)
            if type(value) is not Tensor and isinstance(value, TensorCollection):
                value = value._entry_value()
            values.append(value)
        if self.strict:
            self._require(tensordict, values)
        if self.method is not None:
            module = getattr(module, self.method)
        elif directly and type(module).__call__ is CALL and is_bare(module.__dict__):
            module = module.forward
        if self.method_kwargs:
            kwargs = {**self.method_kwargs, **kwargs}
        try:
            if self._arguments is None:
                result = module(*values, **kwargs)
            else:
                result = module(**dict(zip(self._arguments, values, strict=True)), **kwargs)
        except Exception as error:
            self._explain(tensordict, values, error)
            raise
        if tensordict_out is None:
            tensordict_out = tensordict if self.inplace is True else self._target(tensordict)
        if type(result) is Tensor and len(out_keys) == 1:
            if out_keys[0] != "_":
                tensordict_out.set(out_keys[0], result)
        else:
            self._write(tensordict_out, result, out_keys)
        return tensordict_out

    def _read(self, td: Any, key: Any) -> Any:
        return td.get(key, None, **self._get_kwargs)

    def _target(self, tensordict: Any) -> Any:
        return TensorDict({}) if self.inplace is False else tensordict.empty()

    def _write(self, td: Any, result: Any, out_keys: Keys) -> None:
        """Store what the module returned."""
        if isinstance(result, dict | TensorCollection) and all(key == "_" or key in result for key in out_keys):
            results: Sequence[Any] = [None if key == "_" else result[key] for key in out_keys]
        elif isinstance(result, tuple) or (isinstance(result, list) and len(result) == len(out_keys) > 1):
            results = result
        else:
            results = (result,)
        if len(results) != len(out_keys) or result is None:
            raise errors.wrong_count(self._called(), 0 if result is None else len(results), out_keys)
        for key, value in zip(out_keys, results, strict=True):
            if key != "_":
                td.set(key, value)

    def _called(self) -> Any:
        return self.module if isinstance(self.module, nn.Module) else self

    def _absent(self, values: list[Any]) -> Keys:
        return [key for key, value in zip(self._in_keys, values, strict=True) if value is None]

    def _require(self, td: Any, values: list[Any]) -> None:
        absent = [key for key in self._absent(values) if key not in td]
        if absent:
            raise errors.missing_inputs(self._called(), absent, td.keys())

    def _explain(self, td: Any, values: list[Any], error: Exception) -> None:
        """Say what was missing, if anything was; else say in which module it happened."""
        absent = [key for key in self._absent(values) if key not in td]
        if absent:
            raise errors.missing_inputs(self._called(), absent, td.keys()) from error
        error.add_note(f"while calling {type(self._called()).__name__} with in_keys {self._in_keys}")

    @property
    def is_functional(self) -> bool:
        """Whether parameters are given at each call: never, `TensorDict.to_module` puts them in."""
        return False

    @property
    def device(self) -> torch.device:
        """The device of the first parameter or buffer; the CPU where there is none."""
        return device_of(self)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module" or name.startswith("__"):
                raise
            return getattr(
                super().__getattr__("module") if "module" in self._modules else self.__dict__["module"], name
            )

    def __repr__(self) -> str:
        fields = "\n".join(
            "    " + line
            for line in f"module={self.module},\nin_keys={self.in_keys},\nout_keys={self.out_keys})".split("\n")
        )
        return f"{type(self).__name__}(\n{fields}"


_FORWARD = TensorDictModule.forward


class TensorDictModuleWrapper(TensorDictModuleBase):
    """Behaves like the module that it wraps, except for what a subclass overrides.

    Args:
        td_module: The module.

    >>> from tensordict_nn import TensorDictModule
    >>> class TimesTen(TensorDictModuleWrapper):
    ...     def forward(self, tensordict):
    ...         return self.td_module(tensordict).update({"y": tensordict["y"] * 10})
    >>> TimesTen(TensorDictModule(lambda x: x + 1, in_keys=["x"], out_keys=["y"]))(TensorDict({"x": 0}))["y"]
    tensor(10)
    """

    def __init__(self, td_module: TensorDictModuleBase) -> None:
        super().__init__()
        self.td_module = td_module

    @property
    def in_keys(self) -> Keys:
        """Those of the module."""
        return self.td_module.in_keys

    @in_keys.setter
    def in_keys(self, value: Any) -> None:
        self.td_module.in_keys = value

    @property
    def out_keys(self) -> Keys:
        """Those of the module."""
        return self.td_module.out_keys

    @out_keys.setter
    def out_keys(self, value: Any) -> None:
        self.td_module.out_keys = value

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.td_module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "td_module" or name.startswith("__"):
                raise
            return getattr(super().__getattr__("td_module"), name)


class WrapModule(TensorDictModuleBase):
    """A function of a whole tensordict, as a module.

    Args:
        func: Takes a tensordict and returns one.
        inplace: Whether the entries of the result are written into the tensordict, which is returned.
        in_keys: The keys that it reads, for sequences to know.
        out_keys: The keys that it writes, for sequences to know.

    >>> WrapModule(lambda td: td.reshape(-1))(TensorDict({"x": torch.ones(3, 4)}, [3, 4])).batch_size
    torch.Size([12])
    """

    def __init__(
        self,
        func: Callable[[Any], Any],
        *,
        inplace: bool = False,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__()
        self.func = func
        self.inplace = inplace
        self.in_keys = as_keys(in_keys)
        self.out_keys = as_keys(out_keys)

    def forward(self, tensordict: Any) -> Any:
        """Call the function."""
        result = self.func(tensordict)
        return tensordict.update(result) if self.inplace and result is not tensordict else result
