"""Error messages: every sentence that this package says when something is wrong, built in one place.

A message names the rule, the offender and the remedy in one sentence. Builders return exceptions, so call sites read
``raise errors.no_slot(...)`` and tests can name what they expect.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def _list(names: Iterable[Any]) -> str:
    shown = [repr(name) for name in names]
    return "[" + ", ".join(shown[:20]) + (", ..." if len(shown) > 20 else "") + "]"


def _nearest(name: str, names: Iterable[Any]) -> str:
    near = difflib.get_close_matches(name, [str(n) for n in names], n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _where(path: tuple[str, ...]) -> str:
    return ".".join(path) if path else "the root"


def not_a_module(value: Any, what: str) -> TypeError:
    """Something else than a module was given where parameters are taken from one or put into one."""
    return TypeError(f"{what} takes an nn.Module, got {type(value).__name__}; pass the module that has the parameters")


def no_slot(path: tuple[str, ...], module: Any, names: Iterable[str]) -> KeyError:
    """The module has no parameter or buffer for an entry."""
    names = list(names)
    return KeyError(
        f"key {path!r} has no parameter or buffer to go to: {type(module).__name__} at {_where(path[:-1])} has "
        f"{_list(names)}{_nearest(path[-1], names) or '; remove it with exclude()'}"
    )


def no_submodule(path: tuple[str, ...], module: Any, names: Iterable[str]) -> KeyError:
    """The module has no sub-module for a nested tensordict."""
    names = list(names)
    return KeyError(
        f"key {path!r} holds a tensordict, for which {type(module).__name__} at {_where(path[:-1])} has no sub-module; "
        f"it has {_list(names)}{_nearest(path[-1], names) or '; remove it with exclude()'}"
    )


def not_a_leaf(path: tuple[str, ...], value: Any) -> TypeError:
    """A non-tensor entry was to become a parameter."""
    return TypeError(
        f"key {path!r} holds non-tensor data ({type(value).__name__}), which is no parameter and no buffer; remove it "
        "with exclude(), or pass use_state_dict=True if it is an extra state"
    )


def memo_given() -> RuntimeError:
    """An argument that says nothing."""
    return RuntimeError("to_module takes no memo: shared modules are found without one; leave it out")


def exclusive(first: str, second: str, where: str) -> RuntimeError:
    """Two options contradict each other."""
    return RuntimeError(f"{where} takes {first} or {second}, not both; leave one out")


def no_modules() -> RuntimeError:
    """Nothing was given to stack."""
    return RuntimeError(
        "from_modules stacks the parameters of at least one module, got none; pass the modules one by one"
    )


def uninitialized(path: tuple[str, ...]) -> RuntimeError:
    """Lazy parameters have no shape to stack."""
    return RuntimeError(
        f"key {path!r} is a parameter without shape yet and cannot be stacked; run each lazy module once before"
    )


def unlike(path: tuple[str, ...]) -> RuntimeError:
    """A stack has one dtype, and is trained as a whole."""
    return RuntimeError(
        f"key {path!r} has parameters of different dtypes or requires_grad, and a stack has one; make them alike, or "
        "pass lazy_stack=True to keep them apart"
    )


def unknown_state(names: Iterable[str], module: Any) -> KeyError:
    """A state dict has keys that the module does not know."""
    return KeyError(
        f"{type(module).__name__} has no entries {_list(names)} in its state dict; remove them with exclude()"
    )


def other_shape(path: tuple[str, ...], got: Iterable[int], expected: Iterable[int]) -> RuntimeError:
    """A value does not fit the parameter it is written into."""
    return RuntimeError(
        f"key {path!r} has shape {list(got)} and cannot be written into the parameter of shape {list(expected)} that "
        "is there; leave inplace=True out to put it in its place"
    )


def nothing_there(path: tuple[str, ...]) -> RuntimeError:
    """A value has no parameter that it could be written into."""
    return RuntimeError(
        f"key {path!r} cannot be written into a parameter that is None; leave inplace=True out to put it in its place"
    )


def without_values(path: tuple[str, ...]) -> RuntimeError:
    """A tensor on the meta device cannot be written anywhere."""
    return RuntimeError(
        f"key {path!r} is on the meta device, so it has no values to write into a parameter; leave inplace=True out to "
        "put it in its place"
    )


def no_mode() -> RuntimeError:
    """A block has to say what it sets."""
    return RuntimeError("a set_skip_existing block takes True, False or keys as mode, got None; None is for decorators")


def skipping_compiled() -> RuntimeError:
    """A compiled graph cannot depend on what a tensordict holds."""
    return RuntimeError(
        "set_skip_existing cannot be entered while torch.compile traces; enter it around the compiled call"
    )


def not_dispatchable(function: Any, names: list[str]) -> RuntimeError:
    """The first argument of a dispatched function is the tensordict."""
    return RuntimeError(
        "dispatch takes functions whose first argument (after self) is named 'tensordict', got "
        f"{function.__qualname__} with {_list(names)}; rename the argument"
    )


def too_many_arguments(module: Any, count: int, keys: Iterable[Any]) -> ValueError:
    """More positional arguments than input keys."""
    return ValueError(
        f"{type(module).__name__} takes one positional argument for each of its in_keys {_list(keys)}, got {count}; "
        "pass others by name"
    )


def given_twice(name: str) -> RuntimeError:
    """One input, two values."""
    return RuntimeError(f"the input {name!r} is given by position and by name; give it once")


def missing_inputs(module: Any, absent: Iterable[Any], keys: Iterable[Any]) -> KeyError:
    """Inputs of a module are not in the tensordict."""
    absent, keys = list(absent), list(keys)
    name = absent[0] if isinstance(absent[0], str) else absent[0][-1]
    return KeyError(
        f"{type(module).__name__} needs the keys {_list(absent)}, which are not in the tensordict with keys "
        f"{_list(keys)}{_nearest(name, keys) or '; set them before the call'}"
    )


def wrong_count(module: Any, count: int, out_keys: Iterable[Any]) -> RuntimeError:
    """A module returned more or fewer values than it has output keys."""
    out_keys = list(out_keys)
    return RuntimeError(
        f"{type(module).__name__} returned {count} values for the {len(out_keys)} out_keys {_list(out_keys)}; give one "
        "key for each ('_' drops a value)"
    )


def not_callable(module: Any) -> ValueError:
    """A module is what can be called."""
    return ValueError(
        f"a TensorDictModule wraps a callable, got {type(module).__name__}; pass method= to call another method than "
        "forward"
    )


def bad_inplace(value: Any, allowed: str) -> ValueError:
    """The policy is unknown."""
    return ValueError(f"inplace is {allowed}, got {value!r}; see the documentation of the class for what each means")


def unknown_out_keys(module: Any, absent: Iterable[Any], out_keys: Iterable[Any]) -> ValueError:
    """Keys were selected that the module does not write."""
    return ValueError(
        f"select_out_keys takes keys among the out_keys {_list(out_keys)} of {type(module).__name__}, got "
        f"{_list(absent)}; select others"
    )


def empty_selection(in_keys: Any, out_keys: Any) -> ValueError:
    """No module of a sequence is left."""
    return ValueError(
        f"no module runs from in_keys {in_keys} and leads to out_keys {out_keys}; give keys that the sequence reads "
        "and writes"
    )


def no_such_module(name: Any, names: Iterable[Any]) -> KeyError:
    """A sequence has no module of that name."""
    return KeyError(f"there is no module {name!r} in the sequence of {_list(names)}; index it by position or by name")


def batched_parameters(batch_size: Iterable[int]) -> RuntimeError:
    """Parameters of one module have no batch dimension."""
    return RuntimeError(
        f"reset_parameters_recursive takes the parameters of one module, got batch size {list(batch_size)}; unbind "
        "them first"
    )


def no_types(cls: Any) -> ValueError:
    """A tensorclass module was made without its types."""
    return ValueError(
        f"{cls.__name__} has no input and output type; subclass TensorClassModuleBase[Input, Output] with two "
        "tensorclasses"
    )


def not_traceable(module: Any) -> TypeError:
    """A module's own forward can do anything with the tensordict."""
    return TypeError(
        f"symbolic_trace follows TensorDictModule and TensorDictSequential, got {type(module).__name__}, whose forward "
        "is its own; wrap what it computes in a TensorDictModule"
    )


