"""Tensordicts over TCP connections of this machine."""

from __future__ import annotations

import asyncio
import json

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, TensorDict, lazy_stack
from tensordict_store import TensorDictPipe, TensorDictServer


@pytest.fixture(params=["tcp", "ucxx"])
def exchange(request):
    """Runs a coroutine with both ends of a pipe, within a time limit."""
    if request.param == "ucxx":
        pytest.importorskip("ucxx", reason="ucxx needs Linux")

    def over(scenario, **options):
        async def run():
            async with await TensorDictServer.start(0, transport=request.param, **options) as server:
                one = await TensorDictPipe.connect("127.0.0.1", server.port, transport=request.param, **options)
                async with one, await server.accept() as other:
                    return await asyncio.wait_for(scenario(one, other), 60)

        return asyncio.run(run())

    return over


def sample(n=3):
    nested = TensorDict({"c": torch.full((n, 2), 0.5, dtype=torch.float16), "e": {}}, [n, 2])
    entries = {"a": torch.arange(n), "b": nested, "z": torch.zeros(n, 0), "flag": torch.ones(n, dtype=torch.bool)}
    return TensorDict(
        {**entries, "s": [f"row {i}" for i in range(n)], "one": {"k": [1, None, 2.5]}}, [n], names=["rows"]
    )


def test_structure_values_and_strings_arrive(exchange):
    async def scenario(one, other):
        await one.asend(sample())
        return await other.arecv()

    td = exchange(scenario)
    assert td.batch_size == (3,) and td.names == ["rows"] and td["b"].batch_size == (3, 2)
    assert td["a"].tolist() == [0, 1, 2] and td["b", "c"].dtype == torch.float16 and td["z"].shape == (3, 0)
    assert td["s"] == ["row 0", "row 1", "row 2"] and td["one"]["k"] == [1, None, 2.5]
    assert td["b", "e"].batch_size == (3, 2)


def test_messages_of_one_structure_are_written_into_one_tensordict(exchange):
    async def scenario(one, other):
        await one.asend(TensorDict({"a": torch.zeros(2)}))
        first = await other.arecv()
        await one.asend(TensorDict({"a": torch.ones(2)}))
        second = await other.arecv()
        await one.asend(TensorDict({"b": torch.ones(3)}))
        return first, second, await other.arecv()

    first, second, third = exchange(scenario)
    assert first is second and first["a"].tolist() == [1.0, 1.0] and list(third.keys()) == ["b"]
    first, second, _ = exchange(scenario, consolidated=False)
    assert first["a"].tolist() == [0.0, 0.0] and second["a"].tolist() == [1.0, 1.0]


def test_methods_of_tensordicts_take_a_pipe(exchange):
    async def scenario(one, other):
        await TensorDict({"a": torch.ones(2)}).asend(one)
        target = TensorDict({"a": torch.zeros(2)})
        leaf = target["a"]
        assert await target.arecv(other) is target
        return leaf

    assert exchange(scenario).tolist() == [1.0, 1.0]


def test_iteration_ends_when_the_other_end_closes(exchange):
    async def scenario(one, other):
        for i in range(3):
            await one.asend(TensorDict({"i": i}))
        await one.aclose()
        return [td["i"].item() async for td in other]

    assert exchange(scenario) == [0, 1, 2]


def test_large_messages_and_both_directions_at_once(exchange):
    big = torch.randn(1 << 20)

    async def scenario(one, other):
        sends = (one.asend(TensorDict({"x": big})), other.asend(TensorDict({"x": -big})))
        *_, there, back = await asyncio.gather(*sends, other.arecv(), one.arecv())
        return there["x"], back["x"]

    there, back = exchange(scenario)
    assert torch.equal(there, big) and torch.equal(back, -big)


def test_a_lazy_stack_of_equal_elements_arrives_dense(exchange):
    async def scenario(one, other):
        await one.asend(lazy_stack([TensorDict({"a": torch.zeros(2)}), TensorDict({"a": torch.ones(2)})]))
        return await other.arecv()

    td = exchange(scenario)
    assert not isinstance(td, LazyStackedTensorDict) and td["a"].tolist() == [[0, 0], [1, 1]]


def test_entries_that_a_stream_cannot_hold_are_refused_and_the_pipe_stays_open(exchange):
    async def scenario(one, other):
        for entry, match in ((object(), "holds a object"), (torch.zeros(2).to_sparse(), "in the layout")):
            with pytest.raises(TypeError, match=match):
                await one.asend(TensorDict({"a": entry}))
        await one.asend(TensorDict({"a": 1}))
        return await other.arecv()

    assert exchange(scenario)["a"] == 1


async def written(pipe, data):
    pipe._writer.write(data)
    await pipe._writer.drain()


HEADER = {"nodes": [[[], [2], None]], "leaves": [[["a"], "float32", [2]]], "values": []}
HOSTILE = {
    "no JSON": b"{",
    "another kind": b"[1]",
    "a dtype of no tensor": json.dumps({**HEADER, "leaves": [[["a"], "quint8", [2]]]}).encode(),
    "a negative size": json.dumps({**HEADER, "leaves": [[["a"], "float32", [-2]]]}).encode(),
    "an entry of no node": json.dumps({**HEADER, "leaves": [[["n", "a"], "float32", [2]]]}).encode(),
    "no root": json.dumps({**HEADER, "nodes": []}).encode(),
    "nested lists": b"[" * 100_000,
}


