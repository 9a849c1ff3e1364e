"""Phrases of error messages that programs and tests match: both libraries have them."""

from __future__ import annotations

from typing import Any, NotRequired

import pytest
import torch
from side_by_side import OURS, THEIRS, Row, catchable
from torch import nn


def td(lib: Any, *size: int) -> Any:
    return lib.TensorDict({"a": torch.zeros(*size or (3,), 2), "b": torch.zeros(size or (3,))}, size or [3])


def stack(lib: Any) -> Any:
    return lib.lazy_stack([td(lib), td(lib)])


def close(lib: Any) -> Any:
    lib.assert_close(td(lib), td(lib) + 1)


def renamed(lib: Any) -> Any:
    td(lib).names = ["x", "y"]


def twice(lib: Any) -> Any:
    td(lib, 3, 4).names = ["x", "x"]


def resized(lib: Any) -> Any:
    td(lib).batch_size = [4]


def unlocked(lib: Any) -> Any:
    root = lib.TensorDict({"n": {"b": 1}}).lock_()
    root["n"].unlock_()


def resized_stack(lib: Any) -> Any:
    stack(lib).batch_size = []


def module(lib: Any, function: Any, in_keys: Any = ("a",), **options: Any) -> Any:
    return lib.TensorDictModule(function, list(in_keys), ["b"], **options)


def skipping(lib: Any) -> Any:
    with lib.set_skip_existing(None):
        pass


def squashed(loc: Any, scale: Any) -> Any:
    return torch.distributions.TransformedDistribution(
        torch.distributions.Normal(loc, scale), [torch.distributions.TanhTransform()]
    )


def drawn(lib: Any, how: str) -> Any:
    draw = lib.ProbabilisticTensorDictModule(
        ["loc", "scale"], ["x"], distribution_class=squashed, default_interaction_type=how
    )
    return draw(loc=torch.zeros(1), scale=torch.ones(1))


def composite(lib: Any, **components: Any) -> Any:
    params = lib.TensorDict({"x": {"loc": torch.zeros(1), "scale": torch.ones(1)}})
    return lib.CompositeDistribution(params, distribution_map={"x": torch.distributions.Normal, **components})


def sample_class(lib: Any) -> Any:
    @lib.tensorclass
    class Sample:
        x: torch.Tensor
        label: str = "a"

    return Sample


def sample(lib: Any) -> Any:
    return sample_class(lib)(torch.zeros(3, 2), batch_size=[3])


def typed_class(lib: Any, name: str = "x") -> Any:
    annotations = {name: torch.Tensor, "y": NotRequired[torch.Tensor]}
    return type("State", (lib.TypedTensorDict,), {"__annotations__": annotations})


def set_device(lib: Any) -> Any:
    sample(lib).device = "cpu"


def set_unknown(lib: Any) -> Any:
    sample(lib).typo = 1


def set_data_of_locked(lib: Any) -> Any:
    lib.NonTensorData("a").lock_().data = "b"


def shared_rows(lib: Any) -> Any:
    td = lib.TensorDict({"s": "x"}, [4]).share_memory_()
    td[1::2] = lib.TensorDict({"s": "y"}, [2])


def field(annotation: Any, name: str, **flags: Any) -> Row:
    def call(lib: Any) -> Any:
        return lib.tensorclass(**flags)(type("Made", (), {"__annotations__": {name: annotation}}))

    return call


def exclusive_brackets(lib: Any) -> Any:
    return lib.TensorClass["autocast", "nocast"]


def uncast(lib: Any) -> Any:
    lib.tensorclass(autocast=True)(type("Made", (), {"__annotations__": {"x": torch.Tensor}}))(x="text")


def with_default_first(lib: Any) -> Any:
    lib.tensorclass(type("Made", (), {"__annotations__": {"x": int, "y": int}, "x": 1}))


def other_class(lib: Any) -> Any:
    torch.stack([sample(lib), sample(lib)])


