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
from tensordict_core.extension import TensorCollection, is_compiling
from tensordict_nn import errors
from tensordict_nn.base import Keys, TensorDictModuleBase, as_keys, device_of
from tensordict_nn.calls import CALL, goes_straight, is_bare, only_forwards, selects, traces_straight
from tensordict_nn.dispatch import dispatch
from tensordict_nn.form import Form, KeyList, parsed, written
from tensordict_nn.skipping import may_skip, skips

__all__ = ["TensorDictModule", "TensorDictModuleWrapper", "WrapModule", "step", "traced_step"]

# What a call depends on; `form` says how.
_TOLD = frozenset(
    ("_in_keys", "_out_keys", "_out_keys_source", "_arguments", "inplace", "method", "strict", "_lent", "forward")
)
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

    _lent = False
    """Whether `method_kwargs` was handed out, so that it may be changed in place."""

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
        self.method_kwargs = method_kwargs
        self.strict = strict
        self._get_kwargs = get_kwargs or {}
        self._describe()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; what a call depends on is described anew."""
        super().__setattr__(name, value)
        if name in _TOLD and "_form" in self.__dict__:
            self._describe()

    def __delattr__(self, name: str) -> None:
        """Remove an attribute; what a call depends on is described anew."""
        super().__delattr__(name)
        if name in _TOLD:
            self._describe()

    def _describe(self) -> None:
        """Put down what calls depend on, see `form`."""
        out_keys = self._out_keys if self._out_keys_source is None else self._out_keys_source
        options = (self._arguments, self.inplace, self.method, self.strict, bool(self._get_kwargs), self._lent)
        own = self.__dict__
        straight = type(self) is TensorDictModule and "forward" not in own and self._out_keys_source is None
        own["_form"] = form = Form(self._in_keys, out_keys, *options, straight)
        own["_text"] = written(*form)

    def _told(self) -> Any:
        """The form of the module, read where Dynamo compares it at once."""
        return parsed(self._text) if is_compiling() else self._form

    @property
    def in_keys(self) -> Keys:
        """The keys that are read."""
        return self._in_keys if is_compiling() else KeyList(self._in_keys, self._describe)

    @in_keys.setter
    def in_keys(self, value: Any) -> None:
        self._in_keys = as_keys(value)

    @property
    def out_keys(self) -> Keys:
        """The keys that are written, after `select_out_keys`."""
        return self._out_keys if is_compiling() else KeyList(self._out_keys, self._describe)

    @out_keys.setter
    def out_keys(self, value: Any) -> None:
        self._out_keys = as_keys(value)

    @property
    def method_kwargs(self) -> dict[str, Any]:
        """Arguments by name for each call."""
        if not self._lent and not is_compiling():
            self._lent = True  # it may be changed in place from now on
        return self._method_kwargs

    @method_kwargs.setter
    def method_kwargs(self, value: dict[str, Any] | None) -> None:
        self._method_kwargs = value or {}
        self._lent = bool(value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` and the hooks."""
        if is_compiling():
            form = parsed(self._text)
            if form[-1] and len(args) == 1 and not kwargs and traces_straight(self, args[0]):
                return _run(self, form, args[0], None, kwargs, False)
        elif not kwargs and goes_straight(self, _FORWARD, args):
            return _run(self, self._form, args[0], None, kwargs, True)
        return super().__call__(*args, **kwargs)

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
        return _run(self, self._told(), tensordict, tensordict_out, kwargs, False)

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


# Functions, not methods: Dynamo looks at each module, whether its methods are still those of its class.


def step(owner: Any, tensordict: Any) -> Any:
    """What a `TensorDictModule` called with a tensordict does where no hooks for all modules are there."""
    if only_forwards(owner, _FORWARD):
        return _run(owner, owner._form, tensordict, None, {}, True)
    return CALL(owner, tensordict)


def traced_step(owner: Any, tensordict: Any, kwargs: dict[str, Any]) -> Any:
    """Call a module of any kind, as Dynamo follows it: each attribute that is read here costs every compiled call."""
    if isinstance(owner, TensorDictModule):
        form = parsed(owner._text)
        if form[-1] and not kwargs and traces_straight(owner, tensordict):
            return _run(owner, form, tensordict, None, kwargs, False)
    selects(owner)
    return owner(tensordict, **kwargs)


