"""``contiguous``: only non-contiguous leaves are copied, and no entry is lost."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import TensorDict, lazy_stack


def example():
    return TensorDict({"across": torch.arange(12.0).view(4, 3).T, "n": {"x": torch.zeros(3)}, "s": "text"}, [3])


def test_only_leaves_that_are_not_contiguous_are_copied():
    td = example()
    result = td.contiguous()
    assert result.is_contiguous() and not td.is_contiguous()
    assert result["n", "x"] is td["n", "x"] and result["s"] == "text"
    assert (result == td).all()


def test_canonical_leaves_have_the_strides_of_new_tensors():
    odd = torch.empty_strided((1, 3), (100, 1)).zero_()
    td = TensorDict({"x": odd}, [])
    assert td.contiguous()["x"].stride() == (100, 1)
    assert td.contiguous(canonical=True)["x"].stride() == (3, 1)


def test_contiguous_in_place_replaces_the_leaves():
    td = example()
    assert td.contiguous(inplace=True) is td and td.is_contiguous()
    with pytest.raises(RuntimeError, match="unlock_"):
        example().lock_().contiguous(inplace=True)


def test_lazy_stacks_are_combined():
    stack = lazy_stack([TensorDict({"a": torch.tensor(i)}) for i in range(2)])
    result = stack.contiguous()
    assert type(result) is TensorDict and result["a"].tolist() == [0, 1]
