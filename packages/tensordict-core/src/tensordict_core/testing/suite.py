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


class ContainerSuite(
    AccessTests, IndexTests, ShapeTests, MemoryTests, OperationTests, SelectionTests, LifeTests, TransformTests
):
    """The tests of containers, for pytest.

    A test module subclasses it once for each container, under a name that starts with ``Test``, and overrides `wrap`
    (which returns a container with the entries of a tensordict), `sample` if the container cannot hold the default
    entries, and the flags of features that it lacks.

    >>> class TestDense(ContainerSuite):
    ...     def wrap(self, td):
    ...         return td
    >>> TestDense().test_stack_undoes_unbind()
    """
