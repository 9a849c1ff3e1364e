"""Constructors with their result type: functions of `ops.io` return a `TensorDict`, which that layer cannot name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec

from tensordict_core.containers.dense import TensorDict
from tensordict_core.ops.io import from_python, parse

__all__ = [
    "from_dict",
    "from_namedtuple",
    "from_tuple",
    "fromkeys",
    "make_tensordict",
    "merge_tensordicts",
    "parse_tensor_dict_string",
]

P = ParamSpec("P")


def _returns_tensordict(function: Callable[P, Any]) -> Callable[P, TensorDict]:
    return function


from_dict = _returns_tensordict(from_python.from_dict)
from_namedtuple = _returns_tensordict(from_python.from_namedtuple)
from_tuple = _returns_tensordict(from_python.from_tuple)
fromkeys = _returns_tensordict(from_python.fromkeys)
make_tensordict = _returns_tensordict(from_python.make_tensordict)
merge_tensordicts = _returns_tensordict(from_python.merge_tensordicts)
parse_tensor_dict_string = _returns_tensordict(parse.parse_tensor_dict_string)
