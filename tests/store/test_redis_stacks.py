"""Redis: names, renames, removals and partial writes of stored lazy stacks, and stores that are emptied and filled."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

pytest.importorskip("redis", reason="redis-py is an extra")

from tensordict_core import TensorDict, lazy_stack
from tensordict_store import LazyStackedTensorDictStore, TensorDictStore


def ragged() -> Any:
    made = lazy_stack([TensorDict({"a": torch.ones(n), "b": torch.zeros(2), "n": {"c": n}}) for n in (1, 2)])
    made.names = ["time"]
    return made


def opened(store: Any) -> Any:
    port = store.client.connection_pool.connection_kwargs["port"]
    return type(store).from_store(port=port, td_id=store.td_id)


def test_names_of_a_stack_are_stored(redis_port):
    store = ragged().to_store(port=redis_port)
    assert store.names == opened(store).names == pickle.loads(pickle.dumps(store)).names == ["time"]
    assert opened(store)[:1].names == opened(store)["n"].names == ["time"]
    store.names = ["step"]
    assert opened(store).names == ["step"]


def test_an_entry_of_several_shapes_is_renamed(redis_port):
    store = ragged().to_store(port=redis_port)
    store.rename_key_("a", "x").rename_key_("n", "m")
    for each in (store, opened(store)):
        assert list(each.keys()) == ["b", "x", "m"] and each[1]["x"].tolist() == [1, 1] and each[1]["m", "c"] == 2


def test_an_entry_is_renamed_at_once(redis_port, monkeypatch):
    store = TensorDict({"a": torch.ones(2), "b": {"c": torch.zeros(2)}}, [2]).to_store(port=redis_port)
    apply = store._tree.apply
    monkeypatch.setattr(store._tree, "apply", lambda change: None if "x" in change.nodes[()]["keys"] else apply(change))
    store.rename_key_("a", "x")  # no request removes the entry without storing it again
    assert list(opened(store).keys()) == ["a", "b"]


def test_a_replaced_entry_keeps_its_place(redis_port):
    store = ragged().to_store(port=redis_port)
    store["b"] = torch.ones(2, 5)
    assert list(store.keys()) == list(opened(store).keys()) == ["a", "b", "n"]


@pytest.mark.parametrize(
    "element",
    [{"b": torch.ones(2)}, {"a": torch.zeros(2)}, {"a": torch.zeros(5)}, {"a": torch.zeros(5), "b": torch.ones(2)}],
    ids=["of one shape", "of the same size", "of another size", "both"],
)
def test_an_element_of_a_deleted_entry_is_not_written(redis_port, element):
    store = ragged().to_store(port=redis_port)
    deleted = next(iter(element))
    store.client.delete(store._tree.data((deleted,)))
    with pytest.raises(KeyError, match=f"'{deleted}' is gone from the server.*nothing was written"):
        store[1] = TensorDict(element)
    assert not store.client.exists(store._tree.data((deleted,)))
    store = ragged().to_store(port=redis_port)
    store.client.delete(store._tree.data(("b",)))
    with pytest.raises(KeyError, match="'b' is gone from the server"):
        store.set_("b", torch.ones(2, 2))


def test_an_element_of_another_size_is_not_written_beside_a_deleted_entry(redis_port):
    store = lazy_stack([TensorDict({"a": torch.ones(n), "b": torch.ones(n)}) for n in (1, 2)]).to_store(port=redis_port)
    store.client.delete(store._tree.data(("b",)))
    with pytest.raises(KeyError, match="'b' is gone from the server"):
        store[1] = TensorDict({"a": torch.zeros(7), "b": torch.zeros(2)})
    assert not store.client.exists(store._tree.data(("b",)))
    del store["b"]
    assert store[1]["a"].tolist() == [1, 1]


def test_elements_of_one_shape_are_written_one_by_one_and_together(redis_port):
    store = lazy_stack([TensorDict({"a": torch.zeros(2)}) for _ in range(3)], 0).to_store(port=redis_port)
    store[-1] = TensorDict({"a": torch.ones(2)})
    store[:2] = TensorDict({"a": torch.full((2, 2), 5.0)}, [2])
    assert opened(store)["a"].tolist() == [[5, 5], [5, 5], [1, 1]]


def test_the_batch_size_of_a_stack_keeps_the_stack_dimension(redis_port):
    store = lazy_stack([TensorDict({"a": torch.zeros(3, 4)}, [3, 4])] * 2, 1).to_store(port=redis_port)
    with pytest.raises(RuntimeError, match="does not keep the stack dimension 1 of size 2"):
        store.batch_size = [3]
    store.batch_size = [3, 2]
    assert store.batch_size == opened(store).batch_size == (3, 2) and store[:, 0].batch_size == (3,)


def test_a_store_that_is_emptied_and_filled_again_is_opened_by_its_id(redis_port):
    for made in (ragged(), TensorDict({"a": torch.zeros(2)}, [2], names=["time"])):
        store = opened(made.to_store(port=redis_port))
        store.clear_redis()
        store["new"] = torch.ones(2, 3)
        assert opened(store).names == ["time"] and opened(store)["new"].shape == (2, 3)


def test_a_stack_is_made_without_elements_and_opened_by_its_constructor(redis_port):
    store = LazyStackedTensorDictStore(count=2, inner_batch_size=[], port=redis_port)
    store["a"] = torch.ones(2, 3)
    again = LazyStackedTensorDictStore(count=2, inner_batch_size=[], port=redis_port, td_id=store.td_id)
    assert again[1]["a"].tolist() == [1, 1, 1] and again.stack_dim == 0


def test_a_socket_a_password_and_a_database_are_used(redis_program, tmp_path):
    from redis_process import Server

    path = str(tmp_path / "socket")
    server = Server(redis_program, tmp_path, "--unixsocket", path, "--requirepass", "secret")
    server.start()
    try:
        td = TensorDict({"a": torch.arange(3)}, [3])
        for options in ({}, {"username": "default"}):
            store = td.to_store(unix_socket_path=path, password="secret", db=2, **options)
            port = {"port": server.port, "password": "secret", "td_id": store.td_id}
            assert TensorDictStore.from_store(db=2, **port)[1:]["a"].tolist() == [1, 2]
            with pytest.raises(KeyError, match="there is no tensordict"):
                TensorDictStore.from_store(**port)
        for wrong in ({}, {"password": "other"}, {"password": "secret", "db": 99}):
            with pytest.raises(OSError, match="refuses a command"):
                td.to_store(port=server.port, **wrong)
    finally:
        server.stop()
