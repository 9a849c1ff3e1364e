"""Operation records: one `OpSpec` for each generated operation.

The records feed in-place twins, operators, ``torch`` function dispatch, tensorclass forwarding, the policy of parameter
containers, the documentation and the parametrized tests. Factories make them; `operations` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Family = Literal["unary", "binary", "ternary", "compare", "reduce", "cast", "shape", "test"]
Parameters = Literal["plain", "data"]


@dataclass(frozen=True)
class OpSpec:
    """The record of one operation on tensordicts.

    Attributes:
        name: The method's name.
        family: Which algorithm runs it; tests pick their samples by family.
        leaf: The operation on one tensor, with the method's arguments.
        inplace: Whether the operation writes into the leaves and returns the tensordict itself.
        operators: Names of the operator methods that call the method.
        torch_functions: The ``torch`` functions that dispatch to the method.
        parameters: The result for a parameter container: ``"plain"`` tensors, or an action on ``"data"``.
        floating: Whether the operation is defined for floating-point leaves only.

    >>> next(op for op in operations() if op.name == "abs").family
    'unary'
    """

    name: str
    family: Family
    leaf: Callable[..., Any]
    inplace: bool = False
    operators: tuple[str, ...] = ()
    torch_functions: tuple[Callable[..., Any], ...] = field(default=(), compare=False)
    parameters: Parameters = "plain"
    floating: bool = False


_specs: dict[str, OpSpec] = {}


def record(spec: OpSpec) -> OpSpec:
    """Add the record of an operation.

    Raises:
        ValueError: The name is taken.
    """
    if spec.name in _specs:
        raise ValueError(f"operation {spec.name!r} is recorded already; use another name")
    _specs[spec.name] = spec
    return spec


def operations() -> tuple[OpSpec, ...]:
    """Return every recorded operation, in the order of definition.

    >>> {"abs", "add", "sum"} <= {op.name for op in operations()}
    True
    """
    return tuple(_specs.values())
