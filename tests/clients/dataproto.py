"""verl's DataProto: union, chunk, concat, padding, saving to disk, and the tensordicts that its workers exchange."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from digests import digest
from verl import DataProto
from verl.protocol import pad_dataproto_to_divisor, union_tensor_dict, unpad_dataproto

from tensordict import TensorDict


def told(data: DataProto) -> list[Any]:
    """Everything that a DataProto holds."""
    return [
        digest(data.batch.to_dict()),
        {key: value.tolist() for key, value in sorted(data.non_tensor_batch.items())},
        repr(data.meta_info),
    ]


def run(folder: Path) -> dict[str, Any]:
    """Returns digests of each result."""
    torch.manual_seed(0)
    prompts = DataProto.from_dict(
        {"ids": torch.randint(50, (6, 5)), "mask": torch.ones(6, 5, dtype=torch.bool)},
        non_tensors={"source": np.array(["a", "b", "c", "d", "e", "f"], dtype=object)},
        meta_info={"temperature": 0.7},
    )
    answers = DataProto.from_dict({"answer": torch.randn(6, 3)}, meta_info={"steps": 2})
    both = prompts.union(answers)
    chunks = both.chunk(3)
    joined = DataProto.concat(chunks[::-1])
    both.save_to_disk(folder / "data.pkl")
    padded, extra = pad_dataproto_to_divisor(both, 4)
    united = union_tensor_dict(
        TensorDict({"x": torch.ones(2)}, [2]), TensorDict({"x": torch.ones(2), "y": torch.zeros(2)}, [2])
    )
    return {
        "union": told(both),
        "chunks": [told(chunk) for chunk in chunks],
        "concat": told(joined),
        "disk": told(DataProto.load_from_disk(folder / "data.pkl")),
        "pickle": told(pickle.loads(pickle.dumps(joined))),
        "select": told(both.select(batch_keys=["ids"], non_tensor_batch_keys=["source"])),
        "rows": told(both[[0, 3]]),
        "slice": told(both[1:4]),
        "padded": [extra, told(padded), told(unpad_dataproto(padded, extra))],
        "repeated": told(both.repeat(2, interleave=True)),
        "renamed": told(both.rename("answer", "reply")),
        "united": digest(united.to_dict()),
    }
