"""Plain tensors over memory-mapped ones: sending or sharing a view leaves the mapping on its file."""

from __future__ import annotations

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing as mp

from tensordict_core import TensorDict
from tensordict_memmap import MemoryMappedTensor, load, load_memmap, save
from tensordict_memmap.tensor.mapping import places_of

VIEWS = {
    "view": lambda x: x.view(-1),
    "transpose": lambda x: x.transpose(0, 1),
    "row": lambda x: torch.Tensor.unbind(x, 0)[1],
    "other dtype": lambda x: x.view(torch.int32),
    "one tensor": lambda x: x.as_subclass(torch.Tensor),
}


def sent(value):
    """What another process gets; the pickle is the same if this process reads it."""
    return pickle.loads(ForkingPickler.dumps(value))


def in_folder(path):
    return TensorDict({"a": torch.ones(4, 3)}, [4]).memmap(path)


def in_safetensors(path):
    save(TensorDict({"b": torch.zeros(3), "a": torch.ones(4, 3)}), path.with_suffix(".safetensors"))
    return load(path.with_suffix(".safetensors"), mode="r+")


def in_one_file(path):
    TensorDict({"b": torch.zeros(3), "a": torch.ones(4, 3)}).consolidate(path)
    return load(path, mode="r+")


@pytest.fixture(params=[in_folder, in_safetensors, in_one_file], ids=["folder", "safetensors", "consolidated"])
def td(request, tmp_path):
    return request.param(tmp_path / "x")


def in_the_file(td):
    """The values that another program would read."""
    [pages] = places_of([td["a"]])
    filename = getattr(td["a"], "filename", pages.filename)
    with open(filename, "rb") as file:
        content = bytearray(file.read())
    return torch.frombuffer(content, dtype=torch.float32, count=12, offset=pages.in_file(td["a"])).view(4, 3)


@pytest.mark.parametrize("name", VIEWS)
class TestAViewThatIsSent:
    def test_writes_into_the_source_still_reach_the_file(self, td, name):
        sent(VIEWS[name](td["a"]))
        td["a"].fill_(7)
        assert (in_the_file(td) == 7).all()

    def test_has_the_same_values_and_strides(self, td, name):
        td["a"].copy_(torch.arange(12.0).view(4, 3))
        view = VIEWS[name](td["a"])
        got = sent(view)
        assert type(got) is torch.Tensor and torch.equal(got, view) and got.stride() == view.stride()

    def test_shows_the_file(self, td, name):
        got = sent(VIEWS[name](td["a"]))
        td["a"].fill_(7)
        assert torch.equal(got, VIEWS[name](td["a"]))

    def test_writes_into_it_reach_the_file(self, td, name):
        sent(VIEWS[name](td["a"])).zero_()
        assert (in_the_file(td) == 0).sum() == VIEWS[name](td["a"]).numel()


def test_parts_of_a_tensordict_are_sent_with_the_file(tmp_path):
    td = in_folder(tmp_path / "x")
    for part in (td.split(2)[1], td.view(2, 2), td.unbind(0)[0], td.chunk(2)[1], td.unsqueeze(0)):
        sent(part)
    td["a"].fill_(7)
    assert (load_memmap(tmp_path / "x")["a"] == 7).all()


def add_one(queue, told):
    queue.get().add_(1)
    told.put(None)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("named", [True, False], ids=["in a file", "without a name"])
def test_a_view_in_another_process_is_the_same_memory(tmp_path, method, named):
    x = MemoryMappedTensor.zeros(4, filename=tmp_path / "x.memmap" if named else None)
    context = mp.get_context(method)
    queue, told = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=add_one, args=(queue, told))
    process.start()
    queue.put(x.view(2, 2)[:, 1])
    told.get()
    process.join(60)
    x[0] = 5
    assert x.tolist() == [5, 1, 0, 1]
    assert sent(x).tolist() == x.tolist()  # the memory that was sent before is the one that is sent now


def test_a_view_of_a_file_that_was_replaced_is_sent_by_value(tmp_path):
    x = MemoryMappedTensor.ones(4, filename=tmp_path / "x.memmap")
    MemoryMappedTensor.from_tensor(torch.zeros(4), filename=tmp_path / "x.memmap", existsok=True)
    assert sent(x.view(2, 2)).tolist() == [[1, 1], [1, 1]]
    x.fill_(2)
    assert x.view(2, 2).tolist() == [[2, 2], [2, 2]]


