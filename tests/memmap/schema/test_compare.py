"""Reports and checked loads: what differs is said before anything is written, and then nothing was."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict
from tensordict_memmap import Report, compare, load_into, load_memmap


def content():
    return TensorDict(
        {"a": torch.arange(6.0).view(3, 2), "b": {"c": torch.arange(3), "d": torch.ones(3)}, "s": "text"}, [3]
    )


@pytest.fixture(params=["x", "x.safetensors", "x.tdz"])
def saved(request, tmp_path):
    """A path with `content`."""
    content().save(tmp_path / request.param)
    return tmp_path / request.param


def wanted():
    return TensorDict(
        {
            "a": torch.zeros(3, 3),
            "b": {"c": torch.zeros(3), "e": torch.full((3,), 5.0)},
            "s": NonTensorData("own", [3]),
        },
        [3],
    )


def test_a_report_lists_all_differences(saved):
    report = compare(saved, wanted())
    assert report and report.missing == [("b", "e")] and report.unexpected == [("b", "d")]
    assert report.missing_keys == report.missing and report.unexpected_keys == report.unexpected
    assert report.shapes == {"a": ((3, 2), (3, 3))}
    assert report.dtypes == {("b", "c"): (torch.int64, torch.float32)}
    assert str(report).splitlines() == [
        "missing: b.e",
        "unexpected: b.d",
        "shape mismatch: a has [3, 2], expected [3, 3]",
        "dtype mismatch: b.c has torch.int64, expected torch.float32",
    ]


def test_an_equal_structure_gives_a_false_report(saved):
    report = compare(saved, content().to("meta"))
    assert not report and str(report) == "no difference" and report == Report()


def test_parts_and_paths_are_compared(saved, tmp_path):
    assert not compare(saved, content()["b"], subpath="b")
    assert compare(saved, content(), keys=["b"]).missing == ["a", "s"]
    content().exclude("a").save(tmp_path / "other")
    assert compare(saved, tmp_path / "other").unexpected == ["a"]


def test_values_are_compared_bit_by_bit_on_request(saved, tmp_path):
    other = content()
    other["b", "c"][1] = 9
    other["s"] = "other"
    assert not compare(saved, other)
    assert compare(saved, other, values=True).values == [("b", "c"), "s"]
    odd = TensorDict({"x": torch.tensor([float("nan"), -0.0])})
    odd.save(tmp_path / "nan")
    assert not compare(tmp_path / "nan", odd, values=True)
    assert compare(tmp_path / "nan", TensorDict({"x": torch.tensor([float("nan"), 0.0])}), values=True).values == ["x"]


def test_a_tensor_where_a_value_is_wanted_is_both_missing_and_unexpected(saved):
    other = content()
    other["s"] = torch.zeros(3)
    report = compare(saved, other)
    assert report.missing == ["s"] and report.unexpected == ["s"]


def test_pickled_values_need_not_be_read_to_compare_structures(tmp_path):
    with pytest.warns(UserWarning, match="pickled"):
        TensorDict({"odd": object, "a": torch.ones(1)}).save(tmp_path / "x")
        TensorDict({"odd": object, "a": torch.ones(1)}).save(tmp_path / "x.safetensors")
    assert not compare(tmp_path / "x", tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="allow_pickle"):
        compare(tmp_path / "x", tmp_path / "x.safetensors", values=True)


def test_objects_without_a_structure_are_refused(saved):
    with pytest.raises(TypeError, match="structure"):
        compare(saved, {"a": torch.zeros(1)})
    with pytest.raises(TypeError, match="tensor"):
        compare(saved, content(), subpath="a")


# --- into a given structure


def test_strict_loads_refuse_every_difference(saved):
    with pytest.raises(RuntimeError, match=r"missing: b.e.*|unexpected: b.d") as error:
        load_memmap(saved, like=wanted())
    assert all(word in str(error.value) for word in ("b.e", "b.d", "[3, 2]", "int64"))


def test_the_result_has_the_structure_that_is_wanted(saved):
    like = TensorDict({"s": "own", "b": {"d": torch.zeros(3), "c": torch.zeros(3)}, "a": torch.zeros(3, 2)}, [3])
    td = load_memmap(saved, like=like, cast=True)
    assert list(td.keys()) == ["s", "b", "a"] and not td.is_locked and td["s"] == "text"
    assert td["b", "c"].dtype == torch.float32 and td["b", "c"].tolist() == [0, 1, 2]
    assert torch.equal(td["a"], content()["a"]) and like["a"].sum() == 0 and not like.is_locked
    with pytest.raises(RuntimeError, match="int64"):
        load_memmap(saved, like=like)
    assert load_memmap(saved, like=like, strict=False)["b", "c"].dtype == torch.int64


def test_missing_entries_keep_their_values_or_are_filled(saved):
    like = wanted().exclude("a")
    td = load_memmap(saved, like=like, strict=False)
    assert td["b", "e"].tolist() == [5, 5, 5] and ("b", "d") not in td.keys(True, True)
    assert load_memmap(saved, like=like, strict=False, fill=-1)["b", "e"].tolist() == [-1, -1, -1]
    meta = content().to("meta")
    meta["new"] = torch.zeros(3, device="meta")
    assert load_memmap(saved, like=meta, fill=2.5)["new"].tolist() == [2.5] * 3
    with pytest.raises(ValueError, match="fill="):
        load_memmap(saved, like=meta, strict=False)
    with pytest.raises(RuntimeError, match="new"):
        load_memmap(saved, like=meta)


def test_other_shapes_are_refused_always(saved):
    with pytest.raises(RuntimeError, match="shapes are never converted"):
        load_memmap(saved, like=wanted(), strict=False, fill=0, cast=True)


def test_rows_come_before_the_structure(saved):
    td = load_memmap(saved, like=content()[:2], rows=slice(1, 3))
    assert td.batch_size == (2,) and td["b", "c"].tolist() == [1, 2]
    with pytest.raises(TypeError, match="like="):
        load_memmap(saved, like={"a": 1})


# --- into what is there


def test_a_difference_leaves_a_tensordict_as_it_was(saved):
    target = wanted()
    before = target.clone()
    for strict in (True, False):  # the shape of a is refused either way
        with pytest.raises(RuntimeError, match=r"\[3, 2\]"):
            load_into(target, saved, strict=strict)
    assert not compare(target, before, values=True)


def test_matching_entries_are_written_into_a_locked_tensordict(saved):
    target = content().apply(torch.zeros_like).lock_()
    target_leaf = target["a"]
    assert not load_into(target, saved)
    assert target["a"] is target_leaf and torch.equal(target_leaf, content()["a"])
    part = wanted().exclude("a")
    report = load_into(part, saved, strict=False)
    assert (
        report.missing == [("b", "e")] and part["b", "c"].tolist() == [0, 1, 2] and part["b", "e"].tolist() == [5] * 3
    )
    assert part["b", "c"].dtype == torch.float32 and part["s"] == "text"


def test_a_module_is_written_whole_or_not_at_all(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    state = {name: torch.full_like(value, 2) for name, value in model.state_dict().items()}
    nested = TensorDict({"0": {}, "1": {}})
    for name, value in state.items():
        nested[tuple(name.split("."))] = value
    nested.save(tmp_path / "model")
    assert not compare(tmp_path / "model", model)
    load_into(model, tmp_path / "model")
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    nested["0", "weight"] = torch.zeros(4, 2)
    nested["1", "weight"] = torch.zeros(3)
    nested.save(tmp_path / "model")
    with pytest.raises(RuntimeError, match=r"0\.weight"):
        load_into(model, tmp_path / "model", strict=False)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_loading_over_a_locked_tensordict_that_lacks_a_key_writes_nothing(saved):
    target = content().exclude("s").apply(torch.zeros_like)
    del target["b", "d"]
    target.lock_()
    with pytest.raises(KeyError, match="'d'"):
        target.load_memmap_(saved)
    assert target["a"].sum() == 0 and target["b", "c"].sum() == 0


def test_loading_into_an_unlocked_tensordict_writes_in_place_and_adds_missing_entries(saved):
    target = content().exclude("s").apply(torch.zeros_like)
    del target["b", "d"]
    a = target["a"]
    assert target.load_memmap_(saved) is target
    assert target["a"] is a and torch.equal(a, content()["a"])
    assert target["b", "d"].tolist() == [1, 1, 1] and target["s"] == "text"


def test_keys_that_a_save_lacks_are_removed_from_an_unlocked_tensordict(saved):
    target = content().exclude("s").apply(torch.zeros_like)
    target["old"] = target["a"].clone()
    target["b", "old", "x"] = target["a"].clone()
    assert set(target.load_memmap_(saved).keys(True)) == set(content().keys(True))


def test_keys_that_a_save_lacks_stay_in_the_output_of_a_load(saved):
    target = content().exclude("s").apply(torch.zeros_like)
    target["old"] = target["a"].clone()
    assert "old" in TensorDict.load_memmap(saved, out=target)


def test_keys_that_a_save_lacks_are_removed_from_the_elements_of_a_lazy_stack(tmp_path):
    LazyStackedTensorDict(*(TensorDict({"a": torch.ones(n)}) for n in (1, 2))).save(tmp_path)
    target = LazyStackedTensorDict(*(TensorDict({"a": torch.zeros(n), "old": n}) for n in (1, 2)))
    target[1]["other"] = torch.zeros(())
    target.load_memmap_(tmp_path)
    assert [set(element.keys()) for element in target.tensordicts] == [{"a"}, {"a"}]
    assert target[1]["a"].tolist() == [1, 1]


def test_loading_over_a_locked_tensordict_with_a_key_that_the_save_lacks_writes_nothing(saved):
    target = content().exclude("s").apply(torch.zeros_like)
    target["b", "old"] = target["a"].clone()
    target["s"] = "other"
    with pytest.raises(KeyError, match=r"'old'.*out="):
        target.lock_().load_memmap_(saved)
    assert target["a"].sum() == 0 and target["s"] == "other"


def test_components_of_other_lengths_are_refused_before_anything_is_written(tmp_path):
    def content(*lengths, more=0.0):
        parts = [torch.full((n, 2), n + more) for n in lengths]
        return TensorDict(
            {"a": torch.full((2,), more), "j": torch.nested.nested_tensor(parts, layout=torch.jagged)}, [2]
        )

    content(1, 2, more=1.0).save(tmp_path / "x")
    for lengths in [(3, 2), (2, 3)]:  # one row would be broadcast to three
        target = content(*lengths)
        with pytest.raises(RuntimeError, match=r"j has \[\(1, 2\), \(2, 2\)\]"):
            load_into(target, tmp_path / "x")
        assert target["a"].tolist() == [0, 0] and all((part == len(part)).all() for part in target["j"].unbind())
    target = content(1, 2)
    assert not load_into(target, tmp_path / "x") and target["j"].unbind()[1].tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize("name", ["x", "x.safetensors", "x.tdz"])
def test_values_of_another_batch_size_are_refused(tmp_path, name):
    TensorDict({"v": NonTensorStack("a", "b", "c")}, [3]).save(tmp_path / name)
    like = TensorDict({"v": NonTensorStack("x", "y")}, [2])
    with pytest.raises(RuntimeError, match=r"v has \[3\], expected \[2\]"):
        load_memmap(tmp_path / name, like=like)
    with pytest.raises(RuntimeError, match=r"v has \[3\], expected \[2\]"):
        load_into(like, tmp_path / name)
    assert str(compare(tmp_path / name, like)) == "shape mismatch: v has [3], expected [2]"


@pytest.mark.parametrize(("dtype", "fill"), [(torch.int64, 0.5), (torch.uint8, -1), (torch.bool, 2)], ids=str)
def test_entries_are_filled_with_numbers_that_they_can_hold(tmp_path, dtype, fill):
    TensorDict({"a": torch.ones(2)}).save(tmp_path / "x")
    like = TensorDict({"a": torch.ones(2), "b": torch.ones(2, dtype=dtype)})
    with pytest.raises(ValueError, match=r"'b'.*cannot hold"):
        load_memmap(tmp_path / "x", like=like, fill=fill)
    assert load_memmap(tmp_path / "x", like=like, fill=1.0)["b"].tolist() == [1, 1]


def test_entries_of_another_shape_are_skipped_on_request(tmp_path):
    body, head = torch.nn.Linear(2, 3), torch.nn.Linear(3, 4)
    old = torch.nn.Sequential(body, head)
    TensorDict(dict(old.state_dict())).unflatten_keys(".").save(tmp_path / "model")
    new = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 7))
    before = new[1].weight.clone()
    with pytest.raises(RuntimeError, match=r"1\.weight has \[4, 3\], expected \[7, 3\].*skip_mismatched=True"):
        load_into(new, tmp_path / "model")
    assert not torch.equal(new[0].weight, body.weight)
    report = load_into(new, tmp_path / "model", skip_mismatched=True)
    assert torch.equal(new[0].weight, body.weight) and torch.equal(new[1].weight, before)
    assert report.loaded == [("0", "weight"), ("0", "bias")]
    assert report.skipped == {("1", "weight"): ((4, 3), (7, 3)), ("1", "bias"): ((4,), (7,))}
    assert not (report.missing or report.unexpected) and report
    new.add_module("2", torch.nn.Linear(1, 1))
    with pytest.raises(RuntimeError, match=r"missing: 2\.weight, 2\.bias; pass strict=False"):
        load_into(new, tmp_path / "model", skip_mismatched=True)
    report = load_into(new, tmp_path / "model", skip_mismatched=True, strict=False)
    assert report.missing == [("2", "weight"), ("2", "bias")] and len(report.loaded) == 2


def test_components_of_another_shape_are_skipped_on_request():
    def nested(*sizes):
        return torch.nested.nested_tensor([torch.ones(n) for n in sizes], layout=torch.jagged)

    target = TensorDict({"n": nested(2, 3), "a": torch.zeros(2)})
    report = load_into(target, TensorDict({"n": nested(3, 2), "a": torch.ones(2)}), skip_mismatched=True)
    assert report.loaded == ["a"] and list(report.skipped) == ["n"] and target["a"].tolist() == [1, 1]
