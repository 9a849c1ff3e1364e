"""Saves of a folder by a function that writes its files, which tests of transactions call at once or in a thread."""

from __future__ import annotations

from tensordict_memmap.storage.transaction import saving


def save_folder(target, write, **options):
    """Save the files that ``write`` writes into a folder; it returns their manifest."""
    with saving(target, is_folder=True, **options) as stage:
        stage.manifest = write(stage.path)
