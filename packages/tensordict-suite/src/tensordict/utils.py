"""Utility functions for all containers: keys, dtype checks, options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict._serve.lazy import serve

if TYPE_CHECKING:
    from tensordict_core import KEY_SEPARATOR as KEY_SEPARATOR
    from tensordict_core import DeviceType as DeviceType
    from tensordict_core import IndexType as IndexType
    from tensordict_core import LinkedList as LinkedList
    from tensordict_core import NestedKey as NestedKey
    from tensordict_core import assert_allclose_td as assert_allclose_td
    from tensordict_core import assert_close as assert_close
    from tensordict_core import capture_non_tensor_stack as capture_non_tensor_stack
    from tensordict_core import expand_as_right as expand_as_right
    from tensordict_core import expand_right as expand_right
    from tensordict_core import get_printoptions as get_printoptions
    from tensordict_core import is_bool as is_bool
    from tensordict_core import is_floating as is_floating
    from tensordict_core import is_inexact as is_inexact
    from tensordict_core import is_integer as is_integer
    from tensordict_core import is_non_tensor as is_non_tensor
    from tensordict_core import is_tensorclass as is_tensorclass
    from tensordict_core import isin as isin
    from tensordict_core import lazy_legacy as lazy_legacy
    from tensordict_core import list_to_stack as list_to_stack
    from tensordict_core import parse_tensor_dict_string as parse_tensor_dict_string
    from tensordict_core import remove_duplicates as remove_duplicates
    from tensordict_core import set_capture_non_tensor_stack as set_capture_non_tensor_stack
    from tensordict_core import set_lazy_legacy as set_lazy_legacy
    from tensordict_core import set_list_to_stack as set_list_to_stack
    from tensordict_core import set_printoptions as set_printoptions
    from tensordict_core import unravel_key as unravel_key
    from tensordict_core import unravel_key_list as unravel_key_list
    from tensordict_core.compat import unravel_key_to_tuple as unravel_key_to_tuple
    from tensordict_memmap import print_directory_tree as print_directory_tree
else:
    __getattr__, __dir__ = serve(__name__)
