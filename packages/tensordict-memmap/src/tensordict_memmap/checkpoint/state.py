"""Packing of states: nested Python values with tensors in them become a tensordict and a JSON record, and back.

A state dict has parts that a tensordict cannot hold: integer keys, lists, numbers, tuples, the version metadata of
modules. The tensors are stored in a nested tensordict, under keys that follow from their positions, so that any reader
finds ``model.encoder.weight``. The rest is the record, in which ``{"$": "tensor"}`` is a placeholder for the tensor of
that position::

    {"state": {"$": "dict", "items": [[0, {"exp_avg": {"$": "tensor"}}]]}, "param_groups": [{"lr": 0.1}]}

No value is pickled: a value without an exact JSON form raises an error that names its position.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tensordict_core import TensorCollection, TensorDict, is_tensor_collection
from tensordict_core.extension import JSON_TAG
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.dtypes import reach
from tensordict_memmap.schema.node import Value, nodes
from tensordict_memmap.schema.plan import plan

Path = tuple[str, ...]

_PLAIN = frozenset({type(None), bool, int, float, str})
_ARRAYS = frozenset("biufc")


def pack(state: Any, name: str) -> tuple[Any, dict[str, Any]]:
    """Split a state into its record and its tensors.

    Args:
        state: None, numbers, strings, tensors, tensordicts, NumPy arrays, and dictionaries with any keys, lists, tuples
            and deques of these; and all values that a save takes as non-tensor values.
        name: The key of the state among others.

    Returns:
        The record, and the tensors as nested dictionaries under ``name``.

    Raises:
        TypeError: A value has no exact form without pickling; the error names its place.

    >>> record, tensors = pack({"state": {0: {"step": torch.tensor(3.0)}}, "lr": 0.5}, "optimizer")
    >>> record["lr"], tensors
    (0.5, {'optimizer': {'state': {'0': {'step': tensor(3.)}}}})
    """
    packer = _Packer()
    return packer.pack(state, (name,), name), packer.tensors


def unpack(record: Any, tensors: TensorCollection, name: str, *, copy: bool = True) -> Any:
    """Return the state of a record.

    Args:
        record: The record.
        tensors: The loaded tensordict that holds the tensors under ``name``.
        name: The key of the state.
        copy: Whether tensors are copied, with the strides that they had. Otherwise they are those of ``tensors``.

    Raises:
        ValueError: The record is damaged, or names a tensor that is missing.

    >>> from tensordict_core import TensorDict
    >>> record, tensors = pack({"state": {0: (torch.tensor(3.0), None)}}, "optimizer")
    >>> unpack(record, TensorDict(tensors), "optimizer")
    {'state': {0: (tensor(3.), None)}}
    """
    return _unpacked(_Unpacker(tensors, copy), record, name)


def places(record: Any, name: str) -> dict[Path, Path]:
    """Return where the tensors of a record are stored that are not under the keys of their positions, by these keys.

    >>> places({"a": {"$": "tensor"}, "b": [{"$": "tensor", "at": ["model", "~0"]}]}, "model")
    {('model', 'b', '0'): ('model', '~0')}
    """
    finder = _PlaceFinder(TensorDict({}), copy=False)
    _unpacked(finder, record, name)
    return finder.found


def _unpacked(unpacker: _Unpacker, record: Any, name: str) -> Any:
    try:
        return unpacker.unpack(record, (name,))
    except (AttributeError, IndexError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"the record of {name!r} is damaged ({error}); restore the checkpoint") from error


def key_path(key: Any, dotted: bool) -> Path:
    """Return the keys under which the tensors of an entry of a dictionary are stored.

    Args:
        key: The key of the entry.
        dotted: Whether the dictionary is the state of a module, whose keys have dots.

    >>> key_path("layer.weight", True), key_path("a.b", False), key_path(0, False)
    (('layer', 'weight'), ('a.b',), ('0',))
    """
    if isinstance(key, str):
        return tuple(key.split(".")) if dotted else (key,)
    return (str(key) if isinstance(key, int) else repr(key),)


class _Packer:
    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}

    def pack(self, value: Any, path: Path, where: str) -> Any:
        """Return the record of a value; its tensors are added to `tensors`."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            return self.tensor(value, path)
        if is_tensor_collection(value):
            _refuse_pickled(value, where)
            return self.put("tensordict", path, value)
        if kind is np.ndarray and value.dtype.kind in _ARRAYS and value.dtype.isnative and value.dtype.itemsize <= 16:
            try:
                return self.put("array", path, torch.from_numpy(np.array(value)))
            except TypeError:  # a dtype that torch lacks
                pass
        if kind is list:
            return self.items(value, path, where)
        if kind is tuple or kind is deque:
            form = {JSON_TAG: kind.__name__, "items": self.items(value, path, where)}
            return form if kind is tuple or value.maxlen is None else {**form, "maxlen": value.maxlen}
        if kind in (dict, OrderedDict, defaultdict):
            return self.mapping(value, path, where)
        if kind is Counter:
            return {JSON_TAG: "counter", "items": self.pairs(value, path, where, dotted=False)}
        try:
            return {JSON_TAG: "value", "form": nontensor.encode(value)}
        except nontensor.NoJsonForm as reason:
            raise TypeError(
                f"{where} is a {kind.__module__}.{kind.__qualname__}, and a checkpoint holds no pickled values "
                f"({reason}); remove it from the state, or save its parts under extra="
            ) from None

    def mapping(self, value: Mapping[Any, Any], path: Path, where: str) -> Any:
        metadata = getattr(value, "_metadata", None)
        if type(value) is not OrderedDict and JSON_TAG not in value and all(type(key) is str for key in value):
            return {
                key: self.pack(item, path + key_path(key, False), f"{where}[{key!r}]") for key, item in value.items()
            }
        tag = "ordered" if type(value) is OrderedDict else "dict"
        form = {JSON_TAG: tag, "items": self.pairs(value, path, where, dotted=metadata is not None)}
        if metadata is not None:  # the versions of modules, which their load_state_dict looks at
            form["metadata"] = self.pack(metadata, (*path, "metadata"), f"{where}._metadata")
        return form

    def pairs(self, value: Mapping[Any, Any], path: Path, where: str, *, dotted: bool) -> list[Any]:
        found = []
        for key, item in value.items():
            named = f"{where}[{key!r}]"
            try:
                form = nontensor.encode(key)
            except nontensor.NoJsonForm as reason:
                raise TypeError(f"the key of {named} has no exact JSON form ({reason}); use another key") from None
            found.append([form, self.pack(item, path + key_path(key, dotted), named)])
        return found

    def items(self, value: Iterable[Any], path: Path, where: str) -> list[Any]:
        return [self.pack(item, (*path, str(n)), f"{where}[{n}]") for n, item in enumerate(value)]

    def tensor(self, value: torch.Tensor, path: Path) -> Any:
        form = self.put("tensor", path, value.detach())
        if type(value) in (torch.Tensor, torch.nn.Parameter) and _is_dense(value):
            form["strides"] = list(value.stride())
        return form

    def put(self, kind: str, path: Path, value: Any) -> dict[str, Any]:
        """Store a tensor or tensordict under its place, or under another key if that is taken."""
        form: dict[str, Any] = {JSON_TAG: kind}
        if not self.is_put(path, value):
            number = 0
            while not self.is_put((path[0], f"~{number}"), value):
                number += 1
            form["at"] = [path[0], f"~{number}"]
        return form

    def is_put(self, path: Path, value: Any) -> bool:
        """Store a value at a place; return False if the place is taken, or if a name in it is empty."""
        if not all(path):
            return False
        node: Any = self.tensors
        for part in path[:-1]:
            node = node.setdefault(part, {})
            if type(node) is not dict:
                return False
        return node.setdefault(path[-1], value) is value


