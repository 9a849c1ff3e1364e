"""Reductions over several dimensions: what torch gives for each tensor, its reduced dimensions joined at the end."""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch

from fuzzing.calls import Program
from fuzzing.oracles.equivalents import bound
from fuzzing.outcomes import Difference
from fuzzing.predicates import spaces

REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "amax": torch.amax,
    "amin": torch.amin,
    "max": torch.amax,
    "min": torch.amin,
    "prod": torch.prod,
    "sum": torch.sum,
    "nansum": torch.nansum,
    "quantile": lambda data, dim, q, **options: torch.quantile(data, q, dim, **options),
}


NOT_REDUCED = ("None", "False", "()")
"""Sources of ``reduce`` for a result of the same keys."""


def reduces_each_tensor(program: Program, difference: Difference) -> bool:
    """Whether ours reduces each tensor over the dims of a tuple as torch does, and drops these from the batch size."""
    del difference  # all of the result is looked at
    given, reduce = bound(program), REDUCTIONS.get(program.call.name)
    dims, keeps = given.pop("dim", ""), given.pop("keepdim", "False") == "True"
    if reduce is None or not dims.startswith("(") or given.pop("reduce", "None") not in NOT_REDUCED:
        return False
    given.pop("return_indices", None)
    space = dict(spaces()[1])
    for name, node in {"x": program.x, **program.operands}.items():
        space[name] = eval(str(node), space)
    x, options = space["x"], {name: eval(source, space) for name, source in given.items()}
    try:
        result = eval(str(program.call), space)
    except Exception:  # an error is not explained by values
        return False
    reduced = {dim % max(x.batch_dims, 1) for dim in ast.literal_eval(dims)}
    kept = [dim for dim in range(x.batch_dims) if dim not in reduced]
    size = [1 if dim in reduced else x.batch_size[dim] for dim in range(x.batch_dims) if keeps or dim in kept]
    if list(result.batch_size) != size or (not keeps and result.names != [x.names[dim] for dim in kept]):
        return False
    for key in x.keys(True, True):
        data = _tensor(x, key)
        if data is None:
            continue
        rest = range(x.batch_dims, data.ndim)
        rows = [data.shape[dim] for dim in (*kept, *rest)]
        joined = data.permute(*kept, *rest, *sorted(reduced)).reshape(
            [*rows, math.prod(data.shape[dim] for dim in reduced)]
        )
        try:
            expected = reduce(joined, -1, **options).reshape([*size, *data.shape[x.batch_dims :]])
        except TypeError:  # torch has no such option
            return False
        made = result.get(key)
        if made.dtype != expected.dtype or made.shape != expected.shape:
            return False
        if not torch.allclose(made.double(), expected.double(), equal_nan=True):
            return False
    return True


def _tensor(x: Any, key: Any) -> torch.Tensor | None:
    """The plain tensor under a key; ``None`` for an entry of another type, or that elements of a stack lack."""
    with contextlib.suppress(KeyError, RuntimeError):
        value = x.get(key)
        return value.detach() if type(value) in (torch.Tensor, torch.nn.Parameter) else None
    return None
