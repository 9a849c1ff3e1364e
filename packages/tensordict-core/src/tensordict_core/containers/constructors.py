"""Constructors with static result types: the functions of `ops.io`, annotated with containers of this layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from torch import Tensor

from tensordict_core.containers.collection import TensorCollection
from tensordict_core.containers.dense import TensorDict
from tensordict_core.containers.lazy import LazyStackedTensorDict
from tensordict_core.ops.io import from_python, merge, parse
from tensordict_core.ops.io.from_python import BuildOptions

P = ParamSpec("P")
Td = TypeVar("Td", bound=TensorCollection)


class FromAny(Protocol):
    """The type of ``from_any``: mappings and tuples become a `TensorDict`; tensors and containers keep their type."""

    @overload
    def __call__(self, obj: Tensor, **options: Unpack[BuildOptions]) -> Tensor: ...
    @overload
    def __call__(self, obj: Td, **options: Unpack[BuildOptions]) -> Td: ...
    @overload
    def __call__(self, obj: Mapping[Any, Any] | tuple[Any, ...], **options: Unpack[BuildOptions]) -> TensorDict: ...
    @overload
    def __call__(self, obj: Any, **options: Unpack[BuildOptions]) -> Any: ...


class FromList(Protocol):
    """The type of ``from_list``: ``lazy`` selects a lazy stack, a dense tensordict, or either."""

    @overload
    def __call__(
        self, input: Sequence[Any], *, lazy: Literal[True], **options: Unpack[BuildOptions]
    ) -> LazyStackedTensorDict: ...
    @overload
    def __call__(
        self, input: Sequence[Any], *, lazy: Literal[False], **options: Unpack[BuildOptions]
    ) -> TensorDict: ...
    @overload
    def __call__(
        self, input: Sequence[Any], *, lazy: bool | None = ..., **options: Unpack[BuildOptions]
    ) -> TensorDict | LazyStackedTensorDict: ...


def _returns_tensordict(function: Callable[P, Any]) -> Callable[P, TensorDict]:
    return function


from_any: FromAny = from_python.from_any
from_list: FromList = from_python.from_list
from_dict = _returns_tensordict(from_python.from_dict)
from_namedtuple = _returns_tensordict(from_python.from_namedtuple)
from_tuple = _returns_tensordict(from_python.from_tuple)
fromkeys = _returns_tensordict(from_python.fromkeys)
make_tensordict = _returns_tensordict(from_python.make_tensordict)
merge_tensordicts = _returns_tensordict(merge.merge_tensordicts)
parse_tensor_dict_string = _returns_tensordict(parse.parse_tensor_dict_string)
