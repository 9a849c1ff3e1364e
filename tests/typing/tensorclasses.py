"""What type checkers know of tensorclasses: the constructor, the fields and the results of operations.

Each line with an expected error names it for both checkers: ``type: ignore`` for mypy, ``pyright: ignore`` for pyright.
One that does not come fails the check (``warn_unused_ignores``, ``reportUnnecessaryTypeIgnoreComment``), as one that is
not named does.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar, assert_type

import torch
from torch import Tensor

from tensordict_class import TensorClass, TypedTensorDict, tensorclass
from tensordict_core import TensorDict

T = TypeVar("T")


class Point(TensorClass):
    x: Tensor
    label: str = "origin"
    weight: Tensor = field(default_factory=lambda: torch.ones(3))

    def twice(self) -> Tensor:
        return self.x * 2


point = Point(torch.zeros(3), "here", batch_size=[3], device="cpu", names=["time"], lock=False)
assert_type(point, Point)
assert_type(point.x, Tensor)
assert_type(point.label, str)
assert_type(point.batch_size, torch.Size)
assert_type(point.device, torch.device | None)
assert_type(point + 1, Point)
assert_type(point.sin(), Point)
assert_type(point.clone(), Point)
assert_type(point.reshape(3, 1), Point)
assert_type(point.unbind(0), tuple[Point, ...])
assert_type(Point.from_dict({"x": torch.zeros(3)}), Point)
assert_type(point.twice(), Tensor)
for row in point:
    assert_type(row, Point)
assert_type(point[0], Point)
assert_type(point[1:, None], Point)
assert_type(point[..., None], Point)
assert_type(point[[0, 2]], Point)
assert_type(point[range(2)], Point)
assert_type(point[point.x > 0], Point)
assert_type(point["x"], Any)
for compared in (point == point, point != 0, point < 1, point <= 1):
    assert_type(compared, Point)
assert_type(1 - point / point.x, Point)
assert_type(point.split(2), tuple[Point, ...])
assert_type(point.to_tensordict(), TensorDict)
assert_type(point.replace(x=torch.ones(3)), Point)
assert_type(replace(point, label="there"), Point)
assert_type(Point.from_tensordict(point.to_tensordict()), Point)
match point:
    case Point(x, label):
        assert_type(x, Tensor)
        assert_type(label, str)
point.batch_size = [3]
point.x = torch.ones(3)

Point()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Point(x=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Point(torch.zeros(3), batch=[3])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Point(torch.zeros(3), batch_size="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
point.typo = 1  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
point.label = 3  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]


class Child(Point, kw_only=True):
    y: Tensor


assert_type(Child(torch.zeros(3), y=torch.zeros(3)).y, Tensor)
Child(torch.zeros(3))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


class Node(TensorClass):
    """Fields may name the class itself, and methods give the class that they are called on."""

    value: Tensor
    next: Node | None = None
    kind: ClassVar[str] = "list"

    @classmethod
    def of(cls, number: float) -> Self:
        return cls(torch.tensor(number))

    def doubled(self) -> Self:
        return self * 2


class Named(Node):
    name: str | int | None = None


assert_type(Named.of(1.0).doubled(), Named)
assert_type(Named(torch.zeros(1), Node.of(1.0), "text").next, Node | None)
assert_type(Node.kind, str)
Named(torch.zeros(1), name=[1])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Box(TensorClass, Generic[T]):
    content: T


class Both(Node, Box[int]):
    pass


assert_type(Box(torch.zeros(3)).content, Tensor)
assert_type(Box[int](3)[None], Box[int])
assert_type(Both(value=torch.zeros(1), content=3).content, int)
Box[int]("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Frozen(TensorClass, frozen=True):
    x: Tensor


Frozen(torch.zeros(3)).x = torch.ones(3)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


class State(TypedTensorDict):
    position: Tensor
    mass: Tensor | None = None


state = State(position=torch.zeros(3), batch_size=[3])
assert_type(state.position, Tensor)
assert_type(state.mass, Tensor | None)
assert_type(state + 1, State)
State()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
State(torch.zeros(3))  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]


@tensorclass
class Decorated:
    x: Tensor


@tensorclass(frozen=True)
class DecoratedWithFlags:
    x: Tensor


assert_type(Decorated(torch.zeros(3)).x, Tensor)
assert_type(DecoratedWithFlags(torch.zeros(3)).x, Tensor)
Decorated()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
DecoratedWithFlags(torch.zeros(3)).x = torch.ones(3)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]

# What checkers cannot know (docs/tensorclasses.md): a decorator cannot add arguments to a class, nor brackets flags.
Decorated(torch.zeros(3), batch_size=[3])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


class Bracketed(TensorClass["nocast"]):  # type: ignore[type-arg, name-defined]  # brackets hold types for a checker
    x: Tensor


assert_type(Bracketed(torch.zeros(3)).x, Tensor)
