"""Modules on tensorclasses: typed input and output, and the same module on tensordicts.

The types come from the subscript of the base class, so type checkers and the wrapper agree. Fields come from the
annotations of the classes; this package does not need tensordict-class.
"""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from torch import nn

from tensordict_core import TensorDict
from tensordict_core.extension import TensorCollection
from tensordict_nn import errors
from tensordict_nn.modules.base import TensorDictModuleBase, require_inputs
from tensordict_nn.modules.dispatch import dispatch

Input = TypeVar("Input")
Output = TypeVar("Output")


def _is_tensorclass(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, TensorCollection)


def _fields(kind: Any) -> list[Any]:
    """Return the keys of a tensorclass, including those of nested ones."""
    keys: list[Any] = []
    for name, hint in typing.get_type_hints(kind).items():
        if name.startswith("_"):
            continue
        options = [hint, *typing.get_args(hint)]
        nested = next((option for option in options if _is_tensorclass(option)), None)
        if nested is None:
            keys.append(name)
        else:
            keys += [(name, *((key,) if isinstance(key, str) else key)) for key in _fields(nested)]
    return keys


class TensorClassModuleBase(ABC, nn.Module, Generic[Input, Output]):
    """The base of modules that take and return tensorclasses: ``TensorClassModuleBase[Input, Output]``.

    Attributes:
        input_type: The type of the argument of ``forward``.
        output_type: The type of its result.

    >>> class Double(TensorClassModuleBase[torch.Tensor, torch.Tensor]):
    ...     def forward(self, x):
    ...         return x * 2
    >>> Double()(torch.ones(1)), Double.input_type.__name__
    (tensor([2.]), 'Tensor')
    """

    input_type: type[Any]
    output_type: type[Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in getattr(cls, "__orig_bases__", ()):
            types = typing.get_args(base)
            if len(types) == 2 and not any(isinstance(kind, TypeVar) for kind in types):
                cls.input_type, cls.output_type = types

    @abstractmethod
    def forward(self, x: Input) -> Output:
        """Compute the output from the input."""

    def as_td_module(self) -> TensorClassModuleWrapper:
        """Return this module as a module on tensordicts.

        Raises:
            ValueError: The input or the output type is not a tensorclass.

        >>> from tensordict_class import tensorclass
        >>> Point = tensorclass(type("Point", (), {"__annotations__": {"x": torch.Tensor}}))
        >>> class Double(TensorClassModuleBase[Point, Point]):
        ...     def forward(self, point):
        ...         return point * 2
        >>> Double().as_td_module().in_keys
        ['x']
        """
        return TensorClassModuleWrapper(self)


class TensorClassModuleWrapper(TensorDictModuleBase):
    """A module on tensorclasses that takes and returns tensordicts; ``in_keys`` and ``out_keys`` are the fields.

    The result is a new tensordict of the output's fields only.

    Args:
        module: The module, with tensorclasses as both types.

    Raises:
        ValueError: A type is not a tensorclass.

    >>> from tensordict_class import tensorclass
    >>> Point = tensorclass(type("Point", (), {"__annotations__": {"x": torch.Tensor}}))
    >>> class Double(TensorClassModuleBase[Point, Point]):
    ...     def forward(self, point):
    ...         return point * 2
    >>> TensorClassModuleWrapper(Double())(TensorDict({"x": torch.ones(2)}, [2]))["x"]
    tensor([2., 2.])
    """

    def __init__(self, module: TensorClassModuleBase[Any, Any]) -> None:
        super().__init__()
        types = [getattr(type(module), name, None) for name in ("input_type", "output_type")]
        if not all(map(_is_tensorclass, types)):
            raise errors.no_types(type(module))
        self.module = module
        self.in_keys = _fields(types[0])
        self.out_keys = _fields(types[1])

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: Any) -> Any:
        """Take a tensordict of the input's fields and return one of the output's fields.

        Raises:
            KeyError: A field is missing, and the module failed without it.
        """
        given = tensordict
        if not isinstance(given, self.module.input_type):
            given = self.module.input_type.from_tensordict(given.select(*self.in_keys, strict=False))
        try:
            result = self.module(given)
        except Exception as error:
            require_inputs(self.module, self.in_keys, tensordict, error)
            raise
        out = TensorDict({}, batch_size=result.batch_size, device=result.device)
        for key in self.out_keys:
            value = result.get(key, None)
            if value is not None:
                out.set(key, value)
        return out
