"""Time of an import after torch was imported; each sample is a new interpreter."""

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
        # Importing torch leaves a full garbage collection due, which the next allocation triggers: it runs first, so
        # that only the import is timed.
        return "import tensordict_class", "import torch, tensordict_core, gc; gc.collect()"

    def timeraw_import_reference(self) -> tuple[str, str]:
        return "import tensordict", "import torch"


class FirstSave:
    """The first save of a process, which imports what saves need."""

    repeat = 10
    number = 1
    timeout = 120

    def timeraw_memmap_after_import(self) -> tuple[str, str]:
        setup = """
            import tempfile, torch, tensordict_core, tensordict_memmap, gc
            td = tensordict_core.TensorDict({"a": torch.zeros(3), "b": {"c": torch.ones(2)}})
            folder = tempfile.mkdtemp()
            gc.collect()
        """
        return "td.memmap(folder)", setup

    def timeraw_memmap_after_import_reference(self) -> tuple[str, str]:
        setup = """
            import tempfile, torch, tensordict, gc
            td = tensordict.TensorDict({"a": torch.zeros(3), "b": {"c": torch.ones(2)}})
            folder = tempfile.mkdtemp()
            gc.collect()
        """
        return "td.memmap(folder)", setup
