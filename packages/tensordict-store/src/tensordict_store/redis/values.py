"""Values: non-tensor data as the bytes of a value on the server, and back."""

from __future__ import annotations

import json
from typing import Any

import torch

from tensordict_core import NonTensorStack
from tensordict_core.extension import Meta
from tensordict_store.arrays.values import STACK, VALUE, Encoded, decode, encode
from tensordict_store.redis.layout import Record, gone


def encoded(key: str, node: Any, allow_pickle: bool) -> tuple[Record, bytes]:
    """Return the record and the bytes of non-tensor data.

    Raises:
        TypeError: JSON cannot hold the value, and pickles are not allowed.
    """
    content, attributes = encode(key, node, allow_pickle)
    encoding = attributes.get(VALUE, {"encoding": "json"})["encoding"]
    stack = tuple(attributes[STACK]) if STACK in attributes else None
    if stack is not None and encoding == "json":
        return Record(None, None, "json_array", stack=stack), json.dumps(node.tolist()).encode()
    record = Record(None, None, encoding, stack=stack)
    return record, content if isinstance(content, bytes) else json.dumps(content).encode()


def decoded(key: str, record: Record, content: bytes | None, meta: Meta, allow_pickle: bool) -> Any:
    """Return non-tensor data from the bytes of the server.

    Raises:
        KeyError: The value does not exist on the server.
        ValueError: The bytes are damaged, or they are a pickle and pickles are not allowed.
    """
    if content is None:
        raise gone(key)
    if record.encoding == "json_array":
        values = decode(key, Encoded(content, {VALUE: {"encoding": "json"}}), Meta(torch.Size(())), False).data
        size = (len(values),) if record.stack is None else record.stack
        try:
            return NonTensorStack.from_list(values, batch_size=size, device=meta.device)
        except (ValueError, TypeError, IndexError, RuntimeError) as error:
            raise ValueError(f"the values of {key!r} on the server are damaged: {error}; store them again") from None
    facts = {} if record.stack is None else {STACK: list(record.stack)}
    return decode(key, Encoded(content, {VALUE: {"encoding": record.encoding}, **facts}), meta, allow_pickle)
