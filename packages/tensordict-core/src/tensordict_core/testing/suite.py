"""The suite that every container passes: inherit it, say how to make the container, and what it cannot do."""

from __future__ import annotations

from .access import AccessTests
from .indexing import IndexTests
from .life import LifeTests
from .memory import MemoryTests
from .operations import OperationTests
from .selection import SelectionTests
from .shapes import ShapeTests
from .transforms import TransformTests

__all__ = ["ContainerSuite"]


class ContainerSuite(
    AccessTests, IndexTests, ShapeTests, MemoryTests, OperationTests, SelectionTests, LifeTests, TransformTests
):
    """Every law of containers, as tests for pytest.

    A test module inherits it once for each container, under a name that starts with ``Test``, and overrides `wrap`
    (a container with the entries of a tensordict), `sample` where the container cannot hold those entries, and the
    flags that are not true of it.

    >>> class TestDense(ContainerSuite):
    ...     def wrap(self, td):
    ...         return td
    >>> TestDense().test_stack_undoes_unbind()
    """
