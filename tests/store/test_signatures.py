"""Methods that core declares for this package have the parameters and the defaults of its functions."""

from __future__ import annotations

import inspect

import pytest

import tensordict_store
from tensordict_core import TensorDict
from tensordict_core.ops.compat.stores import StoreStubs
from tensordict_core.ops.compat.tables import TableStubs

METHODS = [name for stubs in (StoreStubs, TableStubs) for name in vars(stubs) if name.startswith(("to_", "from_"))]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_parameters_and_defaults_of_its_function(name: str) -> None:
    method = inspect.signature(getattr(TensorDict, name))
    function = inspect.signature(
        # which takes the options of the store that it makes
        tensordict_store.TensorDictStore if name == "to_store" else getattr(tensordict_store, name)
    )
    shown = {p.name: p.default for p in method.parameters.values() if p.kind is p.KEYWORD_ONLY}
    taken = {p.name: p.default for p in function.parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert shown.items() <= taken.items()
    positional = [sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in s.parameters.values()) for s in (method, function)]
    assert positional[0] == positional[1] or name == "to_store"


def test_the_source_of_a_method_may_be_given_by_name(tmp_path) -> None:
    TensorDict({"a": [1, 2]}, [2]).to_csv(path=tmp_path / "a.csv")
    assert TensorDict.from_csv(path=tmp_path / "a.csv")["a"].tolist() == [1, 2]
    TensorDict({"a": [1, 2]}, [2]).to_h5(filename=tmp_path / "a.h5")
    assert TensorDict.from_h5(filename=tmp_path / "a.h5")["a"].tolist() == [1, 2]
