"""Calls that signatures of the reference accept: each public function and method is bound with its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from side_by_side import OURS, reference

Parameter = inspect.Parameter
POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
SAVES = (
    *("copy_existing", "num_threads", "return_early", "share_non_tensor", "robust_key"),
    *("archive", "compression", "atomic"),
)
NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)

# what ours does not take, and why
EXCEPTIONS = {
    "LazyStackedTensorDict.dumps": {"by name", *SAVES},  # a save needs a path
    "MetaData.dumps": {"by name", *SAVES},
    "save": {"by name", *SAVES},
    # the name of the first argument is that of `TensorDict.lazy_stack`; lists of tensors are padded by other functions
    "LazyStackedTensorDict.lazy_stack": {
        *("by name", "device", "as_list", "as_padded_tensor", "as_nested_tensor"),
        *("padding_side", "layout", "padding_value"),
    },
    "LazyStackedTensorDict.maybe_dense_stack": {"by name"},
    # non-tensor data has the names of tensordicts
    "MetaData.copy_": {"by name"},
    "MetaData.set": {"by name"},
    "TensorAttrs.set": {"by name"},
    "MetaData.set_at_": {"by position", "by name"},
    "NonTensorStack.from_dict": {"stack_dim_name", "stack_dim"},  # those of lazy stacks, which it is not here
    "TensorAttrs.update_": {"by position", "inplace"},  # it is in place
    # an abstract class
    "NonTensorDataBase": {"by position", "by name", "_metadata", "_is_non_tensor", "batch_size", "device", "names"},
    "TensorClassModuleWrapper.forward": {"by position", "args"},  # it takes one tensorclass
    "TensorDictParams.map": {"by position"},  # by name, as those of `TensorDict.map`
    "ProbabilisticTensorDictSequential.forward": {"by position"},  # arguments of its modules
}


def signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def pairs() -> Iterator[tuple[str, Any, Any]]:
    """Yield the functions, classes and methods that both libraries have, each class's own names once."""
    seen: set[Any] = set()
    for module in (reference, reference.nn):
        for name in sorted(set(dir(module))):
            theirs, ours = getattr(module, name, None), getattr(OURS, name, None)
            if name.startswith("_") or ours is None or not callable(theirs):
                continue
            yield name, theirs, ours
            for method in dir(theirs) if inspect.isclass(theirs) else ():
                one = getattr(theirs, method, None)
                if not method.startswith("_") and callable(one) and hasattr(ours, method):
                    key = (
                        getattr(one, "__func__", one),
                        getattr(getattr(ours, method), "__func__", getattr(ours, method)),
                    )
                    if key not in seen:
                        seen.add(key)
                        yield f"{name}.{method}", one, getattr(ours, method)


def calls(theirs: inspect.Signature) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Yield the calls with all positional arguments, and with each argument by its name."""
    parameters = [p for p in theirs.parameters.values() if p.name not in ("self", "cls")]
    positional = [p for p in parameters if p.kind in POSITIONAL]
    required = [p for p in positional if p.default is Parameter.empty]
    asked = {p.name: 0 for p in parameters if p.kind is Parameter.KEYWORD_ONLY and p.default is Parameter.empty}
    yield "by position", [0] * len(positional), asked
    yield "by name", [], asked | {p.name: 0 for p in required}
    for p in parameters:
        if p.kind in NAMED and p not in required:
            yield p.name, [0] * len(required), asked | {p.name: 0}


def refused(theirs: Any, ours: Any) -> list[str]:
    """Return the calls that the signature of the reference accepts and ours does not."""
    one, two = signature(theirs), signature(ours)
    if (
        one is None
        or two is None
        or not any(p.kind in NAMED and p.name not in ("self", "cls") for p in one.parameters.values())
    ):
        return []
    own = [0] * (next(iter(two.parameters), "") in ("self", "cls") and not hasattr(ours, "__self__"))
    out = []
    for label, args, kwargs in calls(one):
        try:
            two.bind(*own, *args, **kwargs)
        except TypeError:
            out.append(label)
    return out


def test_every_call_that_a_signature_of_the_reference_accepts_is_accepted():
    found = {name: set(labels) for name, theirs, ours in pairs() if (labels := refused(theirs, ours))}
    assert found == EXCEPTIONS
