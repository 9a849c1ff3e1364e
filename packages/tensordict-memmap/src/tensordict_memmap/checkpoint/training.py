"""`save_checkpoint` and `load_checkpoint`: the whole state of a training run in one atomic save, without pickle.

A checkpoint is a saved tensordict: ``TensorDict.load(path)["model"]`` has the weights. In addition to the tensors it
holds one JSON text, the record of everything else (`state`). It has checksums, so it is mapped copy-on-write by
default, and training that starts from it cannot change it.
"""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tensordict_core import NonTensorData, TensorCollection, TensorDict, is_tensor_collection
from tensordict_memmap.calls.compare import load_into
from tensordict_memmap.calls.load import load_memmap
from tensordict_memmap.calls.save import save_with
from tensordict_memmap.checkpoint.background import hold
from tensordict_memmap.checkpoint.delta import save_delta_with
from tensordict_memmap.checkpoint.rng import (
    check_rng_state,
    generator_state,
    is_generator,
    rng_state,
    set_generator_state,
    set_rng_state,
)
from tensordict_memmap.checkpoint.rotation import checkpoint_name, latest, rotate
from tensordict_memmap.checkpoint.sharded import (
    gather_rng,
    is_sharded,
    read_shards,
    report_failure,
    rng_of_this_rank,
)
from tensordict_memmap.checkpoint.state import pack, unpack
from tensordict_memmap.engine.future import Cancelled, Pending, Progress, run_save
from tensordict_memmap.formats.detect import ARCHIVE, SAFETENSORS, TREE
from tensordict_memmap.remote.urls import is_remote
from tensordict_memmap.saving.options import SaveOptions
from tensordict_memmap.saving.writer import Run
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.sharded import rank_and_size

RECORD = "checkpoint"
"""The key of the record in the saved tensordict."""

VERSION = 1

