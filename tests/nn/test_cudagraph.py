"""CUDA graphs; inputs and results are also tested without CUDA, by a recorder that runs functions again."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import tensordict_nn.cudagraph as module_under_test
from tensordict_core import TensorDict, lazy_stack
from tensordict_nn import (
    CudaGraphModule,
    InteractionType,
    ProbabilisticTensorDictModule,
    TensorDictModule,
    TensorDictSequential,
    WrapModule,
    set_interaction_type,
)


class Rerun:
    """As a CUDA graph on the CPU: the function runs again on the same memory, and its results get where they were."""

    device = None

    def __init__(self):
        self.warmed = self.recorded = self.replayed = 0

    def warm(self, function):
        self.warmed += 1
        return function()

    def record(self, function):
        self.recorded += 1
        self._function = function
        self._results = function()
        for leaf in self._tensors(self._results):
            if not leaf.requires_grad:
                leaf.zero_()  # a recording computes nothing
        return self._results

    def replay(self):
        self.replayed += 1
        for old, new in zip(self._tensors(self._results), self._tensors(self._function()), strict=True):
            old.copy_(new)

    def _tensors(self, tree):
        return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.fixture
def recorder(monkeypatch):
    one = Rerun()
    monkeypatch.setattr(module_under_test, "_make_recorder", lambda device: one)
    return one


def eager(*args, **kwargs):
    with (
        pytest.warns(UserWarning, match="no CUDA device")
        if not torch.cuda.is_available()
        else warnings.catch_warnings()
    ):
        return CudaGraphModule(*args, **kwargs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens where there is no CUDA")
def test_without_cuda_it_warns_and_runs_the_function():
    calls = []
    with pytest.warns(UserWarning, match="no CUDA device"):
        add = CudaGraphModule(lambda x: calls.append(1) or x + 1)
    assert [add(torch.tensor(float(i))).item() for i in range(4)] == [1, 2, 3, 4]
    assert len(calls) == 4
    on_td = eager(TensorDictModule(lambda x: x + 1, ["x"], ["y"]))
    td = TensorDict({"x": torch.zeros(2)})
    assert on_td(td) is td and td["y"].tolist() == [1, 1]
    assert on_td(x=torch.ones(2)).tolist() == on_td(torch.ones(2)).tolist() == [2, 2]
    assert not isinstance(on_td, nn.Module)


def test_calls_are_warmed_then_recorded_then_replayed(recorder):
    add = CudaGraphModule(lambda x, *, y: {"sum": x + y}, warmup=3)
    results = [add(torch.full((2,), float(i)), y=torch.ones(2))["sum"] for i in range(6)]
    assert [result.tolist() for result in results] == [[i + 1.0] * 2 for i in range(6)]
    assert (recorder.warmed, recorder.recorded, recorder.replayed) == (2, 1, 4)
    assert len({result.data_ptr() for result in results}) == 6  # each one is a copy


@pytest.mark.parametrize("warmup", [0, -1, 1.5])
def test_the_call_that_records_is_counted_from_one(warmup):
    with pytest.raises(ValueError, match="from 1"):
        CudaGraphModule(torch.neg, warmup=warmup)


def test_the_first_call_may_record(recorder):
    neg = CudaGraphModule(torch.neg, warmup=1)
    assert neg(torch.ones(2)).tolist() == [-1, -1] and recorder.recorded == 1


def test_results_are_written_into_the_tensordict_that_was_given(recorder):
    graph = CudaGraphModule(TensorDictModule(lambda x: x + 1, ["x"], [("out", "y")]))
    for i in range(4):
        td = TensorDict({"x": torch.full((3,), float(i)), "other": torch.zeros(3, 7)}, [3])
        assert graph(td) is td
        assert td["out", "y"].tolist() == [i + 1.0] * 3
        assert graph(td) is td  # what was written is no input
        assert sorted(td.keys(True, True), key=str) == [("out", "y"), "other", "x"]
    assert recorder.recorded == 1


def test_results_that_are_other_tensordicts_are_copies(recorder):
    graph = CudaGraphModule(TensorDictModule(lambda x: x + 1, ["x"], ["y"], inplace=False))
    results = [graph(TensorDict({"x": torch.full((3,), float(i))}, [3])) for i in range(4)]
    assert [list(r.keys()) for r in results] == [["y"]] * 4
    assert [r["y"][0].item() for r in results] == [1, 2, 3, 4]


def test_another_tensordict_takes_the_results(recorder):
    graph = CudaGraphModule(TensorDictModule(lambda x: x + 1, ["x"], ["y"]))
    out = TensorDict({"kept": torch.zeros(1)})
    for i in range(4):
        td = TensorDict({"x": torch.full((), float(i))})
        assert graph(td, tensordict_out=out) is out
        assert out["y"].item() == i + 1 and "kept" in out and "y" not in td


def test_modules_on_tensordicts_are_called_with_tensors(recorder):
    graph = CudaGraphModule(
        TensorDictSequential(
            TensorDictModule(lambda x: x + 1, ["x"], ["y"]), TensorDictModule(lambda y, z: y * z, ["y", "z"], ["w"])
        ).select_out_keys("w")
    )
    for i in range(4):
        assert graph(x=torch.full((), float(i)), z=torch.tensor(2.0)).item() == 2 * (i + 1)
    assert recorder.replayed == 3


def test_functions_of_a_whole_tensordict(recorder):
    graph = CudaGraphModule(lambda td: td.set("y", td["x"] + 1), in_keys=[])
    td = TensorDict({"x": torch.zeros(2)})
    for i in range(4):
        td["x"] = torch.full((2,), float(i))
        assert graph(td) is td and td["y"].tolist() == [i + 1.0] * 2
    wrapped = CudaGraphModule(WrapModule(lambda td: td.set("y", -td["x"])))
    assert (wrapped.in_keys, wrapped.out_keys) == ([], [])
    for i in range(4):
        assert wrapped(TensorDict({"x": torch.tensor(float(i))}))["y"].item() == -i


def test_functions_take_given_keys(recorder):
    graph = CudaGraphModule(lambda td: td.set("y", td["x"] + 1), in_keys="x", out_keys=["y"])
    assert graph.in_keys == ["x"]
    for i in range(4):
        assert graph(x=torch.tensor(float(i))).item() == i + 1


def test_keys_beside_those_of_the_module_are_left_out_with_a_warning(recorder):
    with pytest.warns(UserWarning, match=r"takes the in_keys \['x'\] of the module"):
        graph = CudaGraphModule(TensorDictModule(torch.neg, ["x"], ["y"]), in_keys=["z"], out_keys=["y"])
    assert graph.in_keys == ["x"] and graph.out_keys == ["y"]


def test_nested_tensordicts_and_values_beside_tensors(recorder):
    def function(td):
        return td.set("sum", td["a", "b"] + td["c"]).set("note", "done")

    graph = CudaGraphModule(function, in_keys=["a", "c", "name"], out_keys=["sum"])
    for i in range(4):
        td = TensorDict({"a": {"b": torch.full((2,), float(i))}, "c": torch.ones(2), "name": "same"}, [2])
        assert graph(td) is td and td["sum"].tolist() == [i + 1.0] * 2 and td["note"] == "done"
    td["name"] = "other"
    with pytest.raises(ValueError, match="structure"):
        graph(td)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda: (torch.ones(3), 2.0), r"is \[3\] of torch.float32 on cpu, but it was \[2\]"),
        (lambda: (torch.ones(2).double(), 2.0), "torch.float64"),
        (lambda: (torch.ones(2), 3.0), "is 3.0, but it was 2.0"),
        (lambda: (torch.ones(2), "2.0"), "is '2.0'"),
        (lambda: (torch.ones(2), torch.tensor(2.0)), "it was 2.0"),
        (lambda: ([torch.ones(2)], 2.0), "structure"),
        (lambda: (torch.ones(2, device="meta"), 2.0), "meta"),
    ],
)
def test_inputs_of_another_form_are_refused(recorder, changed, message):
    scale = CudaGraphModule(lambda x, factor: x * factor)
    for _ in range(3):
        scale(torch.ones(2), 2.0)
    with pytest.raises(ValueError, match=message):
        scale(*changed())
    assert scale(torch.ones(2), 2.0).tolist() == [2, 2]


def test_tensordicts_of_another_form_are_refused(recorder):
    graph = CudaGraphModule(TensorDictModule(torch.neg, ["x"], ["y"]))
    for _ in range(3):
        graph(TensorDict({"x": torch.ones(3, 2)}, [3]))
    with pytest.raises(ValueError, match=r"\[4, 2\]"):
        graph(TensorDict({"x": torch.ones(4, 2)}, [4]))
    with pytest.raises(ValueError, match="structure"):
        graph(TensorDict({"x": torch.ones(3, 2)}, [3, 2]))
    with pytest.raises(KeyError, match="needs the keys"):
        graph(TensorDict({"z": torch.ones(3, 2)}, [3]))


def test_inputs_and_results_have_no_gradients(recorder):
    neg = CudaGraphModule(torch.neg)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="an input of a CudaGraphModule requires gradients"):
            neg(torch.ones(2, requires_grad=True))
        neg(torch.ones(2))
    linear = CudaGraphModule(nn.Linear(2, 1), warmup=1)
    with pytest.raises(RuntimeError, match="a result of a CudaGraphModule"):
        linear(torch.ones(2))
    with torch.no_grad():
        assert linear(torch.ones(2)).shape == (1,)


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens where there is no CUDA")
def test_the_gradient_check_is_the_same_without_cuda():
    neg = eager(TensorDictModule(torch.neg, ["x"], ["y"]))
    with pytest.raises(RuntimeError, match="requires gradients"):
        neg(TensorDict({"x": torch.ones(2, requires_grad=True)}))


def test_a_whole_training_step(recorder):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(td):
        optimizer.zero_grad()
        loss = (td["x"] @ weight - td["y"]).pow(2).mean()
        loss.backward()
        optimizer.step()
        return td.set("loss", loss.detach())

    graph = CudaGraphModule(step, in_keys=["x", "y"])
    losses = []
    for _ in range(50):
        x = torch.randn(16, 2)
        losses.append(graph(TensorDict({"x": x, "y": x @ torch.tensor([1.0, -2.0])}))["loss"].item())
    assert losses[-1] < 1e-3 < losses[0]
    torch.testing.assert_close(weight.detach(), torch.tensor([1.0, -2.0]), atol=0.05, rtol=0)


def test_writes_into_inputs_stay_in_the_graph(recorder):
    graph = CudaGraphModule(lambda x: x.add_(1), warmup=1)
    x = torch.zeros(2)
    assert graph(x).tolist() == [1, 1] and x.tolist() == [0, 0]


def test_another_interaction_type_is_said_once(recorder):
    module = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=torch.distributions.Normal)
    graph = CudaGraphModule(module)
    td = TensorDict({"loc": torch.zeros(2), "scale": torch.ones(2)})
    with set_interaction_type(InteractionType.RANDOM):
        for _ in range(3):
            assert graph(td.copy())["x"].count_nonzero() == 2
    with pytest.warns(UserWarning, match="for each interaction type"):
        graph(td.copy())
    graph(td.copy())  # and no more, or the warning would be an error here


def test_state_is_that_of_the_module(recorder):
    linear = nn.Linear(2, 2)
    graph = CudaGraphModule(TensorDictModule(linear, ["x"], ["y"]))
    x = torch.ones(2)
    with torch.no_grad():
        for _ in range(3):
            graph(x)
        graph.load_state_dict({key: torch.zeros_like(value) for key, value in graph.state_dict().items()})
        assert graph(x).tolist() == [0, 0]
    function = CudaGraphModule(torch.neg)
    function.load_state_dict({"anything": 1})
    assert function.state_dict() == {}


def test_it_works_in_a_sequence_and_has_a_repr(recorder):
    graph = CudaGraphModule(TensorDictModule(lambda x: x + 1, ["x"], ["y"]))
    sequence = TensorDictSequential(graph, TensorDictModule(torch.neg, ["y"], ["z"]))
    assert sequence.in_keys == ["x"] and sequence.out_keys == ["y", "z"]
    assert [sequence(TensorDict({"x": torch.tensor(float(i))}))["z"].item() for i in range(4)] == [-1, -2, -3, -4]
    shown = repr(CudaGraphModule(torch.neg, warmup=3))
    assert shown.startswith("CudaGraphModule(\n    module=") and "warmup=3" in shown and "in_keys=None" in shown


@pytest.mark.cuda
class TestCuda:
    """The same on a GPU, where kernels are recorded."""

    def test_tensors_and_tensordicts(self):
        add = CudaGraphModule(lambda x, y: x @ y + 1, warmup=3)
        module = TensorDictModule(lambda x: (x.sin(), x.cos()), ["x"], ["s", "c"])
        on_td, by_name = CudaGraphModule(module), CudaGraphModule(module)
        for _ in range(6):
            x, y = torch.randn(4, 4, device="cuda"), torch.randn(4, 4, device="cuda")
            torch.testing.assert_close(add(x, y), x @ y + 1)
            td = TensorDict({"x": x}, [4], device="cuda")
            assert on_td(td) is td
            torch.testing.assert_close(td["s"], x.sin())
            torch.testing.assert_close(by_name(x=x)[1], x.cos())

    def test_results_are_copies(self):
        neg = CudaGraphModule(torch.neg)
        results = [neg(torch.full((2,), float(i), device="cuda")) for i in range(5)]
        assert [r[0].item() for r in results] == [0, -1, -2, -3, -4]

    def test_a_training_step_equals_the_one_without_a_graph(self):
        torch.manual_seed(0)
        models = [nn.Linear(3, 1).cuda() for _ in range(2)]
        models[1].load_state_dict(models[0].state_dict())

        def make(model):
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)

            def step(td):
                optimizer.zero_grad()
                loss = (model(td["x"]) - td["y"]).pow(2).mean()
                loss.backward()
                optimizer.step()
                return td.set("loss", loss.detach())

            return step

        plain, graph = make(models[0]), CudaGraphModule(make(models[1]), warmup=3, in_keys=["x", "y"])
        for _ in range(10):
            data = TensorDict({"x": torch.randn(8, 3), "y": torch.randn(8, 1)}).to("cuda")
            torch.testing.assert_close(plain(data.copy())["loss"], graph(data.copy())["loss"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(models[0].weight, models[1].weight, rtol=1e-4, atol=1e-5)

    def test_random_numbers_go_on(self):
        draw = CudaGraphModule(lambda x: torch.randn_like(x))
        drawn = {draw(torch.zeros((), device="cuda")).item() for _ in range(6)}
        assert len(drawn) == 6

    def test_inputs_on_the_cpu_are_refused(self):
        add = CudaGraphModule(lambda x, y: x + y, warmup=1)
        with pytest.raises(ValueError, match="on cpu"):
            add(torch.ones(2, device="cuda"), torch.tensor(1.0))

    @pytest.mark.filterwarnings("ignore")  # of torch's compiler, about itself and about faster matrix products
    def test_a_compiled_module(self):
        module = CudaGraphModule(torch.compile(TensorDictModule(nn.Linear(3, 4).cuda(), ["x"], ["y"])), warmup=4)
        with torch.no_grad():
            for _ in range(7):
                x = torch.randn(5, 3, device="cuda")
                td = module(TensorDict({"x": x}, [5]))
                torch.testing.assert_close(td["y"], module.module.module(x))


@pytest.mark.parametrize("stack_dim", [0, 1])
def test_results_in_lazy_stacks_are_set_in_each_element(recorder, stack_dim):
    def grow(td):
        td["y"] = td["x"] + 1
        td["n", "w"] = td["n", "z"] * 2
        td.tensordicts[1]["alone"] = td.tensordicts[1]["x"] * 3
        td["new"] = {"v": td["x"] * 4}
        return td

    graph = CudaGraphModule(grow, in_keys=[], out_keys=["y"])
    for call in range(4):
        parts = [
            TensorDict({"x": torch.full((2, 2), float(i + call)), "n": {"z": torch.ones(2), "s": "text"}}, [2])
            for i in range(2)
        ]
        expected = grow(lazy_stack([part.clone() for part in parts], stack_dim))
        td = lazy_stack(parts, stack_dim)
        assert graph(td) is td
        for got, want in zip(td.tensordicts, expected.tensordicts, strict=True):
            assert got.keys(True, True) == want.keys(True, True)
            assert got["n", "s"] == "text" and bool((got == want).all())
    assert recorder.replayed


def test_results_in_a_node_keep_its_other_entries(recorder):
    graph = CudaGraphModule(TensorDictModule(lambda x: x + 1, ["x"], [("n", "y")]))
    for call in range(4):
        td = TensorDict({"x": torch.full((), call), "n": {"kept": torch.ones(())}})
        assert graph(td)["n", "y"].item() == call + 1 and td["n", "kept"].item() == 1
    into = CudaGraphModule(TensorDictModule(lambda x: x + 1, ["x"], [("n", "y")]))
    for call in range(4):
        out = TensorDict({"n": {"kept": torch.zeros(())}})
        assert into(TensorDict({"x": torch.full((), call)}), tensordict_out=out) is out
        assert out["n", "y"].item() == call + 1 and out["n", "kept"].item() == 0
