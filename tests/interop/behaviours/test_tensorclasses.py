"""Tensorclasses and typed tensordicts behave as in the reference."""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import Any, ClassVar, NotRequired, Optional, get_type_hints

import numpy as np
import pytest
import torch
from side_by_side import OURS, THEIRS, assert_same
from torch import Tensor, nn


def made(base: Any, fields: dict[str, Any], **members: Any) -> Any:
    """A subclass with annotations that are types and not strings."""
    body = {"__annotations__": fields, "__module__": __name__, **members}
    return types.new_class("Made", (base,), {}, lambda namespace: namespace.update(body))


def pair(lib: Any) -> Any:
    return made(lib.TensorClass, {"x": Tensor, "y": Any}, y=None)


def typed(lib: Any) -> Any:
    return made(lib.TypedTensorDict, {"a": Tensor, "b": Tensor})


class Mapping(collections.UserDict[str, Any]):
    """A mapping that is no dictionary."""


# fields


@pytest.mark.parametrize("size", [[3], [3, 4], [3, 1], []])
def test_a_list_of_rows_fits_the_batch_size(size: list[int]) -> None:
    assert_same(
        lambda lib: pair(lib)(torch.ones(3, 4, 1)[:, : size[-1] if size else 4], ["a", "b", "c"], batch_size=size).y
    )


@pytest.mark.parametrize("flag", ["tensor_only", "nocast", "autocast", "shadow"])
@pytest.mark.parametrize("kind", [dict, Mapping, collections.OrderedDict])
def test_mappings_in_fields(flag: str, kind: Any) -> None:
    def call(lib: Any) -> Any:
        cls = made(lib.TensorClass[flag], {"d": lib.TensorDict})
        value = kind({"x": torch.ones(2), "n": {"y": torch.zeros(2)}})
        first, second = cls(d=value, batch_size=[2]), cls(d=lib.TensorDict({}, [2]), batch_size=[2])
        second.d = value
        third = second.clone()
        third.set("d", value)
        return [type(one.d).__name__ for one in (first, second, third)], type(first.d["n"]).__name__

    assert_same(call)


def test_mappings_in_dataclasses() -> None:
    def call(lib: Any) -> Any:
        cls = dataclasses.make_dataclass("Made", [("d", lib.TensorDict)])
        return type(lib.from_dataclass(cls(Mapping(x=torch.ones(2))), tensor_only=True).d).__name__

    assert_same(call)


@pytest.mark.parametrize(
    "annotation",
    [torch.IntTensor, torch.LongTensor, torch.FloatTensor, Any, int, Tensor, Optional[Tensor], type(None), np.ndarray],  # noqa: UP045 (both spellings)
    ids=str,
)
def test_annotations_of_fields_for_tensors_only(annotation: Any) -> None:
    assert_same(lambda lib: made(lib.TensorClass["tensor_only"], {"d": annotation})(torch.ones(2)).d)


@pytest.mark.parametrize("flag", ["nocast", "autocast", "tensor_only", "shadow"])
def test_a_constructor_calls_an_overridden_setattr(flag: str) -> None:
    def call(lib: Any) -> Any:
        seen: list[str] = []

        class Noisy(lib.TensorClass[flag]):
            x: Tensor
            y: Tensor = None

            def __setattr__(self, name: str, value: Any) -> None:
                seen.append(name)
                super().__setattr__(name, value + 1 if name == "x" else value)

        instance = Noisy(torch.zeros(2), batch_size=[2])
        first = instance.x
        instance.x = torch.ones(2)
        return first, instance.x, instance.clone().x, seen

    assert_same(call)


@pytest.mark.parametrize("name", ["batch_size", "device", "names", "shape", "typo", "x", "y"])
def test_get_also_reads_metadata(name: str) -> None:
    assert_same(lambda lib: pair(lib)(torch.ones(2), batch_size=[2]).get(name))


def test_a_class_has_a_getattr() -> None:
    assert_same(lambda lib: callable(pair(lib).__getattr__))


def test_a_field_that_hides_metadata_is_shown_once() -> None:
    shown = made(OURS.TensorClass["shadow"], {"batch_size": Any, "device": Any}, device=None)
    assert repr(shown(torch.ones(2))).count("batch_size=") == 1


