"""Files that no save writes: too deep, of dtypes and shapes that cannot be, larger than they may be, and no files."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import time
import warnings
import zipfile

import numpy as np
import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict
from tensordict_memmap import (
    MemoryMappedTensor,
    unpack_memmap,
)
from tensordict_memmap.formats import archive
from tensordict_memmap.schema import nontensor

PATHS = ["tree", "x.tdz", "x.safetensors"]


def nodes(count):
    td = TensorDict({"a": torch.ones(2)})
    for _ in range(count - 1):
        td = TensorDict({"n": td})
    return td


def innermost(td, count):
    for _ in range(count - 1):
        td = td["n"]
    return td["a"].tolist()


def consolidate(td, path):
    td.consolidate(path)


def save(td, path):
    td.save(path)


def compress(td, path):
    td.save(path, archive=True, compression="deflate")


SAVES = [(save, name) for name in PATHS] + [(compress, "y.tdz"), (consolidate, "c")]
EACH_SAVE = pytest.mark.parametrize(("write", "name"), SAVES)


# --- nesting


@EACH_SAVE
def test_the_deepest_tensordict_that_is_saved_is_read_back_and_saved_over(tmp_path, write, name):
    for _ in range(2):
        write(nodes(200), tmp_path / name)
        assert innermost(TensorDict.load(tmp_path / name), 200) == [1, 1]


@pytest.mark.parametrize("count", [201, 450, 2000])
@EACH_SAVE
def test_a_deeper_one_is_refused_before_anything_is_written(tmp_path, write, name, count):
    write(nodes(2), tmp_path / name)
    before = sorted(os.walk(tmp_path))
    with pytest.raises(ValueError, match="nested more than 200 levels deep"):
        write(nodes(count), tmp_path / name)
    assert sorted(os.walk(tmp_path)) == before and innermost(TensorDict.load(tmp_path / name), 2) == [1, 1]


def test_a_save_inside_another_does_not_make_that_one_too_deep(tmp_path):
    nodes(150).save(tmp_path / "p")
    with pytest.raises(ValueError, match="nested more than 200 levels deep"):
        nodes(100).save(str(tmp_path / "p") + "/n" * 120)
    nodes(80).save(str(tmp_path / "p") + "/n" * 120)
    assert innermost(TensorDict.load(tmp_path / "p"), 200) == [1, 1]


def test_depth_does_not_matter_in_memory():
    td = nodes(201)
    assert innermost(td.consolidate(), 201) == innermost(td.memmap(), 201) == [1, 1]


@EACH_SAVE
def test_a_lazy_stack_counts_as_a_node(tmp_path, write, name):
    write(LazyStackedTensorDict(nodes(199)), tmp_path / name)
    assert innermost(TensorDict.load(tmp_path / name)[0], 199) == [1, 1]
    with pytest.raises(ValueError, match="nested more than 200 levels deep"):
        write(LazyStackedTensorDict(nodes(200)), tmp_path / name)


@pytest.mark.parametrize("make", [list, lambda items: tuple(items)], ids=["lists", "tuples"])
@pytest.mark.parametrize("levels", [50, 300, 450, 1000])
@EACH_SAVE
def test_nested_values_are_read_back_or_refused_with_their_key(tmp_path, write, name, levels, make):
    value = 1
    for _ in range(levels):
        value = make([value])
    td = TensorDict({"v": NonTensorData(value)})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "key 'v' is pickled")
        try:
            write(td, tmp_path / name)
        except TypeError as error:
            assert "'v'" in str(error) and levels > 50 and not list(tmp_path.iterdir())
            return
    loaded = TensorDict.load(tmp_path / name, allow_pickle=levels > 50)["v"]
    for _ in range(levels):  # == would recurse
        assert type(loaded) is type(value) and len(loaded) == 1
        loaded, value = loaded[0], value[0]
    assert loaded == 1


# --- dtypes


def quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.arange(3.0), 0.1, 2, torch.qint8)


@EACH_SAVE
def test_quantized_tensors_are_refused_with_their_key(tmp_path, write, name):
    td = TensorDict({"x": {"q": quantized()}})
    for one, key in ((td, "('x', 'q')"), (LazyStackedTensorDict(td, td), "'q'")):
        with pytest.raises(TypeError, match=r"quantized tensor of torch\.qint8") as caught:
            write(one, tmp_path / name)
        assert key in str(caught.value) and "int_repr" in str(caught.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", ["consolidate", "memmap", "memmap_like", "memmap_"])
def test_quantized_tensors_stay_out_of_shared_memory(call):
    with pytest.raises(TypeError, match="key 'q' is a quantized tensor"):
        getattr(TensorDict({"q": quantized()}), call)()


def test_no_mapped_tensor_has_the_dtype_of_quantized_ones(tmp_path):
    (tmp_path / "q").write_bytes(bytes(3))
    for make in (
        lambda: MemoryMappedTensor.from_tensor(quantized()),
        lambda: MemoryMappedTensor.from_tensor(quantized(), filename=tmp_path / "x"),
        lambda: MemoryMappedTensor.from_filename(tmp_path / "q", torch.qint8, (3,)),
        lambda: MemoryMappedTensor.from_handler(MemoryMappedTensor.zeros(3).handler, torch.quint8, (3,)),
        lambda: MemoryMappedTensor.empty(3, dtype=torch.qint32),
    ):
        with pytest.raises(ValueError, match="quantized"):
            make()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("dtype", ["torch.quint8", "torch.qint32", "torch.quint4x2", "qint8"])
def test_files_that_name_a_quantized_dtype_are_refused(tmp_path, dtype):
    td = TensorDict({"a": torch.ones(4, dtype=torch.uint8), "c": torch.zeros(2, dtype=torch.complex128)})
    td.save(tmp_path / "tree")
    meta = tmp_path / "tree" / "meta.json"
    meta.write_text(meta.read_text().replace("torch.uint8", dtype))
    td.consolidate(tmp_path / "c")
    data = (tmp_path / "c").read_bytes()
    text = data[-8 - int.from_bytes(data[-8:], "little") : -8].replace(b"torch.uint8", dtype.encode())
    text = text.replace(b'"uint8"', f'"{dtype}"'.encode())
    length = int.from_bytes(data[-8:], "little")
    (tmp_path / "c").write_bytes(data[: -8 - length] + text + len(text).to_bytes(8, "little"))
    td.save(tmp_path / "x.safetensors")
    data = (tmp_path / "x.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(b"torch.complex128", dtype.encode())
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    for name in ("tree", "c", "x.safetensors"):
        with pytest.raises(ValueError, match="quantized"):
            TensorDict.load(tmp_path / name)


def test_the_oldest_layout_with_a_quantized_dtype_is_refused(tmp_path):
    torch.save({"batch_size": torch.Size([]), "device": None}, tmp_path / "meta.pt")
    torch.save({"shape": torch.Size([3]), "dtype": torch.qint8, "device": "cpu"}, tmp_path / "a.meta.pt")
    (tmp_path / "a.memmap").write_bytes(bytes(3))
    with pytest.raises(ValueError, match="key 'a'"):
        TensorDict.load(tmp_path)


def test_any_dtype_can_be_a_value(tmp_path):
    TensorDict({"d": NonTensorData(torch.qint8)}).save(tmp_path)
    assert TensorDict.load(tmp_path)["d"] is torch.qint8


# --- nested tensors


def strided_nested(parts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype, once
        return torch.nested.nested_tensor(parts)


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("parts", [[], [torch.tensor(1.0), torch.tensor(2.0)], [torch.ones(0, 3), torch.ones(0, 3)]])
def test_nested_tensors_without_components_or_sizes_are_read_back(tmp_path, name, parts):
    TensorDict({"n": strided_nested(parts)}).save(tmp_path / name)
    loaded = TensorDict.load(tmp_path / name)["n"]
    assert loaded.is_nested and loaded.layout is torch.strided and loaded.size(0) == len(parts)
    assert all(torch.equal(one, two) for one, two in zip(loaded.unbind(), parts, strict=True))


@pytest.mark.parametrize("name", PATHS)
def test_a_jagged_tensor_without_components_is_refused(tmp_path, name):
    jagged = torch.nested.nested_tensor_from_jagged(torch.empty(0, 3), torch.tensor([0]))
    with pytest.raises(TypeError, match="key 'n'"):
        TensorDict({"n": jagged}).save(tmp_path / name)
    assert not list(tmp_path.iterdir())
    TensorDict({"n": jagged}).consolidate(tmp_path / "c")
    assert TensorDict.load(tmp_path / "c")["n"].values().shape == (0, 3)


@pytest.mark.parametrize("shape", [[0, 2**40], [0, 2], [2**40, 0], [2**40, 1], [0, 0, 0], [1, 65], [2**62, 1]])
@pytest.mark.parametrize("layout", [{}, {"layout": "torch.jagged"}])
def test_the_shape_of_a_nested_tensor_is_bounded_by_its_file(tmp_path, shape, layout):
    about = {"device": "cpu", "shape": shape, "dtype": "torch.float32", "is_nested": True, **layout}
    (tmp_path / "meta.json").write_text(json.dumps({"n": about, "shape": [], "device": "cpu"}))
    (tmp_path / "n.memmap").touch()
    (tmp_path / "n.shape.memmap").touch()
    start = time.monotonic()
    with pytest.raises(ValueError, match="'n'"):
        TensorDict.load(tmp_path)
    assert time.monotonic() - start < 60  # s; a shape that is believed takes hours or all memory


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # torch says so once a process
@pytest.mark.parametrize("shape", [[2**40, 0], [0, 2**40], [2**40, 2, 0]])
def test_the_components_in_a_safetensors_file_are_bounded_too(tmp_path, shape):
    record = {"batch_size": [], "names": None, "keys": {"n": {"tensor": "n", "shapes": "s", "layout": "nested"}}}
    about = {
        "__metadata__": {"tensordict": json.dumps({"version": 1, "root": record})},
        "n": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]},
        "s": {"dtype": "I64", "shape": shape, "data_offsets": [0, 0]},
    }
    text = json.dumps(about).encode()
    (tmp_path / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    if shape[0]:
        with pytest.raises(ValueError, match="'n'"):
            TensorDict.load(tmp_path / "x.safetensors")
    else:
        assert TensorDict.load(tmp_path / "x.safetensors")["n"].size(0) == 0


@pytest.mark.parametrize("lengths", [[9, 9], [1], [-1, 1]])
def test_the_lengths_of_a_consolidated_jagged_tensor_fit_its_offsets(tmp_path, lengths):
    values, offsets = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 3])
    made = torch.nested.nested_tensor_from_jagged(values, offsets, torch.tensor([1, 2]))
    TensorDict({"j": made}).consolidate(tmp_path / "c")
    data = bytearray((tmp_path / "c").read_bytes())
    at = data.index(struct.pack("<2q", 1, 2))
    data[at : at + 16] = struct.pack("<2q", *(lengths * 2)[:2]) if lengths != [1] else struct.pack("<2q", 2, 2)
    (tmp_path / "c").write_bytes(data)
    with pytest.raises(ValueError, match="lengths"):
        TensorDict.load(tmp_path / "c")


def test_a_stack_of_values_takes_no_memory_that_its_file_does_not_explain(tmp_path):
    TensorDict({"s": NonTensorStack("a", "b")}, [2]).consolidate(tmp_path / "c")
    data = (tmp_path / "c").read_bytes()
    text = data[-8 - int.from_bytes(data[-8:], "little") : -8].replace(b'["a",[],', b'["a",[2147483648],')
    assert b"2147483648" in text
    (tmp_path / "c").write_bytes(text + len(text).to_bytes(8, "little"))
    with pytest.raises(ValueError, match="a stack of 2147483649 values"):
        TensorDict.load(tmp_path / "c")


def test_the_stack_dimension_of_a_consolidated_file_is_one_that_tensors_can_have(tmp_path):
    TensorDict({"s": NonTensorStack("a", "b")}, [2]).consolidate(tmp_path / "c")
    data = (tmp_path / "c").read_bytes()
    text = data[-8 - int.from_bytes(data[-8:], "little") : -8].replace(b'"stack_dim":0', b'"stack_dim":2147483648')
    (tmp_path / "c").write_bytes(text + len(text).to_bytes(8, "little"))
    with pytest.raises(ValueError, match="along 2147483648"):
        TensorDict.load(tmp_path / "c")


# --- archives


def test_an_archive_of_many_members_is_verified_in_linear_time(tmp_path, monkeypatch):
    TensorDict({f"k{n}": torch.ones(2) for n in range(300)}).save(tmp_path / "x.tdz")
    TensorDict({f"k{n}": torch.ones(2) for n in range(300)}).save(tmp_path / "y.tdz", compression="deflate")
    opened = []
    real = zipfile.ZipFile._RealGetContents
    monkeypatch.setattr(zipfile.ZipFile, "_RealGetContents", lambda self: (opened.append(1), real(self))[1])
    for path in ("x.tdz", "y.tdz"):
        opened.clear()
        TensorDict.load(tmp_path / path, verify="full")
        unpack_memmap(tmp_path / path, tmp_path / f"{path} unpacked")
        assert len(opened) == 2
        assert TensorDict.load(tmp_path / f"{path} unpacked")["k299"].tolist() == [1, 1]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("size", [0, 1, 100_000, 5_000_000])
def test_members_are_decompressed_as_zipfile_does(method, size):
    content = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as file:
        file.writestr("meta.json", content)
    data = memoryview(packed.getvalue())
    with zipfile.ZipFile(packed) as file:
        member = archive.read_index(data, file, "it")["meta.json"]
    found = list(archive.blocks(data, member, 70_000))
    assert b"".join(found) == content and max(map(len, found), default=0) <= 70_000
    if size:
        for broken in (member.packed // 2, member.packed - 1) if member.packed > 10 else (0,):
            changed = bytearray(data)
            changed[member.offset + broken] ^= 0x55
            with pytest.raises(ValueError, match="it"):
                list(archive.blocks(memoryview(changed), member, 70_000))
        with pytest.raises(ValueError, match="it"):
            list(archive.blocks(data, dataclasses.replace(member, packed=member.packed // 2), 70_000))


def test_a_description_does_not_take_a_thousand_times_the_memory_of_its_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.tdz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("meta.json", b" " * 20_000_000 + b'{"shape":[]}')
    with pytest.raises(ValueError, match="description of that size"):
        TensorDict.load(tmp_path / "x.tdz")


def test_the_dictionary_of_a_decoder_is_bounded_by_the_compressed_bytes():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("meta.json", b"{}")
    data = bytearray(packed.getvalue())
    with zipfile.ZipFile(packed) as file:
        member = archive.read_index(memoryview(data), file, "it")["meta.json"]
    data[member.offset + 5 : member.offset + 9] = b"\xff\xff\xff\xff"  # a dictionary of 4 GiB
    claims = dataclasses.replace(member, size=1 << 31)
    code = (
        "import pickle, resource, sys\n"
        "from tensordict_memmap.formats import archive\n"
        "data, member = pickle.load(sys.stdin.buffer)\n"
        "used = [int(line.split()[1]) << 10 for line in open('/proc/self/status') if line.startswith('VmData')]\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (used[0] + (300 << 20),) * 2)  # torch with CUDA takes more\n"
        "try:\n    list(archive.blocks(memoryview(data), member, 1000))\n"
        "except ValueError as error:\n    assert 'another size' in str(error), error\n"
        "else:\n    sys.exit(1)\n"
    )
    given = pickle.dumps((bytes(data), claims))
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_compressed_description_of_usual_size_is_read(tmp_path):
    TensorDict({f"key{n}": torch.ones(2) for n in range(2000)}).save(tmp_path / "d")
    with zipfile.ZipFile(tmp_path / "x.tdz", "w", zipfile.ZIP_LZMA) as file:
        for path in sorted((tmp_path / "d").iterdir(), key=lambda path: path.name != "meta.json"):
            file.write(path, path.name)
    assert len(TensorDict.load(tmp_path / "x.tdz").keys()) == 2000


def test_wide_complex_numbers_at_any_offset_of_an_archive_are_computed_with(tmp_path):
    TensorDict({"z": torch.arange(40).to(torch.complex128)}).save(tmp_path / "d")
    with zipfile.ZipFile(tmp_path / "x.tdz", "w") as file:
        file.write(tmp_path / "d" / "meta.json", "meta.json")
        file.writestr("x" * (len("z.memmap") + 1), b"")
        file.write(tmp_path / "d" / "z.memmap", "z.memmap")
    assert (TensorDict.load(tmp_path / "x.tdz")["z"] * 2).sum() == 1560


# --- arrays


@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3).T, np.zeros((0, 3)), np.array("text"), np.zeros(2, "i4,f8"), np.float32(3)]
)
def test_arrays_are_read_back(array):
    found = nontensor.decode(nontensor.encode(array))
    assert found.dtype == array.dtype and found.shape == array.shape and np.array_equal(found, array)


def test_an_array_takes_no_more_memory_than_its_bytes(tmp_path):
    document = io.BytesIO()
    np.lib.format.write_array_header_1_0(document, {"descr": "<f8", "fortran_order": False, "shape": (10**11,)})
    form = {"$": "array", "npy": base64.b64encode(document.getvalue()).decode()}
    with pytest.raises(ValueError, match="not those of its shape"):
        nontensor.decode(form)


# --- what a file is


@pytest.mark.parametrize(
    "first",
    [
        torch.tensor([16, ord("{")]),
        torch.tensor([0, ord("{")]),
        torch.tensor([0x4B50, 5]),
        torch.frombuffer(bytearray(b"PK\3\4" + bytes(28)), dtype=torch.uint8),
    ],
    ids=["a header of 16 bytes", "of none", "PK", "a zip member"],
)
def test_consolidated_files_are_recognized_by_their_end(tmp_path, first):
    TensorDict({"a": first}).consolidate(tmp_path / "c")
    assert torch.equal(TensorDict.load(tmp_path / "c")["a"], first)


@pytest.mark.parametrize("inner", ["x.safetensors", "x.tdz", "c"])
@pytest.mark.parametrize("outer", ["y.safetensors", "y.tdz", "cc"])
def test_a_file_inside_a_file_does_not_change_the_format_of_the_outer_one(tmp_path, inner, outer):
    td = TensorDict({"a": torch.arange(5)})
    consolidate(td, tmp_path / inner) if inner == "c" else td.save(tmp_path / inner)
    content = torch.frombuffer(bytearray((tmp_path / inner).read_bytes()), dtype=torch.uint8)
    td = TensorDict({"file": content})
    consolidate(td, tmp_path / "any") if outer == "cc" else td.save(tmp_path / outer)
    if outer != "cc":
        shutil.move(tmp_path / outer, tmp_path / "any")
    assert torch.equal(TensorDict.load(tmp_path / "any")["file"], content)
