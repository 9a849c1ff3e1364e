"""Redis stores: rows, requests, time to live, stacks, other processes, and servers that are gone or lie."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import torch

pytest.importorskip("redis", reason="redis-py is an extra")

import redis

from tensordict_core import NonTensorData, TensorDict, lazy_stack
from tensordict_store import LazyStackedTensorDictStore, TensorDictStore


def sample(n: int = 10) -> TensorDict:
    nested = {"y": torch.arange(n), "flag": torch.arange(n) % 2 == 0, "dotted.key": torch.ones(n)}
    return TensorDict({"x": torch.arange(4.0 * n).view(n, 4), "n": nested, "name": "run"}, [n], names=["time"])


class Counter:
    """Counts the requests of a store."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        connection = store._tree.connection
        request = connection._request

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return request(*args, **kwargs)

        monkeypatch.setattr(connection, "_request", counted)


@pytest.fixture(params=[True, False], ids=["scripts", "no scripts"])
def store(request, redis_port):
    made = sample().to_store(port=redis_port)
    made._tree.connection._scripts = request.param
    return made


def test_every_operation_is_one_request(redis_port, monkeypatch):
    store = sample().to_store(port=redis_port)
    store[[1, 5]], store.set_at_("x", 0.0, 1)  # the first write asks whether the server runs scripts
    counter = Counter(store, monkeypatch)
    for operation in (
        lambda: store[3],
        lambda: store[torch.tensor([8, 1, 4])],
        lambda: store["n", "y"],
        lambda: store.to_local(),
        lambda: store.__setitem__(slice(2, 5), sample(3).exclude("name")),
        lambda: store.update_({"x": torch.ones(10, 4), "n": {"y": torch.zeros(10)}}),
        lambda: store.update({"a": torch.ones(10), "b": torch.ones(10), "c": torch.ones(10)}),
        lambda: store.clear_redis(),
    ):
        counter.count = 0
        operation()
        assert counter.count == 1


def test_a_store_is_opened_by_its_id(redis_port):
    store = sample().to_store(port=redis_port, prefix="tests")
    other = TensorDictStore.from_store(port=redis_port, prefix="tests", td_id=store.td_id)
    assert (other.to_local() == sample()).all() and list(other.keys()) == ["x", "n", "name"] and other.names == ["time"]
    with pytest.raises(KeyError, match=r"td_id='none'.*never stored"):
        TensorDictStore.from_store(port=redis_port, td_id="none")
    assert (pickle.loads(pickle.dumps(other.lock_())) == sample()).all()
    store.clear_redis()
    assert redis.Redis(port=redis_port).keys("tests:*") == []


def test_metadata_are_read_again_where_they_are_not_kept(redis_port):
    store = sample().to_store(port=redis_port)
    fresh = TensorDictStore.from_store(port=redis_port, td_id=store.td_id, cache_metadata=False)
    store["new"] = torch.ones(10, 7)
    assert "new" in fresh and fresh["new"].shape == (10, 7)


def test_a_schema_makes_zeros_without_sending_them(redis_port):
    store = TensorDictStore.from_schema(
        {"a": ([3], torch.float32), "n": {"d": ([], torch.bool)}, "e": ([0], torch.int8)},
        batch_size=[5],
        port=redis_port,
    )
    assert store["a"].shape == (5, 3) and not store["a"].any() and store["n", "d"].dtype is torch.bool
    assert store["e"].shape == (5, 0)
    other = TensorDict.from_schema(
        {"a": ([3], torch.float32)}, batch_size=[5], storage="redis", port=redis_port, prefix="q"
    )
    assert isinstance(other, TensorDictStore) and other["a"].shape == (5, 3) and other._tree.prefix == "q"


def test_a_dictionary_is_stored_with_a_batch_size(redis_port):
    store = TensorDictStore.from_dict(
        {"a": torch.zeros(3), "n": {"b": torch.ones(3, 2)}}, port=redis_port, auto_batch_size=True
    )
    assert store.batch_size == (3,) and store[1]["n", "b"].tolist() == [1, 1]