def test_compiled_constructors_use_defaults() -> None:
    def call(lib: Any) -> Any:
        factory = dataclasses.field(default_factory=lambda: torch.ones(2))
        cls = made(lib.TensorClass, {"a": Tensor, "b": Tensor, "c": Tensor}, b=factory, c=torch.zeros(2))
        compiled = torch.compile(lambda x: cls(a=x, batch_size=[2]) + 1, backend="eager", fullgraph=True)
        both = torch.compile(lambda x: cls(x, x, x, batch_size=[2]), backend="eager", fullgraph=True)
        first, second = compiled(torch.zeros(2)), both(torch.zeros(2))
        return [getattr(one, name) for one in (first, second) for name in "abc"]

    assert_same(call)


# conversions


@pytest.mark.parametrize(
    "name",
    [
        "from_list",
        "fromkeys",
        "from_any",
        "from_dict",
        "from_namedtuple",
        "from_struct_array",
        "from_module",
        "from_tuple",
    ],
)
def test_constructors_make_instances(name: str) -> None:
    def call(lib: Any) -> Any:
        named = collections.namedtuple("named", ["x", "y"])(torch.ones(2), torch.zeros(2))
        source: Any = {
            "from_list": ([{"x": 1}, {"x": 2}],),
            "fromkeys": (["x"], 1),
            "from_namedtuple": (named,),
            "from_struct_array": (np.zeros(2, dtype=[("x", "f4")]),),
            "from_module": (nn.Linear(1, 1),),
            "from_tuple": ((1, 2),),
        }.get(name, ({"x": torch.ones(2)},))
        instance = getattr(pair(lib), name)(*source)
        return type(instance).__name__, instance.x, instance.batch_size

    assert_same(call)


def test_a_tensordict_of_an_instance() -> None:
    def call(lib: Any) -> Any:
        instance = pair(lib)(torch.ones(2), batch_size=[2])
        td = lib.TensorDict.from_dataclass(instance)
        return type(td).__name__, td

    assert_same(call)


def test_state_dicts_of_earlier_releases_load() -> None:
    def call(lib: Any) -> Any:
        instance = pair(lib)(torch.zeros(2), batch_size=[2])
        inner = {"x": torch.ones(2), "__batch_size": torch.Size([2]), "__device": None}
        instance.load_state_dict({"_tensordict": inner, "_non_tensordict": {}})
        return instance.x, instance.batch_size

    assert_same(call)


def test_names_of_fields() -> None:
    def call(lib: Any) -> Any:
        base = made(lib.TensorClass, {"a": Tensor, "k": ClassVar[int], "b": str}, k=3, b="x")
        derived = made(base, {"c": Tensor}, c=None)
        return sorted(base.__expected_keys__), sorted(derived.__expected_keys__)

    assert_same(call)


def test_references_for_compile_are_cleared() -> None:
    def call(lib: Any) -> Any:
        return type(pair(lib)(torch.ones(2)).clear_refs_for_compile_()).__name__

    assert_same(call)


# typed tensordicts


@pytest.mark.parametrize("check", [True, False])
def test_a_partial_tensordict_is_wrapped_without_a_check(check: bool) -> None:
    def call(lib: Any) -> Any:
        td = lib.TensorDict({"a": torch.ones(2)}, [2])
        instance = typed(lib).from_tensordict(td, check=check)
        instance.b = torch.zeros(2)
        return instance.a, td

    assert_same(call)


def test_an_absent_entry_is_not_an_attribute() -> None:
    def partial(lib: Any) -> Any:
        return typed(lib).from_tensordict(lib.TensorDict({"a": torch.ones(2)}, [2]), check=False)

    assert_same(lambda lib: partial(lib).b)
    assert_same(lambda lib: partial(lib)["b"])


def test_names_of_keys() -> None:
    def call(lib: Any) -> Any:
        fields = {"a": Tensor, "b": NotRequired[Tensor], "k": ClassVar[int], "c": Tensor}
        base = made(lib.TypedTensorDict, fields, k=3, c=None)
        kinds = ("__expected_keys__", "__required_keys__", "__optional_keys__")
        return [[sorted(getattr(cls, kind)) for kind in kinds] for cls in (base, made(base, {"d": Tensor}))]

    assert_same(call)


@pytest.mark.parametrize("item", ["typo", 3, None])
def test_brackets_take_flags_only(item: Any) -> None:
    assert_same(lambda lib: lib.TypedTensorDict[item])


def test_lazy_stacks_of_typed_tensordicts_are_lazy_stacks() -> None:
    def call(lib: Any) -> Any:
        one = typed(lib)(a=torch.ones(2), b=torch.ones(2), batch_size=[2])
        stacks = (one.to_lazystack(), lib.lazy_stack([one, one]))
        return [(isinstance(s, lib.LazyStackedTensorDict), type(s[0]).__name__, s["a"]) for s in stacks]

    assert_same(call)