def _run(owner: Any, form: Any, tensordict: Any, tensordict_out: Any, kwargs: dict[str, Any], directly: bool) -> Any:
    """Read, run the module, write.

    Args:
        owner: The `TensorDictModule`.
        form: What it was told.
        tensordict: Where inputs come from.
        tensordict_out: Where results go, if it is given.
        kwargs: More arguments for the module.
        directly: Whether the ``forward`` of a bare module is called, see `calls`.
    """
    in_keys, out_keys, arguments, inplace, method, strict, has_get_kwargs, has_method_kwargs, _ = form
    # modules are not attributes for Python, so `owner.module` would be looked for in vain first
    module: Any = owner._modules.get("module")
    if module is None:
        module = owner.__dict__["module"]
        directly = False
    if may_skip() and tensordict_out is None and skips(in_keys, out_keys, tensordict):
        return tensordict
    values = []
    for key in in_keys:
        if has_get_kwargs:
            value = tensordict.get(key, None, **owner._get_kwargs)
        else:
            value = tensordict._get(key) if type(key) is str else tensordict.get(key, None)
        if not (directly and type(value) is Tensor) and isinstance(value, TensorCollection):
            value = value._entry_value()
        values.append(value)
    if strict:
        _require(owner, tensordict, values)
    if method is not None:
        module = getattr(module, method)
    elif directly and type(module).__call__ is CALL and is_bare(module.__dict__):
        module = module.forward
    if has_method_kwargs:
        kwargs = {**owner._method_kwargs, **kwargs}
    try:
        if arguments is None:
            result = module(*values, **kwargs)
        else:
            result = module(**dict(zip(arguments, values, strict=True)), **kwargs)
    except Exception as error:
        _explain(owner, tensordict, values, error)
        raise
    if tensordict_out is None:
        tensordict_out = tensordict if inplace is True else TensorDict({}) if inplace is False else tensordict.empty()
    if ((directly and type(result) is Tensor) or isinstance(result, Tensor)) and len(out_keys) == 1:
        if out_keys[0] != "_":
            # said, as Dynamo would look at the default of each class that the method could come from
            tensordict_out.set(out_keys[0], result, False, non_blocking=False)
    else:
        _write(owner, tensordict_out, result, out_keys)
    return tensordict_out


def _write(owner: Any, td: Any, result: Any, out_keys: Sequence[Any]) -> None:
    """Store what the module returned."""
    if isinstance(result, dict | TensorCollection) and all(key == "_" or key in result for key in out_keys):
        results: Sequence[Any] = [None if key == "_" else result[key] for key in out_keys]
    elif isinstance(result, tuple) or (isinstance(result, list) and len(result) == len(out_keys) > 1):
        results = result
    else:
        results = (result,)
    if len(results) != len(out_keys) or result is None:
        raise errors.wrong_count(_called(owner), 0 if result is None else len(results), out_keys)
    for key, value in zip(out_keys, results, strict=True):
        if key != "_":
            td.set(key, value, False)


def _called(owner: Any) -> Any:
    return owner.module if isinstance(owner.module, nn.Module) else owner


def _absent(owner: Any, values: list[Any]) -> Keys:
    return [key for key, value in zip(owner._in_keys, values, strict=True) if value is None]


def _require(owner: Any, td: Any, values: list[Any]) -> None:
    absent = [key for key in _absent(owner, values) if key not in td]
    if absent:
        raise errors.missing_inputs(_called(owner), absent, td.keys())


def _explain(owner: Any, td: Any, values: list[Any], error: Exception) -> None:
    """Say what was missing, if anything was; else say in which module it happened."""
    absent = [key for key in _absent(owner, values) if key not in td]
    if absent:
        raise errors.missing_inputs(_called(owner), absent, td.keys()) from error
    error.add_note(f"while calling {type(_called(owner)).__name__} with in_keys {owner._in_keys}")


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