@pytest.mark.parametrize("kind", ["tensordict", "stack"])
def test_time_to_live_ends(redis_port, kind):
    client = redis.Redis(port=redis_port)
    store = (sample() if kind == "tensordict" else stack()).to_store(port=redis_port, ttl=1000)
    names = client.keys(f"*{store.td_id}*")
    assert names and all(0 < client.ttl(name) <= 1000 for name in names)
    store["new"] = torch.ones(store.batch_size)
    assert client.ttl(store._tree.data(("new",))) > 0
    store.expire(None)
    assert store.client.ping() and all(client.ttl(name) == -1 for name in client.keys(f"*{store.td_id}*"))


def test_a_deleted_value_is_an_error_and_is_not_recreated(store):
    client = store.client
    client.delete(store._tree.data(("x",)))
    with pytest.raises(KeyError, match="'x' is gone from the server"):
        store["x"]
    with pytest.raises(KeyError, match="gone from the server"):
        store[3]
    with pytest.raises(KeyError, match="nothing was written"):
        store[3] = sample(1)[0].exclude("name")
    assert not client.exists(store._tree.data(("x",))) and store["n", "y"].tolist() == list(range(10))


def test_values_that_json_lacks_are_stored_with_their_types(redis_port):
    td = TensorDict({"o": NonTensorData({1: (2, torch.Size([3]))}, batch_size=[2]), "x": torch.ones(2)}, [2])
    store = td.to_store(port=redis_port)
    assert TensorDictStore.from_store(port=redis_port, td_id=store.td_id)["o"] == {1: (2, torch.Size([3]))}


def test_a_value_without_a_json_form_is_refused_unless_pickles_are_allowed(redis_port):
    td = TensorDict({"o": NonTensorData(range(3), batch_size=[2]), "x": torch.ones(2)}, [2])
    with pytest.raises(TypeError, match=r"'o'.*allow_pickle=True"):
        td.to_store(port=redis_port)
    store = td.to_store(port=redis_port, allow_pickle=True)
    assert store["o"] == range(3)
    other = TensorDictStore.from_store(port=redis_port, td_id=store.td_id)
    with pytest.raises(ValueError, match="'o' is a pickle"):
        other["o"]
    assert other["x"].tolist() == [1, 1]


# stacks ---------------------------------------------------------------------------------------------------------------


def stack() -> Any:
    def one(n: int) -> TensorDict:
        return TensorDict({"x": torch.full((n,), float(n)), "n": {"y": torch.ones(2) * n}, "name": f"run {n}"})

    return lazy_stack([one(3), one(4), one(5)])


def test_elements_of_a_stack_differ_in_shape(redis_port):
    store = stack().to_store(port=redis_port)
    assert isinstance(store, LazyStackedTensorDictStore) and store.batch_size == (3,)
    assert store[1]["x"].shape == (4,) and store[-1]["name"] == "run 5"
    assert store["n", "y"].tolist() == [[3, 3], [4, 4], [5, 5]]
    assert [part["x"].shape[0] for part in store[torch.tensor([2, 0])].unbind(0)] == [5, 3]
    with pytest.raises(RuntimeError, match=r"\[\[3\], \[4\], \[5\]\]"):
        store["x"]
    assert (store.to_local()[1] == stack()[1]).all()


def test_elements_of_a_stack_are_written(redis_port):
    store = stack().to_store(port=redis_port)
    same = TensorDict({"x": torch.zeros(4), "n": {"y": torch.zeros(2)}, "name": "other"})
    store[1] = same
    store[2] = TensorDict({"x": torch.zeros(9), "n": {"y": torch.zeros(2)}, "name": "longer"})
    other = LazyStackedTensorDictStore.from_store(port=redis_port, td_id=store.td_id)
    assert (other[1] == same).all() and other[2]["x"].shape == (9,) and other[0]["x"].tolist() == [3, 3, 3]
    assert [one["name"] for one in other.to_local().unbind(0)] == ["run 3", "other", "longer"]
    with pytest.raises(RuntimeError, match="write each element"):
        other.set_("x", torch.zeros(3, 3))