TRUE = torch.ones(3, dtype=torch.bool)


def ragged_entry(lib: Any) -> Any:
    return lib.lazy_stack([lib.TensorDict({"a": torch.zeros(i)}) for i in (1, 2)])["a"]


def exclusive(lib: Any) -> Any:
    return lib.lazy_stack([lib.TensorDict({key: torch.zeros(3)}) for key in "ab"]).to_dict()


def gathered(lib: Any) -> Any:
    return td(lib).gather(9, torch.zeros(3, dtype=torch.long))


def misfit(lib: Any) -> Any:
    return td(lib).set("c", torch.zeros(4))


def shrunk(lib: Any) -> None:
    stack(lib).batch_size = torch.Size([])


def masked(lib: Any) -> Any:
    return td(lib)[torch.ones(4, dtype=torch.bool)]


def part(lib: Any) -> Any:
    return td(lib)._get_sub_tensordict(0)


CALLS: list[tuple[str, Row]] = [
    ("Cannot modify locked TensorDict", lambda lib: td(lib).lock_().set("c", torch.zeros(3))),
    ("part of a locked graph", unlocked),
    ("not found in TensorDict with keys", lambda lib: td(lib)["c"]),
    ("is a Tensor, not a tensordict", lambda lib: td(lib)["a", "b"]),
    ("batch dimension mismatch", lambda lib: td(lib).set("c", torch.zeros(4))),
    ("which is incompatible with the batch-size torch.Size([4])", resized),
    ("Modifying the batch size of a lazy representation of a tensordict", resized_stack),
    ("Only NestedKeys are supported", lambda lib: td(lib).set(1, torch.zeros(3))),
    ("Converting a tensordict to boolean value is not permitted", lambda lib: bool(td(lib))),
    ("Failed to update 'a'", lambda lib: td(lib).set_("a", torch.zeros(3, 7))),
    ("indexed destination TensorDict batch size is", lambda lib: td(lib).__setitem__(slice(2), td(lib))),
    ("Incompatible dim", lambda lib: td(lib)[0].unbind(0)),
    ("Incompatible dim 5", lambda lib: td(lib).unbind(5)),
    ("unsqueezing is allowed for dims comprised between", lambda lib: td(lib).unsqueeze(9)),
    ("must be within the range of the number of dimensions", lambda lib: td(lib).transpose(0, 9)),
    ("permutation", lambda lib: td(lib, 3, 4).permute(0, 0)),
    ("dim must be in the range", lambda lib: torch.cat([td(lib), td(lib)], 7)),
    ("indexing a tensordict with td.batch_dims==0 is not permitted", lambda lib: td(lib)[0][0]),
    ("too many indices for tensor of dimension", lambda lib: td(lib)[0, 0]),
    ("is out of bounds for dimension 0 with size 3", lambda lib: td(lib)[7]),
    ("only integers, slices (`:`), ellipsis (`...`), None", lambda lib: td(lib)[1.5]),
    ("Invalid index type", lambda lib: stack(lib)[1.5]),
    ("iteration over a 0-d tensordict", lambda lib: list(td(lib)[0])),
    ("split_size must be positive", lambda lib: td(lib).split(0)),
    ("must be int or list of ints", lambda lib: td(lib).split("a")),
    ("split_sizes to sum exactly to 3", lambda lib: td(lib).split([1, 1])),
    ("chunks must be a strictly positive integer", lambda lib: td(lib).chunk(0)),
    ("must be greater or equal to the number of", lambda lib: td(lib, 3, 4).expand(3)),
    ("for a batch of 3 elements", lambda lib: td(lib).view(5)),
    ("The number of repeat elements must match the number of dimensions", lambda lib: td(lib).repeat(1, 2)),
    ("The end dimension must be greater or equal to the start", lambda lib: td(lib, 3, 4).flatten(1, 0)),
    ("the length of the dimension names must equate the", renamed),
    ("Some dimension names are non-unique", twice),
    ("Some names to be renamed were not part of the tensordict names", lambda lib: td(lib).rename(q="z")),
    (
        "refine_names: cannot coerce TensorDict names",
        lambda lib: lib.TensorDict({}, [3], names=["x"]).refine_names("y"),
    ),
    ("keys in tensordicts mismatch", lambda lib: stack(lib) + lib.TensorDict({}, [2, 3])),
    ("not found and no pad value provided", lambda lib: td(lib).where(torch.ones(3).bool(), td(lib).select("a"))),
    (
        "Failed to stack tensors within a tensordict",
        lambda lib: lib.lazy_stack([lib.TensorDict({"a": torch.zeros(i)}) for i in (1, 2)])["a"],
    ),
    ("congruent batch sizes", lambda lib: torch.stack([td(lib), td(lib)[:2]])),
    (
        "The sets of keys in the tensordicts to stack are exclusive",
        lambda lib: torch.stack([td(lib), td(lib).select("a")]),
    ),
    ("items cannot be empty", lambda lib: lib.lazy_stack([])),
    ("Batch sizes in tensordicts differs", lambda lib: stack(lib).append(td(lib)[:2])),
    ("at least 2 tensordicts must be provided", lambda lib: lib.merge_tensordicts(td(lib))),
    ("list_of_tensordicts cannot be empty", lambda lib: lib.pad_sequence([])),
    ("pad_size must have an even number of dimensions", lambda lib: lib.pad(td(lib), [1])),
    ("Flattening keys in tensordict", lambda lib: lib.TensorDict({"a": {"b": 1}, "a.b": 1}).flatten_keys()),
    ("Unflattening key(s) in tensordict", lambda lib: lib.TensorDict({"a.b": 1, "a": 1}).unflatten_keys()),
    ("only Tensors of floating point dtype can require gradients", lambda lib: lib.TensorDict(a=1).requires_grad_()),
    ("A TensorDict source is expected to be a", lambda lib: lib.TensorDict([3])),
    ("Either a dictionary or a sequence of kwargs must be provided", lambda lib: lib.TensorDict({"a": 1}, a=2)),
    (
        "Cannot load state-dict because the key sets don't match",
        lambda lib: td(lib).load_state_dict({"a": torch.zeros(3, 2)}),
    ),
    (
        "Either chunksize or num_chunks must be provided, but not both",
        lambda lib: td(lib).map(len, chunksize=1, num_chunks=2),
    ),
    ("stack_dim must not be None", lambda lib: lib.dense_stack_tds([td(lib), td(lib)])),
    ("already present in TensorDict", lambda lib: td(lib).rename_key_("a", "b", safe=True)),
    ("does not match", close),
    ("There are more tensors", lambda lib: module(lib, lambda a: (a, a))(td(lib))),
    ("There are more out_keys than tensors", lambda lib: module(lib, lambda a: None)(td(lib))),
    ("Duplicated argument in args and kwargs", lambda lib: module(lib, abs)(torch.ones(1), a=torch.ones(1))),
    ("Got a non-empty list of extra", lambda lib: module(lib, abs)(torch.ones(1), torch.ones(1))),
    ("Can't select non existent key", lambda lib: module(lib, abs).select_out_keys("z")),
    (
        "All keys in selected_out_keys must be in out_keys",
        lambda lib: lib.TensorDictSequential(module(lib, abs), selected_out_keys=["z"]),
    ),
    ("Module 3", lambda lib: module(lib, 3)),
    ("is not callable", lambda lib: module(lib, 3)),
    ("Some tensors that are necessary for the module call", lambda lib: module(lib, nn.Tanh(), ["z"])(td(lib))),
    ('key "z" not found in TensorDict with keys', lambda lib: module(lib, abs, ["z"], strict=True)(td(lib))),
    ("the first argument of the wrapped function must be named 'tensordict'", lambda lib: lib.dispatch(lambda td: td)),
    (
        "does not support keyword arguments other than 'tensordict_out' or in_keys",
        lambda lib: lib.TensorDictSequential(module(lib, abs))(td(lib), scale=1),
    ),
    (
        "reset_parameters_recursive does not support batched TensorDicts",
        lambda lib: module(lib, nn.Linear(1, 1)).reset_parameters_recursive(td(lib)),
    ),
    ("It seems you are using set_skip_existing as a context manager", skipping),
    ("Unknown mapping nothing", lambda lib: lib.mappings("nothing")),
    ("Incorrect truncation range", lambda lib: lib.TruncatedNormal(torch.zeros(1), torch.ones(1), a=1.0, b=-1.0)),
    ("does not implement mode", lambda lib: drawn(lib, "mode")),
    ("median is not implemented", lambda lib: drawn(lib, "median")),
    (
        "No distribution module found in",
        lambda lib: lib.ProbabilisticTensorDictSequential(module(lib, abs)).get_dist(td(lib)),
    ),
    (
        "must consist of zero or more TensorDictModules followed by a ProbabilisticTensorDictModule",
        lambda lib: lib.ProbabilisticTensorDictSequential(),
    ),
    ("Expected a tensordict sample", lambda lib: composite(lib).log_prob(torch.zeros(1))),
    ("could be found in the sampled tensordict", lambda lib: composite(lib).icdf(lib.TensorDict({}))),
    ("no param z found in params with keys", lambda lib: composite(lib, z=torch.distributions.Normal)),
    ("missing required field(s): x", lambda lib: typed_class(lib)(batch_size=[3])),
    ("got unexpected field(s): typo", lambda lib: typed_class(lib)(x=torch.zeros(3), typo=1)),
    ("has field 'y' declared but not set", lambda lib: typed_class(lib)(x=torch.zeros(3)).y),
    ("shadows a TensorDictBase attribute", lambda lib: typed_class(lib, "keys")),
    ("Unknown TypedTensorDict option: 'typo'", lambda lib: lib.TypedTensorDict["typo"]),
    ("Can't instantiate abstract class TypedTensorDict", lambda lib: lib.TypedTensorDict()),
    ("batch dimension mismatch", lambda lib: td(lib).set("s", ["a", "b"])),
    ("Either group or filename must be provided, and not both", lambda lib: lib.PersistentTensorDict(batch_size=[3])),
    ("Cannot set the attribute 'typo'", set_unknown),
    ("Cannot set the attribute 'typo'", lambda lib: sample(lib).set("typo", torch.zeros(3))),
    ("'Sample' object has no attribute or field 'typo'", lambda lib: sample(lib).typo),
    ("device cannot be set using tensorclass.device = device", set_device),
    ("Converting a tensorclass to boolean value is not permitted", lambda lib: bool(sample(lib))),
    ("__setitem__ only supports", lambda lib: sample(lib).__setitem__(0, "a")),
    ("must correspond to the class attributes", lambda lib: sample(lib).update({"typo": 1})),
    (
        "Keys from the tensordict",
        lambda lib: sample_class(lib).from_tensordict(lib.TensorDict({"typo": 1})),
    ),
    ("Expected a TensorDictBase instance but got <class 'dict'>", lambda lib: sample_class(lib).from_tensordict({})),
    ("Expected a dataclass input, got a <class 'int'>", lambda lib: lib.TensorDict.from_dataclass(1)),
    ("Multiple dispatch failed for 'torch.stack'", other_class),
    ("Multiple dispatch failed for 'torch.cat'", lambda lib: torch.cat([sample(lib), sample(lib)])),
    ("Attribute name reshape can't be used with @tensorclass", field(torch.Tensor, "reshape")),
    ("autocast is exclusive with nocast", field(int, "x", autocast=True, nocast=True)),
    ("autocast is exclusive with nocast", exclusive_brackets),
    ("tensor_only and autocast or nocast are exclusive", field(torch.Tensor, "x", autocast=True, tensor_only=True)),
    ("tensor_only requires types to be Tensor", field(str, "x", tensor_only=True)),
    ("only accepts the flags", lambda lib: lib.TensorClass["typo"]),
    ("is an abstract base class and cannot be instantiated directly", lambda lib: lib.TensorClass()),
    ("Failed to cast the value x to the type annotation", uncast),
    ("non-default argument 'y' follows default argument", with_default_first),
    ("missing 1 required positional argument: 'data'", lambda lib: lib.NonTensorData()),
    ("Cannot modify locked TensorDict", set_data_of_locked),
    (
        "Cannot update a part of a NonTensorDataBase",
        lambda lib: lib.NonTensorData("a").update_at_(lib.NonTensorData("b"), 0),
    ),
    (
        "Cannot update a NonTensorDataBase object with a NonTensorStack",
        lambda lib: lib.NonTensorData("a", batch_size=[2]).update(lib.NonTensorStack("b", "c")),
    ),
    ("is not supported", lambda lib: lib.NonTensorStack("a", "b").update("x")),
    ("Cannot get the non-unique data of a NonTensorStack", lambda lib: lib.NonTensorStack("a", "b").data),
    ("You're attempting to update a leaf in-place with a shared tensordict", shared_rows),
    ("memmap and shared memory are mutually exclusive features", lambda lib: td(lib).memmap_().share_memory_()),
    ("memmap and shared memory are mutually exclusive features", lambda lib: td(lib).share_memory_().memmap_()),
    ("Can only make a memmap tensor within a memory-mapped tensordict", lambda lib: td(lib).make_memmap("b", (3,))),
    ("already exists within the target tensordict", lambda lib: td(lib).memmap_().make_memmap("a", (3,))),
    (
        "Cannot call `make_memmap` on a LazyStackedTensorDict",
        lambda lib: lib.lazy_stack([td(lib)]).memmap_().make_memmap("b", (1, 3)),
    ),
    ("Cannot refresh a TensorDict that is not memory mapped", lambda lib: td(lib).memmap_refresh_()),
    ("has no file associated", lambda lib: lib.MemoryMappedTensor.zeros(3).filename),
    (
        "is incompatible with tensor.requires_grad",
        lambda lib: lib.MemoryMappedTensor.from_tensor(torch.zeros(3, requires_grad=True)),
    ),
    ("Only CPU tensors are supported", lambda lib: lib.MemoryMappedTensor.empty(3, device="meta")),
    ("Could not find the shape argument in the arguments", lambda lib: lib.MemoryMappedTensor.empty()),
    ("does not match, got mse = 1", close),
    ("Failed to stack tensors within a tensordict under the key 'a': their shapes are", ragged_entry),
    ("dim must be greater than or equal to -tensordict.batch_dims", lambda lib: td(lib).all(dim=9)),
    ("Dimension out of range (expected to be in range of [-1, 0], but got 9)", lambda lib: td(lib).movedim(0, 9)),
    ("Cannot gather tensordict with shape torch.Size([3]) along dim 9", gathered),
    ("TensorDict keys are always strings", lambda lib: td(lib).keys().__contains__(1)),
    ("key b already present in TensorDict", lambda lib: td(lib).rename_key_("a", "b", safe=True)),
    ("The entry a is already present in tensordict", lambda lib: td(lib).set(("a", "x"), torch.zeros(3))),
    ("batch dimension mismatch, got self.batch_size=torch.Size([3]) and value.shape=torch.Size([4])", misfit),
    ("the Tensor a has shape torch.Size([3, 2]) which is incompatible with the batch-size", resized),
    ("Received a new batch size torch.Size([]) with an existing batch_size torch.Size([2, 3]) in a lazy TD", shrunk),
    ("the length of the dimension names must equate the tensordict batch_dims attribute. Got", renamed),
    ("Cannot use object type <class 'int'> to update values in tensordict", lambda lib: td(lib).replace(1)),
    ("Incompatible expanded shape", lambda lib: td(lib).expand(4)),
    ("Provided sizes [7, 7] don't multiply up to the size of dim 0 (3)", lambda lib: td(lib).unflatten(0, [7, 7])),
    ("Insufficient number of elements in split_size", lambda lib: td(lib).split([])),
    ("split_with_sizes expects split_sizes have only non-negative entries", lambda lib: td(lib).split([4, -1])),
    ("Cannot compute the permutation, got dims=[0, 0]", lambda lib: td(lib, 3, 4).permute(0, 0)),
    ("Received an permutation order incompatible with the tensordict shape", lambda lib: td(lib).permute(9)),
    ("The end dimension must be greater or equal to the start dim", lambda lib: td(lib, 3, 4).flatten(1, 0)),
    ("The shape of the mask [4] at index 0 does not match the shape of the indexed tensor", masked),
    ("Key b not found and no pad value provided", lambda lib: td(lib).where(TRUE, td(lib).select("a"))),
    ("dim='feature' is incompatible with keepdim=True", lambda lib: td(lib).sum(dim="feature", keepdim=True)),
    ("will override an existing for unflattened key", lambda lib: lib.TensorDict({"a.b": 1, "a": 1}).unflatten_keys()),
    ("to collide", lambda lib: lib.TensorDict({"a": {"b": 1}, "a.b": 1}).flatten_keys()),
    ("Lock the parent tensordict instead", lambda lib: td(lib)._get_sub_tensordict(0).lock_()),
    ("Casting a sub-tensordict values to shared memory cannot", lambda lib: part(lib).share_memory_()),
    ("Converting a sub-tensordict values to memmap cannot be done", lambda lib: part(lib).memmap_()),
    ("Detaching a sub-tensordict in-place cannot be done", lambda lib: part(lib).detach_()),
    ("instance to device/dtype inplace", lambda lib: part(lib).to(torch.float64, inplace=True)),
    ("the method to_dict cannot complete when there are exclusive keys", exclusive),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("phrase", "call"), CALLS, ids=[f"{i} {phrase}" for i, (phrase, _) in enumerate(CALLS)])
