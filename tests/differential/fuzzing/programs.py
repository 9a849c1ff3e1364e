"""Programs run on both libraries: outcomes, their differences, and smaller programs that differ in the same way."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fuzzing import structures
from fuzzing.calls import Program
from fuzzing.outcomes import Difference, Outcome, describe, differences, storages

_DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "float16", "int64", "int32", "bool")}


class _Indexer:
    def __getitem__(self, index: Any) -> Any:
        return index


def _tensor(shape: list[int], dtype: str = "float32", start: int = 0, grad: bool = False) -> torch.Tensor:
    count = int(np.prod(shape)) if shape else 1
    values = (torch.arange(start, start + count) % 7 - 1).reshape(shape)
    kind = _DTYPES[dtype]
    return (values + 0.5).to(kind).requires_grad_(grad) if kind.is_floating_point else values.to(kind)


def _mask(shape: list[int]) -> torch.Tensor:
    return (torch.arange(int(np.prod(shape)) if shape else 1) % 2 == 0).reshape(shape)


def _inplace(x: Any, symbol: str, other: Any) -> Any:
    if symbol == "+=":
        x += other
    elif symbol == "-=":
        x -= other
    elif symbol == "*=":
        x *= other
    elif symbol == "/=":
        x /= other
    else:
        x **= other
    return x


def _delete(x: Any, key: Any) -> Any:
    del x[key]
    return x


def _setitem(x: Any, index: Any, value: Any) -> Any:
    x[index] = value
    return x


def _assign(x: Any, name: str, value: Any) -> Any:
    setattr(x, name, value)
    return x


def _block(x: Any, view: Any) -> Any:
    with view(x) as inner:
        for key in list(inner.keys()):
            value = inner.get(key)
            if isinstance(value, torch.Tensor):
                inner[key] = value + 1
    return x


def namespace(library: Any) -> dict[str, Any]:
    """The names that programs use, of one library."""
    out = {
        name: getattr(library, name)
        for name in [
            "TensorDict",
            "LazyStackedTensorDict",
            "lazy_stack",
            "NonTensorData",
            "NonTensorStack",
            "UnbatchedTensor",
            "TensorDictParams",
            "maybe_dense_stack",
            "dense_stack_tds",
            "pad",
            "pad_sequence",
            "merge_tensordicts",
            "is_tensor_collection",
            "assert_close",
            "default_is_leaf",
            "is_leaf_nontensor",
        ]
        if hasattr(library, name)
    }
    source = {"__annotations__": {"x": "torch.Tensor", "y": "torch.Tensor", "z": "Any"}, "z": None}
    point = type("Point", (), {**source, "__module__": __name__, "__qualname__": "Point"})
    out["Point"] = library.tensorclass(point)
    helpers = {"t": _tensor, "b": _mask, "I": _Indexer(), "inplace": _inplace, "delete": _delete, "block": _block}
    return (
        out
        | helpers
        | {"torch": torch, "np": np, "copy": copy, "pickle": pickle, "setitem": _setitem}
        | {"assign": _assign}
    )


def run(program: Program, names: dict[str, Any]) -> Outcome:
    """The outcome of a program under one library."""
    scope = dict(names)
    # pickle finds the class by its name
    globals()["Point"] = names["Point"]
    lines = program.lines()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        source: dict[int, Any] = {}
        before: dict[str, Any] = {}
        for number, line in enumerate(lines):
            if number == len(lines) - 1:
                before = _variables(scope, program, {})
                for name in ("x", *program.operands):
                    source |= storages(scope.get(name))
            try:
                exec(line, scope)
            except RecursionError as error:
                return Outcome(error, number)
            except Exception as error:
                return Outcome(error.with_traceback(None), number, _variables(scope, program, source), before)
        values = {"is x": scope["result"] is scope["x"], "result": describe(scope["result"], source)}
        return Outcome(None, 0, values | (_variables(scope, program, source) or {}), before)


def _variables(scope: dict[str, Any], program: Program, source: dict[int, Any]) -> dict[str, Any]:
    return {name: describe(scope[name], source) for name in ("x", *program.operands) if name in scope}


def is_of_type(ours: Exception, theirs: Exception) -> bool:
    """Whether an exception is of the type of another, or of all public bases of a private one."""
    expected = [type(theirs)]
    while any(cls.__name__.startswith("_") for cls in expected):
        expected = [base for cls in expected for base in (cls.__bases__ if cls.__name__.startswith("_") else (cls,))]
    names = {cls.__name__ for cls in type(ours).__mro__}
    return all(cls.__name__ in names for cls in expected)


def compare(program: Program, theirs: dict[str, Any], ours: dict[str, Any]) -> list[Difference]:
    """The differences between the outcomes of a program under both libraries."""
    one, other = run(program, theirs), run(program, ours)
    for name in one.before if one.before and other.before else ():
        found = list(differences(one.before[name], other.before[name], name))
        if found:
            # what the call makes of different operands says nothing about the call
            return [replace(difference, place=f"construct.{difference.place}") for difference in found]
    if one.error is not None and other.error is not None:
        if one.line != other.line or not is_of_type(other.error, one.error):
            return [
                Difference(
                    "call",
                    f"{type(one.error).__name__} > {type(other.error).__name__}",
                    message(one.error),
                    message(other.error),
                )
            ]
        return []
    if one.error is not None:
        where = "call" if one.line == len(program.lines()) - 1 else "setup"
        return [Difference(where, f"{type(one.error).__name__} > result", message(one.error), _brief(other))]
    if other.error is not None:
        where = "call" if other.line == len(program.lines()) - 1 else "setup"
        return [Difference(where, f"result > {type(other.error).__name__}", _brief(one), message(other.error))]
    return [d for name in one.values or {} for d in differences(one.values[name], other.values[name], name)]


def message(error: Exception) -> str:
    """The type and the first line of an error, without addresses of objects."""
    line = re.sub(" at 0x[0-9a-f]+", "", str(error).splitlines()[0])[:160] if str(error) else ""
    return f"{type(error).__name__}: {line}"


def _brief(outcome: Outcome) -> str:
    return str((outcome.values or {}).get("result"))[:400]


def _smaller(program: Program) -> Iterator[Program]:
    for path in list(structures.paths(program.x)):
        operands = {name: structures.without(node, path) for name, node in program.operands.items()}
        yield replace(program, x=structures.without(program.x, path), operands=operands)
        yield replace(program, x=structures.without(program.x, path))
    for name, node in program.operands.items():
        for path in list(structures.paths(node)):
            yield replace(program, operands={**program.operands, name: structures.without(node, path)})
    for change in ({"suffix": ""}, {"names": None}, {"device": None}):
        if any(getattr(program.x, key) != value for key, value in change.items()):
            yield replace(program, x=replace(program.x, **change))
    if "@" in program.call.template:
        arguments = program.call.arguments
        junk, needed = {name for name, _ in program.junk}, _needed(program.call.name)
        for i, (name, _) in enumerate(arguments):
            if name is not None and name not in junk | needed:
                yield replace(program, call=replace(program.call, arguments=arguments[:i] + arguments[i + 1 :]))


def _needed(method: str) -> set[str]:
    """The parameters without which a method does nothing that programs are about."""
    function = getattr(libraries()[1].TensorDict, method, None)
    if function is None:
        return set()
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.default is p.empty} | {"input_dict_or_td"}


def shrink(program: Program, theirs: dict[str, Any], ours: dict[str, Any], cluster: Any) -> Program:
    """A smaller program in the same cluster; one without a cluster is returned unchanged."""
    kind = cluster(program, compare(program, theirs, ours))
    smaller = kind is not None
    while smaller:
        smaller = False
        for candidate in _smaller(program):
            try:
                now = cluster(candidate, compare(candidate, theirs, ours))
            except Exception:
                continue
            if now == kind:
                program, smaller = candidate, True
                break
    return program


@functools.cache
def libraries() -> tuple[SimpleNamespace, SimpleNamespace]:
    """The reference, and these packages."""
    import tensordict as reference
    import tensordict.nn
    import tensordict_class
    import tensordict_core
    import tensordict_nn

    def merged(*modules: Any) -> SimpleNamespace:
        return SimpleNamespace(**{name: getattr(module, name) for module in modules for name in dir(module)})

    theirs = merged(reference.utils, reference.nn, reference, reference.base)
    return theirs, merged(tensordict_class, tensordict_nn, tensordict_core)
