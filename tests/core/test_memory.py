"""What tensordicts take beside their tensors, and which operations share the memory of their leaves."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tensordict_core import LazyStackedTensorDict, TensorDict, lazy_stack

VIEWS: dict[str, Callable[[Any], Any]] = {
    "an integer": lambda x: x[1],
    "a slice": lambda x: x[1:],
    "a step": lambda x: x[::2],
    "a slice behind": lambda x: x[:, 1:],
    "an integer behind": lambda x: x[:, 0],
    "None": lambda x: x[None],
    "an ellipsis": lambda x: x[..., 0] if isinstance(x, TensorDict | LazyStackedTensorDict) else x[:, 0],
    "view": lambda x: x.view(6, *x.shape[2:]) if isinstance(x, Tensor) else x.view(6),
    "reshape": lambda x: x.reshape(6, *x.shape[2:]) if isinstance(x, Tensor) else x.reshape(6),
    "flatten": lambda x: x.flatten(0, 1),
    "unflatten": lambda x: x.unflatten(1, (1, 2)),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "transpose": lambda x: x.transpose(0, 1),
    "expand": lambda x: x.unsqueeze(0).expand(4, *x.shape[:2], *(x.shape[2:] if isinstance(x, Tensor) else ())),
    "unbind": lambda x: x.unbind(0)[2],
    "unbind behind": lambda x: x.unbind(1)[1],
    "split": lambda x: x.split(2)[1],
    "chunk": lambda x: x.chunk(3)[2],
    "narrow": lambda x: x.narrow(0, 1, 2),
    "tensor_split": lambda x: x.tensor_split(2)[1],
}


def _dense() -> TensorDict:
    return TensorDict({"a": torch.arange(6.0).view(3, 2), "b": {"c": torch.zeros(3, 2, 4)}}, [3, 2])


def _of_permuted_leaves() -> TensorDict:
    return TensorDict({"a": torch.zeros(2, 3).T, "b": {"c": torch.zeros(3, 4, 2).permute(0, 2, 1)}}, [3, 2])


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_a_tensordict_shares_what_a_view_of_each_leaf_shares(name: str) -> None:
    td, view = _dense(), VIEWS[name]
    result = view(td)
    for key in (("a",), ("b", "c")):
        expected, got = view(td[key]), result[key]
        assert got.data_ptr() == expected.data_ptr()
        assert got.stride() == expected.stride()
        assert got.shape == expected.shape


@pytest.mark.parametrize("name", ["a slice", "an integer behind", "None", "unsqueeze", "unbind", "split", "expand"])
def test_leaves_in_any_memory_order_are_shared(name: str) -> None:
    td, view = _of_permuted_leaves(), VIEWS[name]
    for key in (("a",), ("b", "c")):
        assert view(td)[key].data_ptr() == view(td[key]).data_ptr()
        assert view(td)[key].stride() == view(td[key]).stride()


def test_one_position_is_viewed_without_batch_dimensions() -> None:
    td = TensorDict({"a": torch.ones(1), "b": torch.ones(1, 2)}, [1])
    assert td.view([]).batch_size == torch.Size([]) and td.view([])["a"].data_ptr() == td["a"].data_ptr()


def test_reshape_copies_a_leaf_where_torch_does_and_no_other() -> None:
    td = TensorDict({"view": torch.zeros(3, 2), "copy": torch.zeros(2, 3).T}, [3, 2])
    flat = td.reshape(6)
    assert flat["view"].data_ptr() == td["view"].data_ptr()
    assert flat["copy"].data_ptr() != td["copy"].data_ptr()


@pytest.mark.parametrize(
    "read", [lambda td: td[1], lambda td: td.unbind(0)[1], lambda td: td[1:][0], lambda td: td.split(1)[1][0]]
)
def test_elements_of_a_lazy_stack_are_shared(read: Callable[[Any], Any]) -> None:
    parts = [TensorDict({"a": torch.zeros(2)}, [2]) for _ in range(3)]
    assert read(lazy_stack(parts))["a"].data_ptr() == parts[1]["a"].data_ptr()


@pytest.mark.parametrize("index", [(slice(None), 1), (slice(None), slice(1, None)), (0, 1), (Ellipsis, 1)])
def test_indexing_behind_the_stack_dim_of_a_lazy_stack_indexes_the_elements(index: Any) -> None:
    parts = [TensorDict({"a": torch.arange(2.0)}, [2]) for _ in range(3)]
    result = lazy_stack(parts)[index]
    first = result.tensordicts[0] if isinstance(result, LazyStackedTensorDict) else result
    assert first["a"].data_ptr() == parts[0]["a"][1].data_ptr()


@pytest.mark.parametrize("operate", [lambda td: td.unsqueeze(1), lambda td: td.transpose(0, 1), lambda td: td[None]])
def test_shape_operations_on_a_lazy_stack_keep_its_elements_apart(operate: Callable[[Any], Any]) -> None:
    parts = [TensorDict({"a": torch.zeros(2)}, [2]) for _ in range(3)]
    result = operate(lazy_stack(parts))
    known = {part["a"].untyped_storage().data_ptr() for part in parts}
    assert isinstance(result, LazyStackedTensorDict)
    assert {leaf.untyped_storage().data_ptr() for leaf in result._leaves()} == known


def test_a_view_at_an_index_shares_its_parent() -> None:
    td = _dense()
    assert td.view_at(slice(1, None))["b", "c"].data_ptr() == td["b", "c"][1:].data_ptr()


@pytest.mark.parametrize(
    "operate",
    [
        lambda td: td.select("a", "b"),
        lambda td: td.exclude("b"),
        lambda td: td.clone(recurse=False),
        lambda td: td.flatten_keys("."),
        lambda td: td.to(torch.float32),
        lambda td: td.contiguous(),
        lambda td: td.detach(),
        lambda td: td.rename_keys({"b": "d"}),
        lambda td: TensorDict(td),
        lambda td: td.lock_(),
    ],
)
def test_operations_that_change_no_value_copy_none(operate: Callable[[Any], Any]) -> None:
    td = _dense()
    assert operate(td)["a"].data_ptr() == td["a"].data_ptr()


def _size(td: TensorDict) -> int:
    """The bytes of a tensordict and of what it alone holds."""
    meta = td._meta
    return sum(sys.getsizeof(part) for part in (td, td._entries, meta, meta.batch_size))


def test_an_empty_tensordict_takes_less_than_a_kibibyte() -> None:
    assert _size(TensorDict({}, batch_size=[3, 4])) < 400
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    many = [TensorDict({}, batch_size=[3, 4]) for _ in range(1000)]
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / len(many) < 1024


def test_a_result_takes_no_more_than_its_dictionary_and_a_few_words() -> None:
    td = TensorDict({f"key{i}": torch.zeros(3) for i in range(10)}, [3])
    same = td.detach()
    assert same._meta is td._meta
    assert sys.getsizeof(same) < 150
    assert sys.getsizeof(same._entries) <= sys.getsizeof(dict(td._entries))


def test_the_rows_of_a_tensordict_share_one_record_of_metadata() -> None:
    rows = TensorDict({"a": torch.zeros(3)}, [3]).unbind(0)
    assert len({id(row._meta) for row in rows}) == 1
