"""Casts: devices, dtypes, sharing of unchanged leaves, and errors."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import NonTensorData, TensorDict, is_bool, is_floating, is_inexact, is_integer, lazy_stack
from tensordict_core.extension import operations


@pytest.fixture
def td() -> TensorDict:
    return TensorDict({"f": torch.ones(3), "n": {"i": torch.ones(3, dtype=torch.int64)}, "s": "text"}, [3], names=["t"])


def test_to_accepts_the_arguments_of_tensor_to(td: TensorDict) -> None:
    assert td.to(torch.float64).dtype == torch.float64
    assert td.to("cpu").device == torch.device("cpu")
    moved = td.to("meta", torch.float16)
    assert moved.device == torch.device("meta") and moved["n"].device == torch.device("meta")
    assert moved.dtype == torch.float16 and moved.get("s").device == torch.device("meta")
    assert td.to(torch.zeros(1, dtype=torch.int8)).dtype == torch.int8
    assert td.to(other=TensorDict({"x": torch.zeros(1, dtype=torch.float64)})).dtype == torch.float64
    assert td.to("cpu", torch.float64, True).dtype == torch.float64
    assert td.to(device="cpu", dtype=torch.int8).dtype == torch.int8
    assert td.to(dtype=torch.int8)["s"] == "text" and td.to(torch.int8).names == ["t"]


@pytest.mark.parametrize("number", [bool, int, float, complex])
def test_to_takes_python_types_of_numbers_as_dtypes(td: TensorDict, number: type) -> None:
    dtype = torch.ones(1).to(number).dtype
    assert td.to(number).dtype == td.to(dtype=number).dtype == td.to("cpu", number).dtype == dtype


def test_to_returns_the_tensordict_itself_if_nothing_changes(td: TensorDict) -> None:
    assert td.to() is td and td.to(None) is td
    on_cpu = td.to("cpu")
    assert on_cpu is not td and on_cpu.to("cpu") is on_cpu
    assert on_cpu["f"] is td["f"], "a leaf that is there already is shared"


def test_to_keeps_the_lock_and_does_not_change_the_source(td: TensorDict) -> None:
    td.lock_()
    assert td.to(torch.float64).is_locked and td.float().is_locked and td.to("cpu").is_locked
    assert td.device is None and td["n", "i"].dtype == torch.int64


def test_to_with_only_a_batch_size_sets_it_in_place(td: TensorDict) -> None:
    assert td.to(batch_size=[]) is td and td.batch_size == torch.Size([])
    assert td.to(torch.float64, batch_size=[3]).batch_size == torch.Size([3])
    assert td.batch_size == torch.Size([])


def test_to_in_place_returns_the_tensordict_itself(td: TensorDict) -> None:
    assert td.to(torch.float64, inplace=True) is td and td.dtype == torch.float64
    with pytest.raises(RuntimeError, match="locked"):
        td.lock_().to(torch.float32, inplace=True)


def test_cast_filter_gets_key_and_leaf(td: TensorDict) -> None:
    seen = []
    result = td.double(cast_filter=lambda key, leaf: seen.append(key) or leaf.is_floating_point())
    assert seen == [("f",), ("n", "i")]
    assert result["f"].dtype == torch.float64 and result["n", "i"] is td["n", "i"]
    assert td.to(torch.float16, cast_filter=is_inexact)["n", "i"].dtype == torch.int64
    assert td.type(torch.float16, cast_filter=is_integer)["f"].dtype == torch.float32


CASTS = [op for op in operations() if op.family == "cast" and op.name != "complex32"]


@pytest.mark.parametrize("op", CASTS, ids=lambda op: op.name)
def test_every_shorthand_casts_every_leaf(td: TensorDict, op: object) -> None:
    result = getattr(td, op.name)()
    assert result["f"].equal(op.leaf(td["f"])) and result["n", "i"].dtype == result["f"].dtype
    assert result["s"] == "text" and result.names == ["t"] and result.batch_size == td.batch_size


def test_every_dtype_has_a_shorthand() -> None:
    names = {op.name for op in operations() if op.family == "cast"}
    wanted = {"bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16"}
    assert (
        wanted | {"float32", "float64", "complex32", "complex64", "complex128", "half", "int", "float", "double"}
        <= names
    )


def test_type_takes_names_of_tensor_types(td: TensorDict) -> None:
    assert td.type("torch.IntTensor").dtype == torch.int32


@pytest.mark.parametrize("stack", [lambda td: td, lambda td: lazy_stack([td, td.clone()])], ids=["dense", "lazy"])
def test_type_without_a_dtype_is_refused(stack):
    with pytest.raises(TypeError, match="got None"):
        stack(TensorDict({"a": torch.zeros(2)})).type(None)


def test_memory_format_applies_to_leaves_with_four_or_five_dimensions(td: TensorDict) -> None:
    images = TensorDict({"x": torch.ones(2, 3, 4, 4), "y": torch.ones(2)}, [2]).to(memory_format=torch.channels_last)
    assert images["x"].is_contiguous(memory_format=torch.channels_last) and images["y"].shape == (2,)


def test_as_tensor_returns_plain_tensors_for_subclasses() -> None:
    class Image(torch.Tensor):
        pass

    image = torch.ones(2).as_subclass(Image)
    leaf = TensorDict({"p": image}).as_tensor()["p"]
    assert type(leaf) is torch.Tensor and leaf.data_ptr() == image.data_ptr()


class Mask(torch.Tensor):
    """Keeps its type in the methods `clone` and `to` only, as tv_tensors of torchvision."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result.as_subclass(cls) if func in (torch.Tensor.clone, torch.Tensor.to) else result


