"""Functions by version: `implement_for` selects one of several functions by the installed version of a module."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

from torch.torch_version import TorchVersion


class implement_for:
    """Decorator that selects one of several functions of the same name by the installed version of a module.

    Args:
        module_name: The module, or a function that imports and returns it.
        from_version: The first version for which the function is used; by default any.
        to_version: The first version for which it is not used any more; by default none.

    Raises:
        ModuleNotFoundError: A function is called, and there is none for the installed version.

    >>> @implement_for("torch", None, "2.0")
    ... def backend(): return "old"
    >>> @implement_for("torch", "2.0")
    ... def backend(): return "new"
    >>> backend()
    'new'
    """

    _implementations: ClassVar[dict[str, implement_for]] = {}
    """The decorator whose function is called, by name."""
    _setters: ClassVar[list[implement_for]] = []
    """The decorators of all functions, in order."""

    def __init__(
        self,
        module_name: str | Callable[[], ModuleType],
        from_version: str | None = None,
        to_version: str | None = None,
        *,
        class_method: bool = False,
        compilable: bool = False,
    ) -> None:
        self.module_name = module_name
        self.from_version = from_version
        self.to_version = to_version
        self.class_method = class_method
        self.compilable = compilable

    @staticmethod
    def import_module(module_name: str | Callable[[], ModuleType]) -> str:
        """Import a module and return its version.

        >>> implement_for.import_module("torch") == torch.__version__
        True
        """
        module = importlib.import_module(module_name) if isinstance(module_name, str) else module_name()
        return str(module.__version__)

    @staticmethod
    def check_version(version: str, from_version: str | None, to_version: str | None) -> bool:
        """Return whether a version is in a range; a development version counts as the release.

        >>> implement_for.check_version("2.1.0.dev1", "2.1.0", None), implement_for.check_version("2.1", None, "2.1")
        (True, False)
        """
        release = re.match(r"\d+(\.\d+)*", version)
        found = TorchVersion(release.group() if release else version)
        return (from_version is None or found >= from_version) and (to_version is None or found < to_version)

    @staticmethod
    def get_func_name(fn: Callable[..., Any]) -> str:
        """Return the name under which a function is registered: that of its module, and its own.

        >>> implement_for.get_func_name(torch.nn.Linear.forward)
        'torch.nn.modules.linear.Linear.forward'
        """
        return f"{fn.__module__}.{fn.__qualname__}"

    def fits(self) -> bool:
        """Return whether the installed version is in the range; ``False`` where the module is not installed."""
        try:
            version = self.import_module(self.module_name)
        except ImportError:
            return False
        return self.check_version(version, self.from_version, self.to_version)

    def module_set(self) -> None:
        """Make this function the one that is called, whatever the installed version."""
        self._implementations[self.func_name] = self

    @classmethod
    def reset(cls, setters_dict: dict[str, implement_for] | None = None) -> None:
        """Choose again by the installed versions, or by those in a dictionary.

        Args:
            setters_dict: The decorator of the function to call, by name, as a copy of ``_implementations`` has it.
        """
        chosen = [setter for setter in cls._setters if setter.fits()] if setters_dict is None else setters_dict.values()
        for setter in chosen:
            setter.module_set()

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Register a function and return the one that calls the function that was chosen."""
        self.fn = function
        self.func_name = name = self.get_func_name(function)
        self._setters.append(self)
        if self.fits():
            self.module_set()

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            chosen = self._implementations.get(name)
            if chosen is None:
                raise ModuleNotFoundError(
                    f"Supported version of {name!r} has not been found: no function of that name is for the installed "
                    f"version of {self.module_name}; install another"
                )
            return chosen.fn(*args, **kwargs)

        return classmethod(call) if self.class_method else call
