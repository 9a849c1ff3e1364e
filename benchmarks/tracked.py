"""Tracked: the benchmarks of the dashboard, which run on every commit of this repository, each beside its contenders.

Only names that the first release of a package exported are used; what moved since is found by `contenders.found`, so
one file of benchmarks measures every commit. ``python -m benchmarks.tracked --json FILE`` measures the packages that
are on the path. `benchmarks.dashboard.history` does this for many commits.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import shutil
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import OnDisk, Run, Tracked, core, found, measure, memmap, reference, scratch, settle
from benchmarks.dashboard.series import matches
from benchmarks.workloads import Tree, flat, small_leaves, transformer


class Saves(OnDisk):
    """Saves to one file."""

    def by_ours(self) -> Run:
        td, save = core().TensorDict(self.tree(), []), memmap("to_safetensors")
        return lambda: save(td, self.path)

    def by_torch(self) -> Run:
        state = dict(flat(self.tree()))
        return lambda: torch.save(state, self.path)

    def by_safetensors(self) -> Run:
        state, save = dict(flat(self.tree())), found("safetensors.torch:save_file")
        return lambda: save({key: leaf.contiguous() for key, leaf in state.items()}, self.path)

    def by_reference(self) -> Run:
        td = reference().TensorDict(self.tree(), [])
        return lambda: td.consolidate(filename=self.path)


class SaveModel(Saves):
    pretty_name = "Save a model to one file"
    about = "40 tensors of a transformer, 10 MB, to a new path"

    def tree(self) -> Tree:
        return transformer(layers=3)


class SaveModelOver(SaveModel):
    pretty_name = "Save a model over an earlier one"
    about = "40 tensors of a transformer, 10 MB, to the path of the checkpoint before"
    note = (
        "tensordict writes into the file of the earlier save: an interrupted save destroys it, and a reader sees "
        "parts of both. Ours writes a new file, whose pages the system must allocate, and renames it."
    )

    def before(self) -> None:
        self.run()
        settle()


class SaveSmall(Saves):
    pretty_name = "Save 1,000 small tensors"
    about = "1,000 tensors of 1 KiB, to one new file"

    def tree(self) -> Tree:
        return small_leaves(1000)


class Opens(OnDisk):
    """Opens of one save, which is made once."""

    about = "40 tensors of a transformer, 10 MB; memory mapped, no value is read"
    rounds_here = 15

    opening_function: str
    opening_method: str
    """What opens the save: our function, and the method of the reference's class."""

    def setup(self, contender: str) -> None:
        if hasattr(self, "opened"):
            return
        super().setup(contender)
        self.run()  # the save
        load = {
            "ours": lambda: memmap(self.opening_function),
            "torch": lambda: lambda path: torch.load(path, mmap=True),
            "safetensors": lambda: found("safetensors.torch:load_file"),
            "reference": lambda: getattr(reference().TensorDict, self.opening_method),
        }[contender]()
        self.opened: Run = lambda: load(self.path)

    def teardown(self, contender: str) -> None:
        """Keeps the save, which every sample opens."""

    def time_run(self, contender: str) -> None:
        self.opened()


class OpenModel(Opens, SaveModel):
    pretty_name = "Open a model from one file"
    opening_function, opening_method = "from_safetensors", "from_consolidated"


class SaveFolder(SaveModel):
    pretty_name = "Save a model, a file for each tensor"
    about = "40 tensors of a transformer, 10 MB, to a new folder; torch and safetensors write one file"
    limits = ("torch", "safetensors")
    less = "one file"
    ending = ""

    def by_ours(self) -> Run:
        td, save = core().TensorDict(self.tree(), []), memmap("memmap")
        return lambda: save(td, self.path)

    def by_reference(self) -> Run:
        td = reference().TensorDict(self.tree(), [])
        return lambda: td.memmap(self.path)


class SaveFolderOver(SaveFolder):
    pretty_name = "Save a model over an earlier one, a file for each tensor"
    about = "40 tensors of a transformer, 10 MB, to the folder of the checkpoint before"
    note = (
        "tensordict writes into the files of the earlier save: an interrupted save leaves parts of both. Ours "
        "writes new files, exchanges the folders and removes the old ones; memmap(atomic=False) writes in place."
    )

    def before(self) -> None:
        self.run()
        settle()


class OpenFolder(Opens, SaveFolder):
    pretty_name = "Open a model, a file for each tensor"
    opening_function = opening_method = "load_memmap"


