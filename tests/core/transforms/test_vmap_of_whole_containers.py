"""A ``vmap`` that takes containers as leaves, by which programs replace that of torch (pytorch#175852)."""

from __future__ import annotations

import pytest
import torch
import torch._functorch.vmap as torch_vmap
from torch.utils._pytree import tree_flatten

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, UnbatchedTensor


def map_whole(function, td, in_dim=0, out_dim=0):
    size = td.size(in_dim)
    with torch_vmap.vmap_increment_nesting(size, "error") as level:
        out = function(td._add_batch_dim(in_dim=in_dim, vmap_level=level))
        return out._maybe_remove_batch_dim("function", vmap_level=level, batch_size=size, out_dim=out_dim)


def rows(**entries):
    return TensorDict({"a": torch.arange(12.0).reshape(2, 3, 2), **entries}, [2, 3], names=["time", "env"])


CONTAINERS = {
    "tensors": rows(),
    "nested": rows(nested={"b": torch.ones(2, 3)}),
    "empty": TensorDict({"nested": {}}, [2, 3]),
    "one value": rows(text=NonTensorData("text", [2, 3])),
    "values": rows(text=NonTensorStack(*[NonTensorStack(*"abc"), NonTensorStack(*"def")])),
    "unbatched": rows(table=UnbatchedTensor(torch.arange(5.0))),
    "lazy": rows(lazy=LazyStackedTensorDict(*[TensorDict({"c": torch.ones(3)}, [3]) for _ in range(2)])),
    "locked": rows(nested={"b": torch.ones(2, 3)}).lock_(),
}


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("dim", [0, 1])
def test_a_whole_container_is_mapped_as_one_that_torch_flattens(name, dim):
    td = CONTAINERS[name]
    seen = []

    def function(inside):
        seen.append((inside.batch_size, inside.names, inside.is_locked, sorted(inside.keys(True), key=str)))
        return inside.apply(lambda x: x + 1) if name != "empty" else inside

    whole = map_whole(function, td, dim, dim)
    if name != "empty":  # torch maps no tree without leaves
        flattened = torch.vmap(function, dim, dim)(td)
        assert seen[0] == seen[1]
        assert (whole.batch_size, whole.names) == (flattened.batch_size, flattened.names)
        assert (whole.exclude("text") == flattened.exclude("text")).all()
    assert whole.batch_size == td.batch_size
    if "text" in td:
        assert whole["text"] == td["text"]


def test_a_mapped_tensor_in_an_unbatched_one_is_an_error():
    td = rows(table=UnbatchedTensor(torch.arange(5.0)))

    def function(inside):
        return inside.set("table", UnbatchedTensor(inside["a"].sum()))

    with pytest.raises(RuntimeError, match="unbatched tensor has but one value"):
        map_whole(function, td)


def test_a_container_that_is_not_mapped_is_returned_unchanged():
    td = rows()
    assert td._maybe_remove_batch_dim("function", vmap_level=1, batch_size=2, out_dim=None) is td


def test_a_whole_container_is_mapped_in_a_trace():
    td = rows(table=UnbatchedTensor(torch.arange(5.0)))

    def step(td):
        return map_whole(lambda inside: inside.apply(lambda x: x + 1), td)

    compiled = torch.compile(step, fullgraph=True, backend="eager")
    assert (compiled(td)["a"] == td["a"] + 1).all()


def test_a_whole_container_is_mapped_beside_a_plain_one():
    lazy = LazyStackedTensorDict(*[TensorDict({"c": torch.full((), i)}) for i in range(2)])
    size, dims, leaves, spec = torch_vmap._process_batched_inputs(0, (rows(), torch.zeros(2)), None)
    _, spec = tree_flatten(("plain", "lazy"))
    with torch_vmap.vmap_increment_nesting(size, "error") as level:
        plain, inside = torch_vmap._create_batched_inputs(dims, [leaves[0], lazy], level, spec)
        assert plain.batch_size == torch.Size([3])
        assert inside.batch_size == torch.Size([])
        assert torch_vmap._remove_batch_dim(inside["c"], level, 2, 0).tolist() == [0, 1]
