"""Serialization: registers the classes that ``torch.load(weights_only=True)`` restores, with their earlier names."""

from __future__ import annotations

from tensordict_core.base.meta import Meta
from tensordict_core.base.registry.pickle_names import register_pickle_names
from tensordict_core.containers.custom import unpickled
from tensordict_core.containers.dense import TensorDict
from tensordict_core.containers.lazy import LazyStackedTensorDict
from tensordict_core.containers.nontensor.data import NonTensorData, NonTensorStack
from tensordict_core.containers.nontensor.metadata import MetaData
from tensordict_core.containers.nontensor.shared import _nothing
from tensordict_core.containers.tensor_spec import Attrs, TensorAttrs
from tensordict_core.containers.unbatched import UnbatchedTensor, _restored
from tensordict_core.containers.view import SubTensorDict
from tensordict_core.ops.io.pickling import _new, trust

EARLIER_NAMES = {
    "tensordict_core._meta.Meta": Meta,
    "tensordict_core._state._new": _new,
    "tensordict_core.tensordict.TensorDict": TensorDict,
    "tensordict_core.lazy.stack.LazyStackedTensorDict": LazyStackedTensorDict,
    "tensordict_core.subtensordict.SubTensorDict": SubTensorDict,
    "tensordict_core.subtensordict._again": unpickled,
    "tensordict_core.nontensor.NonTensorData": NonTensorData,
    "tensordict_core.nontensor.NonTensorStack": NonTensorStack,
    "tensordict_core.nontensor.MetaData": MetaData,
    "tensordict_core.containers.nontensor.data.MetaData": MetaData,
    "tensordict_core.unbatched.UnbatchedTensor": UnbatchedTensor,
    "tensordict_core.tensorattrs.TensorAttrs": TensorAttrs,
    "tensordict_core.tensorattrs.Attrs": Attrs,
}
"""Classes and functions by the names in pickles of earlier releases."""


def register() -> None:
    """Make ``torch.load(weights_only=True)`` restore tensordicts, those of earlier releases too."""
    trust(_nothing, _restored, *EARLIER_NAMES.values())
    register_pickle_names(EARLIER_NAMES, weights_only=True)
