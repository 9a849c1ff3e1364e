"""Parser of printed tensordicts: a tensordict of zeros with the keys, shapes, dtypes and metadata of the text."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import torch

from tensordict_core.base.registry.types import containers

_LONG_DTYPES = {"f": "float", "bf": "bfloat", "i": "int", "u": "uint", "c": "complex"}
_SIZE = re.compile(r"(?:torch\.Size\()?\[([-\d, ]*)\]\)?")
_FIELD = re.compile(r"\s*(?P<key>[^\n]+?): (?=[A-Za-z_]\w*\()")
_SHORT_FIELD = re.compile(r"\s*(?P<key>[^\n]+?): (?=\{|\[[\d, ]*\]\{|[a-z]+\d*\[)")
_NODE = re.compile(r"[A-Za-z_]\w*\(\s*fields=\{")
_TENSOR = re.compile(r"[A-Za-z_]\w*\((?P<said>[^()]*(?:torch\.Size\([^)]*\))?[^()]*)\)")
_SHORT_NODE = re.compile(r"[A-Za-z_]\w*\((?P<said>[^{]*?)(?:, )?fields=\{")
_SHORT_TENSOR = re.compile(r"(?P<letters>[a-z_]+?)(?P<bits>\d*)\[(?P<shape>[\d, ]*)\]")
_SHORT_NESTED = re.compile(r"(?:\[(?P<extra>[\d, ]*)\])?\{")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]


class _Reader:
    """A position in the text, with a method for each construct that can follow."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, expected: str) -> NoReturn:
        near = " ".join(self.text[self.at : self.at + 60].split())
        raise ValueError(
            f"the text is not a printed tensordict: {expected} expected at {near!r}; pass the text that repr prints, "
            "with shapes, dtypes and batch sizes and without non-tensor data"
        )

    def take(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        found = pattern.match(self.text, self.at)
        if found is None:
            self.fail(expected)
        self.at = found.end()
        return found

    def skip(self, text: str) -> bool:
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1
        if self.text.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    # the long form ---------------------------------------------------------------------------------------------------

    def node(self) -> Any:
        self.take(_NODE, "a tensordict")
        entries: dict[str, Any] = {}
        while not self.skip("}"):
            key = self.take(_FIELD, "a key")["key"]
            entries[key] = self.node() if _NODE.match(self.text, self.at) else self.tensor()
            self.skip(",")
        rest = self.take(re.compile(r"[^()]*(?:torch\.Size\([^)]*\)[^()]*)*\)"), "the end of a tensordict")[0]
        size = re.search(r"batch_size=" + _SIZE.pattern, rest)
        if size is None:
            self.fail("a batch size")
        device = re.search(r"device=([\w:]+)", rest)
        return containers.dense(
            entries, batch_size=_numbers(size[1]), device=None if device is None or device[1] == "None" else device[1]
        )

    def tensor(self) -> torch.Tensor:
        said = self.take(_TENSOR, "a tensor")["said"]
        shape, dtype = re.search(r"shape=" + _SIZE.pattern, said), re.search(r"dtype=torch\.(\w+)", said)
        if shape is None or dtype is None:
            self.fail("a tensor's shape and dtype")
        device = re.search(r"device=([\w:]+)", said)
        return torch.zeros(_numbers(shape[1]), dtype=getattr(torch, dtype[1]), device=device[1] if device else None)

    # the short form --------------------------------------------------------------------------------------------------

    def short_node(self) -> Any:
        said = self.take(_SHORT_NODE, "a tensordict")["said"]
        size, device = re.search(r"batch_size=" + _SIZE.pattern, said), re.search(r"device=([\w:]+)", said)
        if size is None:
            self.fail("a batch size")
        td = self.short_fields(_numbers(size[1]))
        self.take(re.compile(r"[^)]*\)"), "the end of a tensordict")
        return td if device is None else td.to(device[1])

    def short_fields(self, size: list[int]) -> Any:
        entries: dict[str, Any] = {}
        while not self.skip("}"):
            key = self.take(_SHORT_FIELD, "a key")["key"]
            nested = _SHORT_NESTED.match(self.text, self.at)
            if nested is not None:
                self.at = nested.end()
                entries[key] = self.short_fields([*size, *_numbers(nested["extra"] or "")])
            else:
                found = self.take(_SHORT_TENSOR, "a tensor")
                name = _LONG_DTYPES.get(found["letters"], found["letters"]) + found["bits"]
                dtype = getattr(torch, name, None)
                if not isinstance(dtype, torch.dtype):
                    self.fail("a dtype")
                entries[key] = torch.zeros([*size, *_numbers(found["shape"])], dtype=dtype)
            self.skip(",")
        return containers.dense(entries, batch_size=size)


def parse_tensor_dict_string(s: str) -> Any:
    """Return a tensordict of zeros with the keys, shapes, dtypes, devices and batch sizes of a printed tensordict.

    Args:
        s: The ``repr`` of a tensordict, in the long or the compact form.

    Raises:
        ValueError: The text is not a printed tensordict, or holds non-tensor data.

    >>> from tensordict_core import parse_tensor_dict_string
    >>> td = TensorDict({"a": torch.ones(3, 4), "b": {"c": torch.ones(3, dtype=torch.int64)}}, [3])
    >>> parse_tensor_dict_string(repr(td))["b", "c"]
    tensor([0, 0, 0])
    """
    reader = _Reader(s.strip())
    td = reader.node() if _NODE.match(reader.text) else reader.short_node()
    if reader.at != len(reader.text):
        reader.fail("the end")
    return td