def missing_argument(module: Any, name: str) -> TypeError:
    """A traced module takes an argument that no key feeds."""
    return TypeError(
        f"the argument {name!r} has no key among the in_keys {_list(module.in_keys)} of the module; add one, or give "
        "it a default"
    )


def not_parameters(key: str, value: Any) -> TypeError:
    """A container whose entries no module can register."""
    return TypeError(
        f"key {key!r} holds a {type(value).__name__}, whose entries cannot be parameters of a module; convert it with "
        "to_tensordict() first"
    )


def uncommon_keys(keys: Iterable[str]) -> RuntimeError:
    """The elements of a lazy stack do not have the same keys."""
    return RuntimeError(
        f"the keys {_list(keys)} are in some elements of a lazy stack only, so they are no entries of parameters; make "
        "parameters of each element of its tensordicts"
    )


def same_name(name: str) -> KeyError:
    """Two entries have one name in a state dict."""
    return KeyError(
        f"two entries have the name {name!r} in a state dict, where dots join the levels of keys; rename one"
    )


def parameters_called() -> TypeError:
    """Parameters are no function."""
    return TypeError("TensorDictParams cannot be called; put them into a module with params.to_module(module)")


def unknown_mapping(key: str, names: Iterable[str]) -> NotImplementedError:
    """No mapping has that name."""
    return NotImplementedError(
        f"there is no mapping {key!r}; take one of {_list(names)} or add it with add_custom_mapping"
    )


