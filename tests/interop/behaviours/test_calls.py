"""Single calls that the differential fuzzer and lists of arguments found, each run on the reference and on these."""

from __future__ import annotations

import io
import tempfile
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from side_by_side import Row, assert_same
from torch import nn


def flat(lib: Any) -> Any:
    return lib.TensorDict({"a": torch.arange(3.0), "n": {"b": torch.zeros(3, 2)}, "s": "text"}, [3])


def lazy(lib: Any) -> Any:
    return lib.lazy_stack([lib.TensorDict({"a": torch.full((3,), float(i))}, [3]) for i in range(2)])


def value(lib: Any) -> Any:
    return lib.NonTensorData("a", batch_size=[2])


def values(lib: Any) -> Any:
    return lib.NonTensorStack("a", "b")


def ragged(lib: Any) -> Any:
    rows = [lib.TensorDict({"a": torch.ones(4, n), "b": torch.ones(4)}, [4]) for n in (1, 2)]
    return lib.lazy_stack(rows)


def stacks(make: Row, lib: Any) -> Any:
    return lib.lazy_stack([make(lib), make(lib)])


def holder(lib: Any) -> Any:
    """A tensordict of a stack, with the kind of its entry."""
    return lib.TensorDict({"stack": lazy(lib), "x": torch.zeros(2)}, [2])


def kinds(td: Any) -> Any:
    return td, type(td).__name__, {key: type(entry).__name__ for key, entry in td.items()}


def point(lib: Any, **fields: Any) -> Any:
    cls = lib.tensorclass(type("Point", (), {"__annotations__": {"x": torch.Tensor, "y": torch.Tensor}, "y": None}))
    return cls(**fields, batch_size=[3])


def with_module(lib: Any) -> Any:
    params = lib.TensorDictParams(lib.TensorDict({"a": torch.zeros(2)}))
    params.head = nn.Linear(2, 2)
    return params


def padded(lib: Any, *lengths: int) -> Any:
    rows = [lib.TensorDict({"a": torch.ones(2, n), "b": torch.ones(2)}, [2]) for n in lengths]
    return lib.pad_sequence(rows, pad_dim=-1)


def opened(lib: Any, **options: Any) -> Any:
    """A file that h5py wrote."""
    path = f"{tempfile.mkdtemp()}/other.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["n/y"] = np.ones((3, 2)), np.ones((3, 2, 4))
    return lib.from_h5(path, **options).to_tensordict()


def subclass(lib: Any) -> Any:
    return type("Batch", (lib.TensorDict,), {})