@pytest.mark.parametrize("header", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_header_is_refused(header, exchange):
    async def scenario(one, other):
        with pytest.raises(ValueError, match="not one of this format"):
            await asyncio.gather(written(one, len(header).to_bytes(8, "little") + header), other.arecv())

    exchange(scenario)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ((1 << 40).to_bytes(8, "little"), "a header of"),
        (bytes(8), "the first message has no header"),
    ],
)
def test_lengths_that_lie_are_refused_before_memory_is_taken(data, match, exchange):
    async def scenario(one, other):
        with pytest.raises(ValueError, match=match):
            await asyncio.gather(written(one, data), other.arecv())

    exchange(scenario)


def test_a_message_larger_than_allowed_is_refused(exchange):
    huge = json.dumps({**HEADER, "leaves": [[["a"], "float32", [2, 1 << 50]]]}).encode()

    async def scenario(one, other):
        with pytest.raises(ValueError, match="max_bytes"):
            await asyncio.gather(written(one, len(huge).to_bytes(8, "little") + huge), other.arecv())

    exchange(scenario)


def test_an_end_in_the_middle_of_a_message_is_an_error(exchange):
    async def scenario(one, other):
        header = json.dumps(HEADER).encode()
        one._writer.write(len(header).to_bytes(8, "little") + header + bytes(3))
        await one.aclose()
        with pytest.raises(EOFError, match="in the middle"):
            await other.arecv()

    exchange(scenario)


def test_an_end_behind_the_length_of_a_header_is_an_error(exchange):
    async def scenario(one, other):
        one._writer.write((100).to_bytes(8, "little"))
        await one.aclose()
        with pytest.raises(EOFError, match="in the middle"):
            [td async for td in other]

    exchange(scenario)


def test_a_receive_that_is_cancelled_in_a_message_is_continued_by_the_next_one(exchange):
    async def scenario(one, other):
        header = json.dumps(HEADER).encode()
        content = len(header).to_bytes(8, "little") + header + torch.tensor([1.0, 2.0]).numpy().tobytes()
        for part in (content[:3], content[3:8], content[8:20], content[20:-5]):
            await written(one, part)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(other.arecv(), 0.1)
        await written(one, content[-5:])
        return await other.arecv()

    assert exchange(scenario)["a"].tolist() == [1.0, 2.0]


def test_a_send_that_is_cancelled_in_a_message_leaves_no_half_of_it(exchange):
    async def scenario(one, other):
        message = TensorDict({"a": torch.arange(1 << 20), "b": torch.ones(3)})
        sending = asyncio.ensure_future(one.asend(message))
        await asyncio.sleep(0.1)
        sending.cancel()
        sending = asyncio.ensure_future(one.asend(message + 1))
        first = (await other.arecv()).clone()
        second = await other.arecv()
        await sending
        return first, second

    first, second = exchange(scenario)
    assert first["a"][-1] == (1 << 20) - 1 and first["b"].tolist() == [1, 1, 1]
    assert second["a"][-1] == 1 << 20 and second["b"].tolist() == [2, 2, 2]


def test_a_tensor_may_change_when_its_send_has_returned():
    async def run():
        async with await TensorDictServer.start(0) as server:
            one = await TensorDictPipe.connect("127.0.0.1", server.port)
            async with one, await server.accept() as other:
                for pipe in (one, other):
                    assert pipe._writer.transport.get_write_buffer_limits() == (0, 0)
                await asyncio.gather(one.asend(TensorDict({"a": torch.zeros(1 << 20)})), other.arecv())
                assert one._writer.transport.get_write_buffer_size() == 0

    asyncio.run(run())


def test_a_listener_that_is_cancelled_frees_its_port():
    async def run():
        async with await TensorDictServer.start(0) as server:
            port = server.port
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(TensorDictPipe.listen(port), 0.1)
        async with await TensorDictServer.start(port) as server:
            return server.port == port

    assert asyncio.run(run())


def test_a_program_that_fails_does_not_end_the_server():
    async def run():
        reports = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))

        async def double(pipe):
            async for td in pipe:
                await pipe.asend(td * 2)

        async with await TensorDictServer.start(0) as server:
            task = asyncio.create_task(server.serve(double))
            async with await TensorDictPipe.connect("127.0.0.1", server.port) as hostile:
                await written(hostile, (1 << 40).to_bytes(8, "little"))
                with pytest.raises(EOFError):
                    await hostile.arecv()
            async with await TensorDictPipe.connect("127.0.0.1", server.port) as pipe:
                await pipe.asend(TensorDict({"n": 3}))
                result = (await pipe.arecv())["n"].item()
            task.cancel()
        return result, [str(report["exception"]) for report in reports]

    result, [error] = asyncio.run(asyncio.wait_for(run(), 60))
    assert result == 6 and "a header of" in error


def test_one_listener_waits_for_one_program_and_a_server_serves_several():
    async def run():
        async with await TensorDictServer.start(0) as server:

            async def double(pipe):
                async for td in pipe:
                    await pipe.asend(td * 2)

            task = asyncio.create_task(server.serve(double))
            results = []
            for n in (1, 2):
                async with await TensorDictPipe.connect("127.0.0.1", server.port) as pipe:
                    await pipe.asend(TensorDict({"n": n}))
                    results.append((await pipe.arecv())["n"].item())
            task.cancel()
            port = server.port
        listening = asyncio.create_task(TensorDictPipe.listen(port))
        for _ in range(200):
            try:
                client = await TensorDictPipe.connect("127.0.0.1", port)
                break
            except OSError:
                await asyncio.sleep(0.05)
        async with client, await listening as other:
            await other.asend(TensorDict({"n": 5}))
            results.append((await client.arecv())["n"].item())
        return results

    assert asyncio.run(asyncio.wait_for(run(), 60)) == [2, 4, 5]
