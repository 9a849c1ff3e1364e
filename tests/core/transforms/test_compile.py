"""``torch.compile``: what has no data-dependent shape is one graph, and equal shapes do not compile again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from tensordict_core import (
    LazyStackedTensorDict,
    NonTensorStack,
    TensorCollection,
    TensorDict,
    assert_close,
    cat,
    dense_stack_tds,
    is_inexact,
    lazy_stack,
    merge_tensordicts,
    pad_sequence,
    stack,
)
from tensordict_core.extension import OpSpec, operations

# Dynamo looks through modules of torch that warn of themselves
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:Dynamo:UserWarning"
)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def _dense(seed: int = 0) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    nested = TensorDict({"c": torch.rand(2, 3, 4, generator=generator)}, [2, 3, 4])
    return TensorDict({"a": torch.rand(2, 3, 5, generator=generator), "b": nested}, [2, 3], names=["x", "y"])


def _valued(seed: int = 0) -> TensorDict:
    a = torch.rand(3, generator=torch.Generator().manual_seed(seed))
    return TensorDict({"a": a, "s": "text", "v": NonTensorStack("p", "q", "r")}, [3])


def _lazy(seed: int = 0) -> LazyStackedTensorDict:
    return lazy_stack([_dense(seed + i).rename_(None) for i in range(2)], 1)


def _ragged(seed: int = 0) -> LazyStackedTensorDict:
    generator = torch.Generator().manual_seed(seed)
    return lazy_stack([TensorDict({"a": torch.rand(n, generator=generator)}) for n in (1, 2)])


def _same(left: Any, right: Any) -> None:
    if isinstance(left, TensorCollection):
        assert type(left) is type(right) and left.names == right.names
        assert_close(left, right)
    elif isinstance(left, Tensor):
        torch.testing.assert_close(left, right)
    elif isinstance(left, (tuple, list)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            _same(one, other)
    else:
        assert left == right


def _check(function: Callable[..., Any], make: Callable[[int], Any], backend: str = "eager") -> None:
    """The compiled function is one graph, gives what the function gives, and is not compiled again for equal shapes."""

    def step(td: Any) -> Any:
        # a sum, because what only moves tensors between containers leaves no operation for a graph
        return function(td), td.sum(reduce=True)

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in range(3):
            _same(compiled(make(seed)), step(make(seed)))
    assert counters["stats"]["unique_graphs"] == 1


DENSE: dict[str, Callable[[TensorDict], Any]] = {
    "where_memory_is": lambda td: (td.is_shared(), td.is_memmap()),
    "construct": lambda td: TensorDict({"x": td["a"], "n": {"y": td["b", "c"]}}, batch_size=[2, 3], names=["p", "q"]),
    "get": lambda td: td["a"].sum() + td.get(("b", "c")).sum(),
    "set": lambda td: td.clone(False).set(("n", "new"), td["a"] * 2),
    "set_": lambda td: td.clone().set_("a", td["a"] * 2),
    "update_": lambda td: td.clone().update_({"a": td["a"] * 2, ("b", "c"): td["b", "c"] + 1}),
    "update": lambda td: td.clone(False).update({"z": td["a"], "b": {"d": td["b", "c"] + 1}}),
    "pop": lambda td: (td.clone(False).pop("a"), td.exclude("a")),
    "select": lambda td: td.select(("b", "c")),
    "separate": lambda td: td.copy().separates(("b", "c")),
    "rename": lambda td: td.clone(False).rename_key_("a", "z"),
    "items": lambda td: [value.sum() for _, value in td.items(True, True)],
    "flatten_keys": lambda td: td.flatten_keys("."),
    "index": lambda td: (td[0], td[:, 1:], td[..., None], td[0, 1]),
    "index_tensor": lambda td: td[torch.tensor([1, 0])],
    "index_put": lambda td: td.clone().__setitem__(0, td[1]) or td,
    "reshape": lambda td: (td.reshape(6), td.unsqueeze(1), td.permute(1, 0), td.flatten(0, 1), td.expand(4, 2, 3)),
    "split": lambda td: (td.split(1, 1), td.unbind(0), td.chunk(2, 0)),
    "pointwise": lambda td: (td + td) * 2 - td.exp().clamp(1, 2) / td.abs().add(1),
    "inplace": lambda td: td.clone().add_(1).mul_(2),
    "compare": lambda td: ((td == td).all(dim=0), td > 0.5),
    "stack": lambda td: (stack([td, td], 1), cat([td, td], 0), torch.stack([td, td])),
    "lazy_stack": lambda td: (lazy_stack([td, td], 0) + 1)["a"],
    "dense_stack": lambda td: dense_stack_tds([td, td], 1),
    "apply": lambda td: td.apply(lambda x, y: x + y, td),
    "named_apply": lambda td: td.named_apply(lambda key, x: x + len(key)),
    "cast": lambda td: (td.to(torch.float64), td.double(), td.to("cpu"), td.to(torch.float16, cast_filter=is_inexact)),
    "detach": lambda td: td.detach(),
    "creation": lambda td: (torch.zeros_like(td), td.new_ones(4), td.new_full((2,), 3.0)),
    "where": lambda td: (td.where(td["a"][..., 0] > 0.5, 0.0), torch.where(td["a"][:, 0, 0] > 0.5, td, td * 2)),
    "gather": lambda td: td.gather(1, torch.zeros(2, 2, dtype=torch.int64)),
    "pad": lambda td: td.pad([1, 0, 0, 2], value=1.0),
    "pad_sequence": lambda td: pad_sequence([td[:, :1], td], pad_dim=1, return_mask=True),
    "masked_fill": lambda td: td.masked_fill(td["a"][:, 0, 0] > 0.5, 1.0),
    "tree_map": lambda td: pytree.tree_map(lambda x: x + 1, td),
    "lock": lambda td: td.clone().lock_() + 1,
    "merge": lambda td: merge_tensordicts(td, TensorDict({"z": td["a"]}, [2, 3])),
    "state_dict": lambda td: list(td.state_dict()),
    "load_state_dict": lambda td: torch.zeros_like(td).load_state_dict(td.state_dict()),
    "stack_and_cat_into": lambda td: (
        torch.stack([td[1], td[0]], out=torch.zeros_like(td)),
        torch.cat([td[1:], td[:1]], out=torch.zeros_like(td)),
    ),
}

REDUCTIONS: dict[str, Callable[[TensorDict], Any]] = {
    "everything": lambda td: (td.sum(), td.mean(keepdim=True), td.norm()),
    "batch": lambda td: (td.sum(dim=0), td.std(dim=(0, 1), keepdim=True), td.amax(dim=-1), td.prod(dim=(0, 1))),
    "feature": lambda td: (td.mean(dim="feature"), td.amin(dim="feature")),
    "reduce": lambda td: (td.sum(reduce=True), td.mean(reduce=True), td.var(dim="feature", reduce=True)),
    "indices": lambda td: (*td.max(dim=0), *td.cummax(1)),
    "quantile": lambda td: (td.quantile(0.5, dim=0), td.logsumexp()),
    "key_transform": lambda td: td.sum(key_transform=lambda key: f"sum_{key}"),
}

VALUED: dict[str, Callable[[TensorDict], Any]] = {
    "pass": lambda td: td + 1,
    "branch": lambda td: td["a"] * 2 if td["s"] == "text" else td["a"],
    "read": lambda td: (td["s"], td["v"]),
    "index": lambda td: (td[0], td[1:]),
    "write": lambda td: td.clone(False).set("new", "value"),
    "stack": lambda td: torch.stack([td, td]),
    "pad": lambda td: td.pad([0, 1]),
}

LAZY: dict[str, Callable[[Any], Any]] = {
    "pointwise": lambda td: td * 2 + 1,
    "read": lambda td: td["a"],
    "index": lambda td: (td[0], td[:, 1]),
    "reduce": lambda td: (td.sum(dim=1), td.sum(reduce=True)),
    "cast": lambda td: td.double(),
    "set": lambda td: td.clone().set("z", td["a"]),
    "unbind": lambda td: td.unbind(1)[0],
    "depth": lambda td: td.depth,
    "auto_batch_size": lambda td: td.clone().auto_batch_size_(),
    "tree_map": lambda td: pytree.tree_map(lambda x: x + 1, td),
    "vmap": lambda td: torch.vmap(lambda row: row + row["a"].sum())(td),
    "grad": lambda td: torch.func.grad(lambda one: (one["a"] ** 2).sum())(td),
}

TRANSFORMS: dict[str, Callable[[TensorDict], Any]] = {
    "vmap": lambda td: torch.vmap(lambda one: one + 1)(td),
    "vmap_dims": lambda td: torch.vmap(lambda one: one * 2, in_dims=1, out_dims=1)(td),
    "vmap_nested": lambda td: torch.vmap(torch.vmap(lambda one: one.sum(reduce=False) + one["a"].sum()))(td),
    "grad": lambda td: torch.func.grad(lambda one: (one["a"] ** 2).sum())(td),
    "checkpoint": lambda td: checkpoint(lambda one: one * 2, td, use_reentrant=False),
    "per_example": lambda td: torch.vmap(torch.func.grad(lambda one: one["b", "c"].sin().sum()))(td),
}


@pytest.mark.parametrize("name", DENSE)
def test_dense_tensordicts_compile(name: str) -> None:
    _check(DENSE[name], _dense)


def test_deep_copies_compile() -> None:
    """The graph is for one object: `copy.deepcopy` looks it up by its identity."""
    td = _dense()
    copied = torch.compile(lambda td: copy.deepcopy(td).add_(1), fullgraph=True, backend="eager")(td)
    _same(copied, td + 1)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_compile(name: str) -> None:
    _check(REDUCTIONS[name], _dense)


@pytest.mark.parametrize("name", VALUED)
def test_non_tensor_data_compiles(name: str) -> None:
    _check(VALUED[name], _valued)


@pytest.mark.parametrize("name", LAZY)
def test_lazy_stacks_compile(name: str) -> None:
    _check(LAZY[name], _lazy)


def test_ragged_lazy_stacks_compile() -> None:
    _check(lambda td: ((td + 1).sum(reduce=True), td[1]["a"]), _ragged)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_compile(name: str) -> None:
    _check(TRANSFORMS[name], _dense)


def test_vmap_carries_values_through_a_graph() -> None:
    _check(lambda td: torch.vmap(lambda one: one + 1)(td)["v"], _valued)


def test_a_whole_step_compiles_to_kernels_and_back() -> None:
    def step(td: TensorDict) -> TensorDict:
        td = td.clone().set("h", (td["a"] @ torch.ones(5, 4)).tanh())
        return torch.stack([td.mean(dim=0), td.sum(dim=0)]).select("h", ("b", "c"))

    _check(step, _dense, backend="aot_eager")


def test_gradients_flow_through_a_graph() -> None:
    def loss(td: TensorDict) -> Tensor:
        return (td * 2).exp().sum(reduce=True)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    one, other = _dense().requires_grad_(), _dense().requires_grad_()
    compiled(one).backward()
    loss(other).backward()
    _same(one.grad, other.grad)


def test_another_shape_compiles_again_and_another_key_too() -> None:
    compiled = torch.compile(lambda td: td + 1, fullgraph=True, backend="eager")
    for td in (_dense(), _dense()[:1], _dense().set("new", torch.ones(2, 3))):
        _same(compiled(td), td + 1)
    assert counters["stats"]["unique_graphs"] >= 2


# every operation, by the records -------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Any, str], Any]] = {
    "unary": lambda td, name: getattr(td, name)(),
    "test": lambda td, name: getattr(td, name)(),
    "cast": lambda td, name: getattr(td, name)(),
    "binary": lambda td, name: (getattr(td, name)(td.clone()), getattr(td.clone(), name)(2)),
    "compare": lambda td, name: getattr(td, name)(td.clone()),
    "ternary": lambda td, name: getattr(td, name)(td.clone(), td.clone()),
    "reduce": lambda td, name: getattr(td, name)(dim=0),
}
SPECIAL: dict[str, Callable[[Any], Any]] = {
    "quantile": lambda td: td.quantile(0.5, dim=0),
    "norm": lambda td: td.norm(),
    "all": lambda td: (td > 0).all(dim=0),
    "any": lambda td: (td > 0).any(dim=0),
}
INTEGRAL = ("bitwise_and", "bitwise_or", "bitwise_xor")
HALF_COMPLEX = "complex32"  # torch warns of it, and has few operations for it
EVERYDAY = {"exp", "add_", "sum", "clamp_min", "lerp", "isnan", "__lt__", "float64"}


def _by_record(op: OpSpec) -> Callable[[Any], Any]:
    if op.name in SPECIAL:
        return SPECIAL[op.name]
    call = CALLS[op.family]

    def function(td: Any) -> Any:
        source = (td * 8).to(torch.int64) if op.name.rstrip("_") in INTEGRAL else td
        source = source.clone() if op.inplace else source
        result = call(source, op.name)
        return result if op.name != "quantile" else result[0]

    return function


@pytest.mark.parametrize("make", [_dense, _lazy], ids=["dense", "lazy"])
@pytest.mark.parametrize(
    "op",
    [
        pytest.param(op, marks=() if op.name in EVERYDAY else pytest.mark.long)
        for op in operations()
        if op.name != HALF_COMPLEX
    ],
    ids=lambda op: op.name,
)
def test_every_recorded_operation_compiles(op: OpSpec, make: Callable[[int], Any]) -> None:
    def step(td: Any) -> Any:
        return _by_record(op)(td), td.sum(reduce=True)

    compiled = torch.compile(step, fullgraph=True, backend="eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in range(2):
            _same(compiled(make(seed)), step(make(seed)))
    assert counters["stats"]["unique_graphs"] == 1


def test_compiled_calls_do_not_check_every_family_of_operations():
    """Dynamo checks the classes in front of the one that defines a method; there are forty families."""

    def read(td: TensorDict) -> Tensor:
        return td["a"] + td.batch_size[0]

    td = TensorDict({"a": torch.zeros(3)}, [3])
    torch.compile(read, fullgraph=True, backend="eager")(td)
    (entry,) = torch._dynamo.eval_frame._debug_get_cache_entry_list(read)
    guards = str(entry.guard_manager)
    assert "___dict_contains('__getitem__'" in guards  # guards of this kind are written in these words
    assert "__mro__[3]" not in guards


def test_functions_of_the_leaves_of_a_ragged_lazy_stack_compile() -> None:
    stack = lazy_stack([TensorDict({"a": torch.zeros(3)}), TensorDict({"a": torch.zeros(4)})])
    add = torch.compile(lambda td: torch.utils._pytree.tree_map(lambda x: x + 1, td), fullgraph=True, backend="eager")
    assert [element["a"].tolist() for element in add(stack).tensordicts] == [[1.0] * 3, [1.0] * 4]


def test_values_of_positions_are_expanded_in_compiled_functions() -> None:
    td = TensorDict({"a": torch.zeros(2), "s": ["u", "v"]}, [2])
    expand = torch.compile(lambda td: td.expand(2, 2).clone(), fullgraph=True, backend="eager")
    assert expand(td)["s"] == [["u", "v"], ["u", "v"]]
