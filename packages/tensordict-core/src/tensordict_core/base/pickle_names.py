"""Pickle names: modules in which earlier releases defined a class or function, so that their pickles still load.

A pickle stores a class or a function as its module and name. When a definition moves, `register_pickle_names` keeps the
earlier name working for `pickle` and, where loading is safe, for ``torch.load(weights_only=True)``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

__all__ = ["register_pickle_names"]


def register_pickle_names(names: Mapping[str, Any], *, weights_only: bool = False) -> None:
    r"""Make classes and functions loadable under the names that earlier pickles hold.

    Args:
        names: The class or function for each earlier name, ``module.name``.
        weights_only: Whether ``torch.load(weights_only=True)`` may use them too. Only for objects that run no code of
            the file's choice.

    >>> import pickle
    >>> register_pickle_names({"tensordict_core.earlier_place.Size": torch.Size})
    >>> pickle.loads(b"ctensordict_core.earlier_place\nSize\n.")
    <class 'torch.Size'>
    """
    for name, item in names.items():
        module_name, _, attribute = name.rpartition(".")
        module = sys.modules.get(module_name)
        if module is None:
            # pickle imports the module by its name and finds this one; nothing else imports it
            module = sys.modules[module_name] = ModuleType(module_name, "Names that earlier pickles hold.")
        setattr(module, attribute, item)
    if weights_only:
        torch.serialization.add_safe_globals([(item, name) for name, item in names.items()])
