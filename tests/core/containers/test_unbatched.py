"""Unbatched tensors: leaves that belong to the whole."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle

import numpy as np
import pytest
import torch

from tensordict_core import TensorDict, UnbatchedTensor, is_tensor_collection, lazy_stack


def make():
    return TensorDict({"u": UnbatchedTensor(torch.arange(5)), "a": torch.zeros(3, 4)}, [3])


@pytest.mark.parametrize(
    "change",
    [
        lambda td: td[0],
        lambda td: td[torch.tensor([0, 0, 1, 2])],
        lambda td: td.reshape(1, 3),
        lambda td: td.expand(2, 3),
        lambda td: td.unsqueeze(0),
        lambda td: td.unbind(0)[1],
        lambda td: td.split(2)[1],
        lambda td: torch.stack([td, td], 1),
        lambda td: torch.cat([td, td]),
        lambda td: lazy_stack([td, td]),
        lambda td: td.flip(0),
        lambda td: td.sum(dim=0),
    ],
)
def test_operations_on_the_batch_change_its_batch_size_alone(change):
    td = change(make())
    assert td["u"].equal(torch.arange(5))
    assert td.get("u").batch_size == td.batch_size


def test_operations_on_leaves_run_on_its_tensor():
    td = make()
    assert (td + 1)["u"].equal(torch.arange(5) + 1)
    assert (td * td)["u"].equal(torch.arange(5) ** 2)
    assert td.apply(lambda x: -x)["u"].equal(-torch.arange(5))
    assert td.to(torch.float64)["u"].dtype is torch.float64
    assert isinstance((td + 1).get("u"), UnbatchedTensor)
    assert not td.clone().zero_()["u"].any() and td["u"].any()


def test_it_is_written_as_a_whole():
    td = make()
    td[0] = TensorDict({"u": UnbatchedTensor(torch.ones(5, dtype=torch.long)), "a": torch.ones(4)})
    assert td["u"].tolist() == [1] * 5
    td.update_(make())
    assert td["u"].tolist() == [0, 1, 2, 3, 4]
    td.update(make() + 1)
    assert td["u"].tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(RuntimeError, match="shape"):
        td.update_({"u": UnbatchedTensor(torch.zeros(6))})


def test_its_shape_is_that_of_the_tensor():
    u = UnbatchedTensor(torch.zeros(2, 7), batch_size=[4])
    assert u.shape == (2, 7) and u.batch_size == (4,) and u.dtype is torch.float32 and u.device.type == "cpu"
    assert UnbatchedTensor(u).tensor is u.tensor and u.data.shape == (2, 7)
    with pytest.raises(TypeError, match="NonTensorData"):
        UnbatchedTensor("text")


def test_an_operand_that_lines_up_with_the_batch_is_refused():
    with pytest.raises(RuntimeError, match="unbatched"):
        make() * torch.arange(3)


def test_keys_pass_it_as_one_entry():
    td = make()
    assert set(td.keys(True)) == {"u", "a"} and "u" in td
    assert td.select("u")["u"].equal(torch.arange(5)) and "u" not in td.exclude("u")
    td.batch_size = [3, 4]
    assert td.get("u").batch_size in ((3,), (3, 4))


def test_it_is_a_tensor_and_behaves_as_the_one_that_it_holds():
    u = make()["u"]
    assert isinstance(u, torch.Tensor) and type(u) is UnbatchedTensor and not is_tensor_collection(u)
    for result in (u + 1, 1 + u, u[:2], torch.sin(u), u.to(torch.float64), torch.cat([u, u]), copy.copy(u)):
        assert type(result) is UnbatchedTensor and result.batch_size == (3,)
    assert u.tolist() == [0, 1, 2, 3, 4] and len(u) == 5 and [int(one) for one in u] == u.tolist()
    assert (
        np.asarray(u).tolist() == u.tolist() and str(u) == str(u.tensor) and repr(u) == f"UnbatchedTensor({u.tensor})"
    )
    one = UnbatchedTensor(torch.tensor(1.5))
    assert bool(one) and int(one) == 1 and float(one) == 1.5 and one.item() == 1.5 and f"{one:.2f}" == "1.50"
    assert math.floor(one) == 1 and "abc"[UnbatchedTensor(torch.tensor(2))] == "c"
    assert u.add_(1) is u and u.tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(RuntimeError):
        bool(u)


def test_it_is_a_leaf_of_the_tensordict():
    td = make()
    assert list(td.keys(True, True)) == ["u", "a"] and len(td.values(True, True)) == 2
    assert [type(value) for _, value in td.items(True, True)] == [UnbatchedTensor, torch.Tensor]
    again = TensorDict.from_dict(td.to_dict(), batch_size=[3])
    assert (again == td).all() and type(again["u"]) is UnbatchedTensor and type(td.numpy()["u"]) is np.ndarray


DIFFERENT = [
    pytest.param(lambda td: td + 1, id="values"),
    pytest.param(lambda td: td.to(torch.float64), id="dtypes"),
    pytest.param(lambda td: td.clone().set("u", UnbatchedTensor(torch.arange(4))), id="shapes"),
    pytest.param(lambda td: td.clone().set("u", UnbatchedTensor(torch.arange(5).to_sparse())), id="layouts"),
]


@pytest.mark.parametrize("other", DIFFERENT)
@pytest.mark.parametrize(
    "combine", [torch.stack, torch.cat, lambda tds: torch.stack([TensorDict({"n": td}) for td in tds])]
)
def test_different_ones_have_no_dense_stack(combine, other):
    td = make()
    with pytest.raises(RuntimeError, match=r"key 'u' is an unbatched tensor.*lazy_stack"):
        combine([td, other(td)])
    with pytest.raises(RuntimeError, match="one value for all rows"):
        combine([other(td), td, td])


@pytest.mark.parametrize("other", DIFFERENT[:3])
@pytest.mark.parametrize("stacked", [lazy_stack, TensorDict.maybe_dense_stack])
def test_a_lazy_stack_keeps_each_of_different_ones(stacked, other):
    tds = [make(), other(make()), make()]
    stack = stacked(tds)
    for result in (stack, stack[torch.tensor([0, 1, 2])], stack[:, torch.tensor([0])], stack.clone(), stack.flip(0)):
        kept = [td["u"] for td in result.unbind(0)]
        assert [u.dtype for u in kept] == [td["u"].dtype for td in tds]
        assert [u.tolist() for u in kept] == [td["u"].tolist() for td in tds]
    assert [u.tensor is td["u"].tensor for u, td in zip(stack.get("u", as_list=True), tds, strict=True)] == [True] * 3
    for read in (
        lambda: stack["u"],
        lambda: stack.densify(),
        lambda: stack.sum(0),
        lambda: torch.stack([stack, stack]).densify(),
    ):
        with pytest.raises(RuntimeError, match=r"key 'u' is an unbatched tensor.*get\(key, as_list=True\)"):
            read()


def test_equal_ones_are_stacked_to_one():
    table = torch.tensor([1.0, torch.nan])
    td = TensorDict({"u": UnbatchedTensor(table), "a": torch.ones(3)}, [3])
    for other in (td, td.clone(), td.clone(False), td.clone().lock_()):
        for result in (
            torch.stack([td, other]),
            torch.cat([td, other]),
            lazy_stack([td, other]),
            TensorDict.maybe_dense_stack([td, other]),
        ):
            assert result["u"].tensor is table and result["u"].batch_size == result.batch_size
        assert type(TensorDict.maybe_dense_stack([td, other])) is TensorDict
    meta = TensorDict({"u": UnbatchedTensor(torch.ones(2, device="meta"))}, [3])
    assert torch.stack([meta, meta.clone()])["u"].is_meta
    assert torch.compile(lambda td: torch.stack([td, td.clone()]), backend="eager")(td)["u"].tolist()[0] == 1


@pytest.mark.cuda
def test_those_on_a_gpu_are_compared_except_while_a_graph_is_recorded():
    td = make().to("cuda")
    assert torch.stack([td, td.clone(), td.clone()])["u"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="key 'u' is an unbatched tensor"):
        torch.stack([td, td.clone(), td + 1])
    other = td.clone()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        result = torch.stack([td, other])
    assert result["u"].tolist() == [0, 1, 2, 3, 4]


def test_it_is_combined_with_nothing_else():
    values = {
        "u": UnbatchedTensor(torch.ones(3)),
        "t": torch.ones(3),
        "s": "text",
        "td": TensorDict({"b": torch.ones(3)}, [3]),
    }
    for first, other in itertools.permutations(values, 2):
        tds = [TensorDict({"k": values[name]}, [3]) for name in (first, other)]
        for combine in (torch.stack, torch.cat):
            with pytest.raises(RuntimeError, match="densely"):
                combine(tds)
        for stack in (lazy_stack(tds), TensorDict.maybe_dense_stack(tds)):
            with pytest.raises(RuntimeError, match="key 'k' is a tensor in some"):
                stack["k"]
            assert [type(td.get("k")) for td in stack.unbind(0)] == [type(td.get("k")) for td in tds]
    td = TensorDict({"n": {"s": "text"}}, [3])
    with pytest.raises(RuntimeError, match="position 1 has a TensorDict where position 0 has a NonTensorData"):
        td.cat_tensors(("n", "s"), "n", out_key="k")


def test_gradients_reach_its_tensor():
    weight = torch.ones(2, requires_grad=True)
    td = TensorDict({"u": UnbatchedTensor(weight), "a": torch.ones(3)}, [3])
    (td["u"] * 2).sum().backward()
    assert weight.grad.tolist() == [2.0, 2.0] and td["u"].grad.tolist() == [2.0, 2.0] and td["u"].is_leaf
    (grad,) = torch.autograd.grad((td["u"] * 3).sum(), [td["u"]])
    assert type(grad) is torch.Tensor and grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("weights_only", [True, False])
def test_it_is_saved_with_torch(weights_only):
    file = io.BytesIO()
    torch.save(make(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=weights_only)["u"]
    assert type(loaded) is UnbatchedTensor and loaded.batch_size == (3,) and loaded.tolist() == [0, 1, 2, 3, 4]
    again = pickle.loads(pickle.dumps(make()["u"]))
    assert again.tolist() == [0, 1, 2, 3, 4] and copy.deepcopy(again).batch_size == (3,)


def test_pickles_of_releases_where_it_was_not_a_tensor_load():
    state = {"_tensor": torch.arange(2), "_meta": make()["u"]._meta, "_locked": False, "_annotations": None}
    from tensordict_core.ops.io.pickling import _new

    class Earlier:
        def __reduce__(self):
            return _new, (UnbatchedTensor,), state

    loaded = pickle.loads(pickle.dumps(Earlier()))
    assert type(loaded) is UnbatchedTensor and loaded.tolist() == [0, 1] and loaded.batch_size == (3,)


def test_it_holds_jagged_tensors():
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    td = TensorDict({"u": UnbatchedTensor(ragged), "a": torch.zeros(4)}, [4])
    assert td[0]["u"].tensor is ragged and td.apply(lambda x: x + 1)["u"].is_nested


@pytest.mark.parametrize("stack", [lambda td: td, lambda td: lazy_stack([td, td.clone()])], ids=["dense", "lazy"])
def test_a_default_stands_for_an_unbatched_tensor_that_one_operand_lacks(stack):
    whole = {"n": {"a": torch.ones(1), "u": UnbatchedTensor(torch.tensor([2.0, 4.0]))}}
    left, right = TensorDict(whole), TensorDict({"n": {"a": torch.ones(1)}})
    left["n"].batch_size = right["n"].batch_size = [1]
    for result in (stack(left).sub(stack(right), default=3.0), -stack(right).sub(stack(left), default=3.0)):
        assert type(result["n", "u"]) is UnbatchedTensor and result["n", "u"].tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("combine", [torch.stack, torch.cat], ids=["stack", "cat"])
def test_compiled_functions_refuse_to_combine_different_values(combine):
    def of(value: float) -> TensorDict:
        return TensorDict({"a": torch.ones(2), "u": UnbatchedTensor(torch.full((3,), value))}, [2])

    compiled = torch.compile(lambda x, y: combine([x, y]), backend="aot_eager", fullgraph=True)
    assert compiled(of(1.0), of(1.0))["u"].tolist() == [1.0, 1.0, 1.0]
    assert compiled(of(math.nan), of(math.nan))["u"].isnan().all()
    with pytest.raises(RuntimeError, match="one value for all rows"):
        compiled(of(1.0), of(2.0))


def test_compiled_functions_read_and_make_it():
    def function(td):
        return td[:2].set("v", UnbatchedTensor(td["u"] + 1))

    result = torch.compile(function, backend="eager", fullgraph=True)(make())
    assert type(result["v"]) is UnbatchedTensor and result["v"].tolist() == [1, 2, 3, 4, 5]
    assert result["u"].batch_size == result["v"].batch_size == (2,)


@pytest.mark.parametrize("function", [torch.rand_like, torch.randn_like, torch.empty_like, torch.zeros_like])
def test_equal_unbatched_tensors_of_a_lazy_stack_are_one_in_the_results_of_like_functions(function):
    elements = [TensorDict({"u": UnbatchedTensor(torch.arange(3.0)), "a": torch.zeros(2)}, [2]) for _ in range(3)]
    td = TensorDict({"n": lazy_stack(elements)}, [3])
    result = function(td)["n"]
    assert result["u"].shape == (3,) and result["a"].shape == (3, 2)
    if function is torch.rand_like:
        assert not torch.equal(result["a"][0], result["a"][1])


def test_unbatched_tensors_of_several_values_get_random_values_of_their_own():
    td = lazy_stack([TensorDict({"u": UnbatchedTensor(torch.full((4,), float(i)))}, []) for i in range(2)])
    first, second = torch.rand_like(td).get("u", as_list=True)
    assert not torch.equal(first.tensor, second.tensor)
