"""`TensorDictParams`: parameters as a tensordict and a module."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from tensordict_core import TensorDict, lazy_stack
from tensordict_core.testing import ContainerSuite
from tensordict_nn import TensorDictParams, from_module, from_modules


class TestContainer(ContainerSuite):
    """The suite of all containers, with entries that stay what they are."""

    def wrap(self, td):
        return TensorDictParams(td, no_convert=True)


def values() -> TensorDict:
    return TensorDict({"a": torch.ones(2), "n": {"b": torch.zeros(3), "i": torch.tensor(1)}, "text": "hello"})


class Holder(nn.Module):
    def __init__(self, params: TensorDictParams) -> None:
        super().__init__()
        self.params = params


@pytest.mark.parametrize(
    "wrap",
    [dict, TensorDict, lambda state: TensorDictParams(TensorDict(state)), lambda state: TensorDict(state).lock_()],
)
def test_nested_states_are_loaded(wrap):
    params = TensorDictParams(TensorDict({"a": torch.zeros(2), "n": {"b": torch.zeros(3), "i": torch.tensor(1)}}))
    leaves = dict(params.items(True, True))
    state = {"a": torch.ones(2), "n": {"b": torch.ones(3), "i": torch.tensor(5)}}
    assert not any(params.load_state_dict(wrap(state)))
    assert params["a"].tolist() == [1, 1] and params["n", "b"].tolist() == [1, 1, 1] and params["n", "i"] == 5
    assert all(params[key] is leaf for key, leaf in leaves.items())
    with pytest.raises(RuntimeError, match=r"n\.i"):
        params.load_state_dict(wrap({"a": torch.ones(2), "n": {"b": torch.ones(3)}}))
    with pytest.raises(RuntimeError, match=r"n\.z"):
        params.load_state_dict(wrap({**state, "n": {**state["n"], "z": torch.ones(1)}}))


def test_a_nested_state_with_two_values_for_a_name_is_refused():
    params = TensorDictParams(TensorDict({"n": {"b": torch.zeros(1)}}))
    with pytest.raises(KeyError, match=r"n\.b"):
        params.load_state_dict({"n.b": torch.ones(1), "n": {"b": torch.ones(1)}})
    assert params["n", "b"] == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_casts_keep_the_objects_of_parameters_and_buffers(dtype):
    held = nn.Buffer(torch.arange(2.0))
    params = TensorDictParams(TensorDict({"a": torch.ones(2), "n": {"b": held, "i": torch.tensor(1)}}))
    leaves = dict(params.items(True, True))
    parameters, buffers = dict(params.named_parameters()), dict(params.named_buffers())
    Holder(params).to(dtype)
    assert all(params[key] is leaf for key, leaf in leaves.items())
    assert all(dict(params.named_parameters())[key] is leaf for key, leaf in parameters.items())
    assert all(dict(params.named_buffers())[key] is leaf for key, leaf in buffers.items())
    assert {leaf.dtype for key, leaf in leaves.items() if key[-1] != "i"} == {dtype}
    assert held.dtype == dtype and held.tolist() == [0, 1] and params["n", "i"].dtype == torch.int64


def test_moves_to_the_meta_device_replace_buffers():
    params = TensorDictParams(TensorDict({"n": {"b": nn.Buffer(torch.arange(2.0))}}))
    held = params["n", "b"]
    params.to_empty(device="meta")
    assert params["n", "b"].device.type == "meta" and held.tolist() == [0, 1]


def test_floating_tensors_are_parameters_and_others_buffers():
    module = Holder(TensorDictParams(values()))
    assert [name for name, _ in module.named_parameters()] == ["params.a", "params.n.b"]
    assert [name for name, _ in module.named_buffers()] == ["params.n.i"]
    assert list(module.state_dict()) == ["params.a", "params.n.b", "params.n.i"]
    assert module.params["text"] == "hello" and isinstance(module.params["n"], TensorDictParams)
    half = TensorDictParams({"a": torch.ones(2, dtype=torch.bfloat16), "c": torch.ones(2, dtype=torch.complex64)})
    assert len(list(half.parameters())) == 2


def test_without_conversion_tensors_stay_tensors_and_parameters_parameters():
    weight = nn.Parameter(torch.ones(2))
    params = TensorDictParams(TensorDict({"w": weight, "b": torch.ones(2)}), no_convert=True)
    assert params["w"] is weight and [name for name, _ in params.named_buffers()] == ["b"]
    norm = from_module(nn.BatchNorm1d(2), as_module=True)
    assert {name for name, _ in norm.named_parameters()} == {"weight", "bias"}


def test_entries_are_set_replaced_and_removed():
    params = TensorDictParams(values())
    params["new"] = torch.zeros(2)
    params["n", "deeper", "c"] = torch.zeros(1)
    assert {"new", "n.deeper.c"} <= {name for name, _ in params.named_parameters()}
    params["a"] = torch.tensor([1, 2])
    assert "a" not in dict(params.named_parameters()) and "a" in dict(params.named_buffers())
    del params["n"]
    assert "n" not in params and len(list(params.parameters())) == 1
    params.rename_key_("new", "newer")
    assert [name for name, _ in params.named_parameters()] == ["newer"]


def test_locked_parameters_refuse_other_entries_but_not_changes_by_the_module():
    params = TensorDictParams(values(), lock=True)
    with pytest.raises(RuntimeError, match="locked"):
        params["new"] = torch.zeros(2)
    params.set_("a", torch.zeros(2))
    Holder(params).double()
    assert params["a"].dtype == torch.float64 and (params["a"] == 0).all()


def test_optimizers_train_it():
    params = TensorDictParams({"w": torch.ones(3)})
    optimizer = torch.optim.SGD(Holder(params).parameters(), lr=0.5)
    (params["w"] * 2).sum().backward()
    optimizer.step()
    assert params["w"].tolist() == [0, 0, 0]


def test_modules_move_cast_save_and_load_it():
    module = Holder(TensorDictParams(values()))
    weight = module.params["a"]
    module.to(torch.float64)
    assert (
        module.params["a"] is weight and weight.dtype == torch.float64 and module.params["n", "i"].dtype == torch.int64
    )
    state = {name: value.clone() + 1 for name, value in module.state_dict().items()}
    module.load_state_dict(state)
    assert weight.tolist() == [2, 2] and module.params["n", "i"] == 2
    module.to("meta")
    assert module.params["a"].is_meta and module.params["n", "b"].is_meta


def test_tied_weights_stay_tied():
    one = torch.ones(2)
    params = TensorDictParams(TensorDict({"a": one, "n": {"b": one}}))
    assert params["a"] is params["n", "b"] and len(list(params.parameters())) == 1
    for twin in (params.clone(), copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert twin["a"] is twin["n", "b"] and twin["a"] is not params["a"]
    layer = nn.Linear(2, 2)
    tied = nn.ModuleDict({"x": layer, "y": layer})
    assert len(list(from_module(tied, as_module=True).parameters())) == 2


def test_nested_lazy_stacks_become_parameters():
    def lazy(start):
        return TensorDict.lazy_stack([TensorDict({"w": torch.full((3,), float(start + i))}) for i in range(2)])

    td = TensorDict({str(start): lazy(start) for start in range(0, 60, 10)})
    params = TensorDictParams(td)
    assert all((params[key, "w"] == td[key, "w"]).all() for key in td.sorted_keys)
    assert len(list(params.parameters())) == 6
    shared = TensorDict({"first": td["0"], "again": td["0"], "tied": (one := torch.ones(2)), "same": one})
    assert len(list(TensorDictParams(shared).parameters())) == 3  # stacks are made twice, and are two


def test_types_of_results_of_operations():
    params = TensorDictParams(TensorDict({"a": torch.ones(3), "i": torch.tensor([1, 2, 3])}, [3]))
    for plain in (
        params + 1,
        params.exp(),
        params[0],
        params.reshape(1, 3),
        params.data,
        params == params,
        params.detach(),
    ):
        assert type(plain) is TensorDict
    assert (params * 2)["a"].requires_grad and not params.data["a"].requires_grad
    assert type(params.double()) is TensorDict and params.double()["a"].grad_fn is not None
    for rewrapped in (params.clone(), params.clone(False), params.to(torch.float64), params.copy()):
        assert type(rewrapped) is TensorDictParams and isinstance(rewrapped["a"], nn.Parameter)
        assert [name for name, _ in rewrapped.named_buffers()] == ["i"]
    assert params.to(torch.float64)["a"].dtype == torch.float64 and params["a"].dtype == torch.float32
    weight = params["a"]
    assert params.mul_(2) is params and params["a"] is weight and weight.tolist() == [2, 2, 2]
    params.zero_()
    params[1] = TensorDict({"a": torch.tensor(5.0), "i": torch.tensor(7)})
    params.update_({"i": torch.tensor([9, 9, 9])})
    assert weight.tolist() == [0, 5, 0] and weight.grad_fn is None and params["i"].tolist() == [9, 9, 9]


def test_averages_of_two_models_are_one_line():
    first, second = (from_module(nn.Linear(2, 3), as_module=True) for _ in range(2))
    expected = 0.9 * first["weight"].detach() + 0.1 * second["weight"].detach()
    first.data.mul_(0.9).add_(second.data * 0.1)
    torch.testing.assert_close(first["weight"].detach(), expected)


def test_stacked_modules_as_a_module():
    modules = [nn.Linear(2, 3) for _ in range(4)]
    params = from_modules(*modules, as_module=True)
    assert params.batch_size == (4,) and len(list(params.parameters())) == 2
    empty = copy.deepcopy(modules[0]).to("meta")

    def call(params, x):
        with params.to_module(empty):
            return empty(x)

    out = torch.vmap(call, (0, None))(params, torch.ones(2))
    torch.testing.assert_close(out, torch.stack([module(torch.ones(2)) for module in modules]))
    out.sum().backward()
    assert params["bias"].grad.tolist() == torch.ones(4, 3).tolist()


def test_parameters_go_into_modules_and_are_swapped_themselves():
    layer = nn.Linear(2, 3)
    params = TensorDictParams(from_module(layer).data.clone().zero_())
    with params.to_module(layer):
        assert layer.weight is params["weight"]
        layer(torch.ones(2)).sum().backward()
    assert params["bias"].grad.tolist() == [1, 1, 1]
    holder = Holder(params)
    whole = from_module(holder)
    assert whole["params", "weight"] is params["weight"]
    weight = params["weight"]
    with (whole + 1).to_module(holder):
        assert (params["weight"] == 1).all()
    assert params["weight"] is weight


def test_copies_and_pickles_are_independent_modules():
    module = Holder(TensorDictParams(values(), lock=True))
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert twin.params["text"] == "hello" and twin.params["a"] is not module.params["a"]
        assert [name for name, _ in twin.named_parameters()] == [name for name, _ in module.named_parameters()]
        twin.params.zero_()
        assert module.params["a"].tolist() == [1, 1]


def test_hooks_change_read_values():
    params = TensorDictParams(values())
    seen = []
    params.register_get_post_hook(lambda owner, value: seen.append(value.shape))
    params.register_get_post_hook(lambda owner, value: value + 1)
    assert params["a"].tolist() == [2, 2] and params["n", "b"].tolist() == [1, 1, 1] and len(seen) == 2
    assert dict(params.named_parameters())["a"].tolist() == [1, 1]


def test_gradients_are_a_tensordict():
    params = TensorDictParams({"a": torch.ones(2), "n": {"b": torch.ones(1)}})
    (params["a"].sum() * params["n", "b"].sum()).backward()
    assert params.grad["a"].tolist() == [1, 1] and params.grad["n", "b"].tolist() == [2]
    params.zero_grad()
    assert params["a"].grad is None or not params["a"].grad.any()


def test_containers_that_cannot_be_parameters_are_refused():
    with pytest.raises(TypeError, match="cannot be called"):
        TensorDictParams({"a": 1.0})()
    with pytest.raises(RuntimeError, match="exclude each other"):
        TensorDictParams(TensorDict({}), a=1)


def test_compiled_in_one_graph():
    params = from_module(nn.Linear(2, 3), as_module=True)
    layer = nn.Linear(2, 3)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.params = params

        def forward(self, x):
            return x @ self.params["weight"].T + self.params["bias"]

    model = Model()
    x = torch.randn(4, 2)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with params.to_module(layer):
        expected = layer(x)
    torch.testing.assert_close(compiled(x), expected)


def test_the_state_of_parameters_has_joined_keys_whether_flatten_is_given_or_not():
    params = TensorDictParams(TensorDict({"a": torch.ones(3), "n": {"x": torch.ones(2)}}))
    assert list(params.state_dict()) == list(params.state_dict(flatten=True)) == ["a", "n.x"]
    state = {"a": torch.zeros(3), "n.x": torch.zeros(2)}
    assert not any(params.load_state_dict(state, from_flatten=True))
    assert params["n", "x"].sum() == 0


@pytest.mark.parametrize("wrap", [lambda p: TensorDict({"p": p}), lambda p: lazy_stack([TensorDict({"n": {"p": p}})])])
@pytest.mark.parametrize("saved", [False, True])
def test_nested_parameters_are_not_replaced_by_mapped_tensors(tmp_path, wrap, saved):
    pytest.importorskip("tensordict_memmap", reason="tensordict-memmap is not installed")
    params = TensorDictParams(TensorDict({"a": torch.ones(3)}))
    td = wrap(params)
    with pytest.raises(RuntimeError, match="not trained"):
        td.memmap_(*[tmp_path / "x"] * saved)
    assert type(params["a"]) is torch.nn.Parameter and not (tmp_path / "x").exists()
    assert td.memmap().is_memmap() and type(params["a"]) is torch.nn.Parameter


def test_attributes_have_the_names_of_named_parameters():
    params = TensorDictParams({"a": torch.zeros(2), "n": {"b": torch.ones(2), "m": {"i": torch.tensor(1)}}})
    assert all(getattr(params, name) is value for name, value in params.named_parameters())
    assert getattr(params, "n.m.i") is params["n", "m", "i"]
    with pytest.raises(AttributeError):
        getattr(params, "n.missing")
