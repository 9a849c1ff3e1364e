"""Operations on tensordicts that programs rely on, each run on the reference and on these packages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from side_by_side import Row, assert_same

MASK = torch.tensor([True, False, True])


def pair(lib: Any) -> tuple[Any, Any]:
    td = lib.TensorDict({"x": torch.arange(12.0).view(3, 4), "n": {"y": torch.arange(3.0)}}, [3])
    return td, -td


def rows_of(lib: Any, **shape: Any) -> Any:
    return lib.lazy_stack(
        [lib.TensorDict({"a": torch.full((2,), float(i)), "n": {"b": torch.ones(3)}}, [2]) for i in range(3)], **shape
    )


def loss(name: str, reduction: str) -> Row:
    def run(lib: Any) -> Any:
        td, other = pair(lib)
        return getattr(F, name)(td, other, reduction=reduction)

    return run


def apply_out(lib: Any) -> Any:
    td = lib.TensorDict({"a": torch.arange(3), "n": {"b": torch.arange(3)}}, [3])
    old, node = td["a"], td["n"]
    result = td.apply(lambda x: x.float() + 0.5, out=td)
    return result is td, td, old, td["a"] is old, td["n"] is node


def apply_empty_out(lib: Any) -> Any:
    td = lib.TensorDict({"a": torch.arange(3), "n": {"b": torch.arange(3)}}, [3])
    out = td.empty()
    return td.apply(lambda x: x + 1, out=out) is out, out


def apply_other_out(lib: Any) -> Any:
    td = lib.TensorDict({"a": torch.arange(3)}, [3])
    out = lib.TensorDict({"a": torch.zeros(3), "z": torch.ones(3)}, [3])
    old = out["a"]
    td.apply(lambda x: x + 1, out=out)
    return out, old


def apply_locked_out(lib: Any) -> Any:
    td = lib.TensorDict({"a": torch.arange(3)}, [3])
    return td.apply(lambda x: x + 1, out=td.clone().lock_())


def where_out(lib: Any) -> Any:
    td = lib.TensorDict({"a": torch.zeros(3), "n": {"b": torch.zeros(3)}}, [3])
    other = lib.TensorDict({"a": torch.ones(3), "n": {"b": torch.ones(3)}}, [3])
    old, old_b, node = td["a"], td["n", "b"], td["n"]
    result = td.where(MASK, other, out=td)
    return result is td, td, old, old_b, td["n"] is node


def where_out_of_lazy(lib: Any) -> Any:
    td = rows_of(lib)
    other = rows_of(lib) + 10
    element = td[0]
    old = element["a"]
    td.where(MASK, other, out=td)
    return td, old, td[0] is element


def where_pad_bool(lib: Any) -> Any:
    td = lib.TensorDict({"a": torch.zeros(3), "m": torch.tensor([True, False, True])}, [3])
    other = lib.TensorDict({"a": torch.ones(3), "k": torch.tensor([True, True, True]), "i": torch.arange(3)}, [3])
    return td.where(MASK, other, pad=0)


def pad_in_place(lib: Any) -> Any:
    td = lib.TensorDict({"n": {"a": torch.ones(3)}, "s": lib.NonTensorStack("a", "b", "c")}, [3])
    node = td["n"]
    td.pad([0, 1], inplace=True)
    return td["n"] is node, td.batch_size, td["n"], td["s"]


def pad_lazy_in_place(lib: Any) -> Any:
    td = rows_of(lib)
    elements = list(td.tensordicts)
    td.pad([0, 0, 0, 1], inplace=True)
    return [one is other for one, other in zip(elements, td.tensordicts, strict=True)], td


def update_nested_sizes(lib: Any) -> Any:
    td = lib.TensorDict({"a": torch.ones(3), "n": {"b": torch.ones(3)}}, [3])
    node = td["n"]
    td.update(lib.TensorDict({"a": torch.zeros(5), "n": {"b": torch.zeros(5)}}, [5]), update_batch_size=True)
    return td, td["n"] is node


def update_deeper_sizes(lib: Any) -> Any:
    td = lib.TensorDict({"n": lib.TensorDict({"b": torch.ones(3, 4)}, [3, 4])}, [3])
    node = td["n"]
    td.update(lib.TensorDict({"n": lib.TensorDict({"b": torch.zeros(3, 7)}, [3, 7])}, [3]), update_batch_size=True)
    return td, td["n"] is node


def update_empty(lib: Any) -> Any:
    return lib.TensorDict({"a": torch.ones(3)}, [3]).update(lib.TensorDict({}, [4]))


def update_size_in_place(lib: Any) -> Any:
    td = lib.TensorDict({"a": torch.ones(3)}, [3])
    return td.update(lib.TensorDict({"a": torch.ones(4)}, [4]), update_batch_size=True, inplace=True)


def broadcast_to_tensor(name: str) -> Row:
    def run(lib: Any) -> Any:
        td = lib.TensorDict({"a": torch.arange(12.0).view(3, 4), "b": torch.ones(3, 4)}, [3, 4])
        big = torch.full((2, 3, 4), 2.0)
        if name in ("lerp",):
            return td.lerp(big, 0.5)
        if name in ("addcmul", "addcdiv"):
            return getattr(td, name)(big, big)
        return getattr(td, name)(big)

    return run


def new_ones_times(lib: Any) -> Any:
    td = lib.TensorDict({"a": torch.arange(12.0).view(3, 4)}, [3, 4])
    return td * td.new_ones(2, 3, 4)


def logsumexp_out(lib: Any) -> Any:
    td = lib.TensorDict({"a": torch.arange(6.0).view(2, 3)}, [2, 3])
    out = lib.TensorDict({}, [2])
    return td.logsumexp(dim=1, out=out) is out, out


def reshape_in_place(lib: Any) -> Any:
    td = lib.TensorDict({"a": torch.ones(3, 4), "n": {"b": torch.ones(3, 4, 2)}}, [3, 4])
    return td.reshape((12,), inplace=True) is td, td


def new_zeros_of_lazy(lib: Any) -> Any:
    td = rows_of(lib)
    z = td.new_zeros((4,), empty_lazy=True)
    z[torch.tensor([True, False, True, True])] = rows_of(lib)[:, 0]
    return type(z), z.batch_size, sorted(map(str, z.keys()))


def from_schema(storage: Any, tmp: bool = False, **kwargs: Any) -> Row:
    def run(lib: Any) -> Any:
        schema = {"o": ([4], torch.float32), "i": ([], torch.int64)}
        return lib.TensorDict.from_schema(schema, storage=storage, **kwargs)

    return run


def struct_array(lib: Any) -> Any:
    array = np.zeros(3, dtype=[("a", "f4"), ("b", "i8", (2,)), ("s", "U10")])
    array["s"] = ["x", "yy", "zzz"]
    td = lib.TensorDict.from_struct_array(array)
    td["a"][0] = 5
    back = td.to_struct_array()
    return td.exclude("s"), list(td["s"]), array["a"], back["a"], back["b"], back["s"], str(back.dtype)


def zero_of_params(lib: Any) -> Any:
    td = lib.TensorDict({"p": lib.TensorDictParams(lib.TensorDict({"w": torch.ones(3)}))})
    return td.zero_() is td, td["p", "w"].tolist()


ROWS: dict[str, Row] = {
    "logsumexp fills an empty out": logsumexp_out,
    **{
        f"{name} of two tensordicts with reduction {red}": loss(name, red)
        for name in ("l1_loss", "mse_loss", "smooth_l1_loss")
        for red in ("none", "mean", "sum")
    },
    "l1_loss of a tensordict and a tensor": lambda lib: F.l1_loss(pair(lib)[0], torch.zeros(3)),
    "huber_loss of tensordicts": lambda lib: F.huber_loss(*pair(lib)),
    "apply with out rebinds the entries": apply_out,
    "apply with an empty out adds the keys": apply_empty_out,
    "apply with another out keeps its other keys": apply_other_out,
    "apply with a locked out": apply_locked_out,
    "where with out rebinds the entries": where_out,
    "where with out of a lazy stack": where_out_of_lazy,
    "where with pad keeps the dtype of bools": where_pad_bool,
    "pad in place keeps nested nodes": pad_in_place,
    "pad in place keeps the elements of a lazy stack": pad_lazy_in_place,
    "update with update_batch_size keeps nested nodes": update_nested_sizes,
    "update with update_batch_size of a deeper size": update_deeper_sizes,
    "update by an empty source of another size": update_empty,
    "update in place of another batch size": update_size_in_place,
    **{
        f"{name} with a tensor of more dims": broadcast_to_tensor(name)
        for name in ("lerp", "addcmul", "addcdiv", "mul", "add", "sub", "div", "pow", "clamp_min", "maximum", "minimum")
    },
    "product with new_ones of more dims": new_ones_times,
    "reshape in place": reshape_in_place,
    "new_zeros of a lazy stack with empty_lazy": new_zeros_of_lazy,
    "from_schema": from_schema(None, batch_size=[8]),
    "from_schema without batch size": from_schema(None),
    "from_schema memmap": from_schema("memmap", batch_size=[8]),
    "from_schema shared": from_schema("shared", batch_size=[8]),
    "from_schema of an unknown storage": from_schema("tape", batch_size=[8]),
    "structured arrays": struct_array,
    "zero_ of parameters below a tensordict": zero_of_params,
    "set_at_ of an array": lambda lib: pair(lib)[0].set_at_("x", np.ones(4), 0),
    "set_at_ of a numpy scalar": lambda lib: pair(lib)[0].set_at_("x", np.float64(3), 0),
    "set_at_ of a list": lambda lib: pair(lib)[0].set_at_("x", [1.0, 2.0, 3.0, 4.0], 0),
    "set_at_ of an array of another dtype": lambda lib: pair(lib)[0].set_at_("x", np.arange(4), 0),
    "movedim to a repeated destination": lambda lib: lib.TensorDict({}, [2, 3, 4]).movedim((0, 1), (2, 2)),
    "movedim to more destinations": lambda lib: lib.TensorDict({}, [2, 3, 4]).movedim((0,), (1, 2)),
    "movedim of a repeated source": lambda lib: lib.TensorDict({}, [2, 3, 4]).movedim((0, 0), (1, 2)),
    "movedim": lambda lib: lib.TensorDict({"a": torch.ones(2, 3, 4)}, [2, 3, 4], names=["a", "b", "c"]).movedim(
        (0, 1), (2, 0)
    ),
    "an empty list is a float tensor": lambda lib: lib.TensorDict({"k": []}),
    "an empty list that is set": lambda lib: lib.TensorDict({}).set("k", []),
    "bytes of leaves with gradients": lambda lib: bytes_with_grad(lib),
    "depth does not count empty nodes": lambda lib: lib.TensorDict(a={"b": {"c": {}}, "f": 0}).depth,
    "tolist of tensors without nodes": lambda lib: pair(lib)[0].tolist(convert_tensors=True, convert_nodes=False),
    "tolist": lambda lib: pair(lib)[0].tolist(),
    "split of a size of 0": lambda lib: lib.TensorDict({"a": torch.ones(3)}, [3]).split(0, 0),
    "split of a negative size": lambda lib: lib.TensorDict({"a": torch.ones(3)}, [3]).split(-1, 0),
    "split without batch dims": lambda lib: lib.TensorDict({"a": torch.ones(3)}, []).split(1, 0),
    "chunk without batch dims": lambda lib: lib.TensorDict({"a": torch.ones(3)}, []).chunk(2),
    "unbind without batch dims": lambda lib: lib.TensorDict({"a": torch.ones(3)}, []).unbind(0),
    "apply with named": lambda lib: pair(lib)[0].apply(lambda name, x: x + len(name), named=True),
    "apply with nested names": lambda lib: pair(lib)[0].apply(
        lambda name, x: x + len(name), named=True, nested_keys=True
    ),
    "backward with gradients": lambda lib: pair(lib)[0].requires_grad_().backward(torch.ones(3)),
}


def bytes_with_grad(lib: Any) -> Any:
    x = torch.ones(3, requires_grad=True)
    x.sum().backward()
    return lib.TensorDict({"x": x}).bytes()


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_an_operation_has_the_result_of_the_reference(row: Row) -> None:
    assert_same(row)


def cat_out(lib: Any) -> Any:
    params = lib.TensorDictParams(lib.TensorDict({"a": torch.ones(3, 2)}, [3]))
    out = lib.TensorDict({"a": torch.zeros(2, 2)}, [2])
    return torch.gather(params, 0, torch.tensor([0, 1]), out=out)


def stack_out(lib: Any) -> Any:
    params = lib.TensorDictParams(lib.TensorDict({"a": torch.ones(3, 2)}, [3]))
    out = lib.TensorDict({"a": torch.zeros(2, 3, 2)}, [2, 3])
    return torch.stack([params, params], 0, out=out)


def cat_params_out(lib: Any) -> Any:
    params = lib.TensorDictParams(lib.TensorDict({"a": torch.ones(3, 2)}, [3]))
    out = lib.TensorDict({"a": torch.zeros(6, 2)}, [6])
    return torch.cat([params, params], 0, out=out)


@pytest.mark.parametrize("row", [cat_out, stack_out, cat_params_out])
def test_a_result_with_gradients_is_not_written_into_out(row: Row) -> None:
    assert_same(row)
