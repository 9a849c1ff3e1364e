"""Other constructors of tensorclasses: from lists, named tuples, modules, tables and others of tensordicts."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from tensordict_core import TensorDict
from tensordict_core.extension import TensorCollection, is_tensordict

_NAMES = (
    *("from_any", "from_list", "from_tuple", "from_namedtuple", "from_pytree", "from_struct_array"),
    *("fromkeys", "from_module", "from_modules", "from_schema"),
    *("from_csv", "from_json", "from_pandas", "from_parquet", "from_h5", "from_zarr"),
)


def _of_class(name: str) -> Any:
    """Make the class method ``name``: the tensordict that it makes becomes an instance."""
    general = getattr(TensorDict, name)

    @functools.wraps(general)
    def construct(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = general(*args, **kwargs)
        return cls.from_tensordict(made) if is_tensordict(made) else made

    signature = inspect.signature(general)
    first = inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)
    vars(construct)["__signature__"] = signature.replace(parameters=[first, *signature.parameters.values()])
    return classmethod(construct)


def add_constructors(cls: type[TensorCollection]) -> None:
    """Add the constructors to the base class of instances."""
    for name in _NAMES:
        setattr(cls, name, _of_class(name))
