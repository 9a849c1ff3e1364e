"""State after blocks and operations: no values are lost, ties stay, and errors leave no partial change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tensordict_core import TensorDict, UnbatchedTensor, lazy_stack
from tensordict_nn import EnsembleModule, TensorDictModule, TensorDictParams, from_module, from_modules


class Counters(nn.Module):
    """One buffer that is replaced at every call, and one that is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("changed", torch.zeros(2))

    def forward(self, x):
        self.replaced = self.replaced + 1
        self.changed.add_(2)
        return x


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2, bias=False)
        self.b = nn.Linear(2, 2, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


def counters() -> TensorDict:
    return TensorDict({"replaced": torch.zeros(2), "changed": torch.zeros(2)})


def elements() -> list[TensorDict]:
    return [TensorDict({"replaced": torch.tensor(0.0), "changed": torch.tensor(0.0)}) for _ in range(2)]


def hooked() -> TensorDictParams:
    params = TensorDictParams(counters(), no_convert=True)
    params.register_get_post_hook(lambda params, value: value.clone())
    return params


@pytest.mark.parametrize("options", [{}, {"inplace": True}, {"use_state_dict": True}], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        counters,
        lambda: TensorDictParams(counters(), no_convert=True),
        lambda: TensorDictParams(counters(), no_convert=True, lock=True),
        lambda: lazy_stack(elements()),
        lambda: lazy_stack(elements()).lock_(),
        lambda: (
            TensorDict({"at": torch.zeros(3, 2)}, [3])
            .update({"replaced": torch.zeros(3, 2), "changed": torch.zeros(3, 2)})
            .exclude("at")
            ._get_sub_tensordict(torch.tensor([1]))
            .squeeze(0)
        ),
        hooked,
    ],
    ids=["dense", "params", "locked params", "lazy", "locked lazy", "view", "hook"],
)
def test_replaced_or_changed_tensors_are_in_the_tensordict_after_the_block(make, options):
    module, td = Counters(), make()
    for count in (1, 2):
        with td.to_module(module, **options):
            module(None)
        assert td["replaced"].tolist() == [count, count] and td["changed"].tolist() == [2 * count, 2 * count]
        assert not module.replaced.any() and not module.changed.any()


def test_changes_reach_the_elements_of_a_lazy_stack_and_the_source_of_a_view():
    module, parts = Counters(), elements()
    with lazy_stack(parts).to_module(module):
        module(None)
    assert [one["changed"].item() for one in parts] == [2, 2]

    rows = TensorDict({"replaced": torch.zeros(3, 2), "changed": torch.zeros(3, 2)}, [3])
    with rows._get_sub_tensordict(torch.tensor(1)).to_module(module):
        module(None)
    assert rows["changed"][:, 0].tolist() == [0, 2, 0] and rows["replaced"][:, 0].tolist() == [0, 1, 0]


@pytest.mark.parametrize("options", [{}, {"inplace": True}, {"use_state_dict": True}], ids=str)
def test_a_state_of_another_dtype_is_not_rounded_by_a_block_that_leaves_it_alone(options):
    module = nn.BatchNorm1d(2)
    td = TensorDict({"weight": torch.full((2,), 0.1, dtype=torch.float64), "bias": torch.zeros(2)})
    with td.to_module(module, **options):
        pass
    assert td["weight"].tolist() == [0.1, 0.1]


@pytest.mark.parametrize("inplace", [False, True])
def test_tensors_replaced_by_a_module_with_two_names_are_under_both(inplace):
    shared = Counters()
    module = nn.Sequential(shared, shared)
    td = from_module(module).clone()
    with td.to_module(module, inplace=inplace):
        module(None)
    assert td["0", "replaced"].tolist() == td["1", "replaced"].tolist() == [2, 2] and not shared.replaced.any()

    apart = from_module(module).clone().update({"0": {"replaced": torch.ones(2)}})
    with apart.to_module(module):
        pass
    assert apart["0", "replaced"].tolist() == [1, 1] and apart["1", "replaced"].tolist() == [0, 0]


def test_buffers_that_a_block_replaces_stay_buffers():
    buffers = {name: nn.Buffer(torch.zeros(2)) for name in ("replaced", "changed")}
    params = TensorDictParams(buffers)
    module = Counters()
    with params.to_module(module):
        module(None)
    assert not list(params.parameters()) and params["replaced"].tolist() == [1, 1]
    params["replaced"] = torch.zeros(2)
    assert not list(params.parameters()) and len(list(params.buffers())) == 2


# refusals -----------------------------------------------------------------------------------------------------------


def two() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


@pytest.mark.parametrize("return_swap", [True, False])
@pytest.mark.parametrize("name", ["shape", "unknown"])
def test_a_state_that_does_not_fit_is_not_loaded_by_half(name, return_swap):
    module = two()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    td = TensorDict({"0": {"weight": torch.zeros(2, 2)}})
    td["1"] = {"weight": torch.zeros(3, 3)} if name == "shape" else {"other": torch.zeros(2)}
    with pytest.raises((RuntimeError, KeyError)):
        td.to_module(module, use_state_dict=True, return_swap=return_swap)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_values_that_cannot_be_copied_are_not_written_by_half():
    module = two()
    before = module[0].weight.detach().clone()
    td = TensorDict({"0": {"weight": torch.zeros(2, 2)}, "1": {"weight": torch.zeros(2, 2, device="meta")}})
    with pytest.raises(RuntimeError, match="meta device"):
        td.to_module(module, inplace=True)
    assert torch.equal(module[0].weight, before)


