"""Unbatched tensors, ``vmap`` and losses beside the reference: a test for each behaviour that programs rely on."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from side_by_side import assert_same
from torch.nn import functional

from tensordict_core.torch_api.functorch import register

pytestmark = pytest.mark.filterwarnings("ignore")
register()  # again: the reference replaces functions of torch.vmap when it is imported


def table(lib: Any, size: tuple[int, ...] = (3,)) -> Any:
    return lib.TensorDict({"a": torch.zeros(*size), "u": lib.UnbatchedTensor(torch.arange(5.0))}, list(size))


def one(lib: Any, value: Any = 1.5) -> Any:
    return lib.UnbatchedTensor(torch.tensor(value))


def seen(value: Any) -> Any:
    """The type, the batch size and the values of an unbatched tensor."""
    return [type(value).__name__, list(value.batch_size), value.tolist(), isinstance(value, torch.Tensor)]


CHANGES = {
    "row": lambda td: td[0],
    "slice": lambda td: td[:2],
    "mask": lambda td: td[torch.tensor([True, False, True])],
    "stack": lambda td: torch.stack([td, td]),
    "cat": lambda td: torch.cat([td, td]),
    "split": lambda td: td.split(2)[0],
    "unbind": lambda td: td.unbind(0)[0],
    "view": lambda td: td.view(3, 1),
    "expand": lambda td: td.expand(2, 3),
    "unsqueeze": lambda td: td.unsqueeze(0),
    "gather": lambda td: td.gather(0, torch.tensor([0, 1])),
    "add": lambda td: td + 1,
    "compare": lambda td: td == td,
    "apply": lambda td: td.apply(lambda x: x + 1),
    "clone": lambda td: td.clone(),
    "to": lambda td: td.to(torch.float64),
    "pickle": lambda td: pickle.loads(pickle.dumps(td)),
    "sum": lambda td: td.sum(0),
    "flatten_keys": lambda td: td.flatten_keys(),
    "zero_": lambda td: td.zero_(),
    "vmap": lambda td: torch.vmap(lambda row: row)(td),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_operations_keep_the_type_and_give_the_batch_size(change: Any) -> None:
    assert_same(lambda lib: [seen(change(table(lib))["u"]), list(change(table(lib)).batch_size)])


def test_lazy_stacks_hold_one() -> None:
    assert_same(lambda lib: seen(lib.lazy_stack([table(lib), table(lib)])["u"]))


TENSOR = {
    "add": lambda u: u + 1,
    "reflected": lambda u: 1 + u,
    "sin": lambda u: torch.sin(u),
    "index": lambda u: u[0],
    "slice": lambda u: u[:2],
    "iteration": lambda u: list(u)[1],
    "matmul": lambda u: u @ u,
    "cat": lambda u: torch.cat([u, u]),
    "split": lambda u: u.split(2)[2],
    "data": lambda u: u.data,
    "detach": lambda u: u.detach(),
    "to": lambda u: u.to(torch.int64),
    "copy": copy.copy,
    "equal": lambda u: u == u,
    "in place": lambda u: u.add_(1),
}


@pytest.mark.parametrize("function", TENSOR.values(), ids=TENSOR)
def test_functions_of_tensors_keep_the_type(function: Any) -> None:
    assert_same(lambda lib: seen(function(table(lib)["u"])))


ROWS = {
    "str": lambda lib: str(one(lib)),
    "format": lambda lib: f"{one(lib):.2f}",
    "repr": lambda lib: repr(one(lib)),
    "bool": lambda lib: [bool(one(lib)), bool(one(lib, 0))],
    "numbers": lambda lib: [int(one(lib)), float(one(lib)), complex(one(lib))],
    "several as bool": lambda lib: bool(table(lib)["u"]),
    "item": lambda lib: one(lib).item(),
    "several as item": lambda lib: table(lib)["u"].item(),
    "index of a list": lambda lib: [1, 2, 3][one(lib, 1)],
    "floor": lambda lib: math.floor(one(lib)),
    "asarray": lambda lib: np.asarray(table(lib)["u"]),
    "len": lambda lib: len(table(lib)["u"]),
    "len of a number": lambda lib: len(one(lib)),
    "attributes": lambda lib: (lambda u: [u.shape, u.ndim, str(u.dtype), str(u.device), u.numel()])(table(lib)["u"]),
    "unknown attribute": lambda lib: one(lib).foo,
    "isinstance": lambda lib: [isinstance(one(lib), torch.Tensor), lib.is_tensor_collection(one(lib))],
    "get": lambda lib: [type(table(lib).get("u")).__name__, type(table(lib)["u"]).__name__],
    "keys": lambda lib: list(table(lib).keys(True, True)),
    "items": lambda lib: [type(value).__name__ for _, value in table(lib).items(True, True)],
    "values": lambda lib: [type(value).__name__ for value in table(lib).values(True, True)],
    "to_dict": lambda lib: type(table(lib).to_dict()["u"]).__name__,
    "round trip": lambda lib: (lib.TensorDict.from_dict(table(lib).to_dict(), batch_size=[3]) == table(lib)).all(),
    "numpy": lambda lib: table(lib).numpy()["u"],
    "replaced": lambda lib: table(lib).set("u", torch.zeros(3))["u"],
    "update_": lambda lib: table(lib).update_({"u": lib.UnbatchedTensor(torch.ones(5))})["u"].tolist(),
    "text": lambda lib: lib.UnbatchedTensor("a"),
    "pop": lambda lib: type(table(lib).pop("u")).__name__,
    "entry_class": lambda lib: table(lib).entry_class("u").__name__,
    "memmap": lambda lib: table(lib).memmap(),
    "equal stacked": lambda lib: torch.stack([table(lib), table(lib)])["u"].tolist(),
    "different stacked lazily": lambda lib: [
        td["u"].tolist() for td in lib.lazy_stack([table(lib), table(lib) + 1]).unbind(0)
    ],
    "vmap of the entry": lambda lib: seen(torch.vmap(lambda t: t["u"])(table(lib))),
    "vmap of a write": lambda lib: torch.vmap(lambda t: t.set("b", t["a"] + 1))(table(lib))["b"],
    "vmap inside": lambda lib: torch.vmap(lambda t: t["a"] + t["u"].batch_size.numel())(table(lib, (3, 2))),
    "vmap alone": lambda lib: seen(torch.vmap(lambda u: u + 1)(table(lib)["u"])),
    "vmap in dim 1": lambda lib: seen(torch.vmap(lambda t: t, 1, 1)(table(lib, (3, 2)))["u"]),
    "out_dims of one": lambda lib: torch.vmap(lambda a, b: a + b, (0, 0), (0,))(*[table(lib).select("a")] * 2),
    "out_dims of two": lambda lib: torch.vmap(lambda a: (a, a), 0, (0,))(table(lib).select("a")),
    "locked in vmap": lambda lib: torch.vmap(lambda t: t.set("a", t["a"] + 1))(table(lib).select("a").lock_()),
    "written in vmap": lambda lib: torch.vmap(lambda t: t.set_("a", t["a"] + 1))(table(lib).select("a").lock_()),
    "losses": lambda lib: [
        loss(
            lib.TensorDict(a=torch.ones(3), batch_size=[3]),
            lib.TensorDict(a=torch.zeros(3), batch_size=[3]),
            reduction=r,
        )
        for loss in (functional.l1_loss, functional.mse_loss, functional.smooth_l1_loss)
        for r in ("none", "mean", "sum")
    ],
    "loss of a tensor": lambda lib: functional.l1_loss(lib.TensorDict(a=torch.ones(3)), torch.ones(3)),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_unbatched_tensors_behave_as_in_the_reference(row: Any) -> None:
    assert_same(row)