CALLS: dict[str, Row] = {
    "transpose of a dim with itself": lambda lib: (td := lazy(lib)).transpose(0, -2) is td,
    "movedim to its place": lambda lib: (td := lazy(lib)).movedim(1, 1) is td,
    "expand of one value": lambda lib: flat(lib)[:1].expand(3).get("s"),
    "broadcast_to of one value": lambda lib: flat(lib).broadcast_to((2, 3)).get("s"),
    "expand to more dims of one value": lambda lib: flat(lib).expand(2, 3).get("s"),
    "rot90 of one dim": lambda lib: flat(lib).rot90(1, 0),
    "is_contiguous of values": lambda lib: lib.TensorDict({"s": values(lib)}, [2]).is_contiguous(),
    "lock of a sum with a tensor": lambda lib: (flat(lib).select("a").lock_() + torch.ones(3)).is_locked,
    "lock of a sum with a number": lambda lib: (flat(lib).select("a").lock_() + 1).is_locked,
    "lock of where": lambda lib: (td := flat(lib).lock_()).where(torch.ones(3, dtype=torch.bool), td).is_locked,
    "lock of type": lambda lib: flat(lib).lock_().type(torch.float64).is_locked,
    "lock of clamp": lambda lib: [flat(lib).select("a").lock_().clamp(*c).is_locked for c in ((1,), (0, 1))],
    "from_list of a subclass": lambda lib: type(subclass(lib).from_list([{"a": 1}] * 2)).__name__,
    "from_any of a subclass": lambda lib: type(subclass(lib).from_any({"a": 1})).__name__,
    "from_module of a subclass": lambda lib: type(subclass(lib).from_module(nn.Linear(2, 2))).__name__,
    "from_list of lazy stacks": lambda lib: type(lib.LazyStackedTensorDict.from_list([{"a": 1}] * 2)).__name__,
    "from_list of another length": lambda lib: lib.TensorDict.from_list([{"a": 1}] * 2, batch_size=[3]),
    "from_dict of parameters": lambda lib: type(lib.TensorDictParams.from_dict({"a": torch.zeros(2)})["a"]).__name__,
    "names of new_zeros": lambda lib: lib.TensorDict({}, [3, 4], names=["x", "y"]).new_zeros(2, 3, 4).names,
    "set_ of one number": lambda lib: lib.TensorDict({"a": torch.zeros(3)}).set_("a", 1.0),
    "update_ of one number": lambda lib: flat(lib).update_({"a": 2.0}),
    "update_at_ of no key": lambda lib: flat(lib).update_at_({"a": 1.0, "z": torch.ones(7)}, 0, keys_to_update=["q"]),
    "order of a selection in place": lambda lib: list(flat(lib).select("n", "a", inplace=True).keys()),
    "split_keys through a leaf": lambda lib: flat(lib).split_keys([("a", "b")]),
    "rename to nothing": lambda lib: lib.TensorDict({}).rename(),
    "get of the empty tuple": lambda lib: flat(lib).get(()),
    "get_non_tensor of a missing key": lambda lib: flat(lib).get_non_tensor("z"),
    "append to a list of values": lambda lib: (td := lib.TensorDict({"s": values(lib)}, [2]))["s"].append("z") or td,
    "vmap of a subclass": lambda lib: torch.vmap(lambda row: row["a"] + 1)(subclass(lib)({"a": torch.ones(3)}, [3])),
    "to_tensordict of a value": lambda lib: value(lib).to_tensordict(),
    "empty of values": lambda lib: values(lib).empty(),
    "elements of values": lambda lib: (values(lib).stack_dim, values(lib).tensordicts),
    "values of one": lambda lib: lib.NonTensorStack.from_nontensordata(value(lib)),
    "one value written at an index": lambda lib: value(lib).__setitem__(0, lib.NonTensorData("b")),
    "as_tensor of parameters": lambda lib: type(lib.TensorDict({"a": nn.Parameter(torch.ones(2))}).as_tensor()["a"]),
    "addcdiv with its value by position": lambda lib: flat(lib).select("a").addcdiv(2.0, 4.0, 0.5),
    "sub_ with alpha by position": lambda lib: flat(lib).select("a").sub_(flat(lib).select("a"), 3.0),
    "clamp_min with a default by position": lambda lib: flat(lib).select("a").clamp_min(1.0, None),
    "dims of flip and tile by name": lambda lib: (flat(lib).flip(dims=0), flat(lib).tile(dims=(2,))),
    "the layout of ragged stacks that are made dense": lambda lib: [
        (td := lib.lazy_stack([lib.TensorDict({"a": torch.ones(n)}) for n in (1, 2)])).densify()["a"].layout,
        td.densify(torch.jagged)["a"].layout,
    ],
    "from_struct_array of a subclass": lambda lib: (
        type(subclass(lib).from_struct_array(np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]))).__name__
    ),
    "softmax of stacks": lambda lib: [kinds(td.softmax(d)) for td in (lazy(lib), stacks(lazy, lib)) for d in range(2)],
    "softmax of a nested stack": lambda lib: kinds(holder(lib).softmax(0)),
    "where of a nested stack": lambda lib: kinds(holder(lib).where(torch.tensor([True, False]), holder(lib))),
    "a stack and a row of it": lambda lib: [
        kinds(result) for td in (lazy(lib), stacks(lazy, lib)) for result in (td == td[0], td + td[0], td * td[:1])
    ],
    "a ragged stack and a row of it": lambda lib: [
        (result["b"], result[0, 0]["a"], type(result).__name__)
        for td in (ragged(lib), stacks(ragged, lib))
        for result in (td == td[0], td - td[0])
    ],
    "maybe_dense_stack with strict": lambda lib: [
        type(lib.LazyStackedTensorDict.maybe_dense_stack(rows, 0, None, True)).__name__
        for rows in (list(lazy(lib).unbind(0)), list(ragged(lib).unbind(0)))
    ],
    "padding of the last dimension of some entries": lambda lib: padded(lib, 2, 3),
    "a field that is None in an update in place": lambda lib: point(lib, x=torch.zeros(3), y=torch.ones(3)).update_(
        {"x": torch.ones(3), "y": None}
    ),
    "a field that is not set": lambda lib: point(lib, x=torch.zeros(3))["y"],
    "a field that is none": lambda lib: point(lib, x=torch.zeros(3))["z"],
    "a value written over itself": lambda lib: [
        (td := value(lib)).__setitem__(index, td[rows]) or td for index, rows in ((0, 1), (slice(1), slice(1)))
    ],
    "a module as an attribute of parameters": lambda lib: (
        list((params := with_module(lib)).keys()),
        len(list(params.parameters())),
        type(params.head).__name__,
        list(params.clone().keys()),
        params * 2,
    ),
    "pin_memory without tensors": lambda lib: lib.TensorDict({"n": {}}, [4]).pin_memory(),
    "locks of from_module": lambda lib: [
        getattr(lib, name).from_module(nn.Linear(1, 1)).is_locked for name in ("TensorDict", "TensorDictParams")
    ],
    "batch sizes of a file of another program": lambda lib: [
        opened(lib, **options) for options in ({}, {"batch_size": [3]}, {"auto_batch_size": True, "batch_dims": 1})
    ],
    "a batch size of NumPy": lambda lib: len(lib.TensorDict({"a": torch.ones(3)}, np.int64(3))),
    "numbers of NumPy": lambda lib: [
        flat(lib).select("a", "n").auto_batch_size_(np.int64(1)),
        *(((td := flat(lib)).__setitem__(np.int64(0), x) or td.exclude("s")) for x in (np.float32(5), np.int64(5))),
    ],
    "a JSON document that is open": lambda lib: lib.from_json(io.StringIO('[{"a": 1}, {"a": 2}]')),
    "samples without a shape": lambda lib: [
        lib.Delta(torch.ones(2)).rsample(None),
        lib.OneHotCategorical(logits=torch.zeros(2)).sample(None).shape,
        lib.TruncatedNormal(torch.zeros(2), torch.ones(2)).rsample(None).shape,
    ],
    "out keys that are not written": lambda lib: lib.TensorDictModule(nn.Linear(2, 2), ["a"], ["b"]).select_out_keys(
        "c"
    ),
    "results under keys": lambda lib: lib.TensorDictModule(nn.Linear(2, 2), ["a"], ["b"])._write_to_tensordict(
        lib.TensorDict({}), [torch.ones(2)]
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_call_gives_the_same(call: Row):
    assert_same(call)