def test_nothing_is_written_into_a_parameter_that_is_none():
    module = nn.Linear(2, 2, bias=False)
    td = TensorDict({"weight": torch.zeros(2, 2), "bias": torch.ones(2)})
    with pytest.raises(RuntimeError, match="a parameter that is None; leave inplace=True out"):
        td.to_module(module, inplace=True)
    assert module.weight.any()
    with td.to_module(module):
        assert module(torch.ones(2)).tolist() == [1, 1]
    assert module.bias is None and module.weight.any()


def test_a_module_is_as_it_was_where_its_parameters_cannot_be_handed_out():
    module = nn.Linear(2, 2)
    weight = module.weight
    for options in ({}, {"inplace": True}):
        before = weight.detach().clone()
        with pytest.raises(RuntimeError, match="lock"):
            TensorDict({"weight": torch.zeros(2, 2)}).to_module(module, swap_dest=TensorDict({}, lock=True), **options)
        assert module.weight is weight and torch.equal(weight, before)


def test_a_module_is_as_it_was_where_its_changes_cannot_be_taken_back():
    module = nn.BatchNorm1d(2)
    td = TensorDict({"running_mean": torch.zeros(1).expand(2)})
    with pytest.raises(RuntimeError), td.to_module(module, inplace=True):
        module(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert module.running_mean.tolist() == [0, 0]


class Refusing(nn.Linear):
    """A module that refuses to have its weight replaced."""

    refuses = False

    def __setattr__(self, name, value):
        if name == "weight" and self.refuses:
            raise ValueError("not this one")
        super().__setattr__(name, value)


def test_an_error_in_setattr_of_a_later_module_restores_earlier_ones():
    module = nn.Sequential(nn.LSTM(2, 2), Refusing(2, 2))
    module[1].refuses = True
    x, weight = torch.ones(3, 2), module[1].weight
    before = module[0](x)[0].detach()
    with pytest.raises(ValueError, match="not this one"):
        from_module(module).apply(torch.zeros_like).to_module(module)
    assert torch.equal(module[0](x)[0].detach(), before) and module[1].weight is weight


# ties ---------------------------------------------------------------------------------------------------------------


def tied() -> TensorDictParams:
    weight = nn.Parameter(torch.zeros(2))
    return TensorDictParams({"a": weight, "b": {"c": weight}, "d": torch.zeros(1)})


@pytest.mark.parametrize("name", ["double", "half", "bfloat16", "complex64", "clone"])
def test_casts_keep_ties(name):
    params = getattr(tied(), name)()
    assert params["a"] is params["b", "c"] and params["a"].requires_grad


def test_moves_keep_ties():
    params = tied().to(torch.float64)
    assert params["a"] is params["b", "c"] and len(list(params.parameters())) == 2


def test_casts_keep_ties_of_buffers():
    buffer = torch.tensor([1, 2])
    params = TensorDictParams({"a": buffer, "b": buffer}).to(torch.int16)
    assert params["a"] is params["b"] and len(list(params.buffers())) == 1


def test_in_place_operations_change_tied_weights_once():
    params = tied()
    ones = TensorDict({"a": torch.ones(2), "b": {"c": torch.ones(2)}, "d": torch.ones(1)})
    weight = params["a"]
    assert params.lerp_(ones, 0.5) is params and weight.tolist() == [0.5, 0.5] and params["d"].tolist() == [0.5]
    params.mul_(2).add_(ones)
    params += 1
    assert weight.tolist() == [3, 3] and params["b", "c"] is weight and params["a"] is weight
    params.lock_().neg_()
    assert weight.tolist() == [-3, -3] and params["d"].tolist() == [-3]


def test_compiled_in_place_operations_change_tied_weights_once():
    params = tied()
    torch.compile(lambda params: params.add_(1), backend="eager", fullgraph=True)(params)
    assert params["a"].tolist() == [1, 1] and params["d"].tolist() == [1]


@pytest.mark.parametrize("as_module", [True, False])
def test_stacks_of_modules_that_tie_weights_tie_them(as_module):
    modules = [Tied(), Tied()]
    params = from_modules(*modules, as_module=as_module)
    assert params["a", "weight"] is params["b", "weight"]
    x = torch.ones(2)

    def call(params, x):
        with params.to_module(modules[0]):
            return modules[0](x)

    torch.vmap(call, (0, None))(params, x).sum().backward()
    for i, module in enumerate(modules):
        module(x).sum().backward()
        torch.testing.assert_close(params["a", "weight"].grad[i], module.a.weight.grad)


def test_ensembles_keep_ties():
    ensemble = EnsembleModule(TensorDictModule(Tied(), ["x"], ["y"]), 3)
    assert len(list(ensemble.parameters())) == 1
    td = ensemble(TensorDict({"x": torch.ones(2)}))
    weights = ensemble.params_td["module", "a", "weight"]
    torch.testing.assert_close(td["y"], torch.stack([w @ w @ torch.ones(2) for w in weights]))


# what does not go together ------------------------------------------------------------------------------------------


def test_modules_that_differ_are_not_stacked():
    bare = nn.Linear(2, 2, bias=False)
    for lazily in (True, False):
        for pair in ((bare, nn.Linear(2, 2)), (nn.Linear(2, 2), bare)):
            with pytest.raises(KeyError, match="bias"):
                from_modules(*pair, lazy_stack=lazily)
    frozen = nn.Linear(2, 2, bias=False).requires_grad_(False)
    for other in (frozen, nn.Linear(2, 2, bias=False).double()):
        with pytest.raises(RuntimeError, match="different dtypes or requires_grad"):
            from_modules(bare, other)
        assert from_modules(bare, other, lazy_stack=True).batch_size == (2,)


def test_parameters_are_not_made_of_a_lazy_stack_with_different_keys():
    stack = lazy_stack([TensorDict({"a": torch.ones(2)}), TensorDict({"a": torch.ones(2), "b": torch.ones(1)})])
    for td in (stack, TensorDict({"n": stack}), lazy_stack([TensorDict({"n": stack}), TensorDict({"n": stack})])):
        with pytest.raises(RuntimeError, match=r"\['b'\] are in some elements of a lazy stack only"):
            TensorDictParams(td)


def test_keys_with_dots_are_loaded_and_never_lost():
    params = TensorDictParams(from_module(two()).flatten_keys("."), no_convert=True)
    other = TensorDictParams(from_module(two()).flatten_keys("."), no_convert=True)
    other.load_state_dict(params.state_dict())
    assert bool((params == other).all())
    collision = TensorDictParams({"a.b": torch.ones(2), "a": {"b": torch.zeros(2)}})
    with pytest.raises(KeyError, match=r"two entries have the name 'a\.b'"):
        collision.state_dict()


def test_parameters_outside_of_a_module_are_reset_with_its_buffers():
    module = TensorDictModule(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)), ["x"], ["y"])
    params = from_module(module).apply(lambda leaf: leaf.detach() + 3)
    fresh = module.reset_parameters_recursive(params)
    assert params["module", "0", "running_mean"].tolist() == [0, 0]
    assert fresh["module", "0", "weight"].requires_grad and not fresh["module", "0", "running_mean"].requires_grad


