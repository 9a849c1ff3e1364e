"""The abstract base of containers: a container class that lacks a method is refused where it is defined."""

from __future__ import annotations

import subprocess
import sys
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import pytest
import torch

import tensordict_core
from tensordict_core import TensorDict, is_tensor_collection
from tensordict_core.extension import Index, Meta, Node, Primitives, TensorCollection, TensorDictBase

ABSTRACT = {name for name, member in vars(Node).items() if getattr(member, "__isabstractmethod__", False)}


def body(*left_out: str) -> dict[str, Any]:
    """The body of a container class that implements all abstract methods but some."""
    return {name: vars(TensorDict)[name] for name in ABSTRACT if name not in left_out}


def test_a_container_implements_about_ten_methods() -> None:
    assert 8 <= len(ABSTRACT) <= 12


def test_a_container_without_one_of_them_is_refused_at_its_definition() -> None:
    for name in ABSTRACT:
        with pytest.raises(TypeError, match=rf"the container Partial lacks {name};"):
            type("Partial", (TensorDictBase,), body(name))


def test_the_error_names_all_methods_that_are_missing() -> None:
    with pytest.raises(TypeError, match=r"Empty lacks _cat, _clone, .*_stack; implement all"):

        class Empty(TensorCollection):
            pass


def test_a_complete_container_is_accepted() -> None:
    type("Complete", (TensorDictBase,), body())


def test_a_base_of_containers_may_leave_methods_to_its_subclasses() -> None:
    class Base(TensorDictBase, abstract=True):
        pass

    type("Complete", (Base,), body())
    with pytest.raises(TypeError, match="Partial lacks _get;"):
        type("Partial", (Base,), body("_get"))


def test_subclasses_of_a_container_need_nothing() -> None:
    class Mine(TensorDict):
        pass

    assert Mine({"a": torch.zeros(2)}, [2])["a"].shape == (2,)


def test_a_subclass_may_define_set_by_item_assignment() -> None:
    class Logged(TensorDict):
        def set(self, key: Any, item: Any, *args: Any, **kwargs: Any) -> Logged:
            self[key] = item
            return self

    assert Logged({"a": 1}).set("b", 2).set(("n", "c"), 3).to_dict() == {"a": 1, "b": 2, "n": {"c": 3}}


class Pairs(TensorDictBase):
    """A container with the abstract methods alone; what has a default is not overridden."""

    __slots__ = ("_annotations", "_held", "_holders", "_last_exit", "_locked", "_meta")

    def __init__(self, held: Any) -> None:
        self._held = held
        self._meta: Meta = held._meta
        self._locked = False
        self._holders = self._annotations = self._last_exit = None

    def _keys(self) -> Iterable[str]:
        return self._held._keys()

    def _get(self, key: str) -> Any:
        return self._held._get(key)

    def _set(self, key: str, value: Any) -> None:
        self._held._set(key, value)

    def _del(self, key: str) -> None:
        self._held._del(key)

    def _rebuild(self, leaves: Any, how: Any) -> Any:
        return self._held._rebuild(leaves, how)

    def _index(self, index: Index) -> Any:
        return self._held._index(index)

    def _index_put(self, index: Index, value: Any) -> None:
        self._held._index_put(index, value)

    def _reshape(self, op: Any) -> Any:
        return self._held._reshape(op)

    @classmethod
    def _stack(cls, items: Any, dim: int) -> Any:
        return TensorDict._stack([item._held for item in items], dim)

    @classmethod
    def _cat(cls, items: Any, dim: int) -> Any:
        return TensorDict._cat([item._held for item in items], dim)

    def _clone(self, recurse: bool) -> Any:
        return Pairs(self._held._clone(recurse))


def pairs() -> tuple[Pairs, TensorDict]:
    td = TensorDict({"a": torch.arange(6.0).reshape(2, 3), "n": {"b": torch.ones(2, 3, 4), "s": "text"}}, [2, 3])
    return Pairs(td.clone()), td


def test_defaults_follow_from_the_entries() -> None:
    own, td = pairs()
    assert own._leaf_keys() == td._leaf_keys()
    assert [leaf.shape for leaf in own._leaves()] == [leaf.shape for leaf in td._leaves()]
    assert [len(list(own._nodes())), len(own._align(td, None))] == [1, 2]
    for dim in (0, 1):
        for part, expected in zip(own.unbind(dim), td.unbind(dim), strict=True):
            assert (part == expected).all()
    operand = torch.arange(6.0).reshape(2, 3)
    assert ((own + operand) == (td + operand)).all()
    assert (own.sum(dim=1) == td.sum(dim=1)).all()


def test_an_entry_is_renamed_by_default_at_the_end_of_the_order() -> None:
    own, _ = pairs()
    own.rename_key_("a", "z")
    assert list(own.keys()) == ["n", "z"]


def test_a_subclass_with_abstract_methods_of_its_own_has_no_instances() -> None:
    class Partial(TensorDict):
        @abstractmethod
        def area(self) -> torch.Tensor: ...

    class Square(Partial):
        def area(self) -> torch.Tensor:
            return self["side"] ** 2

    with pytest.raises(TypeError, match="abstract"):
        Partial({"side": 2})
    square = Square({"side": 2})
    assert square.area() == 4 and type(square.clone()) is Square


def test_primitives_is_the_deprecated_name_of_the_abstract_base() -> None:
    assert Primitives is Node
    assert is_tensor_collection(Pairs)
    assert isinstance(TensorDict(), Node)


def test_the_package_lists_its_public_names_alone() -> None:
    listed = {name for name in dir(tensordict_core) if not name.startswith("__")}
    assert listed == set(tensordict_core.__all__)


def test_importing_the_extension_interface_alone_registers_torch_functions() -> None:
    code = (
        "import tensordict_core.extension, torch; t = tensordict_core.TensorDict({'a': 1.0}); print(torch.abs(t)['a'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "tensor(1.)"
