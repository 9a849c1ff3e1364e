"""Types of exceptions with several bases, as torch, Python and programs raise different types for a fault."""

from __future__ import annotations


class ExclusiveError(RuntimeError, TypeError):
    """Two arguments exclude each other."""


class InvalidKeysError(ValueError, TypeError, RuntimeError):
    """An argument does not hold keys."""


class KeysDifferError(KeyError, RuntimeError):
    """Modules do not have the same parameters."""


class NotAParameterError(TypeError, KeyError):
    """An entry is not a tensor and cannot become a parameter."""


class NotCallableError(TypeError, NotImplementedError):
    """Parameters are a module without ``forward``."""


class NotParametersError(TypeError, AttributeError):
    """A value is not a module, or no source of parameters."""


class MissingDistributionError(RuntimeError, ValueError):
    """A sequence has no probabilistic module."""


class UnknownOutKeysError(ValueError, RuntimeError):
    """Selected keys are not among those that a module writes."""


class MissingInputsError(KeyError, ValueError, TypeError):
    """Inputs of a module are not in the tensordict."""

    def __str__(self) -> str:  # a KeyError shows the repr of its message, with escaped quotes
        return str(self.args[0])


class NoSlotError(KeyError, AttributeError):
    """A module has no parameter, buffer or sub-module for an entry."""


class NotAModuleError(ValueError, TypeError):
    """A value is not callable and cannot be a module."""


class NoSuchModuleError(KeyError, TypeError):
    """A sequence has no module of that name."""


class WrongCountError(RuntimeError, ValueError):
    """A module returned more or fewer values than it has output keys."""


class TooManyArgumentsError(ValueError, TypeError, AttributeError):
    """A module takes fewer positional arguments."""
