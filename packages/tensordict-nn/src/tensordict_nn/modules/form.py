"""Forms: the keys and options of a `TensorDictModule`, as one record for plain calls and one string for compiled calls.

A compiled call first checks the guards of its graph. One guard for each key and option of a module would take longer
than its layer, and a string needs only one: the graph is traced from the string, and a change of a key or an option
changes the string. Users may change lists of keys in place, so the lists that a module returns notify it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from tensordict_core.extension import constant_when_traced


class Form(NamedTuple):
    """The keys and options of a module, in the order that a call unpacks.

    Attributes:
        in_keys: The keys that are read.
        out_keys: The keys that are written.
        arguments: The names of the arguments that take the inputs; ``None`` for positional arguments.
        inplace: Where results are written.
        method: The name of the method to call; ``None`` for the module itself.
        strict: Whether a missing input is an error before the call.
        has_get_kwargs: Whether ``get`` takes arguments.
        has_method_kwargs: Whether there are, or may be, arguments for each call.
        is_plain: Whether a call without hooks does only this: the module does not override ``forward`` and selects no
            output keys.
    """

    in_keys: Any
    out_keys: Any
    arguments: Any
    inplace: Any
    method: Any
    strict: Any
    has_get_kwargs: bool
    has_method_kwargs: bool
    is_plain: bool


def encoded(*form: Any) -> str:
    """Encode the fields of a form as a string.

    >>> encoded(*Form(["a", ("b", "c")], ["d"], None, True, None, False, False, False, True))
    '[["a", ["b", "c"]], ["d"], null, true, null, false, false, false, true]'
    """
    return json.dumps(form)


def _loaded(text: str) -> tuple[Any, ...]:
    in_keys, out_keys, *options = json.loads(text)
    keys = tuple([key if isinstance(key, str) else tuple(key) for key in in_keys + out_keys])
    return keys, len(in_keys), *options


# Dynamo knows the strings while it traces, and need not trace how they are encoded and decoded
constant_when_traced(encoded)
constant_when_traced(_loaded)


def decoded(text: str) -> tuple[Any, ...]:
    """Decode the fields of a form.

    >>> decoded(encoded(*Form(["a", ("b", "c")], ["d"], None, True, None, False, False, False, True)))
    (['a', ('b', 'c')], ['d'], None, True, None, False, False, False, True)
    """
    keys, inputs, *options = _loaded(text)
    # Dynamo cannot take the type of the result of a constant function, but can of values made from it
    keys = [key + "" if isinstance(key, str) else tuple([name + "" for name in key]) for key in keys]
    return keys[:inputs], keys[inputs:], *options


class KeyList(list[Any]):
    """A list of keys that applies in-place changes to the list that it was made from and notifies the owner.

    Args:
        keys: The list.
        notify: A function that is called after each change.

    >>> keys, changes = ["a"], []
    >>> KeyList(keys, lambda: changes.append(len(keys))).append("b")
    >>> keys, changes
    (['a', 'b'], [2])
    """

    __slots__ = ("_notify", "_source")

    def __init__(self, keys: list[Any], notify: Callable[[], None]) -> None:
        super().__init__(keys)
        self._source = keys
        self._notify = notify

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return a plain list: copies and pickles are plain lists, which have no owner."""
        return list, (list(self),)


def _notifying(name: str) -> Callable[..., Any]:
    """Make a method that changes a list, then the list that it was made from."""
    change = getattr(list, name)

    @functools.wraps(change)
    def changed(self: KeyList, *args: Any, **kwargs: Any) -> Any:
        result = change(self, *args, **kwargs)
        self._source[:] = self
        self._notify()
        return result

    return changed


for _name in ("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"):
    setattr(KeyList, _name, _notifying(_name))
for _name in ("__delitem__", "__iadd__", "__imul__", "__setitem__"):
    setattr(KeyList, _name, _notifying(_name))
