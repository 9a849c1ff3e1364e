"""Errors for bad input: each message names the offender, the rule and the remedy."""

from __future__ import annotations

import enum
import operator
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensordict_core import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorAttrs,
    TensorDict,
    UnbatchedTensor,
    assert_close,
    expand_right,
    from_list,
    from_namedtuple,
    from_tuple,
    isin,
    lazy_stack,
    merge_tensordicts,
    pad_sequence,
    parse_tensor_dict_string,
    set_printoptions,
    unpad_sequence,
    unravel_key,
    unravel_key_list,
)


def td() -> TensorDict:
    return TensorDict({"a": torch.zeros(3, 4), "n": {"b": torch.ones(3)}, "s": "text", "i": torch.arange(3)}, [3])


def grid() -> TensorDict:
    return TensorDict({"a": torch.zeros(3, 4)}, [3, 4])


def ragged() -> LazyStackedTensorDict:
    return lazy_stack([TensorDict({"a": torch.zeros(n)}) for n in (1, 2)])


def locked() -> TensorDict:
    return td().lock_()


MASK = torch.ones(5, dtype=torch.bool)
OTHER = TensorDict({"q": torch.zeros(3)}, [3])
NODE = TensorDict({"n": {"b": torch.ones(3)}}, [3])
TENSOR = TensorDict({"n": torch.ones(3)}, [3])
WIDE = TensorDict({"n": torch.ones(3, 2)}, [3])

