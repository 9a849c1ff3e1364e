"""Memory: what nobody holds is freed at once, and a long loop of operations leaves nothing behind."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, TensorDict, lazy_stack
from tensordict_core.extension import operations


def _td() -> TensorDict:
    nested = TensorDict({"b": torch.ones(2, 3)}, [2, 3])
    return TensorDict({"a": torch.rand(2, 3) * 0.6 + 0.2, "n": nested, "s": "text", "v": ["p", "q"]}, [2])


def _set(td: Any) -> Any:
    td.set("new", torch.ones(2))
    td["path", "to"] = torch.ones(2)
    del td["path"]
    return td.pop("new")


def _lock(td: Any) -> None:
    with td.lock_():
        td.set_("a", td["a"])
    copy = td.clone(False).lock_()
    copy["n"].is_locked  # noqa: B018  # what is asked for is the property
    copy.unlock_()


def _refused(td: Any) -> None:
    for call in (lambda: td["absent"], lambda: td.set("bad", torch.ones(7)), lambda: td[0, 0, 0, 0]):
        with suppress(KeyError, RuntimeError, IndexError):
            call()


LOOPS: dict[str, Callable[[Any], Any]] = {
    "construct": lambda td: TensorDict({"x": td["a"], "n": {"y": td["a"]}}, [2]),
    "get": lambda td: (td["a"], td.get(("n", "b")), td["s"]),
    "set": _set,
    "update": lambda td: td.clone(False).update(td),
    "lock": _lock,
    "index": lambda td: (td[0], td[:1], td[torch.tensor([0])]),
    "index put": lambda td: td.__setitem__(0, td[1]),
    "view": lambda td: td.view_at(0)["a"],
    "reshape": lambda td: (td.reshape(2, 1), td.unsqueeze(0), td.expand(3, 2)),
    "stack": lambda td: (torch.stack([td, td]), torch.cat([td, td]), td.unbind(0)),
    "lazy stack": lambda td: (lazy_stack([td, td]) + 1)["a"],
    "apply": lambda td: td.apply(lambda x: x + 1),
    "pointwise": lambda td: td.exp() + td,
    "reduce": lambda td: (td.sum(dim=0), td.sum(reduce=True)),
    "keys": lambda td: list(td.items(True, True)),
    "select": lambda td: (td.select("a"), td.exclude("a"), td.flatten_keys()),
    "clone": lambda td: td.clone(),
    "backward": lambda td: (td.select("a").clone().requires_grad_() * 2).sum(reduce=True).backward(),
    "pickle": lambda td: pickle.loads(pickle.dumps(td)),
    "vmap": lambda td: torch.vmap(lambda one: one + 1)(td.select("a", "n")),
    "errors": _refused,
}


BYTES_A_CALL = 8
"""What a call may leave: half of the least object. Blocks that were allocated untraced are traded for traced ones, ever
more slowly: a loop of stacks comes down to this in about seven rounds, to half a byte a call in 40,000 calls."""


def _left_behind(function: Callable[[Any], Any], times: int = 200, rounds: int = 20) -> tuple[int, int]:
    """How many objects and bytes ``times`` calls leave when all is warm.

    A leak shows in every round; caches and free lists fill up in some. So rounds are repeated until one leaves nothing.
    """
    td = _td()
    tracemalloc.start()  # before the warm-up, which replaces objects that were there before
    try:
        for _ in range(times):
            function(td)
        for _ in range(rounds):
            gc.collect()
            objects, size = len(gc.get_objects()), tracemalloc.get_traced_memory()[0]
            for _ in range(times):
                function(td)
            gc.collect()
            left = len(gc.get_objects()) - objects, tracemalloc.get_traced_memory()[0] - size
            if left[0] <= 0 and left[1] < BYTES_A_CALL * times:
                break
    finally:
        tracemalloc.stop()
    return left


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_leaves_nothing_behind(name: str) -> None:
    times = 200
    objects, size = _left_behind(LOOPS[name], times)
    assert objects <= 0, f"{objects} objects"
    assert size < BYTES_A_CALL * times, f"{size} bytes"


def test_the_smallest_object_that_each_call_leaves_is_seen() -> None:
    kept: list[Any] = []
    _, size = _left_behind(lambda td: kept.append(object()), times=200, rounds=3)
    assert size >= 200 * sys.getsizeof(object())


def _refused_nested(td: Any) -> None:
    bad = {"x": torch.ones(2), "deep": {"y": 1.0}}
    for call in (
        lambda: td.set("n", bad),
        lambda: td.update({"n": bad}),
        lambda: td.update_({"n": bad}),
        lambda: td.__setitem__(0, bad),
        lambda: TensorDict.from_any({"list": [{"b": 1}, {"b": 2}]}, batch_size=[3]),
        lambda: list(lazy_stack([TensorDict({"a": torch.ones(n)}) for n in (1, 2)]).values()),
        lambda: TensorDict.from_list([{"a": 1}, [1]]),
    ):
        with suppress(KeyError, RuntimeError, TypeError):
            call()


CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "nested errors": _refused_nested,
    "from_pytree": lambda td: TensorDict.from_pytree([td["a"].clone(), {"x": (td["a"].clone(),)}]).to_pytree(),
    "from_list": lambda td: TensorDict.from_list([[{"a": torch.ones(2)}], [{"a": torch.ones(2)}]]),
    "from_any": lambda td: TensorDict.from_any({"a": [torch.ones(2)], "b": ({"c": torch.ones(2)},)}),
    "to_struct_array": lambda td: td.select("a").reshape(-1).to_struct_array(),
    "tolist": lambda td: td.tolist(),
}


@pytest.mark.parametrize("name", [*LOOPS, *CONVERSIONS])
def test_what_a_call_makes_is_freed_without_the_collector(name: str, left_to_the_collector: Any) -> None:
    call = (LOOPS | CONVERSIONS)[name]
    assert left_to_the_collector(lambda: call(_td())) == []


def _resident() -> int:
    """The resident memory of this process in bytes; what tensors hold is in it."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say how much memory is held")