def _refuse_pickled(td: Any, where: str) -> None:
    for node in nodes(plan(td)):
        if isinstance(node, Value):
            try:
                nontensor.encode(node.content())
            except nontensor.NoJsonForm as reason:
                place = "".join(f"[{key!r}]" for key in node.key)
                raise TypeError(
                    f"{where}{place} would be pickled, and a checkpoint holds no pickled values ({reason}); remove it"
                ) from None


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has its elements in another order than a contiguous one, without gaps or overlaps."""
    if tensor.layout is not torch.strided or tensor.is_contiguous() or not tensor.numel():
        return False
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


class _Unpacker:
    def __init__(self, tensors: TensorCollection, copy: bool) -> None:
        self.tensors = tensors
        self.copy = copy

    def unpack(self, form: Any, path: Path) -> Any:
        if type(form) is list:
            return self.items(form, path)
        if type(form) is not dict:
            return form
        tag = form.get(JSON_TAG)
        if tag is None:
            return {key: self.unpack(item, path + key_path(key, False)) for key, item in form.items()}
        if tag == "value":
            return nontensor.decode(form["form"])
        if tag in ("tensor", "array", "tensordict"):
            return self.stored(tag, form, path)
        if tag == "tuple":
            return tuple(self.items(form["items"], path))
        if tag == "deque":
            return deque(self.items(form["items"], path), form.get("maxlen"))
        if tag in ("dict", "ordered", "counter"):
            return self.mapping(tag, form, path)
        raise ValueError(f"the record has the tag {tag!r:.100}, which is not known; upgrade tensordict-memmap")

    def items(self, forms: Sequence[Any], path: Path) -> list[Any]:
        return [self.unpack(form, (*path, str(n))) for n, form in enumerate(forms)]

    def mapping(self, tag: str, form: dict[str, Any], path: Path) -> Any:
        dotted = "metadata" in form
        made: Any = {"dict": dict, "ordered": OrderedDict, "counter": Counter}[tag]()
        for key, item in form["items"]:
            plain = nontensor.decode(key)
            made[plain] = self.unpack(item, path + key_path(plain, dotted))
        if dotted:
            made._metadata = self.unpack(form["metadata"], (*path, "metadata"))
        return made

    def stored(self, tag: str, form: dict[str, Any], path: Path) -> Any:
        place = tuple(form.get("at", path))
        found = self.tensors.get(place, None)
        is_tensor = isinstance(found, torch.Tensor) and not is_tensor_collection(found)
        if found is None or is_tensor == (tag == "tensordict"):
            raise ValueError(f"the {tag} at {'.'.join(place)} is missing; restore the checkpoint")
        if tag == "tensordict":
            return found.clone() if self.copy else found
        tensor = found.as_subclass(torch.Tensor) if type(found).__module__.startswith("tensordict_memmap") else found
        if tag == "array":
            return tensor.numpy().copy()
        if not self.copy or hasattr(tensor, "placements"):  # a DTensor was read into memory of its own
            return tensor
        return _copied(tensor, form.get("strides"))


class _PlaceFinder(_Unpacker):
    """Collects places, and leaves out the tensors."""

    def __init__(self, tensors: TensorCollection, copy: bool) -> None:
        super().__init__(tensors, copy)
        self.found: dict[Path, Path] = {}

    def stored(self, tag: str, form: dict[str, Any], path: Path) -> Any:
        if "at" in form:
            self.found[path] = tuple(form["at"])


def _copied(tensor: torch.Tensor, strides: Sequence[int] | None) -> torch.Tensor:
    if strides is None:
        return tensor.clone()
    are_strides = len(strides) == tensor.dim() and all(type(n) is int and n >= 0 for n in strides)
    if not are_strides or reach(tensor.shape, strides) != tensor.numel():
        raise ValueError(f"the strides {strides!r:.100} do not fit the shape {list(tensor.shape)}")
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
