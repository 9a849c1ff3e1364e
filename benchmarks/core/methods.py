"""Compares every method without I/O with the reference, on five containers: ``python -m benchmarks.core.methods``.

The calls are generated: a method of the public interface with the arguments in `ARGUMENTS`, or with none if it needs
none. Ours and the reference run one after another in every round, in CPU time of this thread; a ratio is the median
over the rounds. ``--below 1`` prints only the rows below that ratio; `REASONS` says why some are.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from statistics import median
from timeit import Timer
from types import ModuleType
from typing import Any

import torch

import tensordict as reference
import tensordict.nn  # the reference imports it on request
import tensordict_class
import tensordict_core
import tensordict_nn
from benchmarks.core.operations import interleaved, mean, timer

ROWS, COLUMNS, LEAVES, STACKED = 3, 4, 10, 8

_SKIPPED = """
    all_gather all_reduce arecv asend broadcast gather_and_stack irecv isend recv reduce send init_remote
    from_remote_init consolidate cuda dumps load load_ load_memmap load_memmap_ make_memmap save saved_path
    make_memmap_from_storage make_memmap_from_tensor map map_iter memmap memmap_ memmap_like memmap_refresh_
    pin_memory pin_memory_ record_stream share_memory_ to_csv to_h5 to_json to_mds to_pandas to_parquet
    to_store to_zarr from_h5 from_zarr from_any from_consolidated from_dataclass from_dict from_dict_instance
    from_list from_module from_modules from_namedtuple from_pytree from_schema from_struct_array
    from_tensordict from_tuple fromkeys backward clear clear_device_ del_ pop popitem rename_key_ rename_keys
    zero_grad append extend insert register_get_post_hook load_state_dict to_module lazy_stack
    maybe_dense_stack
