"""Generated methods: pickling, names, signatures, docstrings and sources."""

from __future__ import annotations

import inspect
import pickle
from types import FunctionType

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_core.extension import operations

METHODS = sorted(name for name in dir(TensorDict) if isinstance(inspect.getattr_static(TensorDict, name), FunctionType))
RECORDED = sorted(op.name for op in operations())


@pytest.mark.parametrize("name", METHODS)
def test_every_method_pickles_by_reference(name):
    method = getattr(TensorDict, name)
    assert pickle.loads(pickle.dumps(method)) is method


@pytest.mark.parametrize("name", ["abs", "add_", "sum", "std", "amax", "float", "isnan", "__eq__", "apply"])
def test_bound_methods_pickle_with_their_tensordict(name):
    td = TensorDict({"a": torch.ones(2)}, [2])
    bound = pickle.loads(pickle.dumps(getattr(td, name)))
    assert bound.__func__ is getattr(TensorDict, name)
    assert bound.__self__["a"].equal(td["a"])


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_operations_have_names_and_docstrings(name):
    method = getattr(TensorDict, name)
    owner = next(cls for cls in reversed(TensorDict.__mro__) if vars(cls).get(name) is method)  # the mixin
    assert method.__name__ == name
    assert method.__qualname__ == f"{owner.__qualname__}.{name}"
    assert method.__module__ == owner.__module__
    assert inspect.getdoc(method)
    parameters = list(inspect.signature(method).parameters)
    assert parameters[0] == "self"
    assert "args" not in parameters and "kwargs" not in parameters


def test_the_source_of_a_generated_method_is_the_algorithm_that_runs():
    source = inspect.getsource(TensorDict.abs)
    assert "self._leaves()" in source and "self._rebuild" in source
    assert inspect.getsourcefile(TensorDict.abs).endswith("factories/methods.py")
    assert "CastFilter" in inspect.getsource(TensorDict.float)
