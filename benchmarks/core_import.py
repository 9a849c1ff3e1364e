"""What importing costs a program that has imported torch already; each sample is a fresh interpreter."""

from __future__ import annotations


class Import:
    repeat = 10
    number = 1
    timeout = 120

    def timeraw_import(self) -> tuple[str, str]:
        return "import tensordict_core", "import torch"

    def timeraw_import_memmap(self) -> tuple[str, str]:
        return "import tensordict_memmap", "import torch, tensordict_core"

    def timeraw_import_class(self) -> tuple[str, str]:
        # Importing torch leaves a full pass of the collector due, over all that torch made, which falls on whatever
        # allocates next: it is done first, so that what is timed is the import.
        return "import tensordict_class", "import torch, tensordict_core, gc; gc.collect()"

    def timeraw_import_reference(self) -> tuple[str, str]:
        return "import tensordict", "import torch"
