"""Non-tensor values that change in place: the folder of the entry is saved anew, all of it or nothing.

One file that holds a whole tensordict has its values where they cannot grow, so there a change is refused.

Tensors change in their files as they are written to. A value is written before the tensordict takes it, and only where
the files still hold what the tensordict has: another save may have taken the place meanwhile.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from tensordict_core import NonTensorStack, TensorCollection, is_non_tensor
from tensordict_core.extension import annotate, annotation, register_value_writer
from tensordict_memmap.formats import tree
from tensordict_memmap.formats.names import META
from tensordict_memmap.saving.tree import TreeSave
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.build import VALUE_FOLDER
from tensordict_memmap.schema.plan import plan
from tensordict_memmap.storage import ownership

__all__ = ["remember_file"]

_FILE = "value_in_one_file"


def remember_file(td: Any, path: Path, mode: str | None) -> None:
    """Has a tensordict know the one file that it is mapped onto; where tensors are written to it, values refuse."""
    annotate(td, "saved_path", path)
    annotate(td, "mode", mode)
    waiting = [td] if mode == "r+" else []
    while waiting:
        node = waiting.pop()
        if is_non_tensor(node):
            annotate(node, _FILE, True)
        elif isinstance(node, TensorCollection):
            waiting += node._nodes()


def _keep(old: Any, new: Any) -> None:
    if annotation(old, _FILE):
        raise RuntimeError(
            "values that are no tensors are changed in place where they were saved to a folder, and this one lies in "
            "one file with all others; save the tensordict anew, or change a clone() of it in memory"
        )
    folder = annotation(old, VALUE_FOLDER)
    if folder is None:
        return
    if isinstance(new, NonTensorStack) and _is_in_a_dataset(folder):
        found = [one for node in (old, new) for one in node.reshape(-1).tolist()]
        if all(nontensor.is_same(found[0], one) for one in found):
            return
        raise RuntimeError(
            f"rows of a dataset that grows share their values, and those for {folder} differ; store what differs by "
            "row as a tensor, or change the value for all rows"
        )
    if not _holds(folder, old):
        raise RuntimeError(
            f"a saved value is changed where the files hold what the tensordict has, and {folder} was replaced or "
            "removed since; load the tensordict again"
        )
    TreeSave(new, folder, False, None, True, True, False).run(None, None)


def _is_in_a_dataset(folder: Path) -> bool:
    manifest = ownership.manifest_for(folder)
    return manifest is not None and manifest.rows_committed is not None


def _holds(folder: Path, value: Any) -> bool:
    try:
        saved = json.loads((folder / META).read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is pickled was said when it was saved
        known = json.loads(tree.describe(tree.name_files(plan(value)))[META])
    return bool(saved.get("data") == known.get("data"))


register_value_writer(_keep)