@pytest.mark.parametrize("lazy", [False, True])
def test_saved_typed_tensordicts_open_in_the_reference(lazy: bool, tmp_path: Any) -> None:
    cls = typed(OURS)
    one = cls(a=torch.ones(2), b=OURS.TensorDict({"c": torch.zeros(2)}, [2]), batch_size=[2])
    source = one.to_lazystack() if lazy else one
    mapped = source.memmap(tmp_path / "run")
    assert lazy or type(mapped) is cls
    theirs = THEIRS.TensorDict.load_memmap(tmp_path / "run")
    assert theirs["a"].tolist() == [1, 1] and theirs["b", "c"].tolist() == [0, 0]
    assert OURS.TensorDict.load(tmp_path / "run")["b", "c"].tolist() == [0, 0]
    assert lazy or type(cls.load_memmap(tmp_path / "run")) is cls


def test_subclasses_of_a_tensordict_keep_their_type() -> None:
    def call(lib: Any) -> Any:
        cls = types.new_class("Sub", (lib.TensorDict,))
        sub = cls({"a": torch.ones(2), "n": {"b": torch.ones(2)}}, [2])
        results = (
            sub.empty(),
            sub.select("a"),
            sub.exclude("a"),
            *sub.split_keys(["a"]),
            sub.flatten_keys(),
            sub.memmap(),
        )
        return [type(one).__name__ for one in (*results, sub.unflatten_keys(), cls.from_dict({"a": 1}), sub["n"])]

    assert_same(call)


# constructors, hints and stacks


def labelled(lib: Any) -> Any:
    return made(lib.TensorClass, {"x": Tensor, "label": str}, label="z")


def stack_of(lib: Any) -> Any:
    cls = labelled(lib)
    return cls, lib.lazy_stack([cls(torch.zeros(2)), cls(torch.ones(2), "q")])


def test_a_keyword_that_is_not_a_field() -> None:
    assert_same(lambda lib: labelled(lib)(torch.zeros(2), typo=3))
    assert_same(lambda lib: dataclasses.replace(labelled(lib)(torch.zeros(2)), typo=3))


def test_the_base_has_no_instances() -> None:
    assert_same(lambda lib: lib.TensorClass())


def test_type_hints_are_those_of_the_fields() -> None:
    assert_same(lambda lib: get_type_hints(labelled(lib)))


@pytest.mark.parametrize("flags", ["autocast", ("nocast", "frozen")])
def test_the_name_of_a_class_with_flags(flags: Any) -> None:
    assert_same(lambda lib: lib.TensorClass[flags].__name__)


@pytest.mark.parametrize("position", [0, 1, -1, None])
def test_instances_are_added_to_a_lazy_stack(position: int | None) -> None:
    def call(lib: Any) -> Any:
        cls, stack = stack_of(lib)
        new = cls(torch.full((2,), 5.0), "new")
        _ = stack.append(new) if position is None else stack.insert(position, new)
        return stack.batch_size, stack.stack_dim, stack.x, stack.label

    assert_same(call)


def test_an_instance_of_another_size_is_not_added_to_a_lazy_stack() -> None:
    def call(lib: Any) -> Any:
        cls, stack = stack_of(lib)
        stack.append(cls(torch.zeros(2), batch_size=[2]))

    assert_same(call)


def test_a_dense_instance_is_not_a_lazy_stack() -> None:
    for name in ("append", "insert", "stack_dim", "tensordicts"):
        assert_same(lambda lib, name=name: hasattr(labelled(lib)(torch.zeros(2)), name))


# state dicts


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("more", [{}, {"typo": torch.zeros(1)}])
def test_a_plain_state_dict_without_values(more: dict[str, Any], strict: bool) -> None:
    def call(lib: Any) -> Any:
        instance = labelled(lib)(torch.zeros(2), "mine")
        instance.load_state_dict({"x": torch.ones(2), **more}, strict=strict)
        return instance.x, instance.label

    assert_same(call)


def test_the_state_dict_of_the_reference_loads() -> None:
    theirs = labelled(THEIRS)(torch.ones(2), "theirs")
    ours = labelled(OURS)(torch.zeros(2), "ours")
    ours.load_state_dict(theirs.state_dict())
    assert ours.x.tolist() == [1.0, 1.0] and ours.label == "theirs"


def test_a_dataclass_with_other_fields_does_not_become_an_instance() -> None:
    @dataclasses.dataclass
    class Plain:
        y: Tensor

    assert_same(lambda lib: labelled(lib).from_dataclass(Plain(torch.zeros(2))))
