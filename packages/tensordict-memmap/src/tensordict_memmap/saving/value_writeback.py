"""Write-back of non-tensor values: saves a changed value of a mapped tensordict to its folder.

Core calls `write_back` when a value changes, before it sets the new value in the tensordict. The value is written only
if the files still hold the old one, since another save may have replaced them. Formats that hold all values in one file
have no room for a longer value, so a change is refused there.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from tensordict_core import NonTensorStack
from tensordict_core.extension import annotation
from tensordict_memmap.formats import tree
from tensordict_memmap.formats.names import META
from tensordict_memmap.saving.options import SaveOptions
from tensordict_memmap.saving.tree import TreeWriter
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.build import VALUE_FOLDER, VALUE_IN_FILE
from tensordict_memmap.schema.plan import plan
from tensordict_memmap.storage import ownership


def write_back(old: Any, new: Any) -> None:
    """Save a new value to the folder of the old one, if it has a folder.

    Raises:
        RuntimeError: The value is part of one file or shared by rows, or its folder was replaced.
    """
    if annotation(old, VALUE_IN_FILE):
        raise RuntimeError(
            "this non-tensor value is in one file with all others, and only values in a folder change in place; save "
            "the tensordict again, or change a clone() of it in memory"
        )
    folder = annotation(old, VALUE_FOLDER)
    if folder is None:
        return
    if isinstance(new, NonTensorStack) and _is_in_a_dataset(folder):
        found = [one for node in (old, new) for one in node.reshape(-1).tolist()]
        if all(nontensor.is_same(found[0], one) for one in found):
            return
        raise RuntimeError(
            f"the new values for {folder} differ, and all rows of a growing dataset share one value; store "
            "them as a tensor, or change the value for all rows"
        )
    if not _holds(folder, old):
        raise RuntimeError(
            f"{folder} was replaced or removed since the tensordict was loaded, so its value is not changed there; "
            "load the tensordict again"
        )
    TreeWriter(new, folder, SaveOptions(copy_existing=False, mapped=False)).run()


def _is_in_a_dataset(folder: Path) -> bool:
    manifest = ownership.manifest_for(folder)
    return manifest is not None and manifest.rows_committed is not None


def _holds(folder: Path, value: Any) -> bool:
    try:
        saved = json.loads((folder / META).read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the save already warned about pickling
        known = json.loads(tree.describe(tree.name_files(plan(value)))[META])
    return bool(saved.get("data") == known.get("data"))
