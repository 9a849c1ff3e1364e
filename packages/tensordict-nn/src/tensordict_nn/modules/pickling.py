"""Functions in pickled modules: lambdas and local functions, which `pickle` refuses, are pickled by cloudpickle."""

from __future__ import annotations

import types
from typing import Any

from tensordict_nn import errors


class _Carried:
    """A function in the state of a module."""

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function

    def __deepcopy__(self, memo: dict[int, Any]) -> types.FunctionType:
        return self.function

    def __reduce__(self) -> Any:
        try:
            import cloudpickle
        except ImportError:
            raise errors.needs_cloudpickle(self.function) from None
        return cloudpickle.loads, (cloudpickle.dumps(self.function),)


def _is_local(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and ("<locals>" in value.__qualname__ or value.__name__ == "<lambda>")


def carried(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return attributes in a form that can be pickled.

    >>> import pickle
    >>> pickle.loads(pickle.dumps(carried({"f": lambda x: x + 1})))["f"](1)
    2
    """
    return {name: _Carried(value) if _is_local(value) else value for name, value in attributes.items()}


def restored(state: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a copied state.

    >>> restored(carried({"f": abs}))["f"](-1)
    1
    """
    return {name: value.function if isinstance(value, _Carried) else value for name, value in state.items()}
