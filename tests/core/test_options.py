"""Global options: setting, restoring, and printing."""

from __future__ import annotations

import threading

import pytest
import torch

from tensordict_core import (
    NonTensorStack,
    TensorDict,
    capture_non_tensor_stack,
    get_defaults_to_none,
    get_printoptions,
    lazy_stack,
    list_to_stack,
    parse_tensor_dict_string,
    set_capture_non_tensor_stack,
    set_get_defaults_to_none,
    set_list_to_stack,
    set_printoptions,
)
from tensordict_core.base import options


@pytest.mark.parametrize(
    ("option", "ask"),
    [
        (set_list_to_stack, list_to_stack),
        (set_capture_non_tensor_stack, capture_non_tensor_stack),
        (set_get_defaults_to_none, get_defaults_to_none),
    ],
)
def test_an_option_can_be_set_for_a_block_a_function_or_permanently(option, ask):
    before = ask()
    option(True).set()
    with option(False):
        assert ask() is False
        with option(True):
            assert ask() is True
        assert ask() is False
    assert ask() is True
    decorated = option(False)(lambda: ask())
    assert ask() is True
    assert (decorated(), ask()) == (False, True)
    option(False).set()
    assert ask() is False
    option(True).set()
    assert ask() is True
    option(before).set()


def test_an_option_is_restored_if_the_block_raises():
    with pytest.raises(KeyError, match="x"), set_list_to_stack(False):
        raise KeyError("x")
    assert list_to_stack()


def test_lists_are_stored_as_values_per_position_or_as_one_value():
    assert isinstance(TensorDict({"s": ["a", "b"]}, [2]).get("s"), NonTensorStack)
    with set_list_to_stack(False):
        td = TensorDict({"s": ["a", "b"]}, [2])
    assert td[0]["s"] == ["a", "b"]


def test_equal_values_stay_one_or_become_a_list_when_stacked():
    tds = [TensorDict({"s": "x"}), TensorDict({"s": "x"})]
    assert torch.stack(tds)["s"] == ["x", "x"]
    assert torch.cat([td.expand(2) for td in tds])["s"] == ["x"] * 4
    with set_capture_non_tensor_stack(True):
        assert torch.stack(tds)["s"] == "x"


def test_get_without_a_default_returns_none_or_raises():
    td = TensorDict({"a": {"b": 1}})
    assert td.get("x") is None
    set_get_defaults_to_none(False)
    try:
        assert get_defaults_to_none() is False
        for key in ("x", ("a", "x"), ("a", "b", "x"), ("x", ("y",))):
            with pytest.raises(KeyError, match=r"x|is a Tensor, not a tensordict"):
                td.get(key)
            assert td.get(key, None) is None
        assert td.get(("a", "b")) == 1
        stack = lazy_stack([TensorDict({"a": torch.zeros(n)}) for n in (1, 2)])
        with pytest.raises(KeyError, match="x"):
            stack.get("x", as_list=True)
    finally:
        set_get_defaults_to_none()
    assert td.get("x") is None


def test_each_print_option_adds_or_removes_its_property():
    td = TensorDict({"z": torch.ones(2), "a": {"b": torch.zeros(2, 3)}}, [2])
    with set_printoptions(compact=False):
        plain = repr(td)
    for option, text in [
        ("show_batch_size", "batch_size="),
        ("show_device", "device=None"),
        ("show_is_shared", "is_shared=False)\n"),
        ("show_shape", "shape="),
        ("show_field_device", "device=cpu"),
        ("show_dtype", "dtype="),
        ("show_field_is_shared", "float32, is_shared=False"),
        ("show_grad", "requires_grad="),
        ("show_is_contiguous", "is_contiguous="),
        ("show_is_view", "is_view="),
        ("show_storage_size", "storage_size="),
        ("plain", "mean=1, std=0"),
    ]:
        shown = get_printoptions()[option]
        with set_printoptions(**{option: not shown}, compact=False):
            changed = repr(td) + "\n"
        assert (text in plain + "\n", text in changed) == (shown, not shown), option
    with set_printoptions(compact=False):
        assert repr(td) == plain
    with set_printoptions(sort_keys="insertion"):
        assert repr(td).index("z: ") < repr(td).index("a: ")
    assert plain.index("z: ") > plain.index("a: ")
    with set_printoptions(verbose=False, compact=True):
        assert repr(td) == "TensorDict(batch_size=[2], fields={a: {b: [3]}, z: []})"


def test_an_option_that_the_compact_form_does_not_have_selects_the_long_form():
    td = TensorDict({"a": torch.ones(2)})
    for chosen in ({"show_grad": False}, {"show_shape": True}, {"show_is_shared": False}, {"plain": True}):
        with set_printoptions(compact=True), set_printoptions(**chosen):
            assert repr(td).startswith("TensorDict(\n    fields={\n        a: Tensor(")
        with set_printoptions(**chosen, compact=True):
            assert repr(td) == "TensorDict(batch_size=[], fields={a: f32[2]})"
    for chosen in ({"show_device": False}, {"sort_keys": "insertion"}, {"html": False}, {"verbose": True}):
        with set_printoptions(compact=True), set_printoptions(**chosen):
            assert repr(td) == "TensorDict(batch_size=[], fields={a: f32[2]})"


