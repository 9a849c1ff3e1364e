"""The reference and these packages, side by side: a function of a library runs on both, and results are compared.

A result is compared as plain data (`plain`); where the reference raises an exception, ours is of that type too,
whatever else it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tensordict_class
import tensordict_core
import tensordict_memmap
import tensordict_nn
import tensordict_store

reference = pytest.importorskip("tensordict", reason="the reference is not installed")
if "tensordict_core" in reference.TensorDict.__module__:
    pytest.skip("the suite stands in for the reference", allow_module_level=True)
pytest.importorskip("tensordict.nn", reason="the reference has none here")


def _merged(*modules: Any) -> SimpleNamespace:
    return SimpleNamespace(**{name: getattr(module, name) for module in modules for name in dir(module)})


OURS = _merged(
    tensordict_nn.distributions, tensordict_core, tensordict_memmap, tensordict_class, tensordict_nn, tensordict_store
)
THEIRS = _merged(reference.nn.distributions, reference.utils, reference.nn, reference, reference.base)

Row = Callable[[Any], Any]


def plain(value: Any) -> Any:
    """The value as plain data: of tensors and tensordicts what programs see of them."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return ("nested", [plain(part) for part in value.unbind()])
        return ("tensor", str(value.dtype), list(value.shape), value.tolist(), value.requires_grad)
    if type(value).__name__ in ("NonTensorData", "NonTensorStack"):
        return ("values", list(value.batch_size), value.tolist())
    if hasattr(value, "batch_size") and hasattr(value, "items") and not isinstance(value, type):
        items = {key: plain(entry) for key, entry in value.items()}
        return ("td", list(value.batch_size), str(value.device), list(value.names), value.is_locked, items)
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, type):
        return value.__name__
    return value


def outcome(function: Row, library: Any) -> Any:
    """What a call gives: its result as plain data, or the exception it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            return plain(function(library))
        except Exception as error:
            return error


def catchable(error: Exception) -> type[Exception]:
    """The type that a program names in an ``except`` clause: a private type counts as its first public base."""
    return next(cls for cls in type(error).__mro__ if not cls.__name__.startswith("_"))


def assert_same(function: Row) -> None:
    """A function of a library gives the same on the reference and on these packages."""
    theirs, ours = outcome(function, THEIRS), outcome(function, OURS)
    if isinstance(theirs, Exception):
        assert isinstance(ours, catchable(theirs)), f"the reference raises {theirs!r}, these packages give {ours!r}"
    else:
        assert ours == theirs, f"the reference gives {theirs!r}, these packages {ours!r}"
