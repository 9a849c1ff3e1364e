"""Values: entries of a state dict that are not tensors, as JSON; other objects only where pickling is allowed.

The planners of DCP pass such an entry to a storage as a stream of ``torch.save``, and expect such a stream for a load.
To save without pickling, the object itself is taken from the default planners. For a load, the stream is made in memory
from the JSON of the file.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem

from tensordict_memmap.schema import nontensor

_STREAM = "torch_save"
"""The key of the only entry of a dictionary that holds a stream of ``torch.save`` as bytes."""

_RAW = "dcp_bytes"
"""The same for a stream in another form, which a custom planner wrote."""


def dump_value(item: WriteItem, planner: SavePlanner, *, allow_pickle: bool) -> bytes:
    """Return the JSON of an entry.

    Args:
        item: The write item.
        planner: The planner that has the entry.
        allow_pickle: Whether an object without a JSON form is stored as the bytes of ``torch.save``.

    Raises:
        TypeError: It has no JSON form, and pickling is not allowed; the error names the key.
    """
    name = item.index.fqn
    if isinstance(planner, DefaultSavePlanner) and _hands_out_objects(planner):
        found = planner.lookup_object(item.index)
    else:
        stream = planner.resolve_data(item)
        if isinstance(stream, torch.Tensor):
            raise TypeError(
                f"the planner planned key {name!r} as bytes, and gives a tensor for it; plan it as a tensor"
            )
        data = stream.getvalue()
        if not data.startswith((b"PK", b"\x80")):
            return nontensor.dumps(nontensor.encode({_RAW: data}))
        try:
            found = torch.load(io.BytesIO(data), weights_only=True)
        except pickle.UnpicklingError as reason:
            return _opaque(name, data, reason, allow_pickle)
    try:
        return nontensor.dumps(nontensor.encode(found))
    except nontensor.NoJsonForm as reason:
        data = b""
        if allow_pickle:
            made = io.BytesIO()
            torch.save(found, made)
            data = made.getvalue()
        return _opaque(name, data, reason, allow_pickle)


def _hands_out_objects(planner: DefaultSavePlanner) -> bool:
    """Return whether a planner stores an entry as it is."""
    own, default = type(planner), DefaultSavePlanner
    return own.resolve_data is default.resolve_data and own.transform_object is default.transform_object


def _opaque(name: str, data: bytes, reason: Exception, allow_pickle: bool) -> bytes:
    if not allow_pickle:
        raise TypeError(
            f"key {name!r} has no JSON form: {reason}; pass allow_pickle=True to the writer to store it as the bytes "
            "of torch.save"
        ) from None
    return nontensor.dumps(nontensor.encode({_STREAM: data}))


def load_value(message: bytes) -> Any:
    """Return the value of the JSON of an entry, which may hold a stream as bytes.

    >>> load_value(b'{"$":"tuple","items":[1,2]}')
    (1, 2)
    """
    return nontensor.decode(nontensor.loads(message))


def stream_of(name: str, value: Any, *, allow_pickle: bool) -> io.BytesIO:
    """Return the stream that a planner loads an entry from.

    Args:
        name: The joined name of the entry, for errors.
        value: Its value in the file.
        allow_pickle: Whether bytes of ``torch.save`` in the file may go to the planner, which unpickles them.

    Raises:
        ValueError: The file holds such bytes, and they may not.

    >>> torch.load(stream_of("a", {"b": (1, 2)}, allow_pickle=False))
    {'b': (1, 2)}
    """
    if type(value) is dict and len(value) == 1:
        if isinstance(value.get(_RAW), bytes):
            return io.BytesIO(value[_RAW])
        if isinstance(value.get(_STREAM), bytes):
            if not allow_pickle:
                raise ValueError(
                    f"key {name!r} was stored as the bytes of torch.save, and unpickling them runs code from the file; "
                    "pass allow_pickle=True to the reader if you trust who wrote the file"
                )
            return io.BytesIO(value[_STREAM])
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return stream
