"""What type checkers know of tensordicts: indexing, saving and loading, stacking, comparisons and reductions.

Each line with an expected error names it for both checkers: ``type: ignore`` for mypy, ``pyright: ignore`` for pyright.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, assert_type

import torch
from torch import Tensor, nn

from tensordict_core import (
    LazyStackedTensorDict,
    SubTensorDict,
    TensorDict,
    cat,
    from_any,
    from_dict,
    from_list,
    from_namedtuple,
    from_tuple,
    fromkeys,
    make_tensordict,
    merge_tensordicts,
    stack,
)

td = TensorDict({"a": torch.ones(3), "b": {"c": torch.ones(3)}}, [3])

# entries and rows
assert_type(td["a"], Tensor)
assert_type(td["b", "c"], Tensor)
assert_type(td["a"].shape, torch.Size)
assert_type(td[0], TensorDict)
assert_type(td[1:, None], TensorDict)
assert_type(td[..., None], TensorDict)
assert_type(td[[0, 2]], TensorDict)
assert_type(td[range(2)], TensorDict)
assert_type(td[torch.tensor([0, 2])], TensorDict)
assert_type(td[td["a"] > 0], TensorDict)
assert_type(td[None], TensorDict)
nested: TensorDict = td.get("b")
label: str = td.get("label").data
wrong: TensorDict = td["b"]  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
print(td["a"].no_such_attribute)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
for row in td:
    assert_type(row, TensorDict)

assert_type(td.view_at(0), SubTensorDict)
assert_type(td.to_tensordict(), TensorDict)

# from Python structures
assert_type(from_dict({"a": [1, 2]}, auto_batch_size=True), TensorDict)
assert_type(fromkeys(["a"], 0), TensorDict)
assert_type(make_tensordict(a=torch.ones(3)), TensorDict)
assert_type(merge_tensordicts(td, td), TensorDict)
assert_type(from_tuple((1, 2), batch_dims=0), TensorDict)
assert_type(from_namedtuple(torch.ones(3).max(0)), TensorDict)
assert_type(from_list([{"a": 1}]), TensorDict | LazyStackedTensorDict)
assert_type(from_list([{"a": 1}], lazy=False), TensorDict)
assert_type(from_list([{"a": 1}], lazy=True, device="cpu"), LazyStackedTensorDict)
assert_type(from_any({"a": (1, 2)}), TensorDict)
assert_type(from_any(torch.ones(3)), Tensor)
assert_type(from_any(td, auto_batch_size=True), TensorDict)
assert_type(TensorDict.from_tuple((1, 2)), TensorDict)
assert_type(TensorDict.from_namedtuple(torch.ones(3).max(0)), TensorDict)

# saving and loading
assert_type(td.memmap(), TensorDict)
assert_type(td.memmap("place", num_threads=2, checksum=True), TensorDict)
assert_type(td.memmap_("place"), TensorDict)
assert_type(td.memmap_like("place", reserve=True), TensorDict)
assert_type(td.save("place", shard_size=1 << 30), TensorDict)
assert_type(td.save("place", return_early=True), Future[TensorDict])
assert_type(td.memmap("place", return_early=True).result(), TensorDict)
assert_type(td.dumps("place"), TensorDict)
assert_type(TensorDict.load("place"), TensorDict)
assert_type(TensorDict.load_memmap("place", "cpu", verify="full", rows=slice(3)), TensorDict)
assert_type(TensorDict.load_memmap("place", subpath="b"), TensorDict)
assert_type(td.load_memmap_("place"), TensorDict)
assert_type(td.consolidate(), TensorDict)
assert_type(TensorDict.from_consolidated("file"), TensorDict)
td.memmap("place", treads=2)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
td.memmap_("place", archive=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]

# modules
assert_type(TensorDict.from_module(nn.Linear(3, 4)), TensorDict)

# stacking
assert_type(TensorDict.stack([td, td]), TensorDict)
assert_type(TensorDict.cat([td, td]), TensorDict)
assert_type(stack([td, td], 1), TensorDict)
assert_type(cat((td, td)), TensorDict)

# comparisons and tests
assert_type(td == td, TensorDict)
assert_type(td != 0, TensorDict)
assert_type(td < 1, TensorDict)
assert_type(td >= td, TensorDict)
assert_type(td.isnan(), TensorDict)
assert_type((td == td).all(), bool)
assert_type((td == td).any(dim=0), TensorDict)

# reductions
assert_type(td.sum(), TensorDict)
assert_type(td.mean(dim=0, keepdim=True), TensorDict)
assert_type(td.std(dim="feature"), TensorDict)
assert_type(td.sum(reduce=True), Tensor)
assert_type(td.amax(0), TensorDict)
assert_type(td.max(), TensorDict)
assert_type(td.max(0).values, TensorDict)
assert_type(td.min(0).indices, TensorDict)
assert_type(td.cummax(0).values, TensorDict)
assert_type(td.norm(), TensorDict)
assert_type(td.logsumexp(0), TensorDict)
assert_type(td.quantile(0.5), TensorDict)
assert_type(td.quantile(0.5, reduce=True), Tensor)

# shapes, casts, conversions
assert_type(td.reshape(3, 1), TensorDict)
assert_type(td.split(2), tuple[TensorDict, ...])
assert_type(td.unbind(0), tuple[TensorDict, ...])
assert_type(td.to("cpu"), TensorDict)
assert_type(td.float(), TensorDict)
assert_type(td + 1, TensorDict)
assert_type(1 - td / td, TensorDict)
assert_type(td.apply(torch.sin), TensorDict | Any)
assert_type(td.named_apply(lambda key, leaf: leaf, nested_keys=True, batch_size=[3]), TensorDict | Any)
assert_type(td.apply_(torch.sin, is_leaf=None), TensorDict)
td.apply(torch.sin, inplce=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
assert_type(td.size(), torch.Size)
assert_type(td.size(0), int)
assert_type(td.to_tensordict(), TensorDict)
assert_type(TensorDict.from_dict({"a": torch.ones(3)}), TensorDict)
assert_type(TensorDict.fromkeys(["a"]), TensorDict)

# torch's own functions are annotated for tensors alone; the functions of tensordict_core are the typed ones
torch.stack([td, td])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