def test_messages_have_the_phrases_that_programs_match(phrase, call):
    with pytest.raises(Exception) as theirs:
        call(THEIRS)
    assert phrase in str(theirs.value)
    with pytest.raises(catchable(theirs.value)) as ours:
        call(OURS)
    assert phrase in str(ours.value)


def existing_file(lib: Any, path: Any) -> Any:
    for _ in range(2):
        lib.MemoryMappedTensor.zeros(3, filename=path / "x.memmap")


def mapped_elsewhere(lib: Any, path: Any) -> Any:
    tensor = lib.MemoryMappedTensor.zeros(3, filename=path / "y.memmap")
    lib.MemoryMappedTensor.from_tensor(tensor, filename=path / "z.memmap")


def saved_elsewhere(lib: Any, path: Any) -> Any:
    td(lib).memmap(path / "saved").memmap(path / "other")


def existing_folder(lib: Any, path: Any) -> Any:
    for _ in range(2):
        td(lib).memmap(path / "folder", existsok=False)


FILES = {
    existing_file: "already exists",
    existing_folder: "already exists",
    mapped_elsewhere: "A filename was provided but the tensor already has a file associated",
    saved_elsewhere: "A filename was provided but the tensor already has a file associated",
}


@pytest.mark.parametrize("call", FILES, ids=lambda call: call.__name__)
def test_messages_about_files_have_the_phrases_that_programs_match(call, tmp_path):
    for name, library in (("theirs", THEIRS), ("ours", OURS)):
        (tmp_path / name).mkdir()
        with pytest.raises(RuntimeError, match=FILES[call]):
            call(library, tmp_path / name)