# call, exception, and parts of the message: the rule, the offender, the remedy
TABLE: list[tuple[str, Callable[[], Any], type[Exception], str, str, str]] = [
    # construction
    ("source", lambda: TensorDict(3), TypeError, "a tensordict or a Mapping", "got int", "use from_any"),
    ("list source", lambda: TensorDict([1]), TypeError, "a tensordict or a Mapping", "got list", "use from_any"),
    ("key of a source", lambda: TensorDict({1: 2}), TypeError, "a key is a string", "1 of type int", "name the entry"),
    ("negative size", lambda: TensorDict({}, [-2]), ValueError, "a negative size", r"batch size \[-2\]", "pass sizes"),
    (
        "size of letters",
        lambda: TensorDict({}, "x"),
        TypeError,
        "an integer or a sequence",
        "'x' is not",
        "pass sizes",
    ),
    ("broken size", lambda: TensorDict({}, [3.5]), TypeError, "an integer or a seq", r"\[3.5\] is not", "pass sizes"),
    (
        "entry",
        lambda: TensorDict({"a": MASK}, [3]),
        RuntimeError,
        "start with",
        r"shape=torch.Size\(\[5\]\) for key 'a'",
        "expand the",
    ),
    (
        "names",
        lambda: TensorDict({}, [3], names=["x", "y"]),
        RuntimeError,
        "must equate the tensordict batch_dims",
        "'x', 'y'",
        "give one name",
    ),
    ("names of a number", lambda: TensorDict({}, [3], names=3), TypeError, "sequence of strings", "got 3", "give one"),
    ("name of a number", lambda: TensorDict({}, [3], names=[3]), TypeError, "string or None", r"\[3\]", "name each"),
    ("equal names", lambda: TensorDict({}, [1, 1], names=["x", "x"]), ValueError, "unique", "'x', 'x'", "rename one"),
    ("from_dict", lambda: TensorDict.from_dict(3), TypeError, "takes a dictionary", "got int", "use from_any"),
    ("from_list", lambda: from_list(3), TypeError, "takes a list", "got int", "use from_any"),
    ("from_list items", lambda: from_list([1]), TypeError, "takes dictionaries", "int at position 0", "torch.tensor"),
    ("from_tuple", lambda: from_tuple(3), TypeError, "takes a tuple", "got int", "use from_any"),
    ("from_namedtuple", lambda: from_namedtuple(3), TypeError, "takes a named tuple", "got int", "use from_any"),
    ("merge one", lambda: merge_tensordicts(td()), RuntimeError, "at least 2", "got 1", "use clone"),
    ("merge", lambda: merge_tensordicts(td(), 3), TypeError, "takes tensordicts", "got int", "use from_any"),
    ("parse", lambda: parse_tensor_dict_string("x"), ValueError, "a printed tensordict", "at 'x'", "pass the text"),
    (
        "attrs",
        lambda: TensorAttrs(tgt_dtype="x"),
        TypeError,
        "a torch.dtype or None",
        "got 'x'",
        "pass, for example, torch.int8",
    ),
    ("unbatched", lambda: UnbatchedTensor("x"), TypeError, "tensor or numeric data", "got str", "use NonTensorData"),
    (
        "non-tensor list",
        lambda: NonTensorStack.from_list(["a"], batch_size=[2]),
        ValueError,
        r"of the shape \[2\]",
        r"level 0 holds \['a'\]",
        "give nested lists",
    ),
    # keys
    ("missing", lambda: td()["absent"], KeyError, "not found in", '"absent"', r"get\(key, default\)"),
    ("near", lambda: TensorDict({"obs": 1})["obz"], KeyError, "not found", '"obz"', "did you mean"),
    ("missing below", lambda: td()["n", "absent"], KeyError, "not found in", r"'n', 'absent'", r"with keys \['b'\]"),
    (
        "through a leaf",
        lambda: td()["a", "x"],
        KeyError,
        "has no entries",
        "is a Tensor, not a tensordict",
        "use another key",
    ),
    ("key of a number", lambda: td().get(1), TypeError, "a key is a string", "1 of type int", r"td\[index\]"),
    ("path of a number", lambda: td().get(("a", 1)), TypeError, "a key is a string", r"\('a', 1\)", r"td\[index\]"),
    ("set a number", lambda: td().set(1, 2), TypeError, "a key is a string", "1 of type int", "name the entry"),
    ("empty key", lambda: td().set((), 2), KeyError, "is not a key", "the empty tuple", "name at least one level"),
    ("set through a leaf", lambda: td().set(("a", "x"), 1), KeyError, "no entries", "'a'", "delete that entry"),
    ("set shape", lambda: td().set("z", MASK), RuntimeError, "start with the batch size", "'z'", "expand the value"),
    ("set_ absent", lambda: td().set_("absent", MASK), KeyError, "not found in", '"absent"', "get"),
    (
        "set_ shape",
        lambda: td().set_("a", torch.zeros(3)),
        RuntimeError,
        r"has shape \[3, 4\]",
        r"of shape \[3\]",
        "set",
    ),
    (
        "set_at_",
        lambda: td().set_at_("a", MASK, 0),
        RuntimeError,
        r"shape \[4\] at",
        r"shape \[5\]",
        "reshape or expand",
    ),
    (
        "indices apart",
        lambda: grid()[[0, 1], [0, 1, 2]],
        IndexError,
        "broadcast together",
        r"\[2\], \[3\]",
        "give them one",
    ),
    ("dim by name", lambda: td().unbind("time"), TypeError, "is not a batch dimension", "'time'", "give an integer"),
    ("split by a fraction", lambda: td().split(1.5), TypeError, "must be int", r"got 1\.5", "pass integers"),
    ("gather by a list", lambda: td().gather(0, [0]), TypeError, "an integer tensor", "got list", "torch.tensor"),
    ("masked_fill by a list", lambda: td().masked_fill([True], 0), TypeError, "a bool tensor", "got list", "wrap it"),
    ("itself", lambda: (own := td()).set("own", own), ValueError, "inside itself", "'own'", r"clone\(False\)"),
    (
        "itself below",
        lambda: (own := td()).set(("n", "x"), own),
        ValueError,
        "inside itself",
        "'x'",
        "store a copy",
    ),
    ("index by keys", lambda: td()[["a", "i"]], TypeError, "integers or bools", "'a', 'i'", "td.select"),
    (
        "indexed text",
        lambda: operator.setitem(td(), 0, "x"),
        TypeError,
        "only supports tensordicts",
        "'x' of type str",
        "{key: value}",
    ),
    ("set_at_ absent", lambda: td().set_at_("absent", 0, 0), KeyError, "not found in", '"absent"', "get"),
    (
        "update",
        lambda: td().update(3),
        TypeError,
        "tensordict or a mapping",
        "type <class 'int'>",
        r"use set\(key, value\)",
    ),
    ("update by pairs", lambda: td().update([("a", 1)]), TypeError, "or a mapping", "type <class 'list'>", "use set"),
    ("update_", lambda: td().update_(3), TypeError, "tensordict or a mapping", "type <class 'int'>", "use set"),
    ("update_ absent", lambda: td().update_({"z": MASK}), KeyError, "not found in", '"z"', "get"),
    ("update shape", lambda: td().update({"a": MASK}), RuntimeError, "start with the batch size", "'a'", "expand"),
    ("copy_", lambda: td().copy_(3), TypeError, "tensordict or a mapping", "type <class 'int'>", "use set"),
    ("replace", lambda: td().replace(3), TypeError, "tensordict or a mapping", "type <class 'int'>", "use set"),
    ("pop", lambda: td().pop("absent"), KeyError, "not found in", '"absent"', "get"),
    ("popitem", lambda: TensorDict({}).popitem(), KeyError, "popitem", "is empty", "test it with is_empty"),
    ("del_", lambda: td().del_("absent"), KeyError, "not found in", '"absent"', "get"),
    ("rename absent", lambda: td().rename_key_("absent", "x"), KeyError, "not found in", '"absent"', "get"),
    ("rename taken", lambda: td().rename_key_("a", "i", True), KeyError, "already present", "key i", "safe=False"),
    (
        "rename to a number",
        lambda: td().rename_key_("a", 3),
        TypeError,
        "a key is a string",
        "3 of type int",
        "name the entry",
    ),
    ("select", lambda: td().select("absent"), KeyError, "not found in", '"absent"', "get"),
    ("select a number", lambda: td().select(3), TypeError, "a key is a string", "3 of type int", "name the entry"),
    ("exclude a number", lambda: td().exclude(3), TypeError, "a key is a string", "3 of type int", "name the entry"),
    ("split_keys", lambda: td().split_keys(["absent"]), KeyError, "not found in", '"absent"', "get"),
    ("entry_class", lambda: td().entry_class("absent"), KeyError, "not found in", '"absent"', "get"),
    ("fill_", lambda: td().fill_("absent", 1), KeyError, "not found in", '"absent"', "get"),
    ("cat_tensors", lambda: td().cat_tensors("z", out_key="y"), KeyError, "not found in", '"z"', "get"),
    (
        "flatten_keys",
        lambda: TensorDict({"a.b": 1, "a": {"b": 1}}).flatten_keys("."),
        KeyError,
        "would both become",
        r"'a\.b'",
        "choose another separator",
    ),
    ("unravel_key", lambda: unravel_key(3), TypeError, "a key is a string", "3 of type int", "name the entry"),
    (
        "unravel_key_list",
        lambda: unravel_key_list("a"),
        TypeError,
        "incompatible function arguments",
        "string 'a'",
        "wrap it in a list",
    ),
    ("value of values", lambda: NonTensorData(1).set("a", 1), KeyError, "no entries", "'a' cannot be set", "replace"),
    # locks
    ("locked set", lambda: locked().set("z", MASK), RuntimeError, "locked TensorDict", r"set\('z'\)", "call unlock_"),
    ("locked pop", lambda: locked().pop("a"), RuntimeError, "locked TensorDict", r"pop\('a'\)", "call unlock_"),
    ("locked rename", lambda: locked().rename_key_("a", "z"), RuntimeError, "locked", "rename_key_", "call unlock_"),
    ("locked clear", lambda: locked().clear(), RuntimeError, "Cannot modify locked", "del_", "call unlock_"),
    ("locked update", lambda: locked().update({"z": 1}), RuntimeError, "Cannot modify locked", "'z'", "call unlock_"),
    ("locked del", lambda: locked().__delitem__("a"), RuntimeError, "Cannot modify locked", "'a'", "call unlock_"),
    ("locked flat", lambda: locked().flatten_keys(inplace=True), RuntimeError, "locked", "flatten_keys", "unlock_"),
    (
        "part of a lock",
        lambda: (lambda root: root["n"].unlock_())(locked()),
        RuntimeError,
        "part of a locked graph",
        "Cannot unlock",
        "unlock the root",
    ),
    # indices and shapes
    ("index type", lambda: td()[1.5], TypeError, "are valid indices", "<class 'float'> of 1.5", r"td\[key\]"),
    (
        "index count",
        lambda: td()[0, 0],
        IndexError,
        "too many indices",
        "got 2 for the batch size",
        "index the entries",
    ),
    ("index range", lambda: td()[5], IndexError, "out of bounds for dimension 0", "index 5", "from -3 to 2"),
    ("index range behind", lambda: td().reshape(1, 3)[0, 7], IndexError, "out of bounds", "index 7", "from -3 to 2"),
    ("empty range", lambda: td()[:0][0], IndexError, "out of bounds", "index 0", "no row to index"),
    ("mask", lambda: td()[MASK], IndexError, "does not match the shape", r"mask \[5\]", "give a mask"),
    ("view_at", lambda: td().view_at(9), IndexError, "out of bounds", "index 9", "use one from"),
    (
        "written size",
        lambda: td().__setitem__(0, td()),
        RuntimeError,
        "differs from the source",
        r"Size\(\[3\]\)",
        "expand or index",
    ),
    ("reshape", lambda: td().reshape(5), RuntimeError, "for a batch of 3", r"\[5\]", "the product of"),
    ("view letters", lambda: td().view("x"), TypeError, "takes integers", "'x'", "pass an integer"),
    (
        "reshape -1",
        lambda: td().reshape(-1, -1),
        RuntimeError,
        "infers one dimension",
        r"\[-1, -1\]",
        "replace the other",
    ),
    ("unsqueeze", lambda: td().unsqueeze(5), IndexError, "must be in the range", "dim 5", "<= dim <"),
    (
        "permute",
        lambda: td().permute(0, 0),
        ValueError,
        "name each batch dimension once",
        r"\[0, 0\]",
        "no dimension of the entries",
    ),
    ("expand", lambda: td().expand(4), RuntimeError, "only sizes of 1", r"\[4\] is not \[3\]", "use repeat"),
    ("split size", lambda: td().split(0), RuntimeError, "split_size must be positive", "got 0", "use chunk"),
    ("split sizes", lambda: td().split([1, 1]), RuntimeError, "sum exactly to 3", r"\[1, 1\]", "change one"),
    ("split letters", lambda: td().split("xy"), TypeError, "must be int or list of ints", "got 'xy'", "pass integers"),
    ("chunk", lambda: td().chunk(0), ValueError, "a strictly positive integer", "got 0", "use split"),
    ("repeat", lambda: td().repeat(1, 2), ValueError, "must match the number of dimensions", r"\[1, 2\]", "use expand"),
    ("stack keys", lambda: torch.stack([td(), OTHER]), RuntimeError, "densely", "tensordict 1 has", "use lazy_stack"),
    ("stack sizes", lambda: torch.stack([td(), td()[:2]]), RuntimeError, "congruent", r"has \[2\]", "expand or index"),
    ("cat keys", lambda: torch.cat([td(), OTHER]), KeyError, "cannot cat densely", "tensordict 1 has", "lazy_stack"),
    ("cat tensor", lambda: torch.cat([NODE, TENSOR]), RuntimeError, "cannot cat densely", "position 1", "lazy_stack"),
    ("cat node", lambda: torch.cat([TENSOR, NODE]), RuntimeError, "cannot cat densely", "key 'n' is a", "lazy_stack"),
    ("cat shapes", lambda: torch.cat([TENSOR, WIDE]), RuntimeError, "cannot cat densely", "key 'n' has", "lazy_stack"),
    ("stack node", lambda: torch.stack([TENSOR, NODE]), RuntimeError, "cannot stack", "key 'n' is a", "lazy_stack"),
    ("stack tensor", lambda: torch.stack([NODE, TENSOR]), RuntimeError, "cannot stack", "position 1", "lazy_stack"),
    (
        "cat dims",
        lambda: torch.cat([td()[0]]),
        RuntimeError,
        "at least one batch dim",
        r"size \[\]",
        "set td.batch_size",
    ),
    ("lazy item", lambda: lazy_stack([td(), 3]), TypeError, "takes tensordicts only", "int at position 1", "from_any"),
    (
        "lazy nothing",
        lambda: lazy_stack([]),
        RuntimeError,
        "expects a non-empty list",
        "lazy_stack",
        "give at least one",
    ),
    (
        "lazy sizes",
        lambda: lazy_stack([td(), td()[0]]),
        RuntimeError,
        "differ",
        r"element 1 has \[\]",
        "one batch size",
    ),
    (
        "lazy append",
        lambda: ragged().append(3),
        TypeError,
        "takes TensorDictBase instances",
        "got <class 'int'>",
        "from_any",
    ),
    ("ragged", lambda: ragged()["a"], RuntimeError, "do not stack", r"shapes are \[\[1\], \[2\]\]", "as_list=True"),
    (
        "two ways",
        lambda: ragged().get("a", as_list=True, as_nested_tensor=True),
        ValueError,
        "how a ragged entry is read",
        "as_list and as_nested_tensor",
        "pass one of them",
    ),
    (
        "padding side",
        lambda: ragged().get("a", as_padded_tensor=True, padding_side="up"),
        ValueError,
        "'left' or 'right'",
        "got 'up'",
        "choose one",
    ),
    (
        "batch size",
        lambda: setattr(td(), "batch_size", [4]),
        RuntimeError,
        "incompatible",
        "Tensor a has shape",
        "must start",
    ),
    ("set device", lambda: setattr(td(), "device", "meta"), RuntimeError, "cannot be set", "meta", "use tensordict.to"),
    ("rename dims", lambda: td().rename(q="z"), ValueError, "not part of the tensordict names", "'q'", "use "),
    ("auto size", lambda: td().auto_batch_size_(-1), ValueError, "a number of dimensions", "got -1", "pass 0 or more"),
    ("expand_right", lambda: expand_right(MASK, (3, 2)), RuntimeError, "must start with it", r"shape \[5\]", "reshape"),
    # operations
    ("operand", lambda: td() + "x", TypeError, "a tensordict, a tensor or a number", "got str", "wrap it in a tensor"),
    ("operand keys", lambda: td() + OTHER, KeyError, "not found in the other", "'a'", "pass default="),
    ("operand shape", lambda: td() + torch.zeros(7), RuntimeError, "lines up with", r"shape \[7\]", "reshape it"),
    ("clamp", lambda: td().clamp(), ValueError, "needs min, max or both", "clamp", "give at least one"),
    ("truth", lambda: bool(td()), RuntimeError, "is not permitted", "truth value", "is_empty"),
    ("sum dim", lambda: td().sum(dim=4), IndexError, "must be in the range", "dim 4", "<= dim <"),
    ("cummax dim", lambda: td().cummax("x"), TypeError, "along one batch dimension", "got 'x'", "give an integer"),
    ("where", lambda: td().where(3, td()), TypeError, "a bool tensor as condition", "got int", "wrap it with"),
    (
        "masked_select",
        lambda: td().masked_select(torch.ones(3)),
        TypeError,
        "a bool tensor",
        "float32",
        "compare or cast",
    ),
    ("masked_fill", lambda: td().masked_fill(MASK, 0), RuntimeError, "a mask lines up", r"\[5\]", "give a mask"),
    ("pad", lambda: td().pad([1]), RuntimeError, "an even number", r"got \[1\]", "add the missing one"),
    ("pad dims", lambda: td().pad([1] * 4), RuntimeError, "2 \\* the number", r"\[1, 1, 1, 1\]", "pad the entries"),
    ("pad_sequence", lambda: pad_sequence([]), RuntimeError, "cannot be empty", "list_of_tensordicts", "at least one"),
    ("unpad_sequence", lambda: unpad_sequence(td()), ValueError, "needs a mask", "unpad_sequence", "pass mask="),
    ("isin", lambda: isin(td(), td(), "a", 3), ValueError, "batch dimensions", "dim 3", "takes one"),
    (
        "requires_grad_",
        lambda: td().requires_grad_(),
        RuntimeError,
        "only Tensors of floating point dtype",
        "key 'i'",
        "select those",
    ),
    (
        "backward",
        lambda: td().backward(),
        RuntimeError,
        "needs a leaf that requires",
        "none does",
        "call requires_grad_",
    ),
    # casts, options, processes
    ("to", lambda: td().to(3.5), TypeError, "takes a device, a dtype", "got float", "pass other options by name"),
    ("to beside attrs", lambda: td().to(td().attrs(), 3), TypeError, "from attrs", "no other device", "call to"),
    ("cuda", lambda: td().cuda("cpu"), RuntimeError, "moves to a CUDA device", "got cpu", "use to"),
    ("attrs fields", lambda: td().attrs(fields=["x"]), ValueError, "has the fields", "got 'x'", "pass some of those"),
    ("print options", lambda: set_printoptions(x=3), TypeError, "'x'", "is not a print option", "choose from"),
    ("map", lambda: td().map(3, num_workers=0), TypeError, "takes a function", "got int", "pass a callable"),
    ("map dims", lambda: td()[0].map(len), RuntimeError, "at least one batch dimension", r"\[\]", "set td.batch_size"),
    (
        "map chunks",
        lambda: td().map(len, chunksize=1, num_chunks=1),
        ValueError,
        "the rows of a chunk",
        "chunksize and num_chunks",
        "pass one",
    ),
    ("map pool", lambda: td().map(len, pool=3), TypeError, "a multiprocessing pool", "got int", "pass num_workers"),
    (
        "map results",
        lambda: td().map(lambda part: "x", num_workers=0),
        TypeError,
        "joins tensordicts and tensors",
        "returned str",
        "use map_iter",
    ),
    ("send", lambda: td().send(1), RuntimeError, "process group", "no process group", "init_process_group"),
    (
        "state",
        lambda: td().load_state_dict({}),
        RuntimeError,
        "key sets",
        r"missing \['a'",
        "strict=False",
    ),
    ("iterate", lambda: iter(td()[0]), RuntimeError, "has no rows", "a 0-d tensordict", "set td.batch_size"),
    ("close", lambda: assert_close(td(), 3), TypeError, "compares two tensordicts", "got int", "torch.testing"),
    ("close keys", lambda: assert_close(td(), OTHER), KeyError, "keys in tensordicts mismatch", "'a'", "select the"),
]


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case[0])
def test_a_message_contains_rule_offender_and_remedy(case: Any) -> None:
    _, call, kind, rule, offender, remedy = case
    with pytest.raises(kind) as caught:
        call()
    for part in (rule, offender, remedy):
        assert re.search(part, str(caught.value)), f"{part!r} is not in {caught.value}"


def test_the_cases_are_many_and_distinct() -> None:
    assert len(TABLE) >= 80 and len({case[0] for case in TABLE}) == len(TABLE)


def test_a_subclass_of_str_is_a_key() -> None:
    class Key(str, enum.Enum):  # noqa: UP042  # whose str() is not its value, as that of a StrEnum is
        A = "a"

    assert td().get(Key.A).shape == (3, 4)
