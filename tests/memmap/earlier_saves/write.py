"""Writes the fixtures beside this file: one save in each format. Run it only to add a format, never to replace one.

The fixtures were written by commit 25f0095, before the packages were laid out anew. ``test_earlier_saves.py`` loads
them and compares them with what `contents` builds. Usage: ``python -m tests.memmap.earlier_saves.write FOLDER``.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tensordict_core import LazyStackedTensorDict, MetaData, TensorDict, lazy_stack
from tensordict_memmap import MemmapDataset, MemoryMappedTensor, consolidate, pack_memmap, to_safetensors

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]


def dtypes() -> TensorDict:
    """One leaf for each dtype that files can hold."""
    numbers = torch.arange(12).reshape(4, 3)
    entries = {str(dtype): numbers.to(dtype) for dtype in [*FLOATS, *INTEGERS, torch.bool]}
    entries["torch.complex64"] = torch.complex(numbers.float(), -numbers.float())
    entries["torch.complex128"] = torch.complex(numbers.double(), -numbers.double())
    return TensorDict(entries, [4])


def plain() -> TensorDict:
    """Nested tensors without a batch size, as a state dict has them."""
    return TensorDict({"layer": {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.arange(2.0)}, "step": 7})


def values() -> TensorDict:
    """Non-tensor values of every type that needs no pickle."""
    data: dict[str, Any] = {
        "text": "hello",
        "bytes": b"\x00\xff",
        "none": None,
        "nan": float("nan"),
        "inf": float("-inf"),
        "tuple": ("a", 1, (2.5, None)),
        "dict": {"a": [1, "x"], 3: True},
        "path": Path("a/b"),
        "big": 1 << 80,
    }
    td = TensorDict({}, [2])
    for name, value in data.items():
        td.set_non_tensor(name, value)
    td["many"] = ["left", "right"]
    td["meta"] = MetaData("shared")
    return td


def contents() -> TensorDict:
    """Everything that a folder holds: dtypes, values, names, odd keys, lazy stacks, empty leaves and nodes."""
    td = TensorDict(
        {
            "x": torch.arange(24.0).reshape(4, 3, 2),
            "transposed": torch.arange(12).reshape(3, 4).T,
            "empty": torch.zeros(4, 0),
            "shape": torch.arange(4),
            "weird/key.x": torch.arange(4),
            "nested": {"deep": {"y": torch.arange(4)}, "bare": {}},
            "dtypes": dtypes(),
        },
        [4],
        names=["time"],
    )
    td["values"] = values().expand(4, 2)
    return td


def lazy() -> LazyStackedTensorDict:
    """A lazy stack of elements with leaves of different shapes."""
    return lazy_stack([TensorDict({"a": torch.arange(i + 1), "b": torch.ones(2), "s": f"row {i}"}) for i in range(3)])


def tied() -> TensorDict:
    """Two entries that share storage."""
    weight = torch.arange(6.0).reshape(2, 3)
    return TensorDict({"encoder": {"weight": weight}, "decoder": {"weight": weight}})


def ragged() -> TensorDict:
    """A jagged nested tensor."""
    parts = [torch.arange(2.0).reshape(2, 1), torch.arange(3.0).reshape(3, 1)]
    return TensorDict({"tokens": torch.nested.nested_tensor(parts, layout=torch.jagged)}, [2])


def rows() -> TensorDict:
    """Rows of a dataset, of which ``write`` appends each by itself."""
    return TensorDict({"image": torch.arange(20, dtype=torch.uint8).reshape(5, 2, 2), "label": torch.arange(5)}, [5])


def write(folder: Path) -> None:
    """One save for each format."""
    folder.mkdir(parents=True, exist_ok=True)
    contents().save(folder / "tree")
    contents().save(folder / "tree_checksum", checksum=True)
    lazy().save(folder / "lazy")
    tied().save(folder / "tied")
    ragged().save(folder / "ragged")
    with MemmapDataset.create(folder / "dataset", rows()[0], capacity=8) as dataset:
        for row in rows():
            dataset.append(row)
    contents().save(folder / "one.safetensors")
    contents().save(folder / "one_checksum.safetensors", checksum=True)
    plain().save(folder / "plain.safetensors")
    lazy().save(folder / "lazy.safetensors")
    tied().save(folder / "tied.safetensors")
    ragged().save(folder / "ragged.safetensors")
    to_safetensors(dtypes(), folder / "sharded.safetensors", shard_size=200)
    contents().save(folder / "stored.tdz")
    contents().save(folder / "compressed.tdz", compression="deflated")
    with tempfile.TemporaryDirectory() as temporary:
        plain().save(Path(temporary) / "tree", checksum=True)
        pack_memmap(Path(temporary) / "tree", folder / "packed.tdz")
    consolidate(
        dtypes().exclude(*[str(dtype) for dtype in FLOATS if "float8" in str(dtype)]), folder / "consolidated.td"
    )
    torch.save(contents(), folder / "torch_save.pt")
    torch.save(lazy(), folder / "torch_save_lazy.pt")
    (folder / "pickled.pkl").write_bytes(pickle.dumps(contents().exclude("dtypes")))
    (folder / "mapped.pkl").write_bytes(pickle.dumps(MemoryMappedTensor.from_tensor(torch.arange(4))))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
