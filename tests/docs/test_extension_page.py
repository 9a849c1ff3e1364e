"""The container that the page on extensions builds passes the container suite, and is short."""

from __future__ import annotations

from typing import Any

from tests.docs.test_examples import ROOT, examples

from tensordict_core.testing import ContainerSuite

CODE = next(code for _, code, _ in examples((ROOT / "docs" / "extension.md").read_text()) if "class Numpy" in code)
exec(compile(CODE, "docs/extension.md", "exec"), globals())  # compiled programs look for its names in a module
make: Any = globals()["NumpyTensorDict"]


class TestNumpyTensorDict(ContainerSuite):
    def wrap(self, td):
        return make(td)


def test_the_container_of_the_page_has_fewer_than_80_lines():
    assert CODE.count("\n") < 80
