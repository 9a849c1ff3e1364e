"""Saving: what lands on disk, what comes back mapped, and what is refused before anything is written."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import CancelledError

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, TensorDict, lazy_stack
from tensordict_memmap import MemoryMappedTensor, SaveFuture, load_memmap, memmap, save
from tensordict_memmap.saving.options import SaveOptions
from tensordict_memmap.saving.tree import TreeWriter
from tensordict_memmap.storage.ownership import read_manifest

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
if hasattr(torch, "bcomplex32"):  # since torch 2.14
    DTYPES.append(torch.bcomplex32)


def some(dtype, *shape):
    """A tensor of any dtype with bytes that are not all alike."""
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = (torch.arange(count) % (2 if dtype is torch.bool else 60)).to(torch.uint8)
    return raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def raw_bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def tree(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.filterwarnings("ignore:B?Complex(Half|32) support")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3)], ids=str)
def test_every_dtype_and_shape_is_stored_as_raw_bytes_and_restored(tmp_path, dtype, shape):
    tensor = some(dtype, *shape)
    td = TensorDict({"a": tensor}).memmap(tmp_path / "x")
    path = tmp_path / "x" / "a.memmap"
    if tensor.numel():
        assert path.read_bytes() == raw_bytes(tensor)
    else:
        assert not path.exists()
    for leaf in (td["a"], TensorDict.load_memmap(tmp_path / "x")["a"]):
        assert isinstance(leaf, MemoryMappedTensor)
        assert leaf.dtype == dtype and leaf.shape == tensor.shape
        assert raw_bytes(leaf.clone()) == raw_bytes(tensor)


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.T,
        lambda x: x[::2, 1::3],
        lambda x: x.flip(0),
        lambda x: x[:1].expand(7, -1),
        lambda x: torch.view_as_complex(x.reshape(-1, 2)).conj(),
        lambda x: x.requires_grad_(),
        lambda x: torch.nn.Parameter(x),
    ],
    ids=["transposed", "strided", "flipped", "expanded", "conjugate", "with gradient", "parameter"],
)
def test_every_layout_is_saved_as_the_values_it_shows(tmp_path, layout):
    tensor = layout(torch.arange(24.0).reshape(4, 6))
    td = TensorDict({"a": tensor}).memmap(tmp_path)
    assert torch.equal(td["a"].clone(), tensor.detach().resolve_conj())
    assert not td["a"].requires_grad


def test_the_folder_holds_a_file_a_leaf_and_a_description_a_node(tmp_path):
    TensorDict({"a": torch.zeros(2), "b": {"c": torch.zeros(2)}, "s": "text"}).save(tmp_path / "x")
    assert tree(tmp_path / "x") == [
        "a.memmap",
        "b/c.memmap",
        "b/meta.json",
        "meta.json",
        "s/meta.json",
        "tensordict.manifest.json",
    ]
    assert os.listdir(tmp_path) == ["x"]


def test_the_manifest_lists_every_file_with_its_size(tmp_path):
    TensorDict({"a": torch.zeros(2), "b": {"c": torch.zeros(2)}, "shape": torch.zeros(1)}).save(tmp_path)
    manifest = read_manifest(tmp_path)
    assert set(manifest.files) | {"tensordict.manifest.json"} == set(tree(tmp_path))
    assert all((tmp_path / path).stat().st_size == entry.size for path, entry in manifest.files.items())
    assert manifest.names == {"": {"shape": "%-0.memmap"}}


def test_memmap_gives_a_locked_twin_and_leaves_the_source_alone(tmp_path):
    td = TensorDict({"a": torch.arange(3), "b": {"c": torch.arange(3)}}, [3], names=["n"])
    twin = td.memmap(tmp_path)
    assert twin.is_locked and twin.is_memmap() and twin["b"].is_locked and twin.names == ["n"]
    assert not td.is_locked and not td.is_memmap() and type(td["a"]) is torch.Tensor
    assert twin.saved_path == tmp_path and twin["b"].saved_path == tmp_path / "b"
    assert twin.device == torch.device("cpu")


def test_memmap_in_place_maps_the_tensordict_itself(tmp_path):
    inner = TensorDict({"c": torch.arange(3)}, [3])
    lazy = LazyStackedTensorDict(TensorDict({"i": torch.zeros(3, 1)}, [3]), TensorDict({"i": torch.ones(3, 2)}, [3]))
    td = TensorDict({"a": torch.arange(3), "b": inner, "lazy": TensorDict({"l": lazy})})
    assert td.memmap_(tmp_path) is td
    assert td.is_locked and td.is_memmap()
    assert td["b"] is inner and isinstance(inner["c"], MemoryMappedTensor)
    assert all(isinstance(one["i"], MemoryMappedTensor) for one in lazy.tensordicts)
    inner["c"][0] = 9
    assert TensorDict.load_memmap(tmp_path)["b", "c"].tolist() == [9, 1, 2]


def test_writes_through_a_mapped_tensordict_reach_the_files(tmp_path):
    td = TensorDict({"a": torch.zeros(4, 2), "b": {"c": torch.zeros(4)}}, [4]).memmap(tmp_path)
    td[1] = TensorDict({"a": torch.ones(2), "b": {"c": torch.ones(())}}, [])
    td[2:].update_(TensorDict({"a": torch.full((2, 2), 2.0), "b": {"c": torch.full((2,), 2.0)}}, [2]))
    again = TensorDict.load_memmap(tmp_path)
    assert again["a"][:, 0].tolist() == again["b", "c"].tolist() == [0, 1, 2, 2]
    again["b"].zero_()
    assert td["b", "c"].sum() == 0


def test_without_a_folder_entries_go_to_shared_memory():
    td = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(2)}, "s": "text"})
    shared = td.memmap()
    assert shared.is_memmap() and shared.is_locked and not shared.is_shared()
    assert shared.saved_path is None
    with pytest.raises(AttributeError, match="no saved path"):
        td.saved_path  # noqa: B018 (the access is the test)
    assert shared["a"].tolist() == [0, 1, 2] and shared["s"] == "text"
    assert shared.memmap()["a"] is shared["a"]
    assert td.memmap_like()["a"].tolist() == [0, 0, 0]
    assert td.memmap_() is td and td.is_memmap()


@pytest.mark.parametrize("call", ["save", "memmap", "memmap_", "memmap_like", "load_memmap", "load_memmap_"])
def test_an_empty_path_is_an_error_and_not_the_current_folder(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="'' is an empty path; name a folder or a file"):
        getattr(TensorDict({"a": torch.zeros(3)}), call)("")
    assert not list(tmp_path.iterdir())


def test_a_save_to_none_names_the_call_for_shared_memory():
    with pytest.raises(TypeError, match=r"prefix is None; name a folder or a file, or call memmap\(\)"):
        TensorDict({"a": torch.zeros(3)}).save(None)


def test_shared_memory_is_seen_by_a_forked_process():
    td = TensorDict({"a": torch.zeros(2)}).memmap()
    pid = os.fork()
    if pid == 0:
        td["a"].fill_(3)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert td["a"].tolist() == [3, 3]


def test_tied_leaves_are_one_memory_on_disk_and_after_loading(tmp_path):
    w = torch.arange(3.0)
    td = TensorDict({"a": w, "b": {"c": w}, "d": w.clone()}).memmap(tmp_path)
    assert os.path.samefile(tmp_path / "a.memmap", tmp_path / "b" / "c.memmap")
    assert not os.path.samefile(tmp_path / "a.memmap", tmp_path / "d.memmap")
    for one in (td, TensorDict.load_memmap(tmp_path)):
        assert one["a"] is one["b", "c"] and one["a"] is not one["d"]
    shared = TensorDict({"a": w, "b": w}).memmap()
    assert shared["a"] is shared["b"]


def test_saving_elsewhere_needs_copy_existing(tmp_path):
    td = TensorDict({"a": torch.arange(3)}).memmap(tmp_path / "0")
    with pytest.raises(RuntimeError, match=r"'a'.*copy_existing"):
        td.memmap(tmp_path / "1")
    assert not (tmp_path / "1").exists()
    copy = td.memmap(tmp_path / "1", copy_existing=True)
    copy["a"][0] = 9
    assert td["a"][0] == 0
    td.save(tmp_path / "2")
    assert TensorDict.load(tmp_path / "2")["a"].tolist() == [0, 1, 2]


def test_shared_memory_is_copied_to_a_folder(tmp_path):
    td = TensorDict({"a": torch.arange(3)}).memmap()
    assert td.memmap(tmp_path)["a"].filename == str(tmp_path / "a.memmap")


@pytest.mark.parametrize("atomic", [True, False])
def test_saving_onto_its_own_folder_keeps_the_connection(tmp_path, atomic):
    td = TensorDict({"a": torch.arange(3), "b": torch.zeros(2)}).memmap(tmp_path)
    watcher = TensorDict.load_memmap(tmp_path)
    with td.unlock_():
        td["new"] = torch.ones(1)
        del td["b"]
    again = td.memmap(tmp_path, atomic=atomic)
    assert again["a"] is td["a"]
    again["a"][0] = 9
    assert watcher["a"][0] == 9
    assert sorted(TensorDict.load_memmap(tmp_path).keys()) == ["a", "new"]
    assert tree(tmp_path) == ["a.memmap", "meta.json", "new.memmap", "tensordict.manifest.json"]


def test_overwriting_in_place_keeps_live_mappings(tmp_path):
    TensorDict({"a": torch.zeros(3)}).save(tmp_path)
    watcher = TensorDict.load_memmap(tmp_path)
    TensorDict({"a": torch.ones(3)}).save(tmp_path, atomic=False)
    assert watcher["a"].sum() == 3
    TensorDict({"a": torch.full((3,), 2.0)}).save(tmp_path)
    assert watcher["a"].sum() == 3 and TensorDict.load_memmap(tmp_path)["a"].sum() == 6


def test_overwriting_in_place_separates_leaves_that_were_tied_before(tmp_path):
    w = torch.zeros(2)
    TensorDict({"a": w, "b": w}).save(tmp_path)
    TensorDict({"a": torch.ones(2), "b": torch.full((2,), 2.0)}).save(tmp_path, atomic=False)
    td = TensorDict.load_memmap(tmp_path)
    assert td["a"].tolist() == [1, 1] and td["b"].tolist() == [2, 2]
    TensorDict({"a": w, "b": w}).save(tmp_path, atomic=False)
    td = TensorDict.load_memmap(tmp_path)
    assert td["a"] is td["b"]


def test_overwriting_in_place_from_itself_in_another_order_loses_nothing(tmp_path):
    td = TensorDict({"a": torch.zeros(2), "b": torch.ones(2)}).memmap(tmp_path)
    swapped = TensorDict({"a": td["b"], "b": td["a"]})
    swapped.save(tmp_path, atomic=False)
    again = TensorDict.load_memmap(tmp_path)
    assert again["a"].tolist() == [1, 1] and again["b"].tolist() == [0, 0]


def test_an_earlier_save_is_replaced_as_a_whole(tmp_path):
    TensorDict({"a": torch.zeros(3), "old": {"x": 1}}).save(tmp_path / "x")
    TensorDict({"a": torch.zeros(2)}).save(tmp_path / "x")
    assert tree(tmp_path / "x") == ["a.memmap", "meta.json", "tensordict.manifest.json"]


def test_a_save_that_fails_leaves_the_earlier_one(tmp_path):
    TensorDict({"a": torch.arange(3)}).save(tmp_path / "x")
    with pytest.raises(TypeError, match="'bad'"):
        TensorDict({"a": torch.zeros(3), "bad": torch.zeros(2).to_sparse()}).save(tmp_path / "x")
    assert TensorDict.load(tmp_path / "x")["a"].tolist() == [0, 1, 2]
    assert os.listdir(tmp_path) == ["x"]


def test_existsok_false_refuses_a_folder_that_holds_something(tmp_path):
    td = TensorDict({"a": torch.arange(3)})
    td.memmap(tmp_path, existsok=False)
    with pytest.raises(RuntimeError, match="existsok"):
        td.memmap(tmp_path, existsok=False)


def test_values_without_a_json_form_are_pickled_with_a_warning_that_names_the_key(tmp_path):
    td = TensorDict({"n": TensorDict({"odd": NonTensorData(slice(3))})})
    with pytest.warns(UserWarning, match=r"\('n', 'odd'\).*allow_pickle"):
        td.save(tmp_path)
    assert (tmp_path / "n" / "odd" / "other.pickle").exists()


def test_values_that_cannot_be_stored_at_all_are_an_error_that_names_the_key(tmp_path):
    with pytest.raises(TypeError, match="'odd'"):
        TensorDict({"odd": NonTensorData(threading.Lock())}).save(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_save_in_the_background_gives_the_twin(tmp_path):
    td = TensorDict({f"k{i}": torch.randn(100) for i in range(20)}, [100])
    future = td.memmap(tmp_path / "x", return_early=True)
    assert isinstance(future, SaveFuture)
    twin = future.result(timeout=60)
    assert future.done() and twin.is_memmap() and (twin == td).all()
    assert future.progress == 1.0 and future.bytes_total == td.bytes() <= future.bytes_written
    assert future.bytes_per_second > 0 and not future.cancel() and not future.cancelled()
    assert td.save(tmp_path / "y", return_early=True).result() is td
    assert td.memmap_(return_early=True).result() is td


def test_a_save_in_the_background_raises_its_error(tmp_path):
    (tmp_path / "file").write_text("")
    future = TensorDict({"a": torch.zeros(1)}).memmap(tmp_path / "file", return_early=True)
    with pytest.raises(FileExistsError):
        future.result(timeout=60)
    assert future.progress < 1 or future.bytes_written


def test_a_cancelled_save_leaves_no_trace_and_the_earlier_one_whole(tmp_path):
    TensorDict({"a": torch.arange(3)}).save(tmp_path / "x")
    started, go_on = threading.Event(), threading.Event()

    def work(progress, cancelled):
        def count(nbytes):
            started.set()
            go_on.wait(60)
            progress(nbytes)

        job.run(count, cancelled)

    big = TensorDict({f"k{i}": torch.zeros(1 << 21) for i in range(12)})
    job = TreeWriter(big, tmp_path / "x", SaveOptions(num_threads=1))
    future = SaveFuture(work, big.bytes())
    assert started.wait(60)
    threading.Timer(0.2, go_on.set).start()
    assert future.cancel() and future.cancelled()
    with pytest.raises(CancelledError):
        future.result()
    assert TensorDict.load(tmp_path / "x")["a"].tolist() == [0, 1, 2]
    assert os.listdir(tmp_path) == ["x"]


def test_a_durable_save_is_a_save(tmp_path):
    assert memmap(TensorDict({"a": torch.arange(3)}), tmp_path, durable=True)["a"].tolist() == [0, 1, 2]


def test_a_lazy_stack_or_a_value_can_be_the_whole(tmp_path):
    lazy = LazyStackedTensorDict(TensorDict({"i": torch.zeros(1)}), TensorDict({"i": torch.ones(2)}), stack_dim=0)
    twin = lazy.memmap(tmp_path / "l")
    assert isinstance(twin, LazyStackedTensorDict) and twin.is_memmap()
    assert [one["i"].tolist() for one in TensorDict.load(tmp_path / "l").unbind(0)] == [[0.0], [1.0, 1.0]]
    save(NonTensorData({"a": (1,)}, batch_size=[2]), tmp_path / "v")
    value = TensorDict.load(tmp_path / "v")
    assert value.data == {"a": (1,)} and value.batch_size == (2,)


def test_new_entries_are_made_in_the_folder_and_described_there(tmp_path):
    td = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(1)}}).memmap(tmp_path)
    before = td["b", "c"]
    new = td.make_memmap(("b", "d/e"), torch.Size([2, 2]), dtype=torch.int16)
    assert new.filename == str(tmp_path / "b" / "d%2Fe.memmap") and td["b", "d/e"] is new and td.is_locked
    new[0] = 7
    before.fill_(5)
    td.make_memmap_from_tensor("t", torch.ones(2, dtype=torch.bool))
    again = TensorDict.load_memmap(tmp_path)
    assert again["b", "d/e"].tolist() == [[7, 7], [0, 0]] and again["b", "c"].tolist() == [5]
    assert again["t"].all() and set(read_manifest(tmp_path).files) >= {"b/d%2Fe.memmap", "t.memmap"}
    with pytest.raises(RuntimeError, match="exists"):
        td.make_memmap("a", torch.Size([1]))
    with pytest.raises(RuntimeError, match="memmap_"):
        TensorDict({"a": 1}).make_memmap("b", torch.Size([1]))


def test_tensordicts_above_a_new_entry_are_made(tmp_path):
    td = TensorDict({"a": torch.ones(3, 2)}, [3]).memmap(tmp_path)
    new = td.make_memmap(("deep", "er", "x"), (3, 4), dtype=torch.int16)
    assert td["deep", "er", "x"] is new and td["deep", "er"].batch_size == (3,) and td["deep"].is_locked
    new[1] = 7
    td.make_memmap_from_tensor(("deep", "y"), torch.arange(3))
    again = TensorDict.load_memmap(tmp_path)
    assert again["deep", "er", "x"].sum() == 28 and again["deep", "y"].tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="not a tensordict"):
        td.make_memmap(("a", "b"), (3,))
    with pytest.raises(RuntimeError, match="batch size"):
        td.make_memmap(("new", "b"), (4,))
    with pytest.raises(RuntimeError, match="locked"):  # the root, which is locked too, would not know of it
        td["deep"].make_memmap(("other", "z"), (3,))
    assert TensorDict.load_memmap(tmp_path).sorted_keys == ["a", "deep"]
    assert "new" not in td and ("deep", "other") not in td.keys(True)


def test_new_entries_without_a_folder_are_shared_memory():
    td = TensorDict({"a": torch.ones(2)}, [2]).memmap()
    storage = torch.arange(2).untyped_storage()
    made = td.make_memmap_from_storage("s", storage, torch.Size([2]), dtype=torch.int64)
    assert made.tolist() == [0, 1] and td.is_memmap()
    made = td.make_memmap(("deep", "x"), (2, 3))
    assert td["deep", "x"] is made and td["deep"].is_memmap() and td["deep"].is_locked
    with pytest.raises(RuntimeError, match="batch size"):
        td.make_memmap("b", torch.Size([3]))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("in_folder", [True, False])
def test_a_storage_becomes_a_nested_entry_where_the_shape_has_a_row_for_each_component(tmp_path, in_folder):
    td = TensorDict({"a": torch.ones(2)}, [2]).memmap(tmp_path if in_folder else None)
    made = td.make_memmap_from_storage("n", torch.arange(20.0).untyped_storage(), torch.tensor([[2, 3], [4, 3]]))
    for nested in [made, td["n"], *([TensorDict.load_memmap(tmp_path)["n"]] if in_folder else [])]:
        first, second = nested.unbind(0)
        assert first.flatten().tolist() == list(range(6)) and second.flatten().tolist() == list(range(6, 18))
        assert second.shape == (4, 3)
    for shape in torch.tensor([[6, 3], [4, 3]]), (2, 11):
        with pytest.raises(RuntimeError, match="80 bytes"):
            td.make_memmap_from_storage("m", torch.arange(20.0).untyped_storage(), shape)
    assert "m" not in td


def test_an_entry_is_not_added_where_a_saved_one_was_replaced_in_memory(tmp_path):
    TensorDict({"a": torch.arange(3), "b": torch.ones(3)}).save(tmp_path)
    loaded = TensorDict.load_memmap(tmp_path)
    loaded["a"] = torch.zeros(3)
    with pytest.raises(RuntimeError, match=r"'a' was replaced in memory.*set_"):
        loaded.make_memmap("more", torch.Size([3]))
    again = TensorDict.load_memmap(tmp_path)
    assert again["a"].tolist() == [0, 1, 2] and set(again.keys()) == {"a", "b"}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_come_back_with_their_components(tmp_path, layout):
    parts = [torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(4, 3), torch.zeros(0, 3)]
    td = TensorDict({"nt": torch.nested.nested_tensor(parts, layout=layout), "nt.shape": torch.zeros(3)})
    td.save(tmp_path)
    again = TensorDict.load_memmap(tmp_path)
    assert again["nt"].layout == layout
    assert all(torch.equal(a, b) for a, b in zip(again["nt"].unbind(), parts, strict=True))
    assert again["nt.shape"].shape == (3,)
    again["nt"].unbind()[1].fill_(8)
    assert TensorDict.load_memmap(tmp_path)["nt"].unbind()[1].sum() == 96


def test_a_jagged_tensor_may_be_ragged_in_a_later_dimension(tmp_path):
    parts = [torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(4, 3)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    TensorDict({"nt": jagged}, [2]).save(tmp_path)
    again = TensorDict.load_memmap(tmp_path)["nt"]
    assert [tuple(part.shape) for part in again.unbind()] == [(3, 2), (3, 4)]
    assert all(torch.equal(a, b.T) for a, b in zip(again.unbind(), parts, strict=True))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_in_shared_memory_reach_a_child_process(layout):
    parts = [torch.zeros(2, 3), torch.zeros(4, 3)]
    td = TensorDict({"nt": torch.nested.nested_tensor(parts, layout=layout)}).memmap()
    assert td.is_memmap() and td.is_locked
    child = multiprocessing.get_context("fork").Process(target=lambda: td["nt"].unbind()[1].fill_(8))
    child.start()
    child.join()
    assert [part.sum().item() for part in td["nt"].unbind()] == [0, 96]
    assert [tuple(part.shape) for part in td.memmap_like()["nt"].unbind()] == [(2, 3), (4, 3)]


def test_a_transposed_jagged_tensor_keeps_its_shape_in_shared_memory():
    jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged).transpose(1, 2)
    assert [tuple(part.shape) for part in TensorDict({"nt": jagged}, [2]).memmap()["nt"].unbind()] == [(3, 2), (3, 4)]


@pytest.mark.parametrize("number_of_rows", [3, 5000])
def test_views_of_overwritten_files_are_read_before_the_write(tmp_path, number_of_rows):
    rows = torch.arange(2 * number_of_rows, dtype=torch.int32).view(number_of_rows, 2)
    parts = [torch.ones(1, 2), torch.ones(2, 2)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    TensorDict({"a": rows, "b": -rows, "c": rows * 2, "j": jagged}).save(tmp_path / "x")
    old = load_memmap(tmp_path / "x", mode="r+")
    new = {"a": old["b"].view(torch.float32), "b": old["a"].mT, "c": old["a"][1:2].expand(4, 2)}
    wanted = {key: value.clone() for key, value in new.items()}
    TensorDict(new | {"j": old["j"]}).save(tmp_path / "x", atomic=False)
    back = load_memmap(tmp_path / "x")
    for key in ("a", "b", "c"):
        assert back[key].dtype == wanted[key].dtype
        assert torch.equal(back[key].view(torch.int32), wanted[key].contiguous().view(torch.int32))
    assert all(torch.equal(one, two) for one, two in zip(back["j"].unbind(), parts, strict=True))


def test_nested_tensordicts_without_tensors_are_mapped_with_their_root(tmp_path):
    for place in (None, tmp_path / "x"):
        td = TensorDict({"a": torch.zeros(2), "e": {"f": {}}, "n": lazy_stack([TensorDict({}), TensorDict({})])})
        td = td.memmap_(place)
        nodes = [td, td["e"], td["e", "f"], td["n"], *td["n"].tensordicts]
        assert all(node.is_memmap() and not node.is_shared() for node in nodes)
