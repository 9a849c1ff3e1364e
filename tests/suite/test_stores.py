"""Tensorclasses on stores: as the container, and as an entry that comes back with its class."""

from __future__ import annotations

import pytest
import torch

from tensordict import PersistentTensorDict, TensorDict, tensorclass

pytest.importorskip("h5py", reason="h5py is an extra")
pytest.importorskip("zarr", reason="zarr is an extra")


@tensorclass
class Sample:
    x: torch.Tensor
    label: str


def samples() -> Sample:
    return Sample(x=torch.arange(6.0).view(3, 2), label="first", batch_size=[3])


@pytest.mark.parametrize("form", ["h5", "zarr"])
def test_a_tensorclass_works_over_a_store(form, tmp_path):
    stored = getattr(TensorDict({"x": torch.arange(6.0).view(3, 2), "label": "first"}, [3]), f"to_{form}")(
        tmp_path / "a"
    )
    one = Sample.from_tensordict(stored)
    assert one[1:].x.tolist() == [[2, 3], [4, 5]] and one.label == "first"
    one[0] = Sample(x=torch.zeros(2), label="first", batch_size=[])
    one.x[1] = 7  # a read copies
    assert stored["x"].tolist() == [[0, 0], [2, 3], [4, 5]]
    stored.close()


@pytest.mark.parametrize("form", ["h5", "zarr"])
def test_a_tensorclass_entry_is_read_as_a_tensorclass(form, tmp_path):
    td = TensorDict({"sample": samples(), "y": torch.ones(3)}, [3])
    getattr(td, f"to_{form}")(tmp_path / "a").close()
    stored = getattr(TensorDict, f"from_{form}")(tmp_path / "a", mode="r+")
    assert isinstance(stored, PersistentTensorDict) and isinstance(stored["sample"], Sample)
    assert stored["sample"].label == "first" and isinstance(stored[1]["sample"], Sample)
    stored["sample"].label = "second"
    stored[0] = td[1]
    assert stored["sample"].x[0].tolist() == [2, 3]
    stored.close()
