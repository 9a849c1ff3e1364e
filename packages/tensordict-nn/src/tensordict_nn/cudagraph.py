"""`CudaGraphModule`: a function that is captured as a CUDA graph once and then replayed.

A graph reads from and writes to fixed memory. Therefore a call copies its inputs into the buffers of the recording,
raises an error if they differ in structure, and returns copies of the results. This code runs on any device; only the
three methods of `_Recorder` use CUDA: warm up, record, replay.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tensordict_core import LazyStackedTensorDict, NestedKey, TensorDict
from tensordict_core.extension import Node
from tensordict_nn import errors
from tensordict_nn.modules.base import as_keys, format_module, require_inputs
from tensordict_nn.modules.dispatch import dispatch
from tensordict_nn.probabilistic.module import ProbabilisticTensorDictModule
from tensordict_nn.sampling.interaction import interaction_type

Call = Callable[..., Any]


class _Recorder:
    """One CUDA graph: a function is recorded on a side stream and replayed on the stream of the caller.

    Args:
        device: The device; ``None`` for the current one.
    """

    def __init__(self, device: torch.device | None) -> None:
        self._stream = torch.cuda.Stream(device)
        self.device: torch.device | None = self._stream.device
        self._graph: Any = None

    def warm(self, function: Callable[[], Any]) -> Any:
        """Run a function on the side stream, between the earlier and the later work of the caller."""
        stream = self._stream
        current = torch.cuda.current_stream(stream.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            result = function()
        current.wait_stream(stream)
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.is_cuda:
                leaf.record_stream(current)  # the side stream must not reuse its memory earlier
        return result

    def record(self, function: Callable[[], Any]) -> Any:
        """Record a function; `replay` fills its results."""
        self._graph = torch.cuda.CUDAGraph()  # a graph that failed to record cannot be used again
        # "thread_local": other threads, such as data loaders, may allocate memory
        with (
            torch.cuda.device(self._stream.device),
            torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"),
        ):
            return function()

    def replay(self) -> None:
        """Run the graph on the stream of the caller."""
        if torch.cuda.current_device() == self._stream.device_index:
            self._graph.replay()
            return
        with torch.cuda.device(self._stream.device):
            self._graph.replay()


def _same(first: Any, second: Any) -> bool:
    """Return whether two non-tensor values are equal; False if that is unknown."""
    try:
        return first is second or (type(first) is type(second) and bool(first == second))
    except (RuntimeError, TypeError, ValueError):  # arrays have no single truth value
        return False


def _dims(value: Any) -> Any:
    """Return the batch dimensions of all nested containers, which the structure of a pytree lacks."""
    if isinstance(value, Node):
        # fields of a tensorclass may hide attributes
        return len(value._meta.batch_size), value._meta.names, [_dims(node) for node in value._nodes()]
    if isinstance(value, tuple | list):
        return [_dims(item) for item in value]
    return [_dims(item) for item in value.values()] if isinstance(value, dict) else None


def _refuse_gradients(leaves: Sequence[Any]) -> None:
    if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
        raise errors.graph_input_requires_grad()


class _Recording:
    """A recorded function with the memory that it reads and writes.

    Args:
        recorder: Records and replays, as `_Recorder` does.
        function: A function that takes ``inputs`` and returns tensors in nested containers.
        inputs: The arguments, in nested containers; tensors among them may change from call to call.

    Raises:
        ValueError: A tensor is on another device than the graph.
        RuntimeError: A result requires gradients.
    """

    def __init__(self, recorder: Any, function: Callable[[Any], Any], inputs: Any) -> None:
        leaves, self._layout = pytree.tree_flatten(inputs)
        self._dims = _dims(inputs)
        self._leaves = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.buffers = [self._leaves[i] for i in self._at]
        for i in self._at:
            if recorder.device is not None and self._leaves[i].device != recorder.device:
                raise errors.graph_input_changed(
                    self._name(inputs, i), f"is on {self._leaves[i].device}", f"the device was {recorder.device}"
                )
        # unflattened within the function, which may write into the containers and runs again without a graph
        results = recorder.record(lambda: function(pytree.tree_unflatten(self._leaves, self._layout)))
        self._results, self._form = pytree.tree_flatten(results)
        if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in self._results):
            raise errors.graph_output_requires_grad()
        self.recorder = recorder
        self.results = results

    def __call__(self, inputs: Any) -> Any:
        """Copy inputs in, replay, and copy results out.

        Raises:
            ValueError: The inputs differ from those of the recording.
        """
        self._fill(inputs)
        self.recorder.replay()
        results = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in self._results]
        return pytree.tree_unflatten(results, self._form)

    @torch.no_grad()
    def _fill(self, inputs: Any) -> None:
        leaves, layout = pytree.tree_flatten(inputs)
        _refuse_gradients(leaves)
        if layout != self._layout or _dims(inputs) != self._dims:
            raise errors.graph_structure_changed(layout, self._layout)
        for i, (leaf, own) in enumerate(zip(leaves, self._leaves, strict=True)):
            if not isinstance(own, Tensor) or not isinstance(leaf, Tensor):
                if not _same(leaf, own):
                    raise errors.graph_input_changed(self._name(inputs, i), f"is {leaf!r}", f"it was {own!r}")
            elif leaf.shape != own.shape or leaf.dtype != own.dtype or leaf.device != own.device:
                got, was = (f"{list(t.shape)} of {t.dtype} on {t.device}" for t in (leaf, own))
                raise errors.graph_input_changed(self._name(inputs, i), f"is {got}", f"it was {was}")
        if self.buffers:
            torch._foreach_copy_(self.buffers, [leaves[i] for i in self._at])

    def _name(self, inputs: Any, position: int) -> str:
        path, _ = pytree.tree_flatten_with_path(inputs)[0][position]
        return pytree.keystr(path)


class _Shortcut:
    """A replay of the most common call, of a plain tensordict of tensors, without walks over nested inputs.

    Args:
        recording: The recording.
        keys: The keys of the inputs, in the order of its memory.
        meta: The number of batch dimensions, and their names.
        entries: The keys and the memory of the entries that it sets.
    """

    def __init__(self, recording: _Recording, keys: Sequence[str], meta: Any, entries: Sequence[tuple[str, Tensor]]):
        self._recording, self._keys, self._meta, self._entries = recording, keys, meta, entries

    @classmethod
    def of(cls, recording: _Recording, inputs: Any, results: Any) -> _Shortcut | None:
        """Return the shortcut of a recording, given its inputs and results; None if they are not that simple."""
        td, target, args, kwargs = inputs
        which, _, entries, _ = results
        keys, values = list(td.keys()), [value for _, value in entries]
        if type(td) is not TensorDict or target is not None or args or kwargs or which != 0:
            return None
        if not all(isinstance(value, Tensor) for value in (*td.values(), *values)):
            return None
        if any(len(path) > 1 for path, _ in entries):
            return None
        return cls(recording, keys, (td.batch_dims, td.names), [(path[0], value) for path, value in entries])

    def __call__(self, td: TensorDict) -> bool:
        """Replay for a tensordict; return False, and change nothing, if it differs from that of the recording."""
        if (td.batch_dims, td.names) != self._meta:
            return False
        leaves = [td.get(key, None) for key in self._keys]
        buffers = self._recording.buffers
        for leaf, own in zip(leaves, buffers, strict=True):
            if not isinstance(leaf, Tensor) or leaf.requires_grad or leaf.shape != own.shape:
                return False
            if leaf.dtype != own.dtype or leaf.device != own.device:
                return False
        torch._foreach_copy_(buffers, leaves)
        self._recording.recorder.replay()
        for key, value in self._entries:
            td.set(key, value.clone())
        return True


class CudaGraphModule:
    """A function or a module on tensordicts that is recorded as a CUDA graph and replayed.

    A replay launches all kernels with one call, which avoids the overhead of separate launches. The first
    ``warmup - 1`` calls run the function on a side stream, the next call records it, and later calls copy their inputs
    into the memory of the graph, replay it, and return copies of the results.

    **Without CUDA** the constructor warns, and each call runs the function, with the same results and no speedup.

    Requirements for a graph:

    - The function runs the same kernels in each call: no branches on values of tensors (use ``torch.where``), no shapes
      that depend on values, no transfers to the CPU.
    - Inputs keep shape, dtype, device, batch sizes and keys; non-tensor inputs keep their values. Other inputs are an
      error.
    - Inputs and results do not require gradients. Parameters are read from outside (``lambda x: x @ weight``). A
      training step (``zero_grad``, ``backward``, ``step``) runs inside the function, which returns ``loss.detach()``.
    - In-place changes of input tensors stay in the memory of the graph and do not change the tensors of the caller.
      Entries that the function sets in a tensordict are set in the tensordict of the caller, as copies.
    - A probabilistic module uses the interaction type of the recording; a call with another one issues a warning. Make
      one instance for each interaction type.

    The class is not an ``nn.Module``, so that the parameters of the wrapped module are not collected twice.

    Args:
        module: A function or module that takes and returns tensors or containers of tensors, such as tensordicts.
        warmup: The number of the call that records the graph, counting from 1. A compiled function needs one or two
            calls more, until it is compiled.
        in_keys: The keys that a function of a tensordict reads; an empty list means all. By default those of
            ``module``, if it has any. With keys, calls can pass tensors by name, see `dispatch`.
        out_keys: The keys that the function writes, for such calls.
        device: The device of the graph; by default the current one.

    Raises:
        ValueError: ``warmup`` is not a positive integer; or, in a call, an input differs from the recording.
        RuntimeError: In a call, an input or a result requires gradients.
        KeyError: In a call, an input key is missing.

    >>> import warnings
    >>> from tensordict_nn import TensorDictModule
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # it warns without CUDA
    ...     add_one = CudaGraphModule(TensorDictModule(lambda x: x + 1, in_keys=["x"], out_keys=["y"]))
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> for i in range(4):
    ...     td = add_one(TensorDict({"x": torch.full((), i, device=device)}))
    >>> td["y"].item()
    4
    """

    def __init__(
        self,
        module: Call,
        warmup: int = 2,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        if warmup != int(warmup) or warmup < 1:
            raise errors.bad_warmup(warmup)
        self.module = module
        self.warmup = warmup
        self.counter = 0
        self.in_keys = _keys_of(module, "in_keys", in_keys)
        self.out_keys = _keys_of(module, "out_keys", out_keys)
        if self.in_keys is not None and self.out_keys is None:
            self.out_keys = []
        self.device = None if device is None else torch.device(device)
        self._recorder = _make_recorder(self.device)
        self._recording: _Recording | None = None
        self._shortcut: _Shortcut | None = None
        parts = module.modules() if isinstance(module, nn.Module) else ()
        self._probabilistic = [part for part in parts if isinstance(part, ProbabilisticTensorDictModule)]
        self._recorded_types: list[Any] = []
        self._own_keys: set[Any] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function, record it, or replay it."""
        if self.in_keys is None:
            return self._run(_call, (args, kwargs))
        if self._shortcut is not None and len(args) == 1 and not kwargs and type(args[0]) is TensorDict:
            self._check_interaction()
            if self._shortcut(args[0]):
                return args[0]
        return self._on_tensordict(*args, **kwargs)

    @dispatch(auto_batch_size=False)
    def _on_tensordict(self, tensordict: Any, *args: Any, tensordict_out: Any = None, **kwargs: Any) -> Any:
        keys = self.in_keys
        # entries that it wrote in an earlier call are not inputs
        given = tensordict.select(*keys, strict=False) if keys else tensordict.exclude(*self._own_keys)
        require_inputs(self.module, keys or (), tensordict)
        learning = self._recording is None and not keys
        read = _keys(given) if learning else set()
        if self._ready():
            inputs = (given, None if tensordict_out is None else tensordict_out.empty(), args, kwargs)
            which, result, *written = self._run(_call_on_tensordict, inputs)
            for target, entries in zip((tensordict, tensordict_out), written, strict=True):
                for path, value in entries:
                    _put(target, path, value)
            result = result if which is None else (tensordict, tensordict_out)[which]
        else:
            if tensordict_out is not None:
                kwargs["tensordict_out"] = tensordict_out
            result = self._run(_call, ((tensordict, *args), kwargs), checked=(given, args, kwargs))
        if learning:
            self._own_keys.update(_keys(tensordict) - read)
        return result

    def _ready(self) -> bool:
        """Return whether the next call records or replays."""
        return self._recorder is not None and self.counter >= self.warmup - 1

    def _run(self, how: Callable[[Call, Any], Any], inputs: Any, checked: Any = None) -> Any:
        """Call ``how(module, inputs)``, or replay the recording of this call."""
        module, recorder = self.module, self._recorder
        if self._recording is not None:
            self._check_interaction()
            return self._recording(inputs)
        _refuse_gradients(pytree.tree_leaves(inputs if checked is None else checked))
        if recorder is None:
            return how(module, inputs)
        if not self._ready():
            result, _ = recorder.warm(
                lambda: (how(module, inputs), inputs)
            )  # the inputs hold the entries that are set in them
        else:
            self._recorded_types = self._interaction_types()
            self._recording = _Recording(recorder, lambda inputs: how(module, inputs), inputs)
            if self.in_keys and how is _call_on_tensordict:
                self._shortcut = _Shortcut.of(self._recording, inputs, self._recording.results)
            result = self._recording(inputs)
        self.counter += 1
        return result

    def _interaction_types(self) -> list[Any]:
        block = interaction_type()
        return [block or part.default_interaction_type for part in self._probabilistic]

    def _check_interaction(self) -> None:
        """Warn, once, if the recorded interaction types are not the current ones."""
        if self._probabilistic and self._recorded_types != self._interaction_types():
            self._probabilistic = []
            warnings.warn(
                "set_interaction_type has no effect on a recorded CUDA graph, which keeps the types of the recording; "
                "make one CudaGraphModule for each interaction type",
                stacklevel=5,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of the module; empty for a function.

        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"):  # no CUDA device here
        ...     module = CudaGraphModule(torch.nn.Linear(1, 2, bias=False))
        >>> list(module.state_dict())
        ['weight']
        """
        state: dict[str, Any] = self.module.state_dict() if hasattr(self.module, "state_dict") else {}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the module, which the graph uses; has no effect for a function.

        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"):  # no CUDA device here
        ...     module = CudaGraphModule(torch.nn.Linear(1, 2, bias=False))
        >>> module.load_state_dict({"weight": torch.ones(2, 1)})
        >>> module(torch.ones(1))
        tensor([1., 1.], grad_fn=<...>)
        """
        if hasattr(self.module, "load_state_dict"):
            self.module.load_state_dict(state_dict)

    def __repr__(self) -> str:
        names = ("module", "warmup", "in_keys", "out_keys")
        return format_module(self, **{name: getattr(self, name) for name in names})


def _make_recorder(device: torch.device | None) -> Any:
    """Make a recorder; return ``None``, with a warning, without CUDA."""
    if torch.cuda.is_available():
        return _Recorder(device)
    warnings.warn(
        "CudaGraphModule found no CUDA device: calls run the function itself, with the same results and no speedup",
        stacklevel=3,
    )
    return None


def _keys_of(module: Any, name: str, given: Any) -> list[Any] | None:
    """Return the keys of a module, or the given keys if it has none."""
    own = getattr(module, name, None)
    if own is None:
        return None if given is None else as_keys(given)
    own = as_keys(own)
    if given and as_keys(given) != own:
        warnings.warn(f"CudaGraphModule takes the {name} {own} of the module; leave {name}={given} out", stacklevel=3)
    return own


def _call(module: Call, inputs: Any) -> Any:
    args, kwargs = inputs
    return module(*args, **kwargs)


def _call_on_tensordict(module: Call, inputs: Any) -> tuple[Any, ...]:
    """Run a function of a tensordict.

    Returns:
        Which of the given containers it returned (0, 1, or ``None``), another result if it returned neither, and the
        entries that it set in each container.
    """
    td, target, args, kwargs = inputs
    known = dict(_entries(td))  # keeps the values alive, so that no new value can have the id of an old one
    if target is not None:
        kwargs = {**kwargs, "tensordict_out": target}
    result = module(td, *args, **kwargs)
    which = 0 if result is td else 1 if target is not None and result is target else None
    return which, result if which is None else None, _set_since(td, known), _set_since(target, {})


def _entries(td: Any, prefix: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield paths and entries, nodes before their entries; paths hold keys and indices of lazy stacks."""
    if isinstance(td, LazyStackedTensorDict):
        for i, element in enumerate(td.tensordicts):
            yield from _entries(element, (*prefix, i))
        return
    for key, value in () if td is None else td._items():
        path = (*prefix, key)
        yield path, value
        if _is_node(value):
            yield from _entries(value, path)


def _is_node(value: Any) -> bool:
    return isinstance(value, Node) and not (value._is_opaque or value._is_non_tensor)


def _set_since(td: Any, known: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Return the entries that are not the known ones, new nodes as a whole."""
    found: dict[Any, Any] = {}
    for path, value in _entries(td):
        if known.get(path) is not value and not any(path[:depth] in found for depth in range(1, len(path))):
            found[path] = value
    return list(found.items())


def _put(td: Any, path: tuple[str | int, ...], value: Any) -> None:
    *steps, key = path
    for step in steps:
        td = td.tensordicts[step] if isinstance(step, int) else td.get(step)
    if _is_node(value):
        td.update({key: value})  # the node may exist, with other entries
    else:
        td.set(key, value)


def _keys(td: Any) -> set[Any]:
    """Return the keys of all entries of a tensordict."""
    return {tuple(step for step in path if isinstance(step, str)) for path, _ in _entries(td)}
