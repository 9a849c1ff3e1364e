"""Compatibility: names that programs import from private modules of the reference.

They are public here, under plain names; ``tensordict-suite`` serves them under the names that those programs use.
"""

from __future__ import annotations

from abc import ABCMeta
from typing import TYPE_CHECKING, Any

from tensordict_class.base import TensorClass

if TYPE_CHECKING:
    from tensordict_class.transform import Transforming as TensorClassMeta
else:

    class _Instances(type):
        """The metaclass of `TensorClassMeta`: tensorclasses are its instances, although their metaclass is `type`."""

        def __instancecheck__(cls, instance: Any) -> bool:
            if cls is TensorClassMeta:
                return isinstance(instance, type) and issubclass(instance, TensorClass)
            return super().__instancecheck__(instance)

    class TensorClassMeta(ABCMeta, metaclass=_Instances):
        """A metaclass to derive metaclasses of tensorclasses from; ``isinstance`` tests for a tensorclass.

        Tensorclasses need no metaclass, so ``isinstance(instance, TensorClass)`` stays fast. A program that derives its
        own from this one can combine it with `abc.ABC`.

        >>> from tensordict_class import TensorClass
        >>> class Upper(TensorClassMeta):
        ...     def __new__(mcs, name, bases, namespace, **flags):
        ...         return super().__new__(mcs, name.upper(), bases, namespace, **flags)
        >>> class Point(TensorClass["frozen"], metaclass=Upper):
        ...     x: torch.Tensor
        >>> Point.__name__, isinstance(Point, Upper), isinstance(TensorClass, TensorClassMeta)
        ('POINT', True, True)
        """


def equal_fields(instance: Any, other: Any) -> Any:
    """Return ``instance == other`` as tensorclasses define it, also of a class whose ``__eq__`` a program replaces.

    >>> from tensordict_class import TensorClass
    >>> class Point(TensorClass): x: torch.Tensor
    >>> equal_fields(Point(torch.zeros(2)), Point(torch.zeros(2))).x
    tensor([True, True])
    """
    result = TensorClass.__eq__(instance, other)
    return False if result is NotImplemented else result


def item_of(instance: Any, item: Any) -> Any:
    """Return ``instance[item]`` as tensorclasses define it.

    >>> from tensordict_class import TensorClass
    >>> class Point(TensorClass): x: torch.Tensor
    >>> item_of(Point(torch.arange(2), batch_size=[2]), 1).x
    tensor(1)
    """
    return TensorClass.__getitem__(instance, item)