class Consolidate(Tracked):
    pretty_name = "Consolidate in memory"
    about = "40 tensors of a transformer, 10 MB, into one storage; torch joins them by torch.cat"
    rounds_here = 15

    def by_ours(self) -> Run:
        td, consolidate = core().TensorDict(transformer(layers=3), []), memmap("consolidate")
        return lambda: consolidate(td)

    def by_reference(self) -> Run:
        td = reference().TensorDict(transformer(layers=3), [])
        return lambda: td.consolidate()

    def by_torch(self) -> Run:
        leaves = [leaf.reshape(-1) for _, leaf in flat(transformer(layers=3))]
        return lambda: torch.cat(leaves)

    limits = ("torch",)


class ReadRows(Tracked):
    pretty_name = "Read a random batch from disk"
    about = "256 of 4,000 rows, an image of 12 KB and a label each; torch indexes the mapped tensors"
    limits = ("torch",)
    rows_on_disk = 4000

    def data(self, library: Any) -> Any:
        image = torch.randint(256, (self.rows_on_disk, 64, 64, 3), dtype=torch.uint8)
        return library.TensorDict({"image": image, "label": torch.arange(self.rows_on_disk)}, [self.rows_on_disk])

    def rows(self) -> Callable[[], torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        batches = [torch.randint(self.rows_on_disk, (256,), generator=generator) for _ in range(32)]
        turns = itertools.cycle(batches)
        return lambda: next(turns)

    def warm(self, run: Callable[[torch.Tensor], Any]) -> Run:
        """Reads every row once, as an epoch does, so that all pages are mapped; then random batches are read."""
        for chunk in torch.arange(self.rows_on_disk).split(250):
            run(chunk)
        rows = self.rows()
        return lambda: run(rows())

    def saved(self) -> Path:
        self.folder = scratch()
        return self.folder / "data"

    def __del__(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)

    def by_ours(self) -> Run:
        path = self.saved()
        memmap("memmap")(self.data(core()), path)
        loaded = memmap("load_memmap")(path)
        return self.warm(lambda rows: loaded[rows])

    def by_reference(self) -> Run:
        path = self.saved()
        self.data(reference()).memmap(path)
        loaded = reference().TensorDict.load_memmap(path)
        return self.warm(lambda rows: loaded[rows])

    def by_torch(self) -> Run:
        path = self.saved()
        path.mkdir()
        data: dict[str, torch.Tensor] = {}
        for key, shape, dtype in (("image", (64, 64, 3), torch.uint8), ("label", (), torch.int64)):
            source = torch.randint(256, (self.rows_on_disk, *shape), dtype=dtype)
            source.numpy().tofile(path / key)
            mapped = torch.from_file(str(path / key), shared=True, size=source.numel(), dtype=source.dtype)
            data[key] = mapped.reshape(source.shape)
        return self.warm(lambda rows: {key: leaf[rows] for key, leaf in data.items()})


class InMemory(Tracked):
    """An operation on ten tensors of 3 x 4; torch does the same with a dictionary of tensors."""

    limits = ("torch",)

    def leaves(self) -> dict[str, torch.Tensor]:
        return {f"key{i}": torch.randn(3, 4) for i in range(10)}

    @abstractmethod
    def on(self, library: Any) -> Run:
        """Returns the operation on tensordicts of a library."""

    def by_ours(self) -> Run:
        return self.on(core())

    def by_reference(self) -> Run:
        return self.on(reference())


class Construct(InMemory):
    pretty_name = "Make a tensordict"
    about = "Of a dictionary of ten tensors and a batch size; torch copies the dictionary"

    def on(self, library: Any) -> Run:
        leaves, cls = self.leaves(), library.TensorDict
        return lambda: cls(leaves, [3])

    def by_torch(self) -> Run:
        leaves = self.leaves()
        return lambda: dict(leaves)


class NestedKey(InMemory):
    pretty_name = "Get a nested entry"
    about = 'td["node", "leaf"]; torch looks into two dictionaries'

    def on(self, library: Any) -> Run:
        td = library.TensorDict({"node": {"leaf": torch.randn(3, 4)}}, [3])
        return lambda: td["node", "leaf"]

    def by_torch(self) -> Run:
        found_in = {"node": {"leaf": torch.randn(3, 4)}}
        return lambda: found_in["node"]["leaf"]


class Index(InMemory):
    pretty_name = "Index with a number"
    about = "td[0] of ten tensors"

    def on(self, library: Any) -> Run:
        td = library.TensorDict(self.leaves(), [3])
        return lambda: td[0]

    def by_torch(self) -> Run:
        leaves = self.leaves()
        return lambda: {key: leaf[0] for key, leaf in leaves.items()}


class Stack(InMemory):
    pretty_name = "Stack"
    about = "torch.stack of eight tensordicts of ten tensors"

    def on(self, library: Any) -> Run:
        many = [library.TensorDict(self.leaves(), [3]) for _ in range(8)]
        return lambda: torch.stack(many)

    def by_torch(self) -> Run:
        many = [self.leaves() for _ in range(8)]
        return lambda: {key: torch.stack([one[key] for one in many]) for key in many[0]}


class Add(InMemory):
    pretty_name = "Add"
    about = "td + td, ten tensors each"

    def on(self, library: Any) -> Run:
        a, b = library.TensorDict(self.leaves(), [3]), library.TensorDict(self.leaves(), [3])
        return lambda: a + b

    def by_torch(self) -> Run:
        a, b = self.leaves(), self.leaves()
        return lambda: {key: leaf + b[key] for key, leaf in a.items()}


FIELDS = tuple(f"field{i}" for i in range(10))


class TensorClass(InMemory):
    pretty_name = "Make a tensorclass and read a field"
    about = "Ten fields; torch is an object with a dictionary"

    def made(self, decorator: Any) -> Run:
        body = type("Record", (), {"__annotations__": dict.fromkeys(FIELDS, torch.Tensor), "__module__": __name__})
        cls, values = decorator(body), {name: torch.randn(3, 4) for name in FIELDS}
        return lambda: cls(**values, batch_size=[3]).field3

    def on(self, library: Any) -> Run:
        return self.made(library.tensorclass)

    def by_ours(self) -> Run:
        core()
        return self.made(found("tensordict_class:tensorclass"))

    def by_torch(self) -> Run:
        class Plain:
            def __init__(self, batch_size: list[int], **fields: torch.Tensor) -> None:
                self.batch_size = batch_size
                self.fields = fields

        values = {name: torch.randn(3, 4) for name in FIELDS}
        return lambda: Plain(**values, batch_size=[3]).fields["field3"]


class ModuleCall(InMemory):
    pretty_name = "Call a module on a tensordict"
    about = "TensorDictModule around a linear layer of 8 x 8; torch calls the layer"

    def called(self, library: Any, modules: Any) -> Run:
        module = modules.TensorDictModule(torch.nn.Linear(8, 8), ["x"], ["y"])
        td = library.TensorDict({"x": torch.randn(3, 8)}, [3])
        return lambda: module(td)

    def on(self, library: Any) -> Run:
        return self.called(library, found("tensordict.nn"))

    def by_ours(self) -> Run:
        return self.called(core(), found("tensordict_nn"))

    def by_torch(self) -> Run:
        layer, x = torch.nn.Linear(8, 8), torch.randn(3, 8)
        return lambda: layer(x)


class SwapParameters(InMemory):
    pretty_name = "Run a module with other parameters"
    about = "with params.to_module(transformer): 184 parameters; torch reparametrizes by their names"

    def module(self) -> torch.nn.Module:
        return torch.nn.Transformer(32, 2, 6, 6, 32, batch_first=True)

    def on(self, library: Any) -> Run:
        module = self.module()
        params = library.TensorDict.from_module(module)

        def swap() -> None:
            with params.to_module(module):
                pass

        return swap

    def by_ours(self) -> Run:
        core()
        found("tensordict_nn")
        return super().by_ours()

    def by_torch(self) -> Run:
        module = self.module()
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}

        def swap() -> None:
            with torch.nn.utils.stateless._reparametrize_module(module, tensors):
                pass

        return swap


def tracked() -> dict[str, type[Tracked]]:
    """The benchmarks by the name that asv gives them, in the order of this file."""
    here = [value for value in globals().values() if inspect.isclass(value) and issubclass(value, Tracked)]
    return {f"tracked.{cls.__name__}.time_run": cls for cls in here if not inspect.isabstract(cls)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write samples and failures to this file")
    parser.add_argument("--only", default="", help="run only benchmarks whose names contain one of these, by commas")
    options = parser.parse_args()
    torch.set_num_threads(2)
    written: dict[str, Any] = {}
    for name, cls in tracked().items():
        if not matches(name, options.only):
            continue
        samples, failed = measure(cls)
        written[name] = {"samples": samples, "failed": failed}
        cells = [f"{contender} {sorted(taken)[len(taken) // 2] * 1e6:.1f} us" for contender, taken in samples.items()]
        print(f"{cls.pretty_name}: {', '.join(cells + [f'{k} failed ({v})' for k, v in failed.items()])}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(written))


if __name__ == "__main__":
    main()
