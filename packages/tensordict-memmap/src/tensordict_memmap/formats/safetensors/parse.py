"""Parser of safetensors saves: from the metadata and the tensors of a file to the tensordict.

A file may come from anyone: a structure that does not fit the tensors is an error that names the key, no class is
imported because a file names it, and nothing is unpickled unless the caller allows it. Published checkpoints, which
have no structure in their metadata, become nested tensordicts by the dots in their names.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import orjson
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, UnbatchedTensor
from tensordict_core.extension import Meta, dense
from tensordict_memmap.formats.safetensors.describe import RECORD, VERSION
from tensordict_memmap.formats.safetensors.dotted_names import DIGEST, by_names, digest, from_digest, keys_of
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.build import check_on_meta
from tensordict_memmap.schema.dtypes import dtype_from_name
from tensordict_memmap.schema.node import WRAPPED, Path, find_class, show
from tensordict_memmap.schema.prune import Choice, Part, part_of_names, part_of_record

__all__ = ["needed_at_once", "unpack", "wanted"]

_LONG = re.compile("[0-9]{19}")
"""Digits that may be those of an integer of more than 64 bits, which the quick parser would turn into a float."""


def unpack(
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    *,
    where: str,
    device: torch.device | None = None,
    allow_pickle: bool | None = False,
    part: Part | None = None,
    locked: bool = False,
) -> Any:
    """The tensordict of a file.

    Args:
        tensors: its tensors by name.
        metadata: its texts.
        where: its path, which errors name.
        device: the device of every node.
        allow_pickle: whether values without a JSON form may be unpickled; None puts None in their place.
        part: what of it is wanted, where not all tensors were opened.
        locked: whether it may be locked already, where that takes no time of its own.

    Raises:
        ValueError: The record is damaged or does not fit the tensors; the error names the key.

    >>> unpack({"a.b": torch.ones(2)}, {}, where="x")["a", "b"]
    tensor([1., 1.])
    """
    text = metadata.get(RECORD)
    if part is not None:
        tensors = {name: tensor for name, tensor in tensors.items() if name in part.taken}
    if text is None:
        names = tensors if part is None else part.names
        if metadata.get(DIGEST) not in (None, digest("", names)):
            raise ValueError(
                f"the names of the tensors in {where} are not those that were saved; the file is damaged, or another "
                f"tool changed it: remove {DIGEST!r} from its metadata to open it under the names that it has"
            )
        return by_names(tensors, Meta(torch.Size(()), device), names=names, locked=locked)
    if part is None and DIGEST in metadata:
        dotted = from_digest(text, tensors, metadata[DIGEST], device, locked=locked)
        if dotted is not None:
            return dotted
    root = _parse(text, where)["root"] if part is None or part.root is None else part.root
    reader = _Reader(tensors, where, device, allow_pickle)
    try:
        made = reader.root(root)
    except RecursionError:
        raise ValueError(
            f"the structure of {where} is nested deeper than tensordicts can be; the file is damaged"
        ) from None
    if len(reader.used) != len(tensors):
        unused = tensors.keys() - reader.used
        raise ValueError(
            f"the structure of {where} says where each of its tensors belongs, and not where {sorted(unused)[:5]} do; "
            "the file is damaged, or another tool added them"
        )
    return made


def _parse(text: str, where: str) -> Any:
    try:
        try:
            if '"non_tensor":' in text and _LONG.search(text):
                document = nontensor.loads(text.encode("utf-8", "surrogatepass"))
            else:
                document = orjson.loads(text)
        except orjson.JSONDecodeError:
            document = nontensor.loads(text.encode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise ValueError(f"the structure in {where} is JSON, and this is not: {error}; the file is damaged") from None
    if not isinstance(document, dict) or not isinstance(document.get("root"), dict):
        raise ValueError(f"the structure in {where} is an object with a root, and this is not; the file is damaged")
    if document.get("version") != VERSION:
        raise ValueError(
            f"this version reads structures of version {VERSION}, and {where} has {document.get('version')!r:.50}; "
            "upgrade tensordict-memmap"
        )
    return document


def wanted(names: Collection[str], metadata: Mapping[str, str], choice: Choice, where: str) -> Part | None:
    """The part of the tensors of several files that is asked for; None if that is all.

    Args:
        names: the tensors.
        metadata: the texts of the file that holds the record, if any does.
        choice: the keys that are asked for.
        where: the path of the files, which errors name.
    """
    text = metadata.get(RECORD)
    if text is None:
        return part_of_names(keys_of(names), choice)
    try:
        return part_of_record(_parse(text, where)["root"], names, choice)
    except RecursionError:
        return None  # which is said when it is read


def needed_at_once(metadata: Mapping[str, str], where: str) -> list[str]:
    """The names of the tensors whose values `unpack` looks at: nested ones with their shapes, and what was pickled.

    >>> needed_at_once({"tensordict": '{"version":1,"root":{"keys":{"n":{"tensor":"n","shapes":"n.shape"}}}}'}, "x")
    ['n', 'n.shape']
    """
    text = metadata.get(RECORD)
    found: list[str] = []
    stack: list[Any] = [] if text is None else [_parse(text, where)["root"]]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            if "shapes" in one or "pickled" in one:  # which may be keys of a user as well
                found.extend(name for name in (one.get("tensor"), one.get("shapes")) if isinstance(name, str))
            stack.extend(one.values())
        elif isinstance(one, list):
            stack.extend(one)
    return found


@dataclass(slots=True)
class _Reader:
    tensors: Mapping[str, torch.Tensor]
    where: str
    device: torch.device | None
    allow_pickle: bool | None
    used: set[str] = field(default_factory=set)
    plain: Meta = field(init=False)
    """The meta of nodes without a batch size."""

    def __post_init__(self) -> None:
        self.plain = Meta(torch.Size(()), self.device)

    def root(self, record: dict[str, Any]) -> Any:
        if "value" in record:
            size = self.size(record.get("batch_size"), ())
            return self.value(self.checked(record["value"], dict, ()), (), size)
        return self.node(record, ())

    def node(self, record: dict[str, Any], key: Path, outer: tuple[int, ...] = ()) -> Any:
        size = self.size(record.get("batch_size"), key)
        names = record.get("names")
        if names is not None and not (
            isinstance(names, list) and len(names) == len(size) and all(isinstance(name, str | None) for name in names)
        ):
            raise self.damaged(key, f"the dimension names {names!r:.100}")
        parts, dim = record.get("parts"), record.get("stack_dim")
        if dim is not None and type(dim) is not int:
            raise self.damaged(key, f"the stack dimension {dim!r:.100}")
        if parts is not None:
            made = self.stack_of_parts(self.checked(parts, list, key), dim, names, key)
        else:
            made = self.dense(record, key, size, names if dim is None else None)
            if dim is not None:
                made = self.stack(made, dim, names, key)
        class_string = record.get("class")
        return made if class_string is None else self.wrapped(made, record, class_string, key)

    def dense(self, record: dict[str, Any], key: Path, size: tuple[int, ...], names: Any) -> Any:
        entries: dict[str, Any] = {}
        tensors, used, dims = self.tensors, self.used, len(size)
        for name, about in self.checked(record.get("keys"), dict, key).items():
            # what comes often is said here first
            stored: Any = about.get("tensor") if type(about) is dict and len(about) == 1 else None
            tensor = tensors.get(stored) if type(stored) is str else None
            if tensor is not None and (not dims or tensor.shape[:dims] == size):
                entries[name] = tensor
                used.add(stored)
            else:
                entries[name] = self.entry(about, (*key, name), size)
        if not dims and names is None:
            return dense(entries, self.plain)
        return dense(entries, Meta(torch.Size(size), self.device, None if names is None else tuple(names)))

    def entry(self, about: Any, key: Path, size: tuple[int, ...]) -> Any:
        self.checked(about, dict, key)
        if "td" in about:
            made = self.node(self.checked(about["td"], dict, key), key)
            if size and tuple(made.batch_size[: len(size)]) != size:
                raise self.damaged(key, f"the batch size {list(made.batch_size)} where that around it is {list(size)}")
            return made
        if "non_tensor" in about or "pickled" in about:
            return self.value(about, key, size)
        if "tensor" not in about:
            raise self.damaged(key, f"the description {about!r:.100}")
        tensor = self.tensor(about, key)
        if about.get("unbatched"):
            return UnbatchedTensor(tensor, torch.Size(size))
        if "shapes" in about:
            tensor = self.nested(tensor, about, key)
            if size and tensor.size(0) != size[0]:
                raise self.damaged(key, f"{tensor.size(0)} components where the batch size is {list(size)}")
        elif tuple(tensor.shape[: len(size)]) != size:
            raise self.damaged(
                key, f"the shape {list(tensor.shape)}, which does not start with the batch size {list(size)}"
            )
        return tensor

    def tensor(self, about: dict[str, Any], key: Path, field: str = "tensor") -> torch.Tensor:
        name = about[field]
        tensor = self.tensors.get(name) if isinstance(name, str) else None
        if tensor is None:
            raise self.damaged(key, f"the tensor {name!r:.100}, which the file does not hold")
        self.used.add(name)
        stored_as = about.get("dtype")
        if stored_as is None or field != "tensor":
            return tensor
        try:
            dtype = dtype_from_name(stored_as)
            if (
                dtype is torch.complex128 and tensor.data_ptr() % dtype.itemsize
            ):  # torch's kernels would end the process
                raise ValueError("which it has at an address that is no multiple of 16")
            return torch.view_as_complex(tensor) if dtype.is_complex else tensor.view(dtype)
        except (ValueError, RuntimeError, AttributeError, TypeError) as error:
            raise self.damaged(
                key, f"the dtype {stored_as!r:.50} for {tensor.dtype} {list(tensor.shape)} ({error})"
            ) from None

    def nested(self, flat: torch.Tensor, about: dict[str, Any], key: Path) -> torch.Tensor:
        shapes = self.tensor(about, key, "shapes")
        if shapes.ndim != 2 or shapes.dtype != torch.int64:
            raise self.damaged(key, "shapes of components that are none")
        rows = shapes.tolist()
        counts = [prod(row) for row in rows]
        ragged = about.get("ragged", 1)
        if any(n < 0 for row in rows for n in row) or sum(counts) != flat.numel() or type(ragged) is not int:
            raise self.damaged(key, f"shapes of components that do not fit its {flat.numel()} elements")
        if self.device is not None and self.device.type == "meta":
            check_on_meta(about.get("layout", "strided"), key)
            flat = flat.to("meta")
        parts = [part.view(row) for part, row in zip(torch.split(flat, counts), rows, strict=True)] if rows else []
        jagged = about.get("layout") == "jagged"
        try:
            made: torch.Tensor
            if jagged and rows and not flat.is_meta and all(row[1:] == rows[0][1:] for row in rows):
                offsets = torch.tensor([0, *(row[0] for row in rows)], device=flat.device).cumsum(0)
                made = torch.nested.nested_tensor_from_jagged(flat.view(int(offsets[-1]), *rows[0][1:]), offsets)
            else:
                layout = torch.jagged if jagged else torch.strided
                made = torch.nested.nested_tensor(parts, dtype=flat.dtype, device=flat.device, layout=layout)
            return made.transpose(1, ragged) if ragged != 1 else made
        except (RuntimeError, IndexError, AssertionError) as error:
            raise self.damaged(key, f"shapes of components that make no nested tensor ({error})") from None

    # --- what is made of other nodes

    def stack(self, made: Any, dim: int, names: Any, key: Path) -> Any:
        if not 0 <= dim < made.batch_dims:
            raise self.damaged(key, f"the stack dimension {dim} for the batch size {list(made.batch_size)}")
        parts = list(made.unbind(dim))
        name = None if names is None else names[dim]
        for part in parts:
            if names is not None and any(other is not None for other in (*names[:dim], *names[dim + 1 :])):
                part.names = [*names[:dim], *names[dim + 1 :]]
        if not parts:
            raise self.damaged(key, "a lazy stack of nothing")
        return LazyStackedTensorDict(*parts, stack_dim=dim, stack_dim_name=name)

    def stack_of_parts(self, parts: list[Any], dim: int | None, names: Any, key: Path) -> Any:
        made = [self.node(self.checked(part, dict, key), (*key, str(number))) for number, part in enumerate(parts)]
        if dim is None or not 0 <= dim <= (made[0].batch_dims if made else 0):
            raise self.damaged(key, f"the stack dimension {dim!r}")
        name = None if names is None else names[dim]
        try:
            return LazyStackedTensorDict(*made, stack_dim=dim, stack_dim_name=name)
        except (RuntimeError, ValueError) as error:
            raise self.damaged(key, f"parts that make no lazy stack ({error})") from None

    def wrapped(self, made: Any, record: dict[str, Any], class_string: Any, key: Path) -> Any:
        owner = record.get("owner")
        if not isinstance(class_string, str) or not isinstance(owner, str | None):
            raise self.damaged(key, f"the class {class_string!r:.100}")
        cls = find_class(class_string, owner)
        if cls is None:
            warnings.warn(
                f"classes are found by their registered names, and that of {_place(key)}, {class_string}, is not "
                "registered here, so its content is loaded as a plain tensordict; import the module that defines the "
                "class first",
                UserWarning,
                stacklevel=2,
            )
            return made
        return cls._from_disk_form(self.checked(record.get("facts", {}), dict, key), {WRAPPED: made})

    def value(self, about: dict[str, Any], key: Path, size: tuple[int, ...]) -> Any:
        own = self.size(about["batch_size"], key) if "batch_size" in about else size
        if about.get("pickled"):
            value = self.unpickled(about, key)
        else:
            try:
                value = nontensor.from_forms(about["non_tensor"], about.get("exact"))
            except (ValueError, EOFError, KeyError) as error:
                raise ValueError(f"the value of {_place(key)} in {self.where} cannot be read: {error}") from error
        if not about.get("stack"):
            return NonTensorData(value, batch_size=own, device=self.device)
        if value is None and self.allow_pickle is None:
            return NonTensorData(None, batch_size=own, device=self.device)
        if not isinstance(value, list):
            raise self.damaged(key, "no list of values")
        return NonTensorStack.from_list(value, batch_size=nontensor.stack_size(value, own), device=self.device)

    def unpickled(self, about: dict[str, Any], key: Path) -> Any:
        if self.allow_pickle is None:
            self.tensor(about, key)
            return None
        if not self.allow_pickle:
            raise ValueError(
                f"{_place(key)} was pickled, and unpickling runs whatever code is in the file; pass allow_pickle=True "
                f"if you trust who wrote {self.where}"
            )
        return pickle.loads(self.tensor(about, key).cpu().contiguous().view(torch.uint8).numpy().tobytes())

    # --- checks

    def checked(self, found: Any, kind: type[Any], key: Path) -> Any:
        if not isinstance(found, kind):
            raise self.damaged(key, f"{found!r:.100} where a {kind.__name__} belongs")
        return found

    def size(self, found: Any, key: Path) -> tuple[int, ...]:
        if found == []:
            return ()
        if not isinstance(found, list) or any(type(n) is not int or not -1 <= n < 1 << 63 for n in found):
            raise self.damaged(key, f"the batch size {found!r:.100}")
        return tuple(found)

    def damaged(self, key: Path, what: str) -> ValueError:
        return ValueError(f"the structure in {self.where} gives {_place(key)} {what}; the file is damaged: save again")


def _place(key: Path) -> str:
    return f"key {show(key)}" if key else "the saved object"
