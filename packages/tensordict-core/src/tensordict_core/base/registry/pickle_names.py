"""Pickle names: load pickles that refer to classes and functions by the names of earlier releases.

A pickle stores a class or a function as its module and name. When a definition moves, `register_pickle_names` keeps the
earlier name working for `pickle` and, where loading is safe, for ``torch.load(weights_only=True)``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch


def register_pickle_names(names: Mapping[str, Any], *, weights_only: bool = False) -> None:
    r"""Make classes and functions loadable under the names that earlier pickles contain.

    Args:
        names: The class or function for each earlier name, ``module.name``.
        weights_only: Whether ``torch.load(weights_only=True)`` may use them too; only for objects that cannot be made
            to run arbitrary code.

    >>> import pickle
    >>> register_pickle_names({"tensordict_core.earlier_place.Size": torch.Size})
    >>> pickle.loads(b"ctensordict_core.earlier_place\nSize\n.")
    <class 'torch.Size'>
    """
    for name, item in names.items():
        module_name, _, attribute = name.rpartition(".")
        module = sys.modules.get(module_name)
        if module is None:
            # pickle imports this module by name
            module = sys.modules[module_name] = ModuleType(module_name, "Names that earlier pickles contain.")
        setattr(module, attribute, item)
    if weights_only:
        torch.serialization.add_safe_globals([(item, name) for name, item in names.items()])
