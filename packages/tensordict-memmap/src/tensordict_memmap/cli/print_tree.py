"""Prints the files of a folder as a tree."""

from __future__ import annotations

import os


def print_directory_tree(path: str | os.PathLike[str], indent: str = "", display_metadata: bool = True) -> str:
    """Print the files and folders below a folder, one per line, and return the printed text.

    Args:
        path: The folder.
        indent: The start of each line.
        display_metadata: Whether the first line gives the total size in bytes.

    >>> from tensordict_core import TensorDict
    >>> _ = TensorDict({"a": torch.zeros(3), "b": {"c": torch.zeros(2)}}).save("saved_tree")
    >>> listed = print_directory_tree("saved_tree", display_metadata=False)
    saved_tree/
        a.memmap
        b/
            c.memmap
            meta.json
        meta.json
        tensordict.manifest.json
    """
    root = os.path.abspath(path)
    lines, total = _lines(root, indent)
    if display_metadata:
        lines.insert(0, f"{indent}{total:,} bytes in {root}")
    listed = "\n".join(lines)
    print(listed)
    return listed


def _lines(folder: str, indent: str) -> tuple[list[str], int]:
    lines, total = [f"{indent}{os.path.basename(folder)}/"], 0
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            inside, size = _lines(entry.path, indent + "    ")
            lines += inside
        else:
            lines.append(f"{indent}    {entry.name}")
            size = entry.stat(follow_symlinks=False).st_size
        total += size
    return lines, total
