"""Module paths and private names that published programs import: each is something public."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch

import tensordict
from tensordict import LazyStackedTensorDict, TensorDict, lazy_stack
from tensordict._serve.aliases import ANSWER, MODULES, PRIVATE


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_name_is_a_public_object_of_its_owner(name):
    owner, public = PRIVATE[name]
    home = importlib.import_module(owner)
    assert public in getattr(home, "__all__", [public])
    for module in ANSWER:
        if name not in importlib.import_module(module).__all__:
            assert getattr(importlib.import_module(module), name) is getattr(home, public)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_path_has_the_names_of_its_public_modules(module):
    here = importlib.import_module(module)
    for home in map(importlib.import_module, MODULES[module]):
        for name in home.__all__:
            assert name in dir(here)
            assert getattr(here, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        here.no_such_name  # noqa: B018 (the access is the test)


LINES = [
    "from tensordict.tensordict import TensorDict, TensorDictBase, assert_allclose_td",
    "from tensordict.base import _default_is_leaf, _is_leaf_nontensor, _NESTED_TENSORS_AS_LISTS, _ACCEPTED_CLASSES",
    "from tensordict.utils import _zip_strict, _unravel_key_to_tuple, _is_tensorclass, _is_non_tensor, logger",
    "from tensordict.utils import _getitem_batch_size, _maybe_correct_neg_dim, is_seq_of_nested_key, Buffer",
    "from tensordict.utils import timeit, is_compiling",
    "from tensordict.utils import implement_for, strtobool, TensorDictFuture, set_json_backend, get_json_backend",
    "from tensordict.nn.common import TensorDictModuleBase, TensorDictModule, dispatch",
    "from tensordict.nn.probabilistic import InteractionType, interaction_type, _use_generator",
    "from tensordict.nn.utils import _set_dispatch_td_nn_modules, _set_skip_existing_None, Buffer, expln, mappings",
    "from tensordict.nn.distributions import set_interaction_type",
    "from tensordict.nn.tensorclass_module import TensorClassModuleBase, TensorClassModuleWrapper",
    "from tensordict.nn.functional_modules import _exclude_td_from_pytree",
    "from tensordict.nn.distributions.composite import _add_suffix, set_composite_lp_aggregate, composite_lp_aggregate",
    "from tensordict.nn.distributions.truncated_normal import TruncatedStandardNormal",
    "from tensordict._tensorcollection import TensorCollection",
    "from tensordict._C import unravel_keys, unravel_key, unravel_key_list",
    "from tensordict._lazy import _CustomOpTensorDict, _PermutedTensorDict, _ViewedTensorDict",
    "from tensordict._contextlib import _DecoratorContextManager",
    "from tensordict._pytree import PYTREE_REGISTERED_TDS, PYTREE_REGISTERED_LAZY_TDS, _register_td_node",
    "from tensordict._pytree import _td_flatten_with_keys, _tensordict_flatten, _tensordict_unflatten",
    "from tensordict._reductions import _reduce_td",
    "from tensordict._td import _SubTensorDict, is_tensor_collection, lazy_stack",
    "from tensordict._torch_func import _cat, _stack as stack_td",
    "from tensordict.tensorclass import TensorDict, TensorDictBase, LazyStackedTensorDict, TensorCollection",
    "from tensordict.nn.probabilistic import TensorDict, TensorDictBase, unravel_key, is_non_tensor",
    "from tensordict.nn.sequence import LazyStackedTensorDict, unravel_key_list",
    "from tensordict.base import MemoryMappedTensor, TensorCollection",
    "from tensordict.base import CompatibleType, NestedKey, _GENERIC_NESTED_ERR, _NESTED_TENSORS_AS_LISTS_NONTENSOR",
    "from tensordict.persistent import PersistentTensorDict, _has_h5",
    "from tensordict.utils import _LOCK_ERROR, _KEY_ERROR, _NON_STR_KEY_ERR, _pass_through, _infer_size_impl",
    "from tensordict.utils import convert_ellipsis_to_idx, infer_size_impl, is_batchedtensor, is_namedtuple",
    "from tensordict.utils import expand_as_right, prod, set_lazy_legacy",
    "from tensordict import implement_for, is_batchedtensor",
    "from tensordict.tensorclass import is_tensor_collection, NonTensorData, NonTensorStack",
    "from tensordict.functional import pad, pad_sequence, dense_stack_tds",
    "import tensordict; tensordict.nn.functional_modules._exclude_td_from_pytree().set()",
    "from tensordict._nestedkey import NestedKey",
    "import tensordict._contextlib",
    "from tensordict._td import _TensorDictKeysView",
    "from tensordict.utils import _STRDTYPE2DTYPE, _DTYPE2STRDTYPE, BufferLegacy",
    "from tensordict import List, TensorDict",
    "import tensordict; tensordict.tensordict.TensorDict; tensordict._pytree",
    "from tensordict.tensorclass import _TensorClassMeta",
    "from tensordict.tensorclass import _eq, _getitem",
    "from tensordict.base import _register_tensor_class; _register_tensor_class(TensorDict)",
]


def test_the_imports_of_published_programs_work():
    lines = "\n".join(LINES)
    ran = subprocess.run([sys.executable, "-W", "error", "-c", lines], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_messages_that_are_named_are_those_of_the_errors():
    td = TensorDict({"a": torch.zeros(2)}, [2])
    with pytest.raises(RuntimeError, match=tensordict.utils._LOCK_ERROR):
        td.clone().lock_()["b"] = torch.zeros(2)
    with pytest.raises(KeyError) as error:
        td["b"]
    assert tensordict.utils._KEY_ERROR.format("b", "TensorDict", ["a"]) in error.value.args[0]
    with pytest.raises(KeyError, match=tensordict.base._GENERIC_NESTED_ERR):
        td.set(("a", 1), torch.zeros(2))


def test_functions_below_the_public_ones_answer_as_those_of_the_release():
    utils = tensordict.utils
    assert utils.convert_ellipsis_to_idx((0, ...), [3, 2, 4]) == (0, slice(None), slice(None))
    assert utils.convert_ellipsis_to_idx((0, None, ...), [3, 2]) == (0, None, slice(None))
    for index in ((..., 0, ...), (..., 0, 0, 0)):
        with pytest.raises(RuntimeError):
            utils.convert_ellipsis_to_idx(index, [3, 2])
    assert utils.infer_size_impl([-1, 2], 6) == [3, 2]
    with pytest.raises(RuntimeError, match="shape"):
        utils.infer_size_impl([-1, 4], 6)
    values = [tensordict.NonTensorData(1), tensordict.UnbatchedTensor(torch.zeros(1)), TensorDict(), torch.zeros(1)]
    assert [utils._pass_through(value) for value in values] == [True, True, False, False]
    stack = lazy_stack([TensorDict({"a": torch.zeros(1), "s": "x"})] * 2)
    for td in (stack, TensorDict({"n": stack}, [2], names=["t"], lock=True)):
        function, arguments = tensordict._reductions._reduce_td(td)
        again = function(*arguments)
        assert (again == td).all() and again.names == td.names and type(again) is type(td)
    assert not isinstance(stack, tensordict._lazy._CustomOpTensorDict)


def test_aliases_are_not_listed():
    assert not set(dir(tensordict.utils)) & {name for name in PRIVATE if name.startswith("_")}


def test_lazy_stacks_are_walked_element_by_element():
    stack = lazy_stack([TensorDict({"a": torch.zeros(1), "s": "x"}), TensorDict({"a": torch.zeros(2), "s": "y"})])
    as_lists = tensordict.base._NESTED_TENSORS_AS_LISTS
    keys = [("q", "0", "a"), ("q", "1", "a"), "t"]
    td = TensorDict({"q": stack, "t": torch.zeros(1)})
    assert list(td.keys(True, True, is_leaf=as_lists)) == keys
    assert [value.numel() for value in td.values(True, True, is_leaf=as_lists)] == [1, 2, 1]
    assert len(td.items(True, True, is_leaf=as_lists)) == 3
    assert isinstance(stack, LazyStackedTensorDict)
    assert not as_lists(TensorDict)
    assert as_lists(torch.Tensor)


def test_the_mapped_flag_follows_from_the_leaves(tmp_path):
    td = TensorDict({"a": torch.zeros(3)}, [3])
    mapped = td.memmap_like(tmp_path / "data")
    mapped._is_memmap = True
    assert mapped._is_memmap
    assert not td._is_memmap
    with pytest.raises(RuntimeError, match="_is_memmap=True is not what the leaves of the TensorDict are"):
        td._is_memmap = True


def test_methods_with_an_underscore_equal_the_public_ones():
    td = TensorDict({"a": torch.zeros(3), "n": {"b": torch.zeros(3)}}, [3], names=["time"])
    td._tensordict.update(a=torch.ones(3))
    assert td["a"].tolist() == [1, 1, 1]
    assert td._has_names()
    assert td._get_names_idx(0) is None
    assert td._get_str("a", None) is td["a"]
    assert td._get_str("missing", None) is None
    with pytest.raises(KeyError, match="missing"):
        td._get_str("missing", tensordict.NO_DEFAULT)
    assert "n" in td._fast_apply(lambda x: None)
    assert td._fast_apply(lambda x: None, filter_empty=True) is None
    assert td._set_str("c", torch.ones(3), inplace=False, validated=True)["c"].sum() == 3
    locked = td.clone().lock_()
    locked._set_str("d", torch.ones(3), inplace=False, validated=True, ignore_lock=True)
    assert "d" in locked
    assert locked.is_locked
    made = TensorDict._new_unsafe({"a": torch.zeros(3)}, torch.Size([3]), names=["time"], lock=True)
    assert made.is_locked
    assert made.names == ["time"]
    assert td._items_list(True, True)[0] == ["a", ("n", "b"), "c"]
    td._erase_names()
    assert td.names == [None]


def test_the_lazy_mode_of_older_releases_warns_and_stacks_lazily():
    from tensordict._lazy import _UnsqueezedTensorDict

    with pytest.warns(DeprecationWarning, match=r"The legacy lazy mode.* is deprecated; use lazy_stack"):
        block = tensordict.set_lazy_legacy(True)
    tds = [tensordict.TensorDict({"a": torch.zeros(3)}, [3]) for _ in range(2)]
    with block:
        assert tensordict.lazy_legacy()
        for stacked in (torch.stack(tds, 1), tensordict.stack(tds, 1), tensordict.TensorDict.stack(tds, 1)):
            assert isinstance(stacked, tensordict.LazyStackedTensorDict) and stacked.stack_dim == 1
            assert stacked.to_tensordict()["a"].shape == (3, 2)
        assert type(torch.cat(tds)) is tensordict.TensorDict
        assert isinstance(tds[0].unsqueeze(0), _UnsqueezedTensorDict)
    assert not tensordict.lazy_legacy() and type(torch.stack(tds)) is tensordict.TensorDict


def test_functions_by_version_are_chosen_again() -> None:
    from tensordict.utils import implement_for

    @implement_for("torch", None, "1.0")
    def chosen() -> str:
        return "old"

    @implement_for("torch", "1.0")
    def chosen() -> str:  # noqa: F811  # the decorator keeps both
        return "new"

    before = dict(implement_for._implementations)
    name = implement_for.get_func_name(chosen)
    assert chosen() == "new" and before[name].from_version == "1.0"
    for setter in implement_for._setters:
        if setter.func_name == name and setter.fn() == "old":
            setter.module_set()
    assert chosen() == "old"
    implement_for.reset(before)
    assert chosen() == "new"


@pytest.mark.parametrize(
    ("version", "first", "end", "fits"),
    [
        ("0.27.0", None, None, True),
        ("0.27.0", "0.27.0", None, True),
        ("0.27.0", "0.27.2", None, False),
        ("0.27.0", None, "0.27.0", False),
        ("0.27.0rc1", "0.27.0", None, True),
        ("1.0.0", "0.9", "0.11", False),
    ],
)
def test_versions_are_in_a_range(version: str, first: str | None, end: str | None, fits: bool) -> None:
    from tensordict.utils import implement_for

    assert implement_for.check_version(version, first, end) is fits