_RESERVED = frozenset({RECORD, "extra", "rng", "step", "path", "parts"})
_ENDINGS = {None: "", TREE: "", SAFETENSORS: ".safetensors", ARCHIVE: ".tdz"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The result of `load_checkpoint`.

    Attributes:
        path: The path of the checkpoint.
        step: The step that it was saved with, or None.
        extra: The value that it was saved with as ``extra``; its tensors are in memory.
        parts: The names of the objects whose states it holds.

    >>> model = torch.nn.Linear(2, 1)
    >>> _ = save_checkpoint("run", model=model, step=3, extra={"best": 0.5})
    >>> checkpoint = load_checkpoint("run", model=model)
    >>> checkpoint.step, checkpoint.extra, checkpoint.parts
    (3, {'best': 0.5}, ['model'])
    """

    path: Path
    step: int | None = None
    extra: Any = None
    parts: list[str] = field(default_factory=list)


def save_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    step: int | None = None,
    rng: bool = True,
    extra: Any = None,
    keep: int | None = None,
    base: Any = None,
    format: str | None = None,
    shard_size: int | None = None,
    num_threads: int | None = None,
    checksum: bool | None = None,
    durable: bool = False,
    return_early: bool = False,
    pending: str = "wait",
    timeout: float | None = None,
    **objects: Any,
) -> Any:
    """Save the whole state of a training run, atomically.

    If a parameter is a DTensor, all ranks of the default process group call this function with the same arguments and
    write one checkpoint together. Values and plain tensors are saved from the first rank, the random state from every
    rank.

    Args:
        path: The folder or file of the checkpoint, or with ``keep`` the folder of several checkpoints.
        model: A module, a tensordict, or any object with ``state_dict``; or a list or dictionary of these.
        optimizer: One or several objects with ``state_dict``.
        scheduler: One or several objects with ``state_dict``.
        step: The number of the step.
        rng: Whether to save the state of the global random number generators of Python, NumPy, torch and CUDA.
        extra: Anything else: numbers, strings, tensors, tensordicts, and dictionaries, lists and tuples of these.
        keep: The number of checkpoints to keep. The checkpoint is then saved as ``step-000100`` in the folder ``path``,
            and older ones are removed when it is complete.
        base: An earlier checkpoint; only the differences from it are written (`save_delta`).
        format: ``"tree"``, ``"safetensors"`` or ``"archive"``; by default according to the file name extension of the
            path.
        shard_size: The maximum size in bytes of the tensors in one safetensors file; the checkpoint is then a folder of
            shards.
        num_threads: The number of writer threads; chosen for the machine if None or 0.
        checksum: Whether to record checksums; by default only if this process saves alone, because several ranks would
            have to read the file again to hash it. Without checksums, ``TensorDict.load`` maps a folder for writing.
        durable: Whether to sync the checkpoint to disk before it is complete.
        return_early: Whether to copy the state to host memory and save it in the background, so that training can
            continue immediately. For tensors on GPUs the memory is pinned; it is reused for the next checkpoint.
        pending: Whether to wait for (``"wait"``) or to cancel (``"cancel"``) an earlier checkpoint that is still being
            saved in the background.
        timeout: The maximum time to wait for another rank, in seconds; half an hour if None.
        **objects: Further objects with ``state_dict``, such as ``scaler=`` or ``ema=``, and random number generators.

    Returns:
        The path of the checkpoint, or with ``return_early`` a `SaveFuture` of it.

    Raises:
        TypeError: An object has no ``state_dict``, or a value has no exact form without pickle; the error names it.
        ValueError: Options contradict each other, or a name is reserved.
        OSError: Writing fails; earlier checkpoints are unchanged.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    >>> save_checkpoint("run", model=model, optimizer=optimizer, step=1, extra={"epoch": 0}).name
    'run'
    >>> load_checkpoint("run", model=torch.nn.Linear(2, 1)).extra
    {'epoch': 0}
    >>> future = save_checkpoint("run", model=model, optimizer=optimizer, step=2, return_early=True)
    >>> optimizer.step()  # the checkpoint holds what was there before
    >>> future.result().name
    'run'
    """
    start = time.monotonic()
    objects = _named(model, optimizer, scheduler, objects)
    _check_format(format, base, shard_size)
    step = None if step is None else operator.index(step)
    target = os.fspath(path) if keep is None else _place(path, keep, step, format, base, shard_size)
    _pending.end(pending)
    data, sharded = _packed(objects, step, rng, extra, target, timeout=timeout, pending=pending)

    def complete() -> Path:
        if keep is not None and (not sharded or rank_and_size()[0] == 0):
            rotate(path, keep, written=target)
        return Path(target)

    release = None
    if return_early and not sharded:  # ranks copy what they hold themselves
        data, release = hold(data)
    try:
        if base is not None:

            def run(progress: Progress | None, cancelled: Cancelled | None) -> None:
                save_delta_with(data, target, Run(num_threads, durable, progress, cancelled), base=base)

            made = run_save(run, complete, 0, early=return_early, where=target)
        else:
            options = SaveOptions(
                format=format,
                shard_size=shard_size,
                num_threads=num_threads,
                checksum=not sharded if checksum is None else checksum,
                durable=durable,
                mapped=False,
            )
            made = save_with(
                data,
                target,
                options,
                timeout=timeout if sharded else None,
                pending=pending,
                early=return_early,
                result=complete,
            )
    except BaseException:
        if release is not None:
            release()
        raise
    if return_early:
        if release is not None:
            made.add_done_callback(lambda future: release())
        made.stall_seconds = time.monotonic() - start
        _pending.set(made)
    return made


_pending = Pending()
"""The checkpoint that is saved in the background: one at a time, so that they are rotated in their order."""


def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    rng: bool = True,
    strict: bool = True,
    verify: str = "size",
    **objects: Any,
) -> Checkpoint:
    """Restore objects to exactly the state of a checkpoint.

    A rank with DTensors reads only its parts; the checkpoint may have been saved on another mesh or by one process.

    The checkpoint is read, and verified according to ``verify``, before any object is changed. Then the objects are
    restored in the order of the arguments, and the random number generators last. Optimizer states and ``extra`` are
    copied to memory: training never changes the checkpoint.

    Args:
        path: The checkpoint; ``latest(folder)`` returns the newest one in a folder.
        model: The object to restore, as in `save_checkpoint`; None skips it. Parameters on the ``meta`` device are
            replaced by the saved ones.
        optimizer: The optimizers, as ``model``.
        scheduler: The schedulers, as ``model``.
        rng: Whether to set the global random number generators, if their state was saved.
        strict: Whether missing and unexpected keys of modules raise an error.
        verify: ``"full"`` reads everything and compares the checksums, ``"size"`` compares the sizes of files.
        **objects: Further objects, as in `save_checkpoint`.

    Returns:
        The step and the ``extra`` of the checkpoint.

    Raises:
        FileNotFoundError: There is no checkpoint.
        ValueError: The save was not made by `save_checkpoint`, or is damaged.
        KeyError: The state of an object was not saved; the error lists those that were.
        RuntimeError: A state does not fit its object.

    >>> model = torch.nn.Linear(2, 1)
    >>> _ = save_checkpoint("run", model=model, step=7)
    >>> other = torch.nn.Linear(2, 1)
    >>> load_checkpoint("run", model=other).step, torch.equal(other.weight, model.weight)
    (7, True)
    """
    objects = _named(model, optimizer, scheduler, objects)
    loaded, record = _opened(path, verify)
    parts = record["parts"]
    for name in objects:
        if name not in parts:
            raise KeyError(f"the checkpoint {path} has no state of {name!r}; it has {sorted(parts)}")
    read_shards(loaded, objects, parts, _state)
    states = {
        name: unpack(parts[name], loaded, name, copy=not isinstance(one, torch.nn.Module))
        for name, one in objects.items()
    }
    extra = unpack(record["extra"], loaded, "extra")
    generators = None
    if rng and record["rng"] is not None:
        generators = rng_of_this_rank(unpack(record["rng"], loaded, "rng"))
        if generators is not None:
            check_rng_state(generators)  # before anything is restored
    for name, one in objects.items():
        _restore(name, one, states[name], strict)
    if generators is not None:
        set_rng_state(generators)
    return Checkpoint(Path(path), record["step"], extra, list(parts))


def _named(model: Any, optimizer: Any, scheduler: Any, objects: dict[str, Any]) -> dict[str, Any]:
    for name in objects:
        if name in _RESERVED:
            raise ValueError(f"{name}= is not the name of an object of a checkpoint; choose another name")
    named = {"model": model, "optimizer": optimizer, "scheduler": scheduler, **objects}
    return {name: one for name, one in named.items() if one is not None}


def _check_format(format: str | None, base: Any, shard_size: int | None) -> None:
    if format not in _ENDINGS:
        raise ValueError(f"unknown format {format!r}; the formats of checkpoints are 'tree', 'safetensors', 'archive'")
    if base is not None and (format not in (None, SAFETENSORS) or shard_size is not None):
        raise ValueError("base= makes one safetensors file; leave out format= and shard_size=")


def _place(
    path: str | os.PathLike[str], keep: int, step: int | None, format: str | None, base: Any, shard_size: int | None
) -> str:
    """Return the path of one of several checkpoints in a folder."""
    if type(keep) is not int or keep < 1:
        raise ValueError(f"keep={keep!r}, and at least one checkpoint is kept; pass a positive number")
    if step is None or step < 0:
        raise ValueError(f"keep= names checkpoints by their step, and step={step}; pass a step that is not negative")
    if is_remote(path):
        raise ValueError(f"keep= rotates checkpoints in a local folder, and {path} is a URL; leave keep= out")
    ending = _ENDINGS[format] if shard_size is None else ""
    return os.path.join(path, checkpoint_name(step, ".safetensors" if base is not None else ending))


# --- saving


def _packed(
    objects: Mapping[str, Any], step: int | None, rng: bool, extra: Any, target: str, **options: Any
) -> tuple[TensorDict, bool]:
    """Return the tensordict to save, and whether several ranks save it together; they exchange their random states."""
    states: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    records: dict[str, Any] = {}
    try:
        for name, one in objects.items():
            states[name] = _state(name, one)
        states["extra"] = extra
        for name, state in states.items():
            records[name], found = pack(state, name)
            tensors |= found
    except Exception as error:
        if is_sharded(states):
            report_failure(error, target, **options)
        raise
    sharded = is_sharded(states)
    generators: Any = rng_state() if rng else None
    generators, found = pack(gather_rng(generators, target, **options) if sharded and rng else generators, "rng")
    record = {"version": VERSION, "step": step, "extra": records.pop("extra"), "parts": records, "rng": generators}
    data = TensorDict(tensors | found)
    return data.set(RECORD, NonTensorData(nontensor.dumps(record).decode())), sharded


def _state(name: str, one: Any) -> Any:
    if is_generator(one):
        return generator_state(one)
    if is_tensor_collection(one) and not isinstance(one, torch.nn.Module):
        return one
    if hasattr(one, "state_dict"):
        return one.state_dict()
    if isinstance(one, list | tuple):
        return [_state(f"{name}[{n}]", part) for n, part in enumerate(one)]
    if isinstance(one, dict):
        return {key: _state(f"{name}[{key!r}]", part) for key, part in one.items()}
    raise TypeError(
        f"{name}= is a {type(one).__name__}, and a checkpoint holds the states of objects with state_dict(), of "
        "tensordicts and of random number generators; pass plain values in extra="
    )


# --- loading


def _opened(path: str | os.PathLike[str], verify: str) -> tuple[TensorCollection, dict[str, Any]]:
    try:
        loaded = load_memmap(path, mode="r", allow_pickle=False, verify=verify)
    except FileNotFoundError:
        newest = None if is_remote(path) else latest(path)
        if newest is None:
            raise
        raise FileNotFoundError(
            f"{path} is a folder of several checkpoints; load one of them, such as latest({str(path)!r}), {newest}"
        ) from None
    text = loaded.get(RECORD, None) if isinstance(loaded, TensorCollection) else None
    text = getattr(text, "data", text)
    if not isinstance(text, str):
        raise ValueError(f"{path} was not written by save_checkpoint; load it with TensorDict.load or load_into")
    try:
        record = nontensor.loads(text.encode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise ValueError(f"the record of the checkpoint {path} is damaged ({error}); restore it") from None
    if not isinstance(record, dict) or record.get("version") != VERSION:
        raise ValueError(
            f"{path} is not a checkpoint of version {VERSION}, the one that is supported; upgrade tensordict-memmap"
        )
    if not (isinstance(record.get("parts"), dict) and {"step", "rng", "extra"} <= record.keys()):
        raise ValueError(f"the record of the checkpoint {path} is damaged; restore it")
    return loaded, record


def _restore(name: str, one: Any, state: Any, strict: bool) -> None:
    if is_generator(one):
        set_generator_state(one, state)
    elif isinstance(one, torch.nn.Module):
        _restore_module(one, state, strict)
    elif is_tensor_collection(one):
        load_into(one, state, strict=strict)
    elif hasattr(one, "load_state_dict"):
        one.load_state_dict(state)
    elif isinstance(one, list | tuple):
        if not isinstance(state, list) or len(state) != len(one):
            count = len(state) if isinstance(state, list) else 1
            raise ValueError(f"{name}= has {len(one)} objects, and {count} were saved; pass as many as were saved")
        for n, (part, its) in enumerate(zip(one, state, strict=True)):
            _restore(f"{name}[{n}]", part, its, strict)
    elif isinstance(one, dict):
        if not isinstance(state, dict) or state.keys() != one.keys():
            saved = sorted(map(str, state)) if isinstance(state, dict) else "one object"
            raise ValueError(f"{name}= has the objects {sorted(map(str, one))}, and saved were {saved}; pass the same")
        for key, part in one.items():
            _restore(f"{name}[{key!r}]", part, state[key], strict)
    else:
        raise TypeError(f"{name}= is a {type(one).__name__}, which has no load_state_dict(); pass the object itself")


def _restore_module(module: torch.nn.Module, state: Any, strict: bool) -> None:
    tensors = [*module.parameters(), *module.buffers()]
    assign = any(tensor.is_meta for tensor in tensors)
    if assign:  # parameters that are replaced must not be views of the files
        copied = type(state)((key, one.clone() if isinstance(one, torch.Tensor) else one) for key, one in state.items())
        if hasattr(state, "_metadata"):
            copied._metadata = state._metadata
        state = copied
    module.load_state_dict(state, strict=strict, assign=assign)
