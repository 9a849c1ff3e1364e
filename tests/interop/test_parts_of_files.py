"""Parts of what the reference wrote load here, and what is converted here opens there."""

from __future__ import annotations

import pytest
import torch

import tensordict as reference
from tensordict_memmap import compare, convert, load_memmap
from tensordict_memmap.loading.detect import format_of

pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = {"tree": "x", "archive": "x.tdz", "safetensors": "x.safetensors", "consolidated": "x.bin"}


def content():
    return reference.TensorDict(
        {"a": torch.arange(12).view(4, 3), "b": {"c": torch.ones(4), "d": torch.zeros(4, 2)}, "s": "text"}, [4]
    )


def written(path, kind):
    if kind == "consolidated":
        content().consolidate(filename=path)
    elif kind == "safetensors":
        reference.to_safetensors(content(), path)
    else:
        content().memmap(path, archive=kind == "archive")


def read(path, kind):
    if kind == "consolidated":
        return reference.TensorDict.from_consolidated(path)
    return reference.from_safetensors(path) if kind == "safetensors" else reference.TensorDict.load_memmap(path)


@pytest.mark.parametrize("kind", NAMES)
def test_parts_of_what_the_reference_wrote_load(tmp_path, kind):
    path = tmp_path / NAMES[kind]
    written(path, kind)
    assert format_of(path) == kind
    part = load_memmap(path, keys=["b.*"], rows=slice(1, 3))
    assert set(part.keys(True, True)) == {("b", "c"), ("b", "d")} and part.batch_size == (2,)
    assert load_memmap(path, subpath="a", rows=[3, 0]).tolist() == [[9, 10, 11], [0, 1, 2]]
    other = load_memmap(path).clone().unlock_()
    assert not compare(path, other, values=True)
    other["a"][0] = 7
    assert compare(path, other, values=True).values == ["a"]


@pytest.mark.parametrize("source", NAMES)
@pytest.mark.parametrize("target", NAMES)
def test_what_is_converted_here_opens_in_the_reference(tmp_path, source, target):
    first, second = tmp_path / NAMES[source], tmp_path / f"new-{NAMES[target]}"
    written(first, source)
    convert(first, second, target)
    td = read(second, target)
    assert td.batch_size == (4,) and td["s"] == "text"
    for key in ("a", ("b", "c"), ("b", "d")):
        assert torch.equal(td[key], content()[key])
