"""Forms: what a `TensorDictModule` was told, as one record for plain calls and one string for compiled ones.

A compiled call first compares everything that its graph was made from with what is there. Compared one by one, the keys
and options of a module take longer than its layer. As one string they are one comparison: the graph is made from what
the string says, and whatever changes a key or an option changes the string. Lists of keys may be changed in place, so
the lists that a module hands out tell it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from tensordict_core.extension import constant_when_traced

__all__ = ["Form", "KeyList", "parsed", "written"]


class Form(NamedTuple):
    """The keys and options of a module, in the order in which a call unpacks them.

    Attributes:
        in_keys: The keys that are read.
        out_keys: The keys that are written.
        arguments: The names of the arguments that inputs go to; ``None`` for positions.
        inplace: Where results go.
        method: The name of the method that is called; ``None`` for the module itself.
        strict: Whether an input that is not there is an error before the call.
        has_get_kwargs: Whether ``get`` is given arguments.
        has_method_kwargs: Whether arguments for each call were given, or may have been since.
        straight: Whether a call does no more than this, hooks aside: the module has no ``forward`` of its own, and
            selects no output keys.
    """

    in_keys: Any
    out_keys: Any
    arguments: Any
    inplace: Any
    method: Any
    strict: Any
    has_get_kwargs: bool
    has_method_kwargs: bool
    straight: bool


def written(*form: Any) -> str:
    """The fields of a form as a string.

    >>> written(*Form(["a", ("b", "c")], ["d"], None, True, None, False, False, False, True))
    '[["a", ["b", "c"]], ["d"], null, true, null, false, false, false, true]'
    """
    return json.dumps(form)


def _loaded(text: str) -> tuple[Any, ...]:
    in_keys, out_keys, *options = json.loads(text)
    keys = ([key if isinstance(key, str) else tuple(key) for key in keys] for keys in (in_keys, out_keys))
    return (*map(tuple, keys), *options)


# Dynamo has the strings while it traces, and need not see how they are made and read
constant_when_traced(written)
constant_when_traced(_loaded)


def parsed(text: str) -> tuple[Any, ...]:
    """The fields of a form that was written.

    >>> parsed(written(*Form(["a", ("b", "c")], ["d"], None, True, None, False, False, False, True)))
    (['a', ('b', 'c')], ['d'], None, True, None, False, False, False, True)
    """
    in_keys, out_keys, *options = _loaded(text)
    # Dynamo cannot ask for the type of what a constant function returned, but can of what was made from it
    in_keys, out_keys = (
        [key + "" if isinstance(key, str) else tuple([name + "" for name in key]) for key in keys]
        for keys in (in_keys, out_keys)
    )
    return in_keys, out_keys, *options


class KeyList(list[Any]):
    """A list of keys that, when it is changed in place, changes the list that it was made from and says so.

    Args:
        keys: The list.
        tell: Called after each change.

    >>> keys, told = ["a"], []
    >>> KeyList(keys, lambda: told.append(len(keys))).append("b")
    >>> keys, told
    (['a', 'b'], [2])
    """

    __slots__ = ("_source", "_tell")

    def __init__(self, keys: list[Any], tell: Callable[[], None]) -> None:
        super().__init__(keys)
        self._source = keys
        self._tell = tell

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are plain lists: they belong to nobody."""
        return list, (list(self),)


def _telling(name: str) -> Callable[..., Any]:
    """A method of lists that changes them, and then the list that they were made from."""
    change = getattr(list, name)

    @functools.wraps(change)
    def changed(self: KeyList, *args: Any, **kwargs: Any) -> Any:
        result = change(self, *args, **kwargs)
        self._source[:] = self
        self._tell()
        return result

    return changed


for _name in ("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"):
    setattr(KeyList, _name, _telling(_name))
for _name in ("__delitem__", "__iadd__", "__imul__", "__setitem__"):
    setattr(KeyList, _name, _telling(_name))