"""
SKIPPED = frozenset(_SKIPPED.split())
"""Methods with I/O, processes or devices; constructors of classes; methods whose second call differs from the first."""


def _each(names: str, arguments: Callable[[Any], tuple[Any, ...]]) -> dict[str, Callable[[Any], tuple[Any, ...]]]:
    return dict.fromkeys(names.split(), arguments)


ARGUMENTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    **_each("add add_ sub sub_ mul mul_ div div_ pow pow_ maximum maximum_ minimum minimum_ mod rsub", lambda o: (o,)),
    **_each("__add__ __sub__ __mul__ __truediv__ __pow__ __mod__", lambda o: (o,)),
    **_each("__eq__ __ne__ __lt__ __le__ __gt__ __ge__", lambda o: (o,)),
    **_each("clamp_max clamp_min clamp_max_ clamp_min_ update update_", lambda o: (o,)),
    **_each("addcdiv addcmul addcdiv_ addcmul_", lambda o: (o, o)),
    **_each("sum mean prod std var amax amin all any cummax cummin logsumexp max min", lambda o: (0,)),
    **_each("nanmean nansum softmax unbind squeeze unsqueeze flip repeat", lambda o: (0,)),
    "lerp": lambda o: (o, 0.5),
    "lerp_": lambda o: (o, 0.5),
    "clamp": lambda o: (0.0, 1.0),
    "get": lambda o: ("key0",),
    "get_at": lambda o: ("key0", 0),
    "get_item_shape": lambda o: ("key0",),
    "get_non_tensor": lambda o: ("key0",),
    "set": lambda o: ("key0", torch.zeros(ROWS, COLUMNS)),
    "set_": lambda o: ("key0", torch.zeros(ROWS, COLUMNS)),
    "set_at_": lambda o: ("key0", torch.zeros(COLUMNS), 0),
    "setdefault": lambda o: ("key0", torch.zeros(ROWS, COLUMNS)),
    "fill_": lambda o: ("key0", 1.0),
    "select": lambda o: ("key0", "key1"),
    "exclude": lambda o: ("key0", "key1"),
    "split_keys": lambda o: (["key0"], ["key1"]),
    "separates": lambda o: ("key0",),
    "rename": lambda o: ("row",),
    "rename_": lambda o: (None,),
    "refine_names": lambda o: (None,),
    "expand": lambda o: (2, ROWS),
    "expand_as": lambda o: (o,),
    "broadcast_to": lambda o: ((2, ROWS),),
    "reshape": lambda o: (1, ROWS),
    "view": lambda o: (1, ROWS),
    "flatten": lambda o: (0, 0),
    "unflatten": lambda o: (0, (1, ROWS)),
    "permute": lambda o: (0,),
    "transpose": lambda o: (0, 0),
    "swapaxes": lambda o: (0, 0),
    "swapdims": lambda o: (0, 0),
    "moveaxis": lambda o: (0, 0),
    "movedim": lambda o: (0, 0),
    "narrow": lambda o: (0, 0, 2),
    "roll": lambda o: (1, 0),
    "tile": lambda o: (2,),
    "repeat_interleave": lambda o: (2,),
    "split": lambda o: (1,),
    "chunk": lambda o: (2,),
    "tensor_split": lambda o: (2,),
    "gather": lambda o: (0, torch.tensor([0, 2])),
    "masked_fill": lambda o: (torch.tensor([True, False, True]), 0.0),
    "masked_fill_": lambda o: (torch.tensor([True, False, True]), 0.0),
    "masked_select": lambda o: (torch.tensor([True, False, True]),),
    "where": lambda o: (torch.tensor([True, False, True]), o),
    "apply": lambda o: (torch.neg,),
    "apply_": lambda o: (torch.abs,),
    "named_apply": lambda o: (lambda name, leaf: leaf,),
    "flatten_keys": lambda o: (".",),
    "unflatten_keys": lambda o: (".",),
    "to": lambda o: (torch.float64,),
    "type": lambda o: (torch.float64,),
    "norm": lambda o: (),
    "quantile": lambda o: (0.5,),
    "pad": lambda o: ([0, 1],),
    "new_full": lambda o: ((2,), 1.0),
    "new_zeros": lambda o: ((2,),),
    "new_ones": lambda o: ((2,),),
    "new_empty": lambda o: ((2,),),
    "new_tensor": lambda o: (o,),
    "replace": lambda o: ({"key0": torch.zeros(ROWS, COLUMNS)},),
    "create_nested": lambda o: ("made",),
    "copy_": lambda o: (o,),
    "copy_at_": lambda o: (o[0], 0),
    "update_at_": lambda o: (o[0], 0),
    "__getitem__": lambda o: (0,),
    "__setitem__": lambda o: (0, o[0]),
    "__contains__": lambda o: ("key0",),
}
_ALL_OR_NOTHING = "checks all shapes before the first write: where one does not fit, nothing has changed"
_OF_MODULE = "collects the entries from the dictionaries of the module, which other code changes without notice"
_OF_TORCH = "is the method of torch's modules in both libraries; the difference is noise"
REASONS: dict[str, str] = {
    "is_shared": "checks the memory of each leaf, because leaves may have been shared one by one",
    "update_": _ALL_OR_NOTHING,
    "copy_": _ALL_OR_NOTHING,
    "set_at_": "goes through the plan of all in-place writes",
    "contiguous": "looks for lazy stacks, then makes a tensordict with dictionary and metadata of its own",
    "is_empty": "looks for leaves and non-tensor values in nested tensordicts too",
    "is_memmap": "calls the package that maps tensors, once it is imported",
    "movedim": "checks that each dimension is named once",
    "moveaxis": "checks that each dimension is named once",
    "class get_at": "returns the plain value where the part is non-tensor data",
    "lazy attrs": "compares the facts of all elements",
    "lazy apply_": "plans a write into each element, with an index of its own",
    "lazy fill_": "plans a write into each element, with an index of its own",
    "lazy masked_select": "copies the chosen rows of each element, then stacks these copies",
    "lazy repeat_interleave": "makes a lazy stack of single rows, each with a tensordict of its own",
    "lazy tile": "returns a lazy stack, as other shape operations do; the reference returns a dense tensordict",
    "lazy densify": "looks for entries that only some elements have",
    "lazy non_tensor_items": "reads each key of each element",
    "params compile": _OF_TORCH,
    "params eval": _OF_TORCH,
    "params train": _OF_TORCH,
    "params keys": _OF_MODULE,
    "params contiguous": _OF_MODULE,
    "params is_contiguous": _OF_MODULE,
    "params all": _OF_MODULE,
    "params any": _OF_MODULE,
    "params chunk": _OF_MODULE,
    "params split": _OF_MODULE,
    "params rename_": _OF_MODULE,
    "params apply_": "plans a write into each parameter, as a tensor without gradients",
    "params fill_": "plans a write into each parameter, as a tensor without gradients",
}
"""Why a method takes longer than in the reference, by its name or by the container and its name.