def test_a_pickle_of_a_view_whose_file_is_replaced_later_is_an_error(tmp_path):
    x = MemoryMappedTensor.ones(4, filename=tmp_path / "x.memmap")
    pickled = ForkingPickler.dumps(x.view(2, 2))
    MemoryMappedTensor.from_tensor(torch.zeros(4), filename=tmp_path / "x.memmap", existsok=True)
    with pytest.raises(RuntimeError, match="replaced"):
        pickle.loads(pickled)


def test_views_of_a_private_mapping_are_sent_by_value(tmp_path):
    in_folder(tmp_path / "x")
    td = load(tmp_path / "x", mode="c")
    td["a"].fill_(5)
    assert (sent(td["a"].view(-1)) == 5).all()
    assert (load(tmp_path / "x")["a"] == 1).all()


class TestShareMemory:
    def test_of_a_view_leaves_the_source_in_its_file(self, td):
        td["a"].view(-1).share_memory_()
        td["a"].fill_(7)
        assert (in_the_file(td) == 7).all()

    def test_of_a_view_is_shared(self, td):
        assert td["a"].view(-1).share_memory_().is_shared()

    def test_of_a_view_of_memory_without_a_name_is_shared(self):
        assert MemoryMappedTensor.ones(4).view(2, 2).share_memory_().is_shared()

    @pytest.mark.parametrize("named", [True, False], ids=["in a file", "without a name"])
    def test_a_view_is_shared_before_as_its_source_is(self, tmp_path, named):
        x = MemoryMappedTensor.ones(4, filename=tmp_path / "x.memmap" if named else None)
        assert x.view(2, 2).is_shared() is x.is_shared() is named

    def test_of_a_tensordict_of_a_writable_file_stays_in_it(self, tmp_path):
        td = in_one_file(tmp_path / "x")
        td.share_memory_()
        td["a"].fill_(7)
        assert (in_the_file(td) == 7).all()

    def test_of_a_module_stays_in_the_file(self, tmp_path):
        TensorDict({"weight": torch.zeros(2, 3)}).memmap(tmp_path / "m")
        params = load(tmp_path / "m", mode="r+")
        module = torch.nn.Linear(3, 2)
        module.weight = torch.nn.Parameter(params["weight"].view(2, 3))
        module.share_memory()
        params["weight"].fill_(7)
        assert (load_memmap(tmp_path / "m")["weight"] == 7).all() and (module.weight == 7).all()


class TestCopiesOfAView:
    """Copies are plain memory, as before the file."""

    def check(self, view, copied):
        assert torch.equal(view, copied)
        copied.zero_()
        assert (view != 0).any() and type(copied.untyped_storage()) is torch.UntypedStorage

    @pytest.fixture
    def view(self, td):
        return td["a"].view(-1)

    def test_deepcopy(self, view):
        self.check(view, copy.deepcopy(view))

    def test_pickle(self, view):
        self.check(view, pickle.loads(pickle.dumps(view)))

    def test_torch_save(self, view):
        file = io.BytesIO()
        torch.save(view, file)
        file.seek(0)
        self.check(view, torch.load(file))

    def test_torch_save_in_the_earlier_format(self, view):
        file = io.BytesIO()
        torch.save(view, file, _use_new_zipfile_serialization=False)
        file.seek(0)
        self.check(view, torch.load(file))

    def test_clone_of_the_storage(self, view):
        assert type(view.untyped_storage().clone()) is torch.UntypedStorage

    @pytest.mark.filterwarnings("ignore:TypedStorage")
    def test_cpu_of_the_typed_storage(self, view):
        assert view._typed_storage().cpu().tolist() == view.tolist()

    def test_a_slice_of_the_storage_is_sent_by_value(self, view):
        assert sent(view.untyped_storage()[:4]).tolist() == view.untyped_storage().tolist()[:4]

    def test_two_views_share_the_memory_of_their_deepcopy(self, view):
        one, other = copy.deepcopy((view, view[:3]))
        one.zero_()
        assert (other == 0).all()
