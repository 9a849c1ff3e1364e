"""Compatibility: names that programs import from private modules of the reference.

They are public here, under plain names; ``tensordict-suite`` serves them under the names that those programs use.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from tensordict_core import NestedKey, unravel_key
from tensordict_nn.distributions.mappings import expln
from tensordict_nn.distributions.truncated_normal import TruncatedStandardNormal
from tensordict_nn.modules.dispatch import DISPATCHES, set_dispatch
from tensordict_nn.modules.skipping import set_skip_existing
from tensordict_nn.params.uninitialized import BatchedUninitializedBuffer, BatchedUninitializedParameter
from tensordict_nn.probabilistic.generators import use_generator

__all__ = [
    "BatchedUninitializedBuffer",
    "BatchedUninitializedParameter",
    "TruncatedStandardNormal",
    "add_suffix",
    "dispatches",
    "expln",
    "set_dispatch",
    "set_skip_existing_of_block",
    "use_generator",
    "whole_in_pytrees",
]


def dispatches() -> bool:
    """Return whether functions with `dispatch` take tensors.

    >>> with set_dispatch(False):
    ...     dispatches()
    False
    """
    return DISPATCHES.get()


class set_skip_existing_of_block(set_skip_existing):
    """Decorator of ``forward`` that takes the mode of the enclosing block, as ``set_skip_existing(None)``.

    >>> set_skip_existing_of_block().mode is None
    True
    """

    def __init__(self) -> None:
        super().__init__(None)


def add_suffix(key: NestedKey, suffix: str) -> str | tuple[str, ...]:
    """Return a key with a suffix at its last level.

    >>> add_suffix(("a", "b"), "_log_prob")
    ('a', 'b_log_prob')
    """
    whole = unravel_key(key)
    return whole + suffix if isinstance(whole, str) else (*whole[:-1], whole[-1] + suffix)


class whole_in_pytrees:
    """Context manager without effect, which programs enter around ``vmap`` and ``torch.func`` transforms.

    Nothing changes in it: ``torch.vmap`` and ``torch.func`` map tensordicts as the pytrees that they are.

    >>> with whole_in_pytrees():
    ...     torch.vmap(lambda td: td + 1)(TensorDict({"a": torch.zeros(2)}, [2]))["a"]
    tensor([1., 1.])
    """

    def set(self) -> None:
        """Keep the block open; nothing changes."""

    def unset(self) -> None:
        """Close the block; nothing changes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.unset()
