"""`TensorDictModule`: a callable that reads its arguments from a tensordict and writes its results into it.

Keys are processed when they are set, so a call reads with one operation per key, runs the module and writes with one
operation per key.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tensordict_core import NestedKey, TensorDict, from_tuple
from tensordict_core.extension import TensorCollection, is_compiling
from tensordict_nn import errors
from tensordict_nn.modules.base import (
    Keys,
    TensorDictModuleBase,
    as_keys,
    checked_keys,
    device_of,
    format_module,
    require_inputs,
)
from tensordict_nn.modules.calls import (
    CALL,
    has_no_hooks,
    has_selected_keys,
    may_call_forward,
    may_trace_forward,
    only_forwards,
)
from tensordict_nn.modules.dispatch import dispatch
from tensordict_nn.modules.form import Form, KeyList, decoded, encoded
from tensordict_nn.modules.skipping import may_skip, skips

# The attributes that a call depends on, see `form`.
_FORM_ATTRIBUTES = frozenset(
    (
        *("_in_keys", "_out_keys", "in_keys", "out_keys", "_out_keys_source", "_arguments", "inplace", "method"),
        *("method_kwargs", "strict", "_lent", "forward"),
    )
)
_POLICIES = "True, False or 'empty'"


def _mapping(in_keys: dict[Any, Any], out_to_in_map: bool) -> tuple[Keys, list[str]]:
    """Return the keys to read and the names of the arguments that take them."""
    pairs = in_keys.items() if out_to_in_map else [(name, key) for key, name in in_keys.items()]
    return checked_keys([key for _, key in pairs], "in_keys"), [str(name) for name, _ in pairs]


class TensorDictModule(TensorDictModuleBase):
    """A module that reads ``in_keys`` from a tensordict, calls a function, and writes the results at ``out_keys``.

    Called with tensors (see `dispatch`) it returns tensors. Missing attributes are looked up on the wrapped module.

    Args:
        module: An ``nn.Module`` or another callable. A tuple or list result has one value for each output key; a
            dictionary or tensordict result that holds all ``out_keys`` is read by key.
        in_keys: The keys of its arguments in order, or a dictionary from names of arguments to keys.
        out_keys: The keys of its results in order; ``"_"`` discards a result.
        out_to_in_map: The direction of a dictionary: ``False`` maps keys to names of arguments.
        inplace: Where results are written: into the tensordict (``True``), into a new one without batch size
            (``False`` or ``None``), or into an empty one of its batch size and device (``"empty"``).
        method: The name of the method to call.
        method_kwargs: Keyword arguments for each call.
        strict: Whether a missing input raises an error before the call; otherwise ``None`` is passed in its place, and
            if the call fails, the error names the missing keys.
        get_kwargs: Keyword arguments for ``get``, which reads the inputs.

    Raises:
        ValueError: ``module`` is not callable, or ``inplace`` is unknown.

    >>> module = TensorDictModule(torch.nn.Linear(3, 4), in_keys=["x"], out_keys=[("out", "y")])
    >>> module(TensorDict({"x": torch.ones(2, 3)}, [2]))["out", "y"].shape
    torch.Size([2, 4])
    >>> TensorDictModule(lambda a, *, b: a - b, in_keys={"a": "x", "b": "x"}, out_keys=["y"])(x=torch.ones(1))
    tensor([0.])
    """

    _arguments: list[str] | None
    _get_kwargs: dict[str, Any]
    _method_kwargs: dict[str, Any]
    _lent = False
    """Whether `method_kwargs` was returned to users, who may change it in place."""

    def __init__(
        self,
        module: Callable[..., Any],
        in_keys: NestedKey | Sequence[NestedKey] | dict[Any, Any],
        out_keys: NestedKey | Sequence[NestedKey],
        *,
        out_to_in_map: bool | None = None,
        inplace: bool | str | None = True,
        method: str | None = None,
        method_kwargs: dict[str, Any] | None = None,
        strict: bool = False,
        get_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(module, type) or (not callable(module) and not (method and hasattr(module, method))):
            raise errors.not_callable(module)
        if inplace not in (True, False, None, "empty"):
            raise errors.bad_inplace(inplace, _POLICIES)
        arguments: list[str] | None = None
        if isinstance(in_keys, dict):
            self.in_keys, arguments = _mapping(in_keys, out_to_in_map is not False)
        else:
            if out_to_in_map is not None:
                warnings.warn(
                    "out_to_in_map is not None but is only used when in_keys is a dictionary; drop it", stacklevel=2
                )
            self.in_keys = checked_keys(in_keys, "in_keys")
        if "_" in self._in_keys:
            warnings.warn(
                'key "_" is for ignoring output, and is read like any other key among in_keys; rename it', stacklevel=2
            )
        self.out_keys = checked_keys(out_keys, "out_keys")
        self.module = module
        self.inplace = inplace
        self.method = method
        self.method_kwargs = method_kwargs
        self.strict = strict
        # not by an assignment, for which a module takes two microseconds
        self.__dict__.update(_arguments=arguments, _get_kwargs=get_kwargs or {})
        self._update_form()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, and update the form of calls."""
        super().__setattr__(name, value)
        if name in _FORM_ATTRIBUTES and "_form" in self.__dict__:
            self._update_form()

    def __delattr__(self, name: str) -> None:
        """Remove an attribute, and update the form of calls."""
        super().__delattr__(name)
        if name in _FORM_ATTRIBUTES:
            self._update_form()

    def _update_form(self) -> None:
        """Update the form of calls, see `form`."""
        out_keys = self._out_keys if self._out_keys_source is None else self._out_keys_source
        inplace = self.inplace if self.inplace == "empty" else bool(self.inplace)
        options = (self._arguments, inplace, self.method, self.strict, bool(self._get_kwargs), self._lent)
        own = self.__dict__
        is_plain = type(self) is TensorDictModule and "forward" not in own and self._out_keys_source is None
        own["_form"] = form = Form(self._in_keys, out_keys, *options, is_plain)
        own["_text"] = encoded(*form)

    def _current_form(self) -> Any:
        """Return the form of the module; for Dynamo from the string, which needs one guard."""
        return decoded(self._text) if is_compiling() else self._form

    @property
    def in_keys(self) -> Keys:
        """The keys that are read.

        >>> TensorDictModule(lambda a, *, b: a - b, in_keys={"a": "x", "b": ("n", "y")}, out_keys=["z"]).in_keys
        ['x', ('n', 'y')]
        """
        return self._in_keys if is_compiling() else KeyList(self._in_keys, self._update_form)

    @in_keys.setter
    def in_keys(self, value: Any) -> None:
        self.__dict__["_in_keys"] = as_keys(value)

    @property
    def out_keys(self) -> Keys:
        """The keys that are written, after `select_out_keys`.

        >>> TensorDictModule(lambda x: (x, x), in_keys=["x"], out_keys=["y", "z"]).select_out_keys("z").out_keys
        ['z']
        """
        return self._out_keys if is_compiling() else KeyList(self._out_keys, self._update_form)

    @out_keys.setter
    def out_keys(self, value: Any) -> None:
        self.__dict__["_out_keys"] = as_keys(value)

    @property
    def method_kwargs(self) -> dict[str, Any]:
        """The keyword arguments for each call.

        >>> module = TensorDictModule(torch.cumsum, in_keys=["x"], out_keys=["y"], method_kwargs={"dim": 0})
        >>> module.method_kwargs, module(x=torch.ones(3))
        ({'dim': 0}, tensor([1., 2., 3.]))
        """
        if not self._lent and not is_compiling():
            self._lent = True  # users may change it in place from now on
        return self._method_kwargs

    @method_kwargs.setter
    def method_kwargs(self, value: dict[str, Any] | None) -> None:
        self.__dict__.update(_method_kwargs=value or {}, _lent=bool(value))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` and the hooks."""
        if is_compiling():
            if type(self) is TensorDictModule:
                form = decoded(self._text)
                if form[-1] and len(args) == 1 and not kwargs and may_trace_forward(self, args[0]):
                    return _run(self, form, args[0], None, kwargs, False)
        elif not kwargs and may_call_forward(self, _FORWARD, args):
            return _run(self, self._form, args[0], None, kwargs, True)
        return super().__call__(*args, **kwargs)

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: Any, *args: Any, tensordict_out: Any = None, **kwargs: Any) -> Any:
        """Read the inputs, run the module and write the results.

        Args:
            tensordict: The tensordict with the inputs.
            *args: Not accepted; the signature is that of all modules.
            tensordict_out: The tensordict into which the results are written, regardless of ``inplace``.
            **kwargs: More keyword arguments for the module.

        Returns:
            The tensordict with the results.

        Raises:
            KeyError: An input is missing, and ``strict`` is set or the module failed without it.
            RuntimeError: The number of returned values differs from that of ``out_keys``.
        """
        if args:
            raise errors.too_many_arguments(self, len(args) + 1, ["tensordict"])
        return _run(self, self._current_form(), tensordict, tensordict_out, kwargs, False)

    def _write_to_tensordict(
        self, tensordict: Any, tensors: Sequence[Any], tensordict_out: Any = None, out_keys: Iterable[Any] | None = None
    ) -> Any:
        """Write results to the output keys and return the tensordict written to; planners of torchrl call it.

        Args:
            tensordict: The input tensordict; ``inplace`` decides whether the results are written to it.
            tensors: The results.
            tensordict_out: The tensordict to write to; overrides ``inplace``.
            out_keys: Their keys; by default those of the module.

        Raises:
            WrongCountError: There are more results than keys, or fewer; it is a `RuntimeError`.
        """
        if tensordict_out is None:
            tensordict_out = _target(tensordict, self.inplace if self.inplace == "empty" else bool(self.inplace))
        _write(self, tensordict_out, tuple(tensors), list(self.out_keys if out_keys is None else out_keys))
        return tensordict_out

    @property
    def is_functional(self) -> bool:
        """Always False: parameters are not arguments of calls, `TensorDict.to_module` sets them.

        >>> TensorDictModule(torch.nn.Linear(3, 4), ["x"], ["y"]).is_functional
        False
        """
        return False

    @property
    def device(self) -> torch.device:
        """The device of the first parameter or buffer; the CPU if there is none.

        >>> TensorDictModule(torch.nn.Linear(3, 4, device="meta"), ["x"], ["y"]).device
        device(type='meta')
        """
        return device_of(self)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # before Module.__init__ there are no modules to ask
            if name == "module" or name.startswith("__") or "_modules" not in self.__dict__:
                raise
            return getattr(
                super().__getattr__("module") if "module" in self._modules else self.__dict__["module"], name
            )

    def __repr__(self) -> str:
        return format_module(self, module=self.module, in_keys=self.in_keys, out_keys=self.out_keys)


_FORWARD = TensorDictModule.forward


# Functions and not methods, for which Dynamo would guard each module.


def step(owner: Any, tensordict: Any) -> Any:
    """Call a `TensorDictModule` with a tensordict, if there are no global hooks."""
    if only_forwards(owner, _FORWARD):
        return _run(owner, owner._form, tensordict, None, {}, True)
    return CALL(owner, tensordict)


def traced_step(owner: Any, tensordict: Any, kwargs: dict[str, Any]) -> Any:
    """Call a module of any kind while Dynamo traces; each attribute read here adds a guard to compiled calls."""
    if type(owner) is TensorDictModule:
        form = decoded(owner._text)
        if form[-1] and not kwargs and may_trace_forward(owner, tensordict):
            return _run(owner, form, tensordict, None, kwargs, False)
    has_selected_keys(owner)
    return owner(tensordict, **kwargs)


def _run(owner: Any, form: Any, tensordict: Any, tensordict_out: Any, kwargs: dict[str, Any], directly: bool) -> Any:
    """Read the inputs, run the module and write the results.

    Args:
        owner: The `TensorDictModule`.
        form: Its form.
        tensordict: The tensordict with the inputs.
        tensordict_out: The tensordict that takes the results, or ``None``.
        kwargs: More keyword arguments for the module.
        directly: Whether to call the ``forward`` of a bare module, see `calls`.
    """
    in_keys, out_keys, arguments, inplace, method, strict, has_get_kwargs, has_method_kwargs, _ = form
    # `owner.module` would first fail as a normal attribute, which takes longer
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
        require_inputs(_called(owner), _absent(owner, values), tensordict)
    if method is not None:
        module = getattr(module, method)
    elif directly and type(module).__call__ is CALL and has_no_hooks(module.__dict__):
        module = module.forward
    if has_method_kwargs:
        kwargs = {**kwargs, **owner._method_kwargs}
    try:
        if arguments is None:
            result = module(*values, **kwargs)
        else:
            result = module(**dict(zip(arguments, values, strict=True)), **kwargs)
    except Exception as error:
        _explain(owner, tensordict, values, error)
        raise
    if tensordict_out is None:
        tensordict_out = _target(tensordict, inplace)
    if ((directly and type(result) is Tensor) or isinstance(result, Tensor)) and len(out_keys) == 1:
        if out_keys[0] != "_":
            # explicit arguments, because Dynamo would guard the defaults of each class that the method may come from
            tensordict_out.set(out_keys[0], result, False, non_blocking=False)
    else:
        _write(owner, tensordict_out, result, out_keys)
    return tensordict_out


def _target(tensordict: Any, inplace: bool | str) -> Any:
    """Return the tensordict that takes the results of a module."""
    return tensordict if inplace is True else TensorDict({}) if inplace is False else tensordict.empty()


def _write(owner: Any, td: Any, result: Any, out_keys: Sequence[Any]) -> None:
    """Write the results of the module."""
    if isinstance(result, dict | TensorCollection) and all(key == "_" or key in result for key in out_keys):
        results: Sequence[Any] = [None if key == "_" else result[key] for key in out_keys]
    elif isinstance(result, tuple) or (isinstance(result, list) and len(result) == len(out_keys) > 1):
        results = result
    else:
        results = (result,)
    if result is None and not out_keys:
        return
    if len(results) != len(out_keys) or result is None:
        raise errors.wrong_count(_called(owner), 0 if result is None else len(results), out_keys)
    for key, value in zip(out_keys, results, strict=True):
        if key != "_":
            td.set(key, from_tuple(value) if type(value) is tuple else value, False)


def _called(owner: Any) -> Any:
    return owner.module if isinstance(owner.module, nn.Module) else owner


def _absent(owner: Any, values: list[Any]) -> Keys:
    return [key for key, value in zip(owner._in_keys, values, strict=True) if value is None]


def _explain(owner: Any, td: Any, values: list[Any], error: Exception) -> None:
    """Raise an error for missing inputs if the module failed because of them; otherwise add a note on the module."""
    absent = _absent(owner, values)
    if "None" in str(error):  # a missing input is passed as None
        require_inputs(_called(owner), absent, td, error)
    missing = f", of which {absent} are missing" if absent else ""
    error.add_note(f"while calling {type(_called(owner)).__name__} with in_keys {owner._in_keys}{missing}")


class TensorDictModuleWrapper(TensorDictModuleBase):
    """Behaves like the module that it wraps, except for the members that a subclass overrides.

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

    _selected: Keys
    """The keys that `select_out_keys` of this module chose, while `_out_keys_source` is set."""

    @property
    def in_keys(self) -> Keys:
        """The keys of the module.

        >>> TensorDictModuleWrapper(TensorDictModule(torch.nn.Linear(3, 4), ["x"], ["y"])).in_keys
        ['x']
        """
        return self.td_module.in_keys

    @in_keys.setter
    def in_keys(self, value: Any) -> None:
        self.td_module.in_keys = value

    @property
    def out_keys(self) -> Keys:
        """The keys of the module, after `select_out_keys`.

        >>> module = TensorDictModule(lambda x: (x, x), in_keys=["x"], out_keys=["y", "z"])
        >>> TensorDictModuleWrapper(module).select_out_keys("z").out_keys, module.out_keys
        (['z'], ['y', 'z'])
        """
        return self.td_module.out_keys if self._out_keys_source is None else self._selected

    @out_keys.setter
    def out_keys(self, value: Any) -> None:
        if self._out_keys_source is None:
            self.td_module.out_keys = value
        else:
            self._selected = as_keys(value)

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.td_module(tensordict, *args, **kwargs)

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
        func: A function that takes a tensordict and returns one.
        inplace: Whether the entries of the result are written into the tensordict, which is returned.
        in_keys: The keys that it reads, for sequences.
        out_keys: The keys that it writes, for sequences.

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

    def forward(self, data: Any) -> Any:
        """Call the function."""
        result = self.func(data)
        return data.update(result) if self.inplace and result is not data else result