def test_a_ragged_entry_leaves_nothing_behind_when_it_is_removed_or_replaced(redis_port):
    store = stack().to_store(port=redis_port)
    client = store.client
    assert len(client.keys(f"*{store.td_id}*:idx")) == 1
    store["x"] = torch.zeros(3)
    assert client.keys(f"*{store.td_id}*:idx") == [] and store["x"].tolist() == [0, 0, 0]
    store = stack().to_store(port=redis_port)
    del store["x"]
    assert client.keys(f"*{store.td_id}*:idx") == []


def test_a_stack_is_opened_as_a_stack_only(redis_port):
    store = sample().to_store(port=redis_port)
    with pytest.raises(TypeError, match="not a lazy stack; open it with TensorDictStore"):
        LazyStackedTensorDictStore.from_store(port=redis_port, td_id=store.td_id)
    with pytest.raises(TypeError, match="takes a lazy stack"):
        LazyStackedTensorDictStore.from_lazy_stack(sample(), port=redis_port)
    with pytest.raises(KeyError, match="differ in their keys"):
        lazy_stack([TensorDict({"a": 1}), TensorDict({"b": 1})]).to_store(port=redis_port)


# faults ---------------------------------------------------------------------------------------------------------------


def test_a_stopped_server_is_an_error_and_a_new_one_is_found(redis_server):
    store = sample().to_store(port=redis_server.port)
    redis_server.stop()
    for operation in (
        lambda: store["x"],
        lambda: store.set_("x", torch.zeros(10, 4)),
        lambda: store.set("z", torch.zeros(10)),
    ):
        with pytest.raises(ConnectionError, match=r"does not answer.*start it"):
            operation()
    assert "z" not in store._tree.nodes[()]["keys"]
    redis_server.start()
    with pytest.raises(KeyError, match="gone from the server"):
        store["x"]
    store["x"] = sample()["x"]
    assert torch.equal(store["x"], sample()["x"])


def test_a_server_that_dies_in_the_middle_of_a_write_changes_nothing_here(redis_server):
    store = sample().to_store(port=redis_server.port)
    redis_server.process.send_signal(19)  # it stops, and takes in what is sent
    store._tree.connection._options |= {"socket_timeout": 0.2, "retry": None}
    store._tree.connection._client = None
    with pytest.raises(ConnectionError, match="does not answer"):
        store.update({"new": torch.ones(10), "other": torch.ones(10)})
    redis_server.process.kill()
    assert set(store._tree.nodes[()]["keys"]) == {"x", "n", "name"}


def test_a_server_without_scripts_is_served_with_commands(redis_server):
    store = sample().to_store(port=redis_server.port)
    store.client.execute_command("ACL", "SETUSER", "default", "-@scripting")
    store[[1, 5]] = sample()[[2, 3]].exclude("name")
    assert store[[1, 5]]["x"].tolist() == sample()[[2, 3]]["x"].tolist()
    assert not store._tree.connection._scripts


def test_a_server_that_forgets_its_scripts_is_written_to_in_one_request(redis_port, monkeypatch):
    store = sample().to_store(port=redis_port)
    store[[1, 5]] = sample()[[2, 3]].exclude("name")
    store.client.script_flush()
    counter = Counter(store, monkeypatch)
    store[[1, 5]] = sample()[[7, 8]].exclude("name")
    assert counter.count == 1 and store._tree.connection._scripts
    assert store[[1, 5]]["x"].tolist() == sample()[[7, 8]]["x"].tolist()


