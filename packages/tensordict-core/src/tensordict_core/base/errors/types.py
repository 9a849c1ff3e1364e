"""Types of exceptions with several bases, because torch, Python and existing programs use different types for a fault.

An ``except`` clause for any of the bases catches them. `errors` has the functions that build them.
"""

from __future__ import annotations


class DimensionError(IndexError, ValueError, RuntimeError):
    """A batch dimension does not exist."""


class NotIterableError(DimensionError, TypeError):
    """A tensordict without batch dimensions has no rows to iterate over."""


class IndexCountError(IndexError, RuntimeError):
    """An index has more parts than there are batch dimensions."""


class InPlaceWriteError(ValueError, RuntimeError):
    """A value cannot be written into a leaf."""


class InPlaceShapeError(InPlaceWriteError):
    """A value does not have the shape of the leaf, or of the part of it, that it is written into."""


class KeyThroughLeafError(KeyError, ValueError, RuntimeError):
    """A nested key passes through a leaf."""


class ExistingKeyError(KeyError, ValueError):
    """The new name of an entry is a key that exists."""


class NoEntriesError(KeyError, AttributeError, ValueError):
    """A key is given to non-tensor data, which have no entries."""

    __str__ = Exception.__str__  # that of KeyError shows the representation of the message


class NotAnIndexError(TypeError, IndexError):
    """A value is not an index."""


class NotAKeyError(TypeError, KeyError, RuntimeError):
    """A value is not a nested key."""


class NotAValueError(TypeError, AttributeError, NotImplementedError):
    """The source of an update of non-tensor data is something else."""


class OperandError(TypeError, AttributeError):
    """An operand is not a tensordict."""


class NoLimitError(ValueError, TypeError, RuntimeError):
    """Values are to be limited, and no limit is given."""


class NotASourceError(TypeError, AttributeError, RuntimeError):
    """The source of an update has no entries."""


class BatchSizeError(TypeError, ValueError):
    """A value is not a batch size."""


class NoGroupError(RuntimeError, ValueError):
    """No process group was started."""


class UnmatchedKeyError(KeyError, RuntimeError):
    """An operand lacks a key of the other one."""


class SourceError(TypeError, ValueError):
    """A tensordict is to be created from, or written by, something that has no entries."""


class StackError(RuntimeError):
    """Tensordicts cannot be stacked or concatenated densely."""


class StackDimError(RuntimeError, TypeError):
    """A batch size does not keep the stack dimension of a lazy stack."""


class OutDtypeError(TypeError, RuntimeError):
    """An entry of ``out`` has a dtype that cannot hold the result."""


class SizeError(ValueError, RuntimeError):
    """Sizes, numbers of dimensions or numbers of names do not match."""
