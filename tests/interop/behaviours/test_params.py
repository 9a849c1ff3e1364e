"""Parameters of modules, as tensordicts and in modules, behave as in the reference."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from side_by_side import OURS, assert_same
from torch import nn


def params_of(lib: Any) -> Any:
    return lib.TensorDictParams(lib.TensorDict({"a": torch.ones(3), "n": {"b": torch.zeros(2)}}))


def mixed(lib: Any, **options: Any) -> Any:
    return lib.TensorDictParams({"a": torch.ones(2), "c": torch.arange(2), "b": torch.ones(2)}, **options)


class Holder(nn.Module):
    """A module with parameters of a batch size."""

    def __init__(self, lib: Any) -> None:
        super().__init__()
        self.params = lib.TensorDictParams(lib.TensorDict({"a": torch.ones(2, 3)}, [2]))


class WithBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.ones(2))


def names(module: nn.Module) -> Any:
    return [
        [n for n, _ in module.named_parameters()],
        [n for n, _ in module.named_buffers()],
        sorted(module.state_dict()),
    ]


@pytest.mark.parametrize("in_folder", [False, True])
def test_parameters_are_not_mapped_in_place(in_folder: bool, tmp_path: Any) -> None:
    assert_same(lambda lib: params_of(lib).memmap_(*([str(tmp_path / "p")] if in_folder else [])))


def test_a_device_is_kept() -> None:
    def call(lib: Any) -> Any:
        params = lib.TensorDictParams(lib.TensorDict({"a": torch.ones(3)}, device="cpu"))
        plain = params_of(lib)
        results = (params, params.to("cpu"), params.empty(), params.float(), params.clone(), plain, plain.to("cpu"))
        return [str(one.device) for one in results], type(plain.cpu()).__name__

    assert_same(call)


def test_a_device_follows_the_module() -> None:
    module = nn.Module()
    module.params = OURS.TensorDictParams(OURS.TensorDict({"a": torch.ones(3)}, device="cpu"))
    module.to("meta")
    assert module.params.device == module.params["a"].device == torch.device("meta")


def test_keys_have_the_order_of_their_entries() -> None:
    def call(lib: Any) -> Any:
        params = mixed(lib)
        orders = [list(params.keys())]
        params["d"], params["e"], params["n"] = torch.arange(3), torch.ones(3), {"x": torch.ones(1)}
        params["z"], params["a"], params["c"] = torch.arange(3), torch.zeros(2), torch.ones(3)
        orders.append(list(params.keys()))
        del params["b"]
        params["b"] = torch.ones(3)
        params.rename_key_("d", "dd")
        return [*orders, list(params.keys())]

    assert_same(call)


@pytest.mark.parametrize(
    "copied",
    [lambda p: p.clone(), lambda p: p.data, lambda p: p.to(torch.float64), copy.deepcopy, lambda p: p.to_tensordict()],
)
def test_copies_have_the_order_of_the_entries(copied: Any) -> None:
    assert_same(lambda lib: list(copied(mixed(lib)).keys()))
    assert list(pickle.loads(pickle.dumps(mixed(OURS))).keys()) == ["a", "c", "b"]


def test_zeroing_a_tensordict_zeroes_parameters_in_it() -> None:
    def call(lib: Any) -> Any:
        params = params_of(lib)
        lib.TensorDict({"p": params}).zero_()
        return params

    assert_same(call)


def test_every_entry_may_require_gradients() -> None:
    def call(lib: Any) -> Any:
        cast = mixed(lib).float().requires_grad_()
        buffers = mixed(lib, no_convert=True).exclude("c").requires_grad_()
        made = [cast, buffers]
        return [type(cast).__name__, *([value.requires_grad for value in one.values()] for one in made)]

    assert_same(call)
    assert_same(lambda lib: mixed(lib).requires_grad_())


@pytest.mark.parametrize("name", ["double", "half", "bfloat16", "float"])
def test_casts_let_gradients_reach_the_parameters(name: str) -> None:
    def call(lib: Any) -> Any:
        params = mixed(lib)
        cast = getattr(params, name)()
        cast["a"].sum().backward()
        return type(cast).__name__, params["a"].grad

    assert_same(call)


@pytest.mark.parametrize("no_convert", [False, True])
def test_buffers_are_buffers_of_torch(no_convert: bool) -> None:
    def call(lib: Any) -> Any:
        source = lib.TensorDict.from_module(nn.BatchNorm1d(2))
        params = lib.TensorDictParams(source, no_convert=no_convert)
        results = (params, params.to(torch.float64), lib.TensorDictParams(a=0))
        return [
            {key: (isinstance(v, nn.Buffer), isinstance(v, nn.Parameter)) for key, v in one.items()} for one in results
        ]

    assert_same(call)


def test_hooks_change_what_every_read_returns() -> None:
    def call(lib: Any) -> Any:
        params = params_of(lib)
        params.register_get_post_hook(lambda params, value: value.detach() * 2 + 1)
        leaves = list(params.values(True, True)), [value for _, value in params.items(True, True)]
        return leaves, params["a"], params.get("a"), params["n", "b"]

    assert_same(call)


@pytest.mark.parametrize("function", [torch.stack, torch.cat])
def test_gradients_are_not_lost_in_out(function: Any) -> None:
    def call(lib: Any) -> Any:
        params = lib.TensorDictParams(lib.TensorDict({"a": torch.ones(3, 2)}, [3]))
        out = function([params.data, params.data], 0)
        return function([params, params], 0, out=out)

    assert_same(call)


# from_module and to_module


@pytest.mark.parametrize("as_module", [False, True])
@pytest.mark.parametrize("lock", [False, True])
def test_parameters_in_a_module_are_themselves(as_module: bool, lock: bool) -> None:
    def call(lib: Any) -> Any:
        module = Holder(lib)
        td = lib.TensorDict.from_module(module, as_module=as_module, lock=lock and not as_module)
        return td["params"] is module.params, td["params"].batch_size, td.is_locked, module.params.is_locked

    assert_same(call)


def test_parameters_of_a_module_see_what_is_set() -> None:
    def call(lib: Any) -> Any:
        module = Holder(lib)
        params = lib.TensorDict.from_module(module, as_module=True)
        with (params.data * 0).to_module(module):
            inside = params["params", "a"].detach().clone()
        return inside, params["params", "a"]

    assert_same(call)


@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize("make", [lambda: nn.Linear(2, 2), lambda: nn.BatchNorm1d(2)])
def test_plain_tensors_leave_the_parameters_on_request(preserve: bool, make: Any) -> None:
    def call(lib: Any) -> Any:
        module = make()
        values = lib.TensorDict.from_module(module).data.clone()
        with values.to_module(module, preserve_module_state=preserve):
            inside = names(module)
        after = names(module)
        values.to_module(module, preserve_module_state=preserve)
        return inside, after, names(module)

    assert_same(call)


@pytest.mark.parametrize("preserve", [True, False])
def test_a_parameter_for_a_buffer(preserve: bool) -> None:
    def call(lib: Any) -> Any:
        module = WithBuffer()
        lib.TensorDict({"b": nn.Parameter(torch.zeros(2))}).to_module(module, preserve_module_state=preserve)
        return names(module), type(module.b).__name__, module.b.requires_grad

    assert_same(call)


def test_a_replaced_tensor_of_a_block_is_kept_where_plain_tensors_are_attributes() -> None:
    module = nn.Linear(2, 2)
    weight, values = module.weight, OURS.TensorDict.from_module(module).data.clone()
    with values.to_module(module, preserve_module_state=False):
        module.weight = torch.ones(2, 2)
    assert module.weight is weight and [name for name, _ in module.named_parameters()] == ["weight", "bias"]
    assert values["weight"].tolist() == [[1, 1], [1, 1]]


def test_modules_of_other_structure_do_not_stack() -> None:
    assert_same(lambda lib: lib.TensorDict.from_modules(nn.Sequential(nn.Linear(1, 1)), nn.Linear(1, 1)))


@pytest.mark.parametrize("value", [3, None, [nn.Linear(1, 1)]])
def test_only_modules_have_parameters(value: Any) -> None:
    assert_same(lambda lib: lib.TensorDict.from_module(value))
    assert_same(lambda lib: lib.TensorDictParams(3))


def test_entries_by_name_and_a_source_exclude_each_other() -> None:
    assert_same(lambda lib: lib.TensorDictParams(lib.TensorDict({"a": 1.0}), b=1))


def test_non_tensor_data_is_not_a_parameter() -> None:
    assert_same(lambda lib: lib.TensorDict({"weight": torch.ones(1, 1), "q": "s"}).to_module(nn.Linear(1, 1)))


# files


def test_a_loaded_checkpoint_warns_before_it_is_trained(tmp_path: Any) -> None:
    model = nn.Linear(2, 2)
    OURS.TensorDict.from_module(model).data.save(tmp_path / "first")
    OURS.TensorDict.from_module(model).data.save(tmp_path / "second")
    with pytest.warns(UserWarning, match="mode='c'"):
        OURS.TensorDict.load(tmp_path / "first").to_module(model)
    with pytest.warns(UserWarning, match="mode='c'"):
        OURS.TensorDictParams(OURS.TensorDict.load(tmp_path / "second"))


def test_training_a_copy_on_write_leaves_the_checkpoint(tmp_path: Any) -> None:
    model = nn.Linear(2, 2)
    saved = OURS.TensorDict.from_module(model).data.clone()
    saved.save(tmp_path / "run")
    OURS.TensorDict.load(tmp_path / "run", mode="c").to_module(model)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    assert not model.weight.equal(saved["weight"])
    assert OURS.TensorDict.load(tmp_path / "run")["weight"].equal(saved["weight"])
    with OURS.TensorDict.load(tmp_path / "run").to_module(model):  # a block warns of nothing
        model(torch.ones(2))


@pytest.mark.parametrize("as_module", [True, False])
def test_parameters_of_lazy_modules_are_stacked_without_shape(as_module: bool) -> None:
    def call(lib: Any) -> Any:
        params = lib.TensorDict.from_modules(nn.LazyLinear(3), nn.LazyLinear(3), as_module=as_module)
        weight = params["weight"]
        before = isinstance(weight, nn.UninitializedParameter), weight.requires_grad, weight.dtype
        weight.materialize((3, 4))
        return before, type(weight), weight.shape, params["weight"] is weight

    assert_same(call)