def test_a_write_that_the_guard_of_another_client_stops_is_sent_again(redis_port, monkeypatch):
    store = sample().to_store(port=redis_port)
    store.set_at_("x", 0.0, 1)
    wire, other = store._tree.connection._wire, redis.Redis(port=redis_port)
    packed, turns = wire.run, []

    def run(commands: Any, atomic: bool, before: Any = ()) -> Any:
        if before and not turns:  # the watched name changes between WATCH and EXEC
            before = [*before, ("SET", before[0][1], ""), ("DEL", before[0][1])]
            turns.append(1)
            replies = packed(commands, atomic, before)
            return [*replies[:2], *replies[4:]]
        turns.append(2)
        return packed(commands, atomic, before)

    monkeypatch.setattr(wire, "run", run)
    store[2] = sample()[7].exclude("name")
    assert turns == [1, 2] and store[2]["x"].tolist() == sample()[7]["x"].tolist()
    assert not other.exists(store._tree.name("__guard__"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": "[1000000000000]"}, "requires 4000000000000"),
        ({"shape": "[-3, 4]"}, "the shape of 'x' on the server is damaged"),
        ({"shape": "{}"}, "the shape of 'x' on the server is damaged"),
        ({"shape": "["}, "the metadata of 'x' on the server are damaged"),
        ({"dtype": "torch.load"}, "the metadata of 'x' on the server are damaged"),
        ({"dtype": "torch.float64"}, "has 160 bytes, but its shape requires 320"),
    ],
)
def test_metadata_that_lie_are_an_error(redis_port, fields, message):
    store = sample().to_store(port=redis_port)
    store.client.hset(store._tree.meta(("x",)), mapping=fields)
    with pytest.raises(ValueError, match=message):
        TensorDictStore.from_store(port=redis_port, td_id=store.td_id, batch_size=[]).get("x")


def test_a_pickle_written_by_another_client_is_not_loaded(redis_port, tmp_path):
    class Attack:
        def __reduce__(self) -> Any:
            return open, (str(tmp_path / "attacked"), "w")

    store = sample().to_store(port=redis_port)
    store.client.hset(store._tree.meta(("name",)), mapping={"encoding": "pickle"})
    store.client.set(store._tree.data(("name",)), pickle.dumps(Attack()))
    store = TensorDictStore.from_store(port=redis_port, td_id=store.td_id)
    with pytest.raises(ValueError, match="is a pickle"):
        store["name"]
    assert not (tmp_path / "attacked").exists() and store["x"].shape == (10, 4)


def test_damaged_values_are_errors(redis_port):
    store = sample().to_store(port=redis_port)
    store.client.set(store._tree.data(("name",)), b"{")
    with pytest.raises(ValueError, match="'name' is damaged"):
        store["name"]
    store.client.hset(store._tree.name("__nodes__"), "", "{")
    with pytest.raises(ValueError, match="damaged; store it again"):
        TensorDictStore.from_store(port=redis_port, td_id=store.td_id)
    store.client.hset(store._tree.name("__nodes__"), "", json.dumps({"keys": ["x", "gone"]}))
    assert "gone" not in TensorDictStore.from_store(port=redis_port, td_id=store.td_id)


def test_a_client_that_decodes_is_refused(redis_port):
    with pytest.raises(ValueError, match="decode_responses=False"):
        TensorDictStore(client=redis.Redis(port=redis_port, decode_responses=True))
    with redis.Redis(port=redis_port) as client:
        store = TensorDictStore(client=client, batch_size=[2])
        store["x"] = torch.ones(2)
        assert store["x"].tolist() == [1, 1]
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(store)


def test_an_asynchronous_client_serves_plain_calls(redis_port):
    source = sample()
    store = source.to_store(client=redis.asyncio.Redis(port=redis_port))
    assert (store.to_local() == source).all() and store[2]["n", "y"] == 2 and store["name"] == "run"
    store[0], store["new"] = sample(1)[0] * 0 + 7, torch.ones(10)
    assert store["x"][0].tolist() == [7] * 4 and store["new"].sum() == 10
    assert TensorDictStore.from_store(port=redis_port, td_id=store.td_id)["x"][0, 0] == 7
    stacked = lazy_stack([source, source]).to_store(client=store.client)
    assert stacked["x"].shape == (2, 10, 4)
    store.close()
    assert store["x"].shape == (10, 4)  # connects again
    with pytest.raises(OSError, match="refuses a command"):
        store._tree.connection.run([("HGET", store._tree.data(("x",)), "field")])
    store.close()


