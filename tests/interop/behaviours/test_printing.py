"""``repr`` as the reference prints it, in the compact and in the long form, of every kind of container."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from side_by_side import Row, assert_same


def rows(lib: Any, count: int = 2, **kwargs: Any) -> list[Any]:
    return [lib.TensorDict({"a": torch.zeros(3), "n": {"b": torch.zeros(3, 1)}}, [3], **kwargs) for _ in range(count)]


def uneven(lib: Any) -> Any:
    return lib.lazy_stack(
        [
            lib.TensorDict({"a": torch.zeros(1 + i), **({"b": torch.zeros(2), "c": {"d": 1.0}} if i else {})})
            for i in (0, 1)
        ]
    )


def instances(lib: Any, count: int) -> list[Any]:
    class Sample:
        x: torch.Tensor
        label: str = "text"
        more: Any = None

    made = lib.tensorclass(Sample)
    return [made(x=torch.zeros(2, 1 + i), batch_size=[2]) for i in range(count)]


def many(lib: Any, count: int) -> Any:
    return lib.TensorDict({f"k{i}": torch.zeros(3) for i in range(count)}, [3])


CONTAINERS: dict[str, Row] = {
    "empty": lambda lib: lib.TensorDict(),
    "one line": lambda lib: rows(lib)[0],
    "one entry a line": lambda lib: many(lib, 12),
    "a nested one that is broken": lambda lib: lib.TensorDict({"x": many(lib, 7), "y": torch.zeros(3)}, [3]),
    "a nested one that is not broken": lambda lib: lib.TensorDict({"x": many(lib, 6), "y": torch.zeros(3)}, [3]),
    "a line of 80 characters": lambda lib: lib.TensorDict({"a" * 26: torch.zeros(3), "b": torch.zeros(3)}, [3]),
    "a line of 81 characters": lambda lib: lib.TensorDict({"a" * 27: torch.zeros(3), "b": torch.zeros(3)}, [3]),
    "device": lambda lib: rows(lib, device="cpu")[0],
    "names": lambda lib: rows(lib, names=["t"])[0],
    "another device": lambda lib: lib.TensorDict({"x": torch.zeros(3, device="meta"), "y": torch.zeros(3)}, [3]),
    "batch sizes of nested ones": lambda lib: lib.TensorDict({"x": rows(lib)[0]}),
    "values": lambda lib: lib.TensorDict({"s": "x", "l": lib.NonTensorStack("a", "b"), "m": lib.MetaData(1)}),
    "long lists of values": lambda lib: lib.NonTensorStack(*["abc"] * 20),
    "lazy stack": lambda lib: lib.lazy_stack(rows(lib)),
    "nested lazy stack": lambda lib: lib.TensorDict({"x": lib.lazy_stack(rows(lib))}, [2]),
    "uneven lazy stack": uneven,
    "lazy stack of values": lambda lib: lib.lazy_stack([lib.TensorDict({"s": s}) for s in "ab"]),
    "mapped": lambda lib: lib.TensorDict({"a": torch.zeros(3)}).memmap(),
    "shared": lambda lib: rows(lib)[0].share_memory_(),
    "tensorclass": lambda lib: instances(lib, 1)[0],
    "tensorclass in a tensordict": lambda lib: lib.TensorDict({"c": instances(lib, 1)[0]}),
    "lazy stack of tensorclasses": lambda lib: lib.LazyStackedTensorDict.lazy_stack(instances(lib, 2)),
    "unbatched tensor": lambda lib: lib.TensorDict({"u": lib.UnbatchedTensor(torch.zeros(7))}, [3]),
    "parameters": lambda lib: lib.TensorDictParams(rows(lib)[0]),
    "nested parameters": lambda lib: lib.TensorDict({"p": lib.TensorDictParams(rows(lib)[0])}, [3]),
    "parameters without shape": lambda lib: lib.TensorDict.from_module(torch.nn.LazyLinear(3)),
    "dtypes": lambda lib: lib.TensorDict(
        {
            str(d): torch.zeros(3, dtype=d)
            for d in (torch.bool, torch.uint8, torch.bfloat16, torch.complex64, torch.int64)
        },
        [3],
    ),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "brief, and the form by default": {"compact": True, "show_device": False},
    "compact": {"compact": True},
    "compact and brief": {"compact": True, "verbose": False},
    "insertion": {"compact": True, "sort_keys": "insertion"},
    "without batch size": {"compact": True, "show_batch_size": False},
    "long": {"compact": False},
    "a detail selects the long form": {"show_grad": True},
    "plain": {"plain": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("made", CONTAINERS.values(), ids=CONTAINERS.keys())
def test_containers_print_alike(made, options):
    def printed(lib: Any) -> str:
        td = made(lib)
        with lib.set_printoptions(**options):
            return repr(td)

    if made is CONTAINERS["parameters without shape"] and not options.get("compact"):
        pytest.skip("torch refuses to tell a shape")
    assert_same(printed)
