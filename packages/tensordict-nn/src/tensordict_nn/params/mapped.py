"""Parameters over files: a warning before training would change a saved checkpoint.

Tensors that are mapped for writing share their memory with a file. As parameters of a module they are changed in place
by an optimizer, and the file with them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from tensordict_core.extension import writes_to

_known: set[str] = set()
"""The files that a warning named already."""


def maps_files(kinds: Iterable[type[Any]]) -> bool:
    """Return whether tensors of these types may be mapped onto files.

    >>> maps_files({Tensor})
    False
    """
    return any(hasattr(kind, "writes_to") for kind in kinds)


def file_among(leaves: Iterable[Tensor]) -> str | None:
    """Return the first file that in-place changes of some tensors reach."""
    return next((file for leaf in leaves if (file := writes_to(leaf)) is not None), None)


def warn_of_file(file: str, stacklevel: int) -> None:
    """Warn, once for each file, that training changes it."""
    if file in _known:
        return
    _known.add(file)
    warnings.warn(
        f"the parameters are mapped for writing onto saved files, so training the module changes {file}; load with "
        "mode='c' for private copies on write, or copy them with clone()",
        stacklevel=stacklevel + 1,
    )


class Guard:
    """Warns when the earlier parameters of a module are dropped, unless they were put back.

    Args:
        file: A file that the new parameters are mapped onto.
    """

    def __init__(self, file: str) -> None:
        self.file: str | None = file

    def dismiss(self) -> None:
        """Note that the parameters were put back."""
        self.file = None

    def __del__(self) -> None:
        if self.file is not None and not sys.is_finalizing():
            warn_of_file(self.file, 2)
