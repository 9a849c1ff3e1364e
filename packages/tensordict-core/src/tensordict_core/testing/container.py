"""Configuration of the container suite: how to make the container under test, and flags for unsupported features."""

from __future__ import annotations

from typing import Any

import torch

from tensordict_core.base.node import Node, has_entries
from tensordict_core.containers.dense import TensorDict
from tensordict_core.containers.nontensor.data import NonTensorStack

BATCH = (2, 3)


class ContainerCase:
    """Makes the containers of the suite; a test class overrides `wrap`, and the flags of features that it lacks.

    >>> class TestMine(ContainerCase):
    ...     def wrap(self, td):
    ...         return td.clone()
    >>> TestMine().make().batch_size
    torch.Size([2, 3])
    """

    supports_new_keys = True
    """Whether entries may be added, replaced, renamed and removed."""
    supports_batch_size = True
    """Whether the batch size may be set to a shorter or longer one."""
    supports_lock = True
    """Whether the container can be locked and unlocked, and starts unlocked."""
    ragged = False
    """Whether entries have no dense form, so no test reads them as one tensor."""
    copies_shallowly = True
    """Whether ``clone(False)`` returns a new container of the same tensors."""
    pickles_entries = True
    """Whether a pickle holds the entries; that of a store may refer to them."""
    shares_slices = True
    """Whether reads share memory with the container instead of copying."""
    fills_rows = True
    """Whether a key that is written to some rows exists in all of them."""
    holds_values = True
    """Whether entries may be non-tensor data."""
    device = "cpu"
    """The device of the tensors of the samples."""
    batch = BATCH
    """The batch size of the samples."""

    def sample(self, kind: str = "mixed") -> TensorDict:
        """Return the entries of the containers under test: ``"mixed"``, ``"floating"`` only or ``"integral"`` only."""
        generator = torch.Generator().manual_seed(0)

        def floats(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            # between 0.2 and 0.8, where every function of a number is defined
            return torch.rand(*self.batch, *shape, generator=generator, dtype=dtype) * 0.6 + 0.2

        def integers(*shape: int) -> torch.Tensor:
            return torch.randint(1, 9, (*self.batch, *shape), generator=generator)

        entries: dict[str, Any] = {}
        if kind != "integral":
            entries |= {"a": floats(2), "nested": {"b": floats(1, 2, dtype=torch.float64), "deep": {"c": floats()}}}
        if kind != "floating":
            entries |= {"count": integers()}
        if kind == "integral":
            entries |= {"nested": {"n": integers(2)}}
        if self.holds_values:
            n, m = self.batch
            words = [[f"{i}-{j}" for j in range(m)] for i in range(n)]
            entries |= {"text": "hello", "words": NonTensorStack.from_list(words, batch_size=self.batch)}
        return TensorDict(entries, batch_size=self.batch)

    def wrap(self, td: TensorDict) -> Any:
        """Return the container under test, with the entries of ``td``."""
        return td

    def make(self, kind: str = "mixed") -> Any:
        """Return a new container under test."""
        return self.wrap(self.sample(kind))

    def dense(self, kind: str = "mixed") -> TensorDict:
        """Return a plain tensordict of the same entries."""
        return self.sample(kind)

    def tensor_key(self, td: Any) -> str:
        """Return a key of a floating-point tensor."""
        tensors = ((key, value) for key, value in td._peek_items() if not isinstance(value, Node))
        return next(str(key) for key, value in tensors if value.is_floating_point())

    def node_key(self, td: Any) -> str | None:
        """Return a key of a nested container; ``None`` if there is none."""
        found = (key for key, value in td._peek_items() if has_entries(value))
        return next(found, None)