def bad_mapping(key: str) -> ValueError:
    """The numbers of a biased softplus are none."""
    return ValueError(
        f"the mapping {key!r} is no biased_softplus_{{bias}} or biased_softplus_{{bias}}_{{min_val}}; give numbers"
    )


def empty_interval() -> ValueError:
    """Nothing lies between the bounds."""
    return ValueError("a truncated normal needs a < b everywhere; exchange the bounds")


def no_such_value(dist: Any, name: str) -> NotImplementedError:
    """A distribution lacks a property."""
    return NotImplementedError(
        f"{type(dist).__name__} has no {name}; take another interaction type, or give the class a property of that name"
    )


def missing_component(name: Any, keys: Iterable[Any]) -> KeyError:
    """The parameters of a component are not there."""
    return KeyError(
        f"the component {name!r} has no entry in the parameters with keys {_list(keys)}; add its parameters"
    )


def no_component(key: Any, keys: Iterable[Any]) -> KeyError:
    """A composite has no component for an output key."""
    return KeyError(f"the out_key {key!r} is none of the components {_list(keys)} of the distribution; rename it")


def no_sum_key(keys: Iterable[Any]) -> RuntimeError:
    """Several log-probabilities have no single key."""
    return RuntimeError(
        f"the log-probabilities of several values have several keys, {_list(keys)}; take log_prob_keys, or sum them "
        "with set_composite_lp_aggregate(True)"
    )


def one_sum_key() -> RuntimeError:
    """One log-probability has no several keys."""
    return RuntimeError(
        "with composite_lp_aggregate there is one log-probability; pass log_prob_key and not log_prob_keys"
    )


def key_taken(key: Any) -> ValueError:
    """A log-probability would overwrite its sample."""
    return ValueError(f"the key {key!r} is that of a value and cannot be that of a log-probability; give another one")


def not_probabilistic(module: Any) -> TypeError:
    """The last module of a sequence gives no distribution."""
    return TypeError(
        f"the last module of a probabilistic sequence without composite is probabilistic, got {type(module).__name__}; "
        "pass return_composite=True"
    )


def no_distribution(module: Any) -> TypeError:
    """No module of a sequence gives a distribution."""
    return TypeError(f"{type(module).__name__} has no probabilistic module; add a ProbabilisticTensorDictModule")


def bad_parameters(dist: Any, keys: Iterable[Any]) -> str:
    """A note: which entries a distribution was made of."""
    name = getattr(dist, "__name__", type(dist).__name__)
    return f"while making a {name} of the keys {_list(keys)}"


def bad_warmup(warmup: Any) -> ValueError:
    """The call that records is counted from one."""
    return ValueError(f"warmup is the number of the call that records, from 1, got {warmup!r}; pass 2 or more")


def graph_input_requires_grad() -> RuntimeError:
    """Gradients do not reach through a graph."""
    return RuntimeError(
        "inputs of a CudaGraphModule do not require gradients, and one does; detach it, or read it from outside of "
        "the function if it is a parameter"
    )


def graph_output_requires_grad() -> RuntimeError:
    """Gradients do not reach through a graph."""
    return RuntimeError(
        "results of a CudaGraphModule do not require gradients, and one does; call it under torch.no_grad(), or do "
        "the backward pass inside the function and return loss.detach()"
    )


def graph_input_changed(name: str, got: str, expected: str) -> ValueError:
    """A graph has fixed memory."""
    return ValueError(
        f"the input {name} of a CudaGraphModule {got}, but {expected} when the graph was recorded, and that is fixed; "
        "make one CudaGraphModule for each form of its inputs"
    )


def graph_structure_changed(got: Any, expected: Any) -> ValueError:
    """A graph has fixed inputs."""
    return ValueError(
        f"the inputs of a CudaGraphModule have the structure {got}, but it was {expected} when the graph was recorded, "
        "and that is fixed; make one CudaGraphModule for each form of its inputs"
    )


def packed_state(module: Any, names: Iterable[str]) -> str:
    """A warning: a module has state that is neither a parameter nor a buffer."""
    return (
        f"{type(module).__name__} keeps {_list(names)} neither as parameters nor as buffers, so from_module leaves "
        "them out; pass use_state_dict=True to have them"
    )