def test_a_million_operations_leave_nothing_behind() -> None:
    loops = [loop for name, loop in LOOPS.items() if name not in ("backward", "pickle", "vmap")]
    count = 0

    def rounds(total: int) -> None:
        nonlocal count
        td = _td()
        begun = count
        while count - begun < total:
            for loop in loops:
                loop(td)
            count += len(loops)

    rounds(10_000)
    gc.collect()
    objects, size = len(gc.get_objects()), _resident()
    rounds(1_000_000)
    gc.collect()
    assert count > 1_000_000
    assert len(gc.get_objects()) - objects < 100
    assert _resident() - size < 16 * 2**20  # a leak of 16 bytes an operation


@pytest.mark.parametrize("op", [op for op in operations() if op.family == "unary"], ids=lambda op: op.name)
def test_results_do_not_hold_their_source(op: Any) -> None:
    td = _td().select("a")
    alive = weakref.ref(td)
    result = getattr(td.clone(), op.name)()
    del td
    assert alive() is None and result is not None


def test_a_parent_is_freed_without_the_collector() -> None:
    gc.disable()
    try:
        parent = TensorDict({"child": {"grandchild": {"x": torch.ones(1)}}}).lock_()
        child = parent["child"]
        alive = weakref.ref(parent)
        del parent
        assert alive() is None and child.unlock_() is child
        stack = LazyStackedTensorDict(_td(), _td()).lock_()
        alive = weakref.ref(stack)
        del stack
        assert alive() is None
        source = _td()
        view, alive = source.view_at(0), weakref.ref(source)
        del source
        assert alive() is not None, "a view holds what it shows"
        del view
        assert alive() is None
    finally:
        gc.enable()


def test_containers_are_found_by_weak_references() -> None:
    td, lazy = _td(), lazy_stack([_td(), _td()])
    known = weakref.WeakValueDictionary({"dense": td, "lazy": lazy, "view": (view := td.view_at(0))})
    known["value"] = value = td.get("s")
    assert len(known) == 4
    del td, lazy, view, value
    assert len(known) == 0


def test_an_empty_tensordict_takes_less_than_a_kibibyte() -> None:
    tracemalloc.start()
    TensorDict({}, [3])
    before = tracemalloc.get_traced_memory()[0]
    held = [TensorDict({}, [3]) for _ in range(1000)]
    size = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(held) == 1000 and size / 1000 < 1024


VIEWS: dict[str, Callable[[Any], Any]] = {
    "number": lambda x: x[0],
    "slice": lambda x: x[:, 1:],
    "new dimension": lambda x: x[None],
    "reshape": lambda x: x.reshape(6),
    "view": lambda x: x.view(3, 2),
    "flatten": lambda x: x.flatten(0, 1),
    "unflatten": lambda x: x.unflatten(1, (3, 1)),
    "permute": lambda x: x.permute(1, 0),
    "transpose": lambda x: x.transpose(0, 1),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "squeeze": lambda x: x[:1].squeeze(0),
    "expand": lambda x: x.expand(5, 2, 3),
    "split": lambda x: x.split(1)[1],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "detach": lambda x: x.detach(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_operations_that_torch_does_without_a_copy_do_not_copy(name: str) -> None:
    td = TensorDict({"a": torch.arange(6).reshape(2, 3), "n": {"b": torch.arange(6.0).reshape(2, 3)}}, [2, 3])
    result = VIEWS[name](td)
    for path in (("a",), ("n", "b")):
        assert result[path].untyped_storage().data_ptr() == td[path].untyped_storage().data_ptr()
        assert result[path].equal(VIEWS[name](td[path]))
    same = td.select("a"), td.exclude("a"), td.flatten_keys(), td.clone(False), lazy_stack([td, td])[0]
    assert all(any(leaf is own for own in td._leaves()) for one in same for leaf in one._leaves())
