"""Errors: the messages of this package; each names the offender, the rule and the remedy.

The functions return exceptions, so that call sites read ``raise errors.no_slot(...)``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pickle import PicklingError
from typing import Any

from torch import Tensor

from tensordict_nn.error_types import (
    ExclusiveError,
    InvalidKeysError,
    KeysDifferError,
    MissingInputsError,
    NoSlotError,
    NoSuchModuleError,
    NotAModuleError,
    NotAParameterError,
    NotCallableError,
    NotParametersError,
    TooManyArgumentsError,
    UnknownOutKeysError,
    WrongCountError,
)


def listed(names: Iterable[Any]) -> str:
    """Return names as a list, the first twenty of them.

    >>> listed(["a", ("b", "c")])
    "['a', ('b', 'c')]"
    """
    shown = [repr(name) for name in names]
    return "[" + ", ".join(shown[:20]) + (", ..." if len(shown) > 20 else "") + "]"


def _nearest(name: str, names: Iterable[Any]) -> str:
    near = difflib.get_close_matches(name, [str(n) for n in names], n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _where(path: tuple[str, ...]) -> str:
    return ".".join(path) if path else "the root"


def not_a_module(value: Any, what: str) -> NotParametersError:
    """Report that a value that is not a module was given to a function on the parameters of modules."""
    return NotParametersError(
        f"{type(value).__name__} is not an nn.Module, which {what} takes; pass the module that has the parameters"
    )


def no_slot(path: tuple[str, ...], module: Any, names: Iterable[str]) -> NoSlotError:
    """Report that a module has no parameter or buffer for an entry."""
    names = list(names)
    return NoSlotError(
        f"key {path!r} has no parameter or buffer to go to: {type(module).__name__} at {_where(path[:-1])} has "
        f"{listed(names)}{_nearest(path[-1], names) or '; remove it with exclude()'}"
    )


def no_submodule(path: tuple[str, ...], module: Any, names: Iterable[str]) -> NoSlotError:
    """Report that a module has no sub-module for a nested tensordict."""
    names = list(names)
    return NoSlotError(
        f"key {path!r} holds a tensordict, for which {type(module).__name__} at {_where(path[:-1])} has no sub-module; "
        f"it has {listed(names)}{_nearest(path[-1], names) or '; remove it with exclude()'}"
    )


def not_a_leaf(path: tuple[str, ...], value: Any) -> NotAParameterError:
    """Report that a non-tensor entry cannot become a parameter."""
    return NotAParameterError(
        f"key {path!r} holds non-tensor data ({type(value).__name__}), which is neither a parameter nor a buffer; "
        "remove it with exclude(), or pass use_state_dict=True if it is an extra state"
    )


def memo_given() -> RuntimeError:
    """Report that the argument ``memo`` has no use."""
    return RuntimeError("memo was given to to_module, which finds shared modules without one; leave it out")


def no_module_state() -> TypeError:
    """Report that an argument, which once had ``None`` as its default, is ``None``."""
    return TypeError(
        "preserve_module_state=None is neither True, which makes parameters of plain tensors that replace them, nor "
        "False, which keeps plain tensors; pass one of them"
    )


def not_a_source(value: Any) -> NotParametersError:
    """Report that the source of parameters has no entries."""
    return NotParametersError(
        f"{type(value).__name__} has no entries, and TensorDictParams takes a tensordict or a dictionary; for the "
        "parameters of a module, use from_module(module, as_module=True)"
    )


def keys_differ(error: KeyError) -> KeysDifferError:
    """Report that modules do not have the same parameters."""
    return KeysDifferError(f"the modules do not have the same parameters and cannot be stacked: {error.args[0]}")


def exclusive(first: str, second: str, where: str) -> ExclusiveError:
    """Report that two arguments exclude each other."""
    return ExclusiveError(f"{first} and {second} exclude each other in {where}; leave one out")


def no_modules() -> RuntimeError:
    """Report that there are no modules to stack."""
    return RuntimeError(
        "no modules were given to from_modules, which stacks the parameters of at least one; pass them one by one"
    )


def uninitialized(path: tuple[str, ...]) -> RuntimeError:
    """Report that a lazy parameter has no shape yet and cannot be stacked."""
    return RuntimeError(
        f"key {path!r} is a parameter without shape yet and cannot be stacked; run each lazy module once first"
    )


def unlike(path: tuple[str, ...]) -> RuntimeError:
    """Report that parameters to stack differ in dtype or ``requires_grad``."""
    return RuntimeError(
        f"key {path!r} has parameters of different dtypes or requires_grad, and a stack has one; make them equal, or "
        "pass lazy_stack=True to keep them apart"
    )


def unknown_state(names: Iterable[str], module: Any) -> KeyError:
    """Report that a state dict has keys that the module does not have."""
    return KeyError(
        f"the entries {listed(names)} are not in the state dict of {type(module).__name__}; remove them with exclude()"
    )


def other_shape(path: tuple[str, ...], got: Iterable[int], expected: Iterable[int]) -> RuntimeError:
    """Report that a value has another shape than the parameter that it is written into."""
    return RuntimeError(
        f"key {path!r} has shape {list(got)} and cannot be written into the parameter of shape {list(expected)}; "
        "leave inplace=True out to replace the parameter"
    )


def nothing_there(path: tuple[str, ...]) -> RuntimeError:
    """Report that a value cannot be written into a parameter that is None."""
    return RuntimeError(
        f"key {path!r} cannot be written into a parameter that is None; leave inplace=True out to replace it"
    )


def without_values(path: tuple[str, ...]) -> RuntimeError:
    """Report that a tensor on the meta device has no values to write."""
    return RuntimeError(
        f"key {path!r} is on the meta device and has no values to write into a parameter; leave inplace=True out to "
        "replace the parameter"
    )


def no_mode() -> RuntimeError:
    """Report that a ``set_skip_existing`` block was entered without a mode."""
    return RuntimeError(
        "It seems you are using set_skip_existing as a context manager with mode=None; None is for decorators, pass "
        "True, False or keys"
    )


def skipping_compiled() -> RuntimeError:
    """Report that a compiled graph cannot depend on the keys of a tensordict."""
    return RuntimeError(
        "set_skip_existing cannot be entered while torch.compile traces; enter it around the compiled call"
    )


def not_dispatchable(function: Any, names: list[str], decorator: str = "dispatch") -> RuntimeError:
    """Report that the first argument of a decorated function is not the tensordict."""
    return RuntimeError(
        f"the first argument of the wrapped function must be named 'tensordict', after self: {decorator} got "
        f"{function.__qualname__} with the arguments {listed(names)}; rename it"
    )


def too_many_arguments(module: Any, count: int, keys: Iterable[Any]) -> TooManyArgumentsError:
    """Report that there are more positional arguments than input keys."""
    return TooManyArgumentsError(
        f"Got a non-empty list of extra arguments: {type(module).__name__} got {count} positional arguments and takes "
        "one positional argument for each of its "
        f"in_keys {listed(keys)}; pass others by name"
    )


def given_twice(name: str) -> RuntimeError:
    """Report that an input is given twice."""
    return RuntimeError(
        f"Duplicated argument in args and kwargs: the input {name!r} is given by position and by name; give it once"
    )


def missing_inputs(module: Any, absent: Iterable[Any], keys: Iterable[Any]) -> MissingInputsError:
    """Report that inputs of a module are missing in the tensordict."""
    absent, keys = list(absent), list(keys)
    name = absent[0] if isinstance(absent[0], str) else absent[0][-1]
    shown = f'"{name}"' if name == absent[0] else absent[0]
    return MissingInputsError(
        f"Some tensors that are necessary for the module call are missing: {type(module).__name__} needs the keys "
        f"{listed(absent)}, and key {shown} not found in TensorDict with keys {listed(keys)}"
        f"{_nearest(name, keys) or '; set them before the call'}"
    )


def wrong_count(module: Any, count: int, out_keys: Iterable[Any]) -> WrongCountError:
    """Report that a module returned more or fewer values than it has output keys."""
    out_keys = list(out_keys)
    return WrongCountError(
        f"There are more {'tensors than out_keys' if count > len(out_keys) else 'out_keys than tensors'}: "
        f"{type(module).__name__} returned {count} values for the {len(out_keys)} out_keys {listed(out_keys)}; give "
        "one key for each ('_' drops a value)"
    )


def not_callable(module: Any) -> NotAModuleError:
    """Report that a module is not callable."""
    return NotAModuleError(
        f"Module {str(module)[:200]} of type {type(module).__name__} is not callable, and a TensorDictModule wraps a "
        "callable; pass method= to call another method than forward"
    )


def bad_inplace(value: Any, allowed: str) -> ValueError:
    """Report that the value of ``inplace`` is unknown."""
    return ValueError(f"inplace={value!r} is not one of {allowed}; the documentation of the class describes each")


def unknown_out_keys(module: Any, absent: Iterable[Any], out_keys: Iterable[Any]) -> UnknownOutKeysError:
    """Report that the module does not write a selected key."""
    return UnknownOutKeysError(
        f"Can't select non existent keys {listed(absent)}: All keys in selected_out_keys must be in out_keys "
        f"{listed(out_keys)} of {type(module).__name__}; select others, or call reset_out_keys() before a new selection"
    )


def empty_selection(in_keys: Any, out_keys: Any) -> ValueError:
    """Report that a selection of keys leaves no module of a sequence."""
    return ValueError(
        f"No modules left after selection: no module runs from in_keys {in_keys} and leads to out_keys "
        f"{out_keys}; give keys that the sequence reads "
        "and writes"
    )


def bad_keys(name: str, keys: Any) -> InvalidKeysError:
    """Report that the argument does not hold keys."""
    return InvalidKeysError(
        f"{name} must be of type str, tuple or list, and {name}={keys!r} are not keys; pass a string, a tuple of "
        "strings for a nested key, or a list of keys"
    )


def needs_cloudpickle(function: Any) -> PicklingError:
    """Report that a function can only be pickled by a package that is not installed."""
    return PicklingError(
        f"{function.__qualname__} is a lambda or a local function, which pickle refuses; install cloudpickle "
        '(pip install "tensordict-nn[pickle]"), or define the function at the top level of a module'
    )


def sequence_arguments(module: Any, kwargs: Iterable[str]) -> RuntimeError:
    """Report that a sequence was called with arguments that are not inputs."""
    return RuntimeError(
        f"{type(module).__name__} does not support keyword arguments other than 'tensordict_out' or in_keys: "
        f"{listed(module.in_keys)}, and got {listed(kwargs)}; store them in the modules, or in the tensordict"
    )


def modules_have_names(module: Any) -> TypeError:
    """Report that a module without a name is inserted into a sequence of named modules."""
    return TypeError(f"the modules of {type(module).__name__} have names; assign with sequence[name] = module")


def no_such_module(name: Any, names: Iterable[Any]) -> NoSuchModuleError:
    """Report that a sequence has no module of that name."""
    return NoSuchModuleError(f"no module {name!r} in the sequence of {listed(names)}; index it by position or by name")


def batched_parameters(batch_size: Iterable[int]) -> RuntimeError:
    """Report that the parameters of a module have batch dimensions."""
    return RuntimeError(
        "reset_parameters_recursive does not support batched TensorDicts: the parameters have batch size "
        f"{list(batch_size)}; unbind them first"
    )


def no_types(cls: Any) -> ValueError:
    """Report that a tensorclass module has no input and output type."""
    return ValueError(
        f"{cls.__name__} has no input and output type; subclass TensorClassModuleBase[Input, Output] with two "
        "tensorclasses"
    )


def not_traceable(module: Any) -> TypeError:
    """Report that a module with its own ``forward`` cannot be traced."""
    return TypeError(
        f"{type(module).__name__} cannot be traced: symbolic_trace takes TensorDictModule and TensorDictSequential, "
        "and not modules with a forward of their own; wrap the computation in a TensorDictModule"
    )


def missing_argument(module: Any, name: str) -> TypeError:
    """Report that a traced module has an argument without a key."""
    return TypeError(
        f"the argument {name!r} has no key among the in_keys {listed(module.in_keys)} of the module; add one, or give "
        "it a default"
    )


def not_parameters(key: str, value: Any) -> TypeError:
    """Report that a module cannot register the entries of a container."""
    return TypeError(
        f"key {key!r} holds a {type(value).__name__}, whose entries cannot be parameters of a module; convert it with "
        "to_tensordict() first"
    )


def uncommon_keys(keys: Iterable[str]) -> RuntimeError:
    """Report that the elements of a lazy stack do not have the same keys."""
    return RuntimeError(
        f"the keys {listed(keys)} are in some elements of a lazy stack only, and parameters need them in all; make "
        "parameters of each of its tensordicts"
    )


def same_name(name: str) -> KeyError:
    """Report that two entries have the same name in a state dict."""
    return KeyError(
        f"two entries have the name {name!r} in a state dict, where dots join the levels of keys; rename one"
    )


def state_mismatch(name: str, got: Any, expected: Sequence[int]) -> str:
    """Return the message of an entry of a state dict that is no tensor, or has another shape."""
    found = f"shape {list(got.shape)}" if isinstance(got, Tensor) else f"a value of type {type(got).__name__}"
    return (
        f"size mismatch for {name}: the state dict has {found}, the parameters have shape {list(expected)}; load a "
        "state dict of parameters of the same shapes"
    )


def cannot_require_grad(keys: Iterable[Any]) -> RuntimeError:
    """Report that an entry is an integer or a bool, which takes no gradients."""
    return RuntimeError(
        f"the entries {listed(keys)} are not floating-point tensors and cannot require gradients; call "
        "requires_grad_() of the module that holds the parameters, which leaves buffers out"
    )


def not_in_place(method: str) -> RuntimeError:
    """Report that parameters cannot be replaced by mapped tensors."""
    return RuntimeError(
        f"{method} would replace parameters by mapped tensors, which are not trained; use memmap() or memmap_like(), "
        "which return a mapped tensordict"
    )


def parameters_called() -> NotCallableError:
    """Report that parameters are called."""
    return NotCallableError("TensorDictParams cannot be called; put them into a module with params.to_module(module)")


def bad_warmup(warmup: Any) -> ValueError:
    """Report that the number of the call that records is not a positive integer."""
    return ValueError(f"warmup={warmup!r} is not the number of the call that records, counted from 1; pass 2 or more")


def graph_input_requires_grad() -> RuntimeError:
    """Report that an input of a graph requires gradients."""
    return RuntimeError(
        "an input of a CudaGraphModule requires gradients, which do not flow through a graph; detach it, or read it "
        "from outside of the function if it is a parameter"
    )


def graph_output_requires_grad() -> RuntimeError:
    """Report that a result of a graph requires gradients."""
    return RuntimeError(
        "a result of a CudaGraphModule requires gradients, which do not flow through a graph; call it under "
        "torch.no_grad(), or run the backward pass inside the function and return loss.detach()"
    )


def graph_input_changed(name: str, got: str, expected: str) -> ValueError:
    """Report that an input differs from that of the recording in shape, dtype, device or value."""
    return ValueError(
        f"the input {name} of a CudaGraphModule {got}, but {expected} when the graph was recorded, and that is fixed; "
        "make one CudaGraphModule for each form of its inputs"
    )


def graph_structure_changed(got: Any, expected: Any) -> ValueError:
    """Report that the structure of the inputs differs from that of the recording."""
    return ValueError(
        f"the inputs of a CudaGraphModule have the structure {got}, but it was {expected} when the graph was recorded, "
        "and that is fixed; make one CudaGraphModule for each form of its inputs"
    )


def packed_state(module: Any, names: Iterable[str]) -> str:
    """Return the warning for a module with state that is neither a parameter nor a buffer."""
    return (
        f"{type(module).__name__} keeps {listed(names)} neither as parameters nor as buffers, so from_module leaves "
        "them out; pass use_state_dict=True to include them"
    )