def test_an_entry_that_does_not_fit_on_the_line_has_lines_of_its_own():
    names = ["a" * 25, "b" * 25]
    inner = TensorDict({name: torch.ones(2) for name in names})
    more = inner.copy().set("c", torch.ones(1))
    with set_printoptions(compact=True):
        text, wide = repr(TensorDict({"n": inner, "z": torch.ones(1)})), repr(TensorDict({"m": {"n": more}}))
    assert text == (
        f"TensorDict(batch_size=[], fields={{\n    n: {{{names[0]}: f32[2], {names[1]}: f32[2]}},\n    z: f32[1]}})"
    )
    assert wide == (
        "TensorDict(batch_size=[], fields={\n    m: {\n        n: {\n"
        f"            {names[0]}: f32[2],\n            {names[1]}: f32[2],\n            c: f32[1]}}}}}})"
    )


def test_the_compact_form_is_one_line():
    td = TensorDict({"z": torch.ones(2, 3), "a": TensorDict({"b": torch.zeros(2, 3)}, [2, 3]), "s": "text"}, [2])
    with set_printoptions(compact=True):
        assert repr(td) == "TensorDict(batch_size=[2], fields={a: [3]{b: f32[]}, s: str, z: f32[3]})"
        ragged = lazy_stack([TensorDict({"a": torch.zeros(n)}) for n in (1, 2)])
        assert "a: f32[-1]" in repr(ragged)


def test_the_html_view_escapes_keys_and_can_be_switched_off():
    td = TensorDict({"<b>": {"c": 1}})
    assert "&lt;b&gt;" in td._repr_html_() and "<b>" not in td._repr_html_()
    with set_printoptions(html=False):
        assert td._repr_html_() is None


def test_unknown_print_options_are_refused():
    with pytest.raises(TypeError, match=r"'colour' is not a print option; choose from"):
        set_printoptions(colour=True)
    with pytest.raises(ValueError, match="is no order; pass 'alphabetical', 'insertion' or a function"):
        set_printoptions(sort_keys="random")


@pytest.mark.parametrize("compact", [False, True])
def test_parsing_inverts_printing(compact):
    td = TensorDict(
        {
            "a": torch.ones(3, 4, dtype=torch.bfloat16),
            "b": TensorDict({"c": torch.ones(3, 2, dtype=torch.int64), "d": {}}, [3, 2]),
            "k: x": torch.ones(3, 2, 2, dtype=torch.bool),
        },
        [3],
        device="cpu" if compact else None,
    )
    with set_printoptions(compact=compact):
        again = parse_tensor_dict_string(repr(td))
        assert repr(again) == repr(td)
    assert (again["a"] == 0).all() and again.device == td.device


@pytest.mark.parametrize("text", ["hello", "TensorDict(fields={}, device=None)", repr(TensorDict({"a": "s"})), ""])
def test_other_texts_are_refused_by_the_parser(text):
    with pytest.raises(ValueError, match="not a printed tensordict"):
        parse_tensor_dict_string(text)


def test_brief_printing_omits_device_and_sharing():
    td = TensorDict({"a": torch.zeros(3)}, [3], device="cpu")
    with set_printoptions(compact=False, verbose=False):
        assert "device" not in repr(td) and "is_shared" not in repr(td) and "batch_size=torch.Size([3])" in repr(td)
    with set_printoptions(verbose=False, show_device=True, compact=False):
        assert "device=cpu" in repr(td) and "dtype" not in repr(td)
    with set_printoptions(compact=False):
        assert "is_shared=False" in repr(td)


def test_blocks_that_end_in_another_order_leave_no_value_behind():
    first, second = set_list_to_stack(False), set_list_to_stack(False)
    assert list_to_stack()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not list_to_stack()  # the second block is still there
    second.__exit__(None, None, None)
    assert list_to_stack()


def test_threads_with_blocks_leave_the_value_of_the_process():
    def work() -> None:
        for _ in range(200):
            with set_list_to_stack(False):
                assert not list_to_stack()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list_to_stack()


def test_permanent_changes_of_an_option_do_not_pile_up():
    try:
        for i in range(100):
            set_list_to_stack(i % 2 == 0).set()
        assert not list_to_stack()
        assert len(options._changes["list_to_stack"]) < 5
    finally:
        set_list_to_stack(True).set()


def test_a_clone_of_a_setting_is_another_block_with_the_same_value():
    setting = set_list_to_stack(False)
    with setting:
        copied = setting.clone()
    assert type(copied) is set_list_to_stack
    with copied:
        assert TensorDict({"s": ["a", "b"]}, [2])[0]["s"] == ["a", "b"]
    assert TensorDict({"s": ["a", "b"]}, [2])[0]["s"] == "a"


@pytest.mark.parametrize("setting", [set_list_to_stack, set_capture_non_tensor_stack])
def test_a_setting_has_its_new_value_as_mode(setting):
    assert setting(True).mode is True and setting(False).mode is False
