"""Non-tensor data, tensorclasses and mapped tensors beside the reference: calls that tests of programs make."""

from __future__ import annotations

import abc
import inspect
from typing import Any

import numpy as np
import pytest
import torch
from side_by_side import assert_same

pytestmark = pytest.mark.filterwarnings("ignore")


def sample_class(lib: Any, **flags: Any) -> Any:
    @lib.tensorclass(**flags)
    class Sample:
        x: torch.Tensor
        y: torch.Tensor

    return Sample


def sample(lib: Any) -> Any:
    return sample_class(lib)(torch.arange(3), torch.ones(3), batch_size=[3])


def labelled(lib: Any) -> Any:
    @lib.tensorclass
    class Labelled:
        x: torch.Tensor
        label: str

    return Labelled(torch.zeros(3), ["a", "b", "c"], batch_size=[3])


def abstract_class(lib: Any) -> Any:
    class Base(lib.TensorClass, abc.ABC):
        x: torch.Tensor

        @abc.abstractmethod
        def double(self) -> Any: ...

    class Derived(Base):
        def double(self) -> Any:
            return self.x * 2

    return Derived(torch.ones(2)).double(), inspect.isabstract(Base)


def instantiated_abstract_class(lib: Any) -> Any:
    class Base(lib.TensorClass, abc.ABC):
        x: torch.Tensor

        @abc.abstractmethod
        def double(self) -> Any: ...

    return Base(torch.ones(2))


def compared_with_an_instance(lib: Any) -> Any:
    result = sample(lib).to_tensordict() == sample(lib)
    return type(result).__name__, result.x, bool(result.all())


def several_classes(lib: Any) -> Any:
    stack = lib.lazy_stack([sample(lib), sample(lib)])
    return type(stack).__name__, type(stack[1]).__name__, stack.batch_size


def locked_in_place(lib: Any) -> Any:
    data = lib.NonTensorData("a").lock_()
    data.update(lib.NonTensorData("b"), inplace=True)
    return data.data


def written_position(lib: Any) -> Any:
    stack = lib.NonTensorStack("a", "b")
    return stack.update_at_(lib.NonTensorData("c"), 0).tolist(), stack.tolist()


def array_of_strings(lib: Any) -> Any:
    td = lib.TensorDict({"names": np.array(["a", "b"])}, [2])
    return td["names"], type(td.get("names")).__name__, td[0]["names"]


def handler(lib: Any) -> Any:
    tensor = lib.MemoryMappedTensor.from_tensor(torch.arange(3))
    again = lib.MemoryMappedTensor.from_handler(tensor._handler, torch.int64, (3,), None)
    again.fill_(5)
    return tensor.tolist(), tensor._filename


def flags(lib: Any) -> Any:
    classes = [lib.TensorClass["nocast"], sample_class(lib, frozen=True), sample_class(lib, autocast=True)]
    return [[cls._nocast, cls._frozen, cls._autocast, cls._tensor_only, cls._shadow] for cls in classes]


ROWS = {
    "an abstract class": abstract_class,
    "an abstract class, instantiated": instantiated_abstract_class,
    "a tensordict == an instance": compared_with_an_instance,
    "a lazy stack of several classes": several_classes,
    "the signature of a class": lambda lib: list(inspect.signature(sample_class(lib)).parameters),
    "the flags of a class": flags,
    "a value without data": lambda lib: lib.NonTensorData(),
    "a value + a string": lambda lib: (lib.NonTensorData("a") + "b").data,
    "a string + a value": lambda lib: ("b" + lib.NonTensorData("a")).data,
    "values + a string": lambda lib: (lib.NonTensorStack("a", "b") + "c").tolist(),
    "an update in place of a locked value": locked_in_place,
    "an update at an index": written_position,
    "an update at an index of one value": lambda lib: lib.NonTensorData("a").update_at_(lib.NonTensorData("b"), 0),
    "values as arrays": lambda lib: lib.NonTensorStack("a", "b").numpy(),
    "an array of strings": array_of_strings,
    "an array of objects": lambda lib: lib.TensorDict({"o": np.array([None, 1], dtype=object)})["o"],
    "a part of a field of values": lambda lib: labelled(lib).get_at("label", 0),
    "parts of a field of values": lambda lib: labelled(lib).get_at("label", slice(2)),
    "a list of tensordicts": lambda lib: lib.TensorDict({"e": [lib.TensorDict({"a": i}) for i in range(2)]}),
    "a list of tensordicts, set": lambda lib: lib.TensorDict({}, [2]).set(
        "e", [lib.TensorDict({"a": i}) for i in range(2)]
    ),
    "a list of tensordicts with other keys": lambda lib: lib.TensorDict({"e": [lib.TensorDict({k: 1}) for k in "ab"]}),
    "a list of tensordicts of another length": lambda lib: lib.TensorDict({"e": [lib.TensorDict({"a": 1})]}, [3]),
    "a list of instances": lambda lib: lib.TensorDict({"e": [sample(lib)] * 2})["e"].x,
    "a list of lazy stacks": lambda lib: lib.TensorDict({"e": [lib.lazy_stack([lib.TensorDict({"a": 1})])] * 2})["e"],
    "a list of values": lambda lib: lib.TensorDict({"e": [lib.NonTensorData("a"), lib.NonTensorData("b")]})["e"],
    "the handler of shared memory": handler,
    "the dtype of a filled tensor": lambda lib: lib.MemoryMappedTensor.full((2,), fill_value=1).dtype,
}


def test_a_storage_of_another_file_is_refused(tmp_path: Any) -> None:
    def call(lib: Any) -> Any:
        (tmp_path / "x.memmap").write_bytes(bytes(24))
        storage = torch.UntypedStorage.from_file(str(tmp_path / "x.memmap"), shared=True, nbytes=24)
        other = str(tmp_path / "other.memmap")
        return lib.MemoryMappedTensor.from_storage(storage, filename=other, shape=(3,), dtype=torch.int64)

    assert_same(call)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_calls_of_programs(row):
    assert_same(row)