@pytest.mark.parametrize("operation", [lambda td: td.to(torch.float64), lambda td: td.clone()], ids=["to", "clone"])
def test_leaves_of_a_subclass_keep_the_type_that_their_own_method_keeps(operation) -> None:
    td = TensorDict({"mask": torch.ones(2).as_subclass(Mask), "x": torch.ones(2)})
    assert [type(leaf) for leaf in operation(td).values()] == [Mask, torch.Tensor]


def test_casting_a_lazy_stack_returns_a_lazy_stack() -> None:
    lazy = lazy_stack([TensorDict({"a": torch.ones(n)}) for n in (1, 2)])
    assert type(lazy.double()) is type(lazy) and lazy.double()[1]["a"].dtype == torch.float64
    assert lazy.to("cpu").device == torch.device("cpu")


def test_non_tensor_data_takes_the_new_device() -> None:
    assert NonTensorData("x").to("cpu").data == "x"


def test_bad_targets_are_refused(td: TensorDict) -> None:
    for call, error, message in (
        (lambda: td.to(3.5), TypeError, "got float"),
        (lambda: td.to("cpu", "float32"), TypeError, "unexpected argument"),
        (lambda: td.to(dtype="float32"), TypeError, "torch.dtype"),
        (lambda: td.to("cpu", other=td), TypeError, "leave them out"),
        (lambda: td.to("nodevice"), RuntimeError, "device"),
        (lambda: td.cuda("cpu"), RuntimeError, "CUDA device"),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_moves_to_the_gpu_and_back_keep_values(td: TensorDict) -> None:
    there = td.cuda()
    assert there["f"].is_cuda and there.device is not None and there.device.index is not None
    pinned = td.to("cuda", non_blocking_pin=True, num_threads=2)
    for moved in (there, pinned):
        back = moved.to("cpu")
        assert back["f"].equal(td["f"]) and back["n", "i"].equal(td["n", "i"])


def test_dtype_predicates_test_their_last_argument() -> None:
    floating, integer, flag = torch.ones(1), torch.ones(1, dtype=torch.uint8), torch.ones(1) > 0
    assert [is_floating("k", v) for v in (floating, integer, flag, floating.to(torch.complex64))] == [
        True,
        False,
        False,
        False,
    ]
    assert [is_integer(v) for v in (floating, integer, flag)] == [False, True, False]
    assert [is_bool(v) for v in (floating, integer, flag, 1)] == [False, False, True, False]
    assert is_inexact(floating.to(torch.complex64)) and not is_inexact(integer)
    with pytest.raises(TypeError, match="takes a value"):
        is_bool()


@pytest.mark.parametrize("name", ["qint8", "quint8", "qint32", "quint4x2"])
def test_casts_to_quantized_dtypes_are_those_of_torch(name: str) -> None:
    with pytest.raises(RuntimeError, match="quantized"):
        getattr(TensorDict({"a": torch.zeros(2)}), name)()
    assert getattr(TensorDict({}), name)().is_empty()