def test_an_asynchronous_client_has_the_errors_of_others(redis_port):
    with pytest.raises(ValueError, match="decode_responses=False"):
        TensorDictStore(client=redis.asyncio.Redis(port=redis_port, decode_responses=True))
    with pytest.raises(ConnectionError, match="does not answer"):
        TensorDictStore(client=redis.asyncio.Redis(port=1), batch_size=[2])["x"] = torch.ones(2)


def test_an_entry_that_is_deleted_during_a_large_write_is_not_left_in_part(redis_port, monkeypatch):
    td = TensorDict({"x": torch.zeros(40_000), "y": torch.zeros(40_000)}, [40_000]).to_store(port=redis_port)
    ask = td._tree.connection.ask

    def ask_and_delete(*arguments: Any) -> Any:
        gone = ask(*arguments)
        td.client.delete(td._tree.data(("x",)))
        return gone

    monkeypatch.setattr(td._tree.connection, "ask", ask_and_delete)
    new = TensorDict({"x": torch.ones(39_000), "y": torch.ones(39_000)}, [39_000])
    with pytest.raises(KeyError, match="deleted from the server while it was written"):
        td[1000:] = new
    assert not td.client.exists(td._tree.data(("x",)))
    assert td["y"].sum() == 39_000


def test_a_large_write_to_a_deleted_entry_writes_nothing(redis_port):
    td = TensorDict({"x": torch.zeros(40_000), "y": torch.zeros(40_000)}, [40_000]).to_store(port=redis_port)
    td.client.delete(td._tree.data(("y",)))
    with pytest.raises(KeyError, match="nothing was written"):
        td[:] = TensorDict({"x": torch.ones(40_000), "y": torch.ones(40_000)}, [40_000])
    assert td["x"].sum() == 0


@pytest.mark.parametrize("n", [0, 1, 16_384, 16_385, 300_000])
def test_values_of_every_size_are_sent_as_they_are(redis_port, n):
    value = torch.arange(n, dtype=torch.int32)
    td = TensorDict({"x": value, "t": value.view(-1, 1).t(), "b": torch.ones(3)}).to_store(port=redis_port)
    assert td["x"].equal(value) and td["t"].equal(value.view(1, -1)) and td["b"].tolist() == [1, 1, 1]
    td.update_({"x": value + 1, "t": value.view(1, -1) * 2})
    assert td["x"].equal(value + 1) and td["t"].equal(value.view(1, -1) * 2)


def test_many_random_rows_of_several_entries_are_written_where_they_belong(store, redis_port):
    local = TensorDict(
        {"a": torch.rand(900, 64), "b": torch.zeros(900, dtype=torch.bool), "c": torch.rand(900, 2)}, [900]
    )
    td = local.to_store(port=redis_port)
    td._tree.connection._scripts = store._tree.connection._scripts
    rows = torch.randperm(900, generator=torch.Generator().manual_seed(0))[:400]
    new = TensorDict({"a": torch.rand(400, 64), "b": torch.ones(400, dtype=torch.bool), "c": torch.rand(400, 2)}, [400])
    td[rows] = new
    local[rows] = new
    assert (td.to_tensordict() == local).all()


def test_popped_entries_can_still_be_read(redis_port):
    stored = TensorDict({"a": torch.ones(3), "n": {"b": torch.arange(3)}}, [3]).to_store(port=redis_port)
    assert stored.detach_().pop("n")["b"].tolist() == [0, 1, 2]
    assert list(stored.keys()) == ["a"]
    stored.set_at_("a", 0.0, slice(1))
    assert stored.get_at("a", slice(2)).tolist() == [0.0, 1.0]
    stack = lazy_stack([TensorDict({"n": {"b": torch.zeros(n)}}) for n in (1, 2)]).to_store(port=redis_port)
    assert stack.pop("n")[1]["b"].shape == (2,) and stack.is_empty()