# what is made of parameters -----------------------------------------------------------------------------------------


def test_parameters_of_parameters_have_new_nodes_and_the_same_buffers():
    params = TensorDictParams({"a": nn.Buffer(torch.zeros(2)), "n": {"b": torch.ones(2)}})
    for source in (params, params.clone()):
        made = TensorDictParams(source, lock=True)
        assert len(list(made.parameters())) == 1 and len(list(made.buffers())) == 1
        assert not params["n"].is_locked and made["n"].is_locked
    with made.unlock_():
        made["n", "c"] = torch.ones(1)
    assert params["n"].sorted_keys == ["b"]


def test_parameters_among_the_entries_of_parameters_stay_the_same_module():
    params = TensorDictParams({"a": nn.Buffer(torch.zeros(2)), "n": {"b": torch.ones(2)}})
    made = TensorDictParams(TensorDict({"inner": params}))
    assert made["inner"] is params and len(list(made.parameters())) == 1 and len(list(made.buffers())) == 1
    params["n", "b"] = torch.zeros(2)
    assert made["inner", "n", "b"].tolist() == [0, 0]


def test_parameters_that_become_integers_are_buffers():
    params = TensorDictParams({"a": torch.ones(2), "n": {"b": torch.full((2,), 1.5)}}).to(torch.int32)
    assert not list(params.parameters()) and params["n", "b"].tolist() == [1, 1]
    assert params["a"].dtype is torch.int32


def test_unbatched_tensors_of_parameters_are_in_state_dicts():
    def module(fill):
        table = UnbatchedTensor(torch.full((5,), fill))
        nested = {"v": UnbatchedTensor(torch.full((2,), fill))}
        out = torch.nn.Module()
        out.params = TensorDictParams(TensorDict({"a": torch.ones(3), "u": table, "n": nested}, [3]))
        return out

    source, target = module(1.0), module(0.0)
    state = source.state_dict()
    assert list(state) == ["params.a", "params.u", "params.n.v"]
    target.load_state_dict(state)
    assert (target.params["u"] == 1).all() and (target.params["n", "v"] == 1).all()
    assert [name for name, _ in target.named_parameters()] == ["params.a"]
    del state["params.u"]
    with pytest.raises(RuntimeError, match=r"params\.u"):
        target.load_state_dict(state)
    assert target.load_state_dict(state, strict=False).missing_keys == ["params.u"]
    for wrong in (torch.zeros(7), "text"):
        state["params.u"] = wrong
        with pytest.raises(RuntimeError, match=r"size mismatch for params\.u"):
            target.load_state_dict(state)
