"""Point-to-point communication and collectives over gloo on one machine."""

from __future__ import annotations

import asyncio
import queue
import traceback

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tensordict_core import TensorDict, UnbatchedTensor, lazy_stack
from tensordict_core.ops.parallel.distributed.messages import BLOCK, SMALL, blocks, sorted_leaves, tags, values

LARGE = SMALL // 4 + 1


def _process(scenario, rank, world, store, results, arguments):
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        results.put((rank, scenario(rank, world, *arguments)))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        results.put((rank, RuntimeError(traceback.format_exc())))


def run(scenario, tmp_path, *arguments, world=2):
    """Run ``scenario(rank, world, ...)`` in several processes and return their results in the order of ranks."""
    context = mp.get_context("fork")
    results = context.SimpleQueue()
    store = tmp_path / "store"
    processes = [
        context.Process(target=_process, args=(scenario, rank, world, store, results, arguments))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    found = {}
    try:
        for _ in range(world):
            rank, result = _get(results)
            if isinstance(result, Exception):
                raise result
            found[rank] = result
    finally:
        for process in processes:
            process.join(10 if len(found) == world else 0)
            if process.is_alive():
                process.kill()
                process.join()
    return [found[rank] for rank in range(world)]


def _get(results, timeout=300):
    if not results._reader.poll(timeout):
        raise queue.Empty("no process answered")
    return results.get()


def sample(value: float) -> TensorDict:
    """Return leaves of many kinds: small, large, of several dtypes, strided, empty, nested, lazy, ragged."""
    return TensorDict(
        {
            "f": torch.full((3,), value),
            "i": torch.full((3, 2), int(value)),
            "flag": torch.full((3,), bool(value)),
            "half": torch.full((3,), value, dtype=torch.bfloat16),
            "turned": torch.full((4, 3), value).T,
            "none": torch.zeros(3, 0),
            "n": {"large": torch.full((3, LARGE), value), "c": torch.full((3,), value, dtype=torch.complex64)},
            "w": torch.full((3,), value, requires_grad=True),
            "u": UnbatchedTensor(torch.full((7,), value)),
            "l": lazy_stack([TensorDict({"q": torch.full((i + 1,), value)}) for i in range(3)]),
            "s": f"text {value}",
            "v": [f"{value} {i}" for i in range(3)],
        },
        [3],
    )


def holds(td: TensorDict, value: float) -> bool:
    """Return whether every leaf has the value."""
    numbers = all(bool((leaf.to(torch.complex64) == value).all()) for leaf in td.exclude("flag")._leaves())
    texts = td["s"] == f"text {value}" and td["v"] == [f"{value} {i}" for i in range(3)]
    return numbers and texts and bool((td["flag"] == bool(value)).all()) and td["n", "large"].shape == (3, LARGE)


# plans ---------------------------------------------------------------------------------------------------------------


def test_small_leaves_of_a_dtype_share_a_message_and_large_ones_are_sent_without_a_copy():
    td = TensorDict(
        {str(i): torch.zeros(10) for i in range(100)} | {"i": torch.zeros(2).int(), "large": torch.zeros(LARGE)}
    )
    plan = blocks(sorted_leaves(td))
    assert [len(block.leaves) for block in plan] == [100, 1, 1]
    assert plan[2].memory.data_ptr() == td["large"].data_ptr() and not plan[2].joined
    assert [len(block.leaves) for block in blocks(sorted_leaves(td), limit=1 << 40, alone=1 << 40)] == [101, 1]
    assert len(blocks([torch.zeros(SMALL // 8) for _ in range(2 * BLOCK // (SMALL // 2) + 1)])) == 3


def test_leaves_are_joined_up_to_the_bytes_of_a_bucket():
    leaves = [torch.zeros(10) for _ in range(7)] + [torch.zeros(LARGE)]
    assert [len(blocks(leaves)), len(blocks(leaves, limit=0, alone=0)), len(blocks(leaves, limit=80, alone=80))] == [
        2,
        8,
        5,
    ]


def test_the_message_plan_does_not_depend_on_the_order_of_keys():
    td = TensorDict({"a": torch.zeros(2), "b": torch.zeros(3), "l": torch.zeros(LARGE)})
    other = TensorDict({"l": torch.zeros(LARGE), "b": torch.zeros(3), "a": torch.zeros(2)})
    shapes = [[[leaf.shape for leaf in block.leaves] for block in blocks(sorted_leaves(td))] for td in (td, other)]
    assert shapes[0] == shapes[1]


def test_tags_are_consecutive_or_random():
    counted = tags(5, False)
    assert [next(counted) for _ in range(3)] == [5, 6, 7]
    first, second = tags(5, True), tags(5, True)
    assert [next(first) for _ in range(3)] == [next(second) for _ in range(3)]


def test_leaves_without_dense_memory_are_refused():
    with pytest.raises(TypeError, match=r"'a'.*layout torch.sparse_coo"):
        sorted_leaves(TensorDict({"a": torch.eye(3).to_sparse()}))
    assert len(values(sample(1.0))) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "exactly one"),
        ({"dst": 1, "group_dst": 1}, ValueError, "exactly one"),
        ({"group_dst": 1}, ValueError, "pass group too"),
        ({"dst": "one"}, TypeError, "a rank or a pipe"),
        ({"dst": 1}, RuntimeError, "init_process_group"),
    ],
)
def test_send_refuses_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        TensorDict({"a": 1}).send(**arguments)


# point to point ------------------------------------------------------------------------------------------------------


def _exchange(rank, world, send, recv, options):
    td = sample(float(rank))
    if rank == 1:
        getattr(td, send)(0, **options)
        return True
    td.lock_()
    leaves = td._leaves()
    getattr(td, recv)(1, **options)
    return holds(td, 1.0) and all(a is b for a, b in zip(leaves, td._leaves(), strict=True))


@pytest.mark.parametrize(
    ("send", "recv", "options"),
    [
        ("send", "recv", {}),
        ("isend", "irecv", {"init_tag": 7}),
        ("send", "irecv", {"pseudo_rand": True}),
        ("isend", "recv", {"consolidated": True}),
    ],
)
def test_values_are_received_in_place(tmp_path, send, recv, options):
    assert run(_exchange, tmp_path, send, recv, options) == [True, True]


def _early(rank, world):
    first, second = sample(float(rank)), sample(float(rank) + 5)
    if rank == 1:
        under_way = first.isend(0, return_early=True) + second.isend(0, init_tag=100, return_early=True)
    else:
        under_way = first.irecv(1, return_premature=True) + second.irecv(1, init_tag=100, return_premature=True)
    for transfer in under_way:
        transfer.wait()
    assert all(transfer.is_completed() for transfer in under_way)
    return holds(first, 1.0) and holds(second, 6.0)


def test_transfers_are_waited_for_by_the_caller(tmp_path):
    assert run(_early, tmp_path) == [True, True]


def _tags(rank, world):
    td = TensorDict({"a": torch.full((2,), float(rank)), "l": torch.full((LARGE,), float(rank))})
    empty = TensorDict({})
    if rank == 1:
        return td.isend(0, init_tag=3), empty.isend(0, init_tag=3)
    return td.recv(1, init_tag=3), empty.recv(1, init_tag=3)


def test_the_last_tag_is_returned(tmp_path):
    assert run(_tags, tmp_path) == [(4, 2), (4, 2)]


def _group(rank, world):
    group = dist.new_group([1, 2])
    td = TensorDict({"a": torch.full((2,), float(rank))})
    if rank == 1:
        td.send(group=group, group_dst=1)
    if rank == 2:
        td.recv(group=group, group_src=0)
    return td["a"].tolist()


def test_ranks_of_a_group(tmp_path):
    assert run(_group, tmp_path, world=3) == [[0, 0], [1, 1], [1, 1]]


def _coroutines(rank, world):
    td = sample(float(rank))

    async def both():
        other = asyncio.create_task(asyncio.sleep(0, "ran"))
        if rank == 1:
            await td.asend(0)
        else:
            assert await td.arecv(1, device="cpu") is not None
        return await other

    assert asyncio.run(both()) == "ran"
    return holds(td, 1.0)


def test_coroutines(tmp_path):
    assert run(_coroutines, tmp_path) == [True, True]


def test_pipes_move_tensordicts_themselves():
    class Pipe:
        def __init__(self):
            self.held = None

        def send(self, td):
            self.held = td

        def recv(self, td):
            return td.update(self.held)

        async def asend(self, td):
            self.held = td

        async def arecv(self, td, device=None):
            return td.update(self.held)

    pipe = Pipe()
    TensorDict({"a": 1}).send(pipe)
    assert TensorDict({}).recv(pipe)["a"] == 1
    asyncio.run(TensorDict({"a": 2}).asend(pipe))
    assert asyncio.run(TensorDict({}).arecv(pipe))["a"] == 2


# collectives ---------------------------------------------------------------------------------------------------------


def _structures(rank, world):
    mine = sample(float(rank))
    target = mine if rank == 1 else TensorDict({})
    got = target.broadcast(1)
    assert holds(got, 1.0) and got["w"].requires_grad and (got is target) == (rank == 1)
    assert type(got["l"]).__name__ == "LazyStackedTensorDict" and got["l"][2]["q"].shape == (3,)
    assert TensorDict({"s": "x"} if rank == 1 else {}).broadcast(1)["s"] == "x"

    everyone = mine.all_gather()
    assert [holds(td, float(i)) for i, td in enumerate(everyone)] == [True] * world
    different = TensorDict({f"key {rank}": torch.zeros(rank)}).all_gather()
    assert [td.sorted_keys for td in different] == [[f"key {i}"] for i in range(world)]

    items = [sample(float(i + 10)) for i in range(world)] if rank == 0 else None
    assert holds(TensorDict({}).scatter(0, items), rank + 10.0)
    uneven = [TensorDict({"a": torch.arange(i)}, [i]) for i in range(world)] if rank == 0 else None
    assert TensorDict({}).scatter(0, uneven).batch_size == torch.Size([rank])
    rows = TensorDict({"a": torch.arange(world)}, [world]) if rank == 0 else TensorDict({})
    assert rows.scatter(0)["a"] == rank
    return True


def test_collectives_send_the_structure_with_the_leaves(tmp_path):
    assert run(_structures, tmp_path, world=3) == [True] * 3


def _reductions(rank, world):
    def make():
        keys = ["a", "b"] if rank else ["b", "a"]
        td = TensorDict({key: torch.full((2,), float(rank + 1)) * (1 + (key == "b")) for key in keys})
        td["n"] = {"i": torch.full((3, 2), rank + 1).T, "large": torch.full((LARGE,), float(rank + 1)), "s": "text"}
        td["w"] = torch.full((2,), float(rank + 1), requires_grad=True)
        return td.lock_()

    def check(td, one):
        got = [td[key].detach().reshape(-1).unique().tolist() for key in ("a", "b", ("n", "i"), ("n", "large"), "w")]
        return got == [[one], [2 * one], [one], [one], [one]]

    total, largest = sum(range(1, world + 1)), world
    for bucket_bytes in (None, 0, 16):
        td = make()
        assert td.all_reduce(bucket_bytes=bucket_bytes) is None and check(td, total)
        td = make()
        td.reduce(0, bucket_bytes=bucket_bytes)
        assert check(td, rank + 1 if rank else total)
    td = make()
    td.all_reduce(dist.ReduceOp.MAX)
    assert check(td, largest)
    td = make()
    for transfer in td.all_reduce(async_op=True):
        transfer.wait()
    assert check(td, total)
    td = make()
    assert td.reduce(1, async_op=True) is None and check(td, total if rank == 1 else rank + 1)
    td = make()
    for transfer in td.reduce(1, async_op=True, return_premature=True):
        transfer.wait()
    assert check(td, total if rank == 1 else rank + 1)
    return True


def test_leaves_are_reduced_in_place_and_small_ones_together(tmp_path):
    assert run(_reductions, tmp_path, world=3) == [True] * 3


def _gather(rank, world):
    out = {}
    for lazy in (False, True):
        td = sample(float(rank)).exclude("u")  # one tensor for all rows
        if rank == 1:
            rows = [sample(9.0).exclude("u") for _ in range(world - 1)]
            td = lazy_stack(rows) if lazy else torch.stack(rows)
        got = td.gather_and_stack(1)
        assert (got is td) if rank == 1 else got is None
        if rank == 1:
            for i, value in enumerate((0.0, 2.0)):
                row = td[i]
                assert row["s"] == [f"text {value}"] * 3  # a value for each position, since the rows have their own
                row["s"] = f"text {value}"
                out[lazy] = out.get(lazy, True) and holds(row, value)
    if rank == 1:
        with pytest.raises(RuntimeError, match=r"one row for each of the 2 other processes"):
            TensorDict({"a": torch.zeros(3)}, [3]).gather_and_stack(1)
    return out


def test_rows_are_gathered_from_the_other_processes(tmp_path):
    assert run(_gather, tmp_path, world=3) == [{}, {False: True, True: True}, {}]


def test_scatter_needs_a_tensordict_for_each_process(tmp_path):
    def scenario(rank, world):
        with pytest.raises(ValueError, match="each of 1 processes, got 2"):
            TensorDict({}).scatter(0, [TensorDict({}), TensorDict({})])
        with pytest.raises(ValueError, match="got 0"):
            TensorDict({}).scatter(0)
        return True

    assert run(scenario, tmp_path, world=1) == [True]


def _cold_start(rank, world, use_broadcast):
    if rank == 0:
        td = TensorDict({"obs": torch.ones(2, 3), "n": {"name": ["a", "b"]}}, [2])
        td.init_remote(None if use_broadcast else 1, use_broadcast=use_broadcast)
        td["obs"].add_(1)
        td.send(1)
        return None
    td = TensorDict.from_remote_init(0, use_broadcast=use_broadcast)
    first = td.clone()
    td.recv(0)
    return first["obs"].tolist(), first["n", "name"], tuple(first.batch_size), td["obs"].tolist()


@pytest.mark.parametrize("use_broadcast", [False, True])
def test_a_process_that_knows_nothing_receives_structure_and_values(tmp_path, use_broadcast):
    _, found = run(_cold_start, tmp_path, use_broadcast)
    assert found == ([[1.0] * 3] * 2, ["a", "b"], (2,), [[2.0] * 3] * 2)


def test_a_cold_start_needs_a_receiver(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="no receiver"):
            TensorDict({"a": 1}).init_remote()
    finally:
        dist.destroy_process_group()
