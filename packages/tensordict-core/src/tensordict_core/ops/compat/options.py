"""Options of saving and loading: typed keyword arguments that core's methods and ``tensordict-memmap`` share.

A method takes them as ``**options: Unpack[SaveOptions]`` and passes them on, so each name and type is written once. At
run time `with_options` spells them out in the method's signature, for `help()`, documentation and completion. Defaults
are those of ``tensordict-memmap``; a signature shows ``...`` for them and the docstring says what they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any, ForwardRef, TypeAlias, TypedDict, TypeVar

import torch
from torch import Tensor

from tensordict_core.base.keys import NestedKey

__all__ = [
    "ConsolidateOptions",
    "LoadOptions",
    "MemmapLikeOptions",
    "MemmapOptions",
    "SaveOptions",
    "StrPath",
    "with_options",
]

StrPath: TypeAlias = str | PathLike[str]
F = TypeVar("F", bound=Callable[..., Any])


class _Default:
    """Stands in signatures for a default that ``tensordict-memmap`` chooses, as ``...`` does in stubs."""

    def __repr__(self) -> str:
        return "..."


class _FileOptions(TypedDict, total=False):
    num_threads: int | None
    share_non_tensor: bool
    existsok: bool
    robust_key: bool | None
    format: str | None


class MemmapOptions(_FileOptions, total=False):
    """What ``memmap_`` takes; ``memmap`` says what each option means."""

    atomic: bool
    durable: bool
    checksum: bool
    pbar: bool


class SaveOptions(MemmapOptions, total=False):
    """What ``save`` and ``memmap`` take: the options of ``memmap_`` and those of whole files."""

    archive: bool | None
    compression: Any
    shard_size: int | None


class MemmapLikeOptions(_FileOptions, total=False):
    """What ``memmap_like`` takes."""

    archive: bool | None
    reserve: bool


class LoadOptions(TypedDict, total=False):
    """What ``load_memmap`` takes."""

    out: Any
    robust_key: bool | None
    mode: str | None
    num_threads: int | None
    allow_pickle: bool | None
    verify: str
    keys: NestedKey | Iterable[NestedKey] | None
    rows: int | slice | range | Sequence[int] | Tensor | None
    like: Any
    strict: bool
    fill: float | None
    cast: bool


class ConsolidateOptions(TypedDict, total=False):
    """What ``consolidate`` takes."""

    num_threads: int
    device: torch.device | str | int | None
    non_blocking: bool
    inplace: bool
    use_buffer: bool
    share_memory: bool
    pin_memory: bool
    metadata: bool


def with_options(options: Any) -> Callable[[F], F]:
    """Spell out the options of a `TypedDict` in the signature of a method that takes them as ``**options``.

    >>> import inspect
    >>> "existsok" in inspect.signature(TensorDict.save).parameters
    True
    """

    def spell_out(function: F) -> F:
        signature = inspect.signature(function)
        named = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        for name, hint in options.__annotations__.items():
            annotation = hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint
            kind = inspect.Parameter.KEYWORD_ONLY
            named.append(inspect.Parameter(name, kind, default=_Default(), annotation=annotation))
        function.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]  # functions take attributes, Callable does not say so
        return function

    return spell_out
