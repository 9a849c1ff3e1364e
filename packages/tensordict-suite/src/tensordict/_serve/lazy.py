"""Lazy re-exports: a module-level ``__getattr__`` (PEP 562) that imports a name from its owner on first use.

If the owner is not installed, the ``ImportError`` names the command to install it. If the owner is installed but fails
to import, its own error is raised.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from tensordict._serve.aliases import ANSWER, AT_THE_TOP, MODULES, PRIVATE, RELEASE
from tensordict._serve.names import OWNERS, RENAMED, SUBMODULES


class MissingDistributionError(ImportError):
    """The distribution that owns a name is not installed."""


# The distributions of the reference implementation, which install files under the same import name.
REFERENCE = ("tensordict", "tensordict-nightly")


def refuse_beside_reference() -> None:
    """Raise an error if the reference implementation is installed, too.

    Both install into a folder named ``tensordict``, so an import would depend on the order of installation.

    Raises:
        ImportError: The reference is installed; the error names the distribution to uninstall.
    """
    for name in REFERENCE:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        raise ImportError(
            f"tensordict-suite and {name} {found} both provide the import name `tensordict`, and only one can; "
            f"for the suite, `pip uninstall {name}`, then `pip install --force-reinstall --no-deps tensordict-suite`; "
            f"for {name}, `pip uninstall tensordict-suite` and import tensordict_core and its satellites by name"
        )


def serve(module: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Build the ``__getattr__`` and ``__dir__`` of a module of ``tensordict`` from the table of names.

    Args:
        module: The full name of the module, a key of ``OWNERS``.

    Returns:
        The two functions, to be bound in that module. ``__all__`` and ``__dir__`` hold only the names that the
        installed distributions have.

    >>> lookup, names = serve("tensordict.memmap")
    >>> lookup("MemoryMappedTensor").__module__.split(".")[0]
    'tensordict_memmap'
    >>> lookup("__all__")
    ['MemoryMappedTensor']
    """
    owner_of = {name: owner for owner, names in OWNERS[module].items() for name in names.split()}
    renamed = RENAMED.get(module, {})
    private = PRIVATE if module in ANSWER else AT_THE_TOP if module == "tensordict" else ()

    def lookup(name: str) -> object:
        value: object
        below = f"{module}.{name}"
        if below in MODULES or (below in OWNERS and name not in owner_of):
            return import_module(below)
        if name == "__all__":
            return exported()
        if name == "__version__" and module == "tensordict":
            value = RELEASE
        elif name in private and name not in owner_of:
            value = _fetch(module, *PRIVATE[name])
        else:
            current = renamed.get(name, name)
            if current not in owner_of and module in ANSWER and _is_public(name):
                return getattr(import_module("tensordict"), name)
            if current not in owner_of:
                raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])
            value = _fetch(module, owner_of[current], current)
        setattr(sys.modules[module], name, value)
        return value

    def exported() -> list[str]:
        return sorted(name for name in (*owner_of, *renamed) if _exists(lookup, name))

    def names() -> list[str]:
        return sorted({*exported(), *SUBMODULES.get(module, ())})

    return lookup, names


def serve_alias(module: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Build the ``__getattr__`` and ``__dir__`` of a module path that is an alias of public modules.

    Args:
        module: The full name of the module, a key of ``MODULES``.

    >>> lookup, _ = serve_alias("tensordict.functional")
    >>> lookup("pad").__module__.split(".")[0]
    'tensordict_core'
    """
    homes = MODULES[module]

    def lookup(name: str) -> object:
        if name in PRIVATE:
            value = _fetch(module, *PRIVATE[name])
        elif name.startswith("__"):  # what Python asks modules for
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])
        else:
            named = (home for home in homes if hasattr(import_module(home), name))
            home = next(named, "tensordict" if _is_public(name) else homes[0])
            value = _fetch(module, home, name)
        setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        return sorted({name for home in homes for name in dir(import_module(home))})

    return lookup, names


def _is_public(name: str) -> bool:
    """Return whether the root has a public name; modules of the reference have those that they import themselves."""
    return any(name in names.split() for names in OWNERS["tensordict"].values())


def _fetch(module: str, owner: str, name: str) -> object:
    """Import a name from its owner; the error for a missing owner names the command to install it."""
    package = owner.partition(".")[0]
    absent = AttributeError(f"module {module!r} has no attribute {name!r}: {owner} does not have it", name=name)
    try:
        home = import_module(owner)
    except ModuleNotFoundError as error:
        if error.name == package:
            distribution = package.replace("_", "-")
            needs = f"{module}.{name} needs {distribution}: pip install {distribution}"
            raise MissingDistributionError(needs, name=package) from None
        if error.name == owner:
            raise absent from None
        raise  # a dependency of the owner is missing
    try:
        return getattr(home, name)
    except AttributeError:
        raise absent from None


def _exists(lookup: Callable[[str], object], name: str) -> bool:
    """Return whether an installed distribution has this name; a broken satellite raises its own error."""
    try:
        lookup(name)
    except (AttributeError, MissingDistributionError):
        return False
    return True
