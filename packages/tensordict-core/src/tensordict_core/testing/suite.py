"""`ContainerSuite`: the tests that every container passes; a test class inherits it and defines `wrap`."""

from __future__ import annotations

from tensordict_core.testing.access import AccessTests
from tensordict_core.testing.indexing import IndexTests
from tensordict_core.testing.life import LifeTests
from tensordict_core.testing.memory import MemoryTests
from tensordict_core.testing.operations import OperationTests
from tensordict_core.testing.selection import SelectionTests
from tensordict_core.testing.shapes import ShapeTests
from tensordict_core.testing.transforms import TransformTests

__all__ = ["ContainerSuite"]


class ContainerSuite(
    AccessTests, IndexTests, ShapeTests, MemoryTests, OperationTests, SelectionTests, LifeTests, TransformTests
):
    """The tests of containers, for pytest.

    A test module inherits it once for each container, under a name that starts with ``Test``, and overrides `wrap`
    (a container with the entries of a tensordict), `sample` where the container cannot hold those entries, and the
    flags that do not hold for it.

    >>> class TestDense(ContainerSuite):
    ...     def wrap(self, td):
    ...         return td
    >>> TestDense().test_stack_undoes_unbind()
    """
