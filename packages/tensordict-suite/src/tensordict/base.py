"""The base class of every container, and functions that build containers from other types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict._serve.lazy import serve

if TYPE_CHECKING:
    from tensordict_core import NO_DEFAULT as NO_DEFAULT
    from tensordict_core import TensorDictBase as TensorDictBase
    from tensordict_core import from_any as from_any
    from tensordict_core import from_dict as from_dict
    from tensordict_core import from_namedtuple as from_namedtuple
    from tensordict_core import from_struct_array as from_struct_array
    from tensordict_core import from_tuple as from_tuple
    from tensordict_core import get_defaults_to_none as get_defaults_to_none
    from tensordict_core import is_tensor_collection as is_tensor_collection
    from tensordict_core import set_get_defaults_to_none as set_get_defaults_to_none
    from tensordict_store import from_csv as from_csv
    from tensordict_store import from_h5 as from_h5
    from tensordict_store import from_json as from_json
    from tensordict_store import from_pandas as from_pandas
    from tensordict_store import from_parquet as from_parquet
    from tensordict_store import from_zarr as from_zarr
else:
    __getattr__, __dir__ = serve(__name__)
