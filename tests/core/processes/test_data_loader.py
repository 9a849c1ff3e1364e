"""A DataLoader stacks samples that are tensordicts; its workers stack into one block of shared memory."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from tensordict_core import TensorDict, collate


def samples(count=6, **more):
    return [
        TensorDict({"a": torch.full((3,), float(i)), "n": {"b": torch.full((2,), i)}, **more}, names=None)
        for i in range(count)
    ]


def batches(data, workers, collate_fn):
    return list(
        DataLoader(
            data,
            2,
            collate_fn=collate_fn,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )
    )


@pytest.mark.parametrize("collate_fn", [None, collate], ids=["torch's", "ours"])
def test_batches_of_workers_are_those_of_this_process(collate_fn):
    data = [
        TensorDict({"a": torch.rand(4, 3), "n": {"b": torch.arange(4)}}, [4], device="cpu", names=["t"])
        for _ in range(4)
    ]
    for ours, expected in zip(batches(data, 1, collate_fn), batches(data, 0, collate_fn), strict=True):
        assert (ours == expected).all()
        assert ours.batch_size == torch.Size([2, 4]) == ours["n"].batch_size
        assert ours.names == expected.names == [None, "t"] and ours.device == expected.device
        assert not ours.is_locked and ours["n", "b"].dtype == torch.int64


def test_a_batch_of_a_worker_is_one_block_of_shared_memory():
    (batch, *_) = batches(samples(), 1, collate)
    assert batch["a"].is_shared()
    assert batch["a"].untyped_storage().data_ptr() == batch["n", "b"].untyped_storage().data_ptr()
    batch["new"] = torch.zeros(2)  # it is as open to changes as any batch
    assert set(batch.keys()) == {"a", "n", "new"}


@pytest.mark.parametrize(
    "data",
    [
        samples(s="text"),
        [TensorDict({"a": torch.zeros(n)}) for n in (1, 2)],
        [TensorDict({"a": torch.zeros(2, dtype=dtype)}) for dtype in (torch.float32, torch.float64)],
        [TensorDict({key: torch.zeros(2)}) for key in "ab"],
        [TensorDict({"a": torch.zeros(2)}), TensorDict({"a": {"b": torch.zeros(2)}})],
        [TensorDict({}), TensorDict({})],
        [TensorDict({"a": torch.ones(2).to_sparse()}) for _ in range(2)],
    ],
    ids=["values", "ragged", "dtypes", "other keys", "a node and a leaf", "empty", "sparse"],
)
def test_samples_that_do_not_fit_one_block_are_stacked_as_in_this_process(data):
    # compared in the worker, because sparse tensors cannot be sent
    def checked(batch):
        worker, here = collate(batch), torch.utils.data._utils.worker._worker_info
        torch.utils.data._utils.worker._worker_info = None
        try:
            expected = collate(batch)
        finally:
            torch.utils.data._utils.worker._worker_info = here
        assert here is not None and type(worker) is type(expected)
        assert str(worker) == str(expected)  # types, shapes and dtypes
        assert str([td.to_dict() for td in worker]) == str([td.to_dict() for td in expected])
        return len(batch)

    assert batches(data[:2], 1, checked) == [2]