Ratios of 0.95 and more differ between runs, and have no reason.
"""

DUNDERS = ["__getitem__", "__setitem__", "__contains__", "__len__", "__iter__", "__neg__", "__abs__", "__invert__"]


def level(depth: int) -> dict[str, Any]:
    """Nested dictionaries of tensors."""
    below = {"level": level(depth - 1)} if depth > 1 else {}
    return {**{f"key{i}": torch.rand(ROWS, COLUMNS) for i in range(LEAVES)}, **below}


class Library:
    """One library, and a container of each kind made with it."""

    def __init__(self, core: ModuleType, nn: ModuleType, classes: ModuleType) -> None:
        TensorDict = core.TensorDict
        fields = {f"key{i}": torch.Tensor for i in range(LEAVES)}
        cls = classes.tensorclass(type("Fields", (), {"__annotations__": fields, "__module__": __name__}))
        self.containers: dict[str, Callable[[], Any]] = {
            "flat": lambda: TensorDict(level(1), batch_size=[ROWS]),
            "nested": lambda: TensorDict(level(3), batch_size=[ROWS]),
            "lazy": lambda: core.LazyStackedTensorDict.lazy_stack(
                [TensorDict(level(1), batch_size=[ROWS]) for _ in range(STACKED)], 1
            ),
            "class": lambda: cls(**level(1), batch_size=[ROWS]),
            "params": lambda: nn.TensorDictParams(TensorDict(level(1), batch_size=[ROWS])),
        }


def methods(container: Any) -> Iterator[str]:
    """The names of the methods of a container that are called."""
    for name in sorted({name for name in dir(type(container)) if not name.startswith("_")} | {*ARGUMENTS, *DUNDERS}):
        if name in SKIPPED or not callable(getattr(type(container), name, None)):
            continue
        yield name


def call(container: Any, name: str) -> Callable[[], object]:
    """A call of a method with its arguments; a view or an iterator is read whole."""
    other = container.clone()
    arguments = ARGUMENTS[name](other) if name in ARGUMENTS else ()
    method = getattr(container, name)
    if name in ("keys", "values", "items", "__iter__"):
        return lambda: list(method(*arguments))
    return lambda: method(*arguments)


def row(make: tuple[Callable[[], Any], Callable[[], Any]], name: str, rounds: int) -> tuple[float, float, float] | None:
    """The times of a call in microseconds and their ratio; ``None`` where one of the libraries refuses the call."""
    calls = []
    for factory in make:
        container = factory()
        if not callable(getattr(container, name, None)):
            return None
        try:
            function = call(container, name)
            function()
            function()
        except Exception:
            return None
        calls.append(function)
    timers: list[Timer] = [timer(lambda _, f=function: f(), None) for function in calls]
    ours, theirs = interleaved(timers, rounds, 0.001)
    ratio = median(b / a for a, b in zip(ours, theirs, strict=True))
    return median(ours), median(theirs), ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--below", type=float, default=float("inf"), help="print only rows below this ratio")
    parser.add_argument("--kinds", default="flat,nested,lazy,class,params", help="containers, separated by commas")
    parser.add_argument("--only", default="", help="run only methods with these names, separated by commas")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ours = Library(tensordict_core, tensordict_nn, tensordict_class)
    theirs = Library(reference, reference.nn, reference)
    only = {name.strip() for name in options.only.split(",") if name.strip()}
    print("| container | method | ours, µs | reference, µs | reference / ours | why below 1 |")
    print("|---|---|---:|---:|---:|---|")
    ratios: dict[str, list[float]] = {}
    for kind in options.kinds.split(","):
        pair = ours.containers[kind], theirs.containers[kind]
        for name in methods(pair[0]()):
            found = None if only and name not in only else row(pair, name, options.rounds)
            if found is None:
                continue
            ratios.setdefault(kind, []).append(found[2])
            if found[2] < options.below:
                why = REASONS.get(f"{kind} {name}", REASONS.get(name, "")) if found[2] < 1 else ""
                print(f"| {kind} | `{name}` | {found[0]:.2f} | {found[1]:.2f} | {found[2]:.2f} | {why} |", flush=True)
    print()
    for kind, values in ratios.items():
        slower = sum(ratio < 1 for ratio in values)
        print(f"{kind}: {len(values)} methods, geometric mean {mean(values):.2f}, {slower} below 1.")


if __name__ == "__main__":
    main()
