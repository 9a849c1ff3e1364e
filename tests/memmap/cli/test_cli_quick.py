"""The quick reader of the command line: it answers as the complete readers do, or leaves the save to them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, TensorDict
from tensordict_memmap import MemmapDataset, save_delta, to_safetensors
from tensordict_memmap.cli.commands import describe, problem_of
from tensordict_memmap_cli.quick import read

NESTED = {"a": torch.zeros(3, 2), "b": {"c": torch.ones(3, dtype=torch.bfloat16), "d": {"e": torch.zeros(3, 0)}}}


def tensordicts():
    lazy = LazyStackedTensorDict(*[TensorDict({"q": torch.zeros(n)}) for n in (2, 3, 1)])
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    shared = torch.ones(4)
    return {
        "nested": TensorDict(NESTED, [3]),
        "dtypes": TensorDict({str(one)[6:]: torch.zeros(2, dtype=one) for one in (torch.bool, torch.complex64)}),
        "lazy": TensorDict({"l": lazy, "z": torch.zeros(1)}),
        "equal lazy": TensorDict({"l": LazyStackedTensorDict(*[TensorDict({"q": torch.ones(2)})] * 2)}),
        "escaped": TensorDict({"a/b": torch.zeros(1), "shape": torch.zeros(2), "x y": {"z": torch.zeros(1)}}),
        "ragged": TensorDict({"n": ragged}),
        "tied": TensorDict({"one": shared, "two": shared}),
        "dotted": TensorDict({"a.b": torch.zeros(1), "a": {"c": torch.zeros(1)}}),
        "empty": TensorDict({"a": {}}),
        "strange": TensorDict({"\x1b[31m": torch.zeros(1), "": torch.zeros(1)}),
    }


def write(name, form, path):
    td = tensordicts()[name]
    if form == "values":
        td["s"], td["t"] = "text", NonTensorData({"x": 1}, td.batch_size)
    if form == "consolidated":
        td.consolidate(path)
    else:
        td.save(path, **({"archive": True} if form == "archive" else {"format": form} if form != "values" else {}))


CASES = [
    (name, form) for name in tensordicts() for form in ("tree", "values", "safetensors", "archive", "consolidated")
]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_the_quick_reader_answers_as_the_complete_one_or_not_at_all(tmp_path, name, form):
    path = str(tmp_path / "x")
    write(name, form, path)
    quick = read(path)
    kind, rows, _ = describe(path, None)
    assert quick is None or (quick.format, [tuple(one) for one in quick.entries]) == (kind, rows)
    if name in ("nested", "lazy", "dtypes"):
        assert quick is not None, "the usual forms are read without torch"
    if (name, form) == ("ragged", "tree"):
        assert quick is None, "nested tensors have no single shape"
    assert read(path, verify=True) is None or not problem_of(path, full=False)


@pytest.mark.parametrize(("name", "form"), [case for case in CASES if case[0] in ("nested", "lazy", "tied")])
def test_the_quick_reader_leaves_damaged_saves_to_the_complete_one(tmp_path, name, form):
    """Each file is cut short, made longer, emptied, filled with zeros, or has one byte of its head changed."""
    path = tmp_path / "x"
    write(name, form, path)
    files = [path] if path.is_file() else [one for one in sorted(path.rglob("*")) if one.is_file()]
    for file in files:
        whole = file.read_bytes()
        for damage in (whole[:-1], whole + b"\0", b"", bytes(len(whole)), whole[:9] + b"!" + whole[10:]):
            if damage != whole and file.name != "tensordict.lock":
                file.write_bytes(damage)
                if read(str(path), verify=True) is not None:
                    assert not problem_of(str(path), full=False), (file, damage[:20])
        file.write_bytes(whole)
    for file in files if path.is_dir() else []:
        whole = file.read_bytes()
        file.unlink()
        assert read(str(path), verify=True) is None
        file.write_bytes(whole)


def test_deltas_growing_datasets_and_saves_that_are_replaced_are_left_to_the_complete_readers(tmp_path):
    td = TensorDict({"a": torch.zeros(10)}, [10])
    td.save(tmp_path / "base.safetensors", checksum=True)
    save_delta(td + 1, tmp_path / "delta.safetensors", base=tmp_path / "base.safetensors")
    assert read(str(tmp_path / "base.safetensors")) and not read(str(tmp_path / "delta.safetensors"))
    MemmapDataset.create(tmp_path / "rows", td[0]).extend(td)
    assert not read(str(tmp_path / "rows"))
    td.save(tmp_path / "run")
    (tmp_path / "run" / "tensordict.journal.json").write_text("{}")
    assert not read(str(tmp_path / "run"))


def test_files_of_other_tools_are_read_by_their_names(tmp_path):
    path = tmp_path / "x.safetensors"
    to_safetensors(TensorDict({"model": {"w": torch.zeros(2), "b": torch.zeros(1)}, "step": torch.tensor(1)}), path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    quick = read(str(path))
    assert quick is not None and [tuple(one) for one in quick.entries] == describe(str(path), None)[1]
    assert sorted(one.key for one in quick.entries) == [("model", "b"), ("model", "w"), ("step",)]


@pytest.mark.parametrize("name", ["x", "x.safetensors", "x.tdz", "x.bin"])
def test_the_commands_that_look_import_no_torch(tmp_path, name):
    td = TensorDict(NESTED, [3])
    td.consolidate(tmp_path / name) if name == "x.bin" else td.save(tmp_path / name)
    commands = [["tree", name, "--depth", "1"], ["ls", name], ["tree", name, "--json"]]
    commands += [["verify", name]] if name != "x.tdz" else []
    code = (
        "import sys\nfrom tensordict_memmap_cli.main import main\n"
        f"assert [main(words) for words in {commands!r}] == [0] * {len(commands)}\n"
        "assert [main([word, 'typo']) for word in ('tree', 'ls', 'verify')] == [2] * 3\n"
        "assert not {'torch', 'numpy', 'tensordict_memmap', 'tensordict_core'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no saved tensordict at typo; give the path that it was saved to") == 3
