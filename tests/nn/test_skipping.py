"""Skipping: modules that do not run if their outputs exist."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_nn import (
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    set_skip_existing,
    skip_existing,
)


def data() -> TensorDict:
    return TensorDict({"a": torch.ones(4, 2), "n": {"b": torch.full((4, 2), 2.0)}}, [4])


def plus_one(in_key="a", out_key="b", **kwargs) -> TensorDictModule:
    return TensorDictModule(lambda x: x + 1, [in_key], [out_key], **kwargs)


def test_modules_are_skipped_where_their_outputs_exist():
    module, td = plus_one(), data().set("b", torch.zeros(4, 2))
    assert skip_existing() is False
    with set_skip_existing():
        assert skip_existing() is True and (module(td)["b"] == 0).all()
        with set_skip_existing(False):
            assert (module(td.copy())["b"] == 2).all()
        with set_skip_existing(["other"]):
            assert (module(td.copy())["b"] == 2).all()
        assert (plus_one("a", "a")(td.copy())["a"] == 2).all()
        assert TensorDictSequential(module)(td) is td
    assert (module(td)["b"] == 2).all()
    with pytest.raises(RuntimeError, match="None is for decorators"), set_skip_existing(None):
        pass


def test_skipping_may_be_for_one_thread():
    import threading

    seen = []
    with set_skip_existing(thread_local=True), set_skip_existing(["a"]):
        thread = threading.Thread(target=lambda: seen.append(skip_existing()))
        thread.start()
        thread.join()
        seen.append(skip_existing())
    assert seen == [False, ["a"]] and skip_existing() is False


def test_skipping_as_a_decorator():
    class Module(TensorDictModuleBase):
        in_keys, out_keys = [], ["out"]
        mode = None

        @set_skip_existing(None)
        def forward(self, tensordict):
            return tensordict.set("out", torch.ones(()))

    td = TensorDict({"out": torch.zeros(())})
    with set_skip_existing():
        assert Module()(td)["out"] == 0
    assert Module()(td)["out"] == 1
