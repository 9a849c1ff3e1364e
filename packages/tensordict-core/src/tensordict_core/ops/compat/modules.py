"""Parameters of modules: the methods that ``tensordict-nn`` implements.

Each is typed and documented here and calls `satellite` in one line. The examples run if ``tensordict-nn`` is
installed.
"""

from __future__ import annotations

from typing import Any, Literal, Self, overload

from torch import nn

from tensordict_core.base.node import Node
from tensordict_core.base.registry.plugins import satellite
from tensordict_core.base.registry.types import containers
from tensordict_core.ops.io.to_python import of_class

_NAME = "tensordict_nn"


class ModuleStubs(Node):
    """``from_module``, ``from_modules`` and ``to_module``."""

    __slots__ = ()

    @overload
    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        as_module: Literal[False] = ...,
        lock: bool = ...,
        use_state_dict: bool = ...,
        filter_empty: bool = ...,
    ) -> Self: ...
    @overload
    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        as_module: Literal[True],
        lock: bool = ...,
        use_state_dict: bool = ...,
        filter_empty: bool = ...,
    ) -> Any: ...
    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        as_module: bool = False,
        lock: bool | None = None,
        use_state_dict: bool = False,
        filter_empty: bool = True,
    ) -> Any:
        """Return the parameters and buffers of a module as a tensordict, nested like the module.

        Args:
            module: The module.
            as_module: Whether the result is a `TensorDictParams`, a module itself.
            lock: Whether the result is locked; by default it is for all classes but `TensorDict`.
            use_state_dict: Whether to use ``module.state_dict()``, which runs its hooks.
            filter_empty: Whether sub-modules without parameters are left out.

        Raises:
            ImportError: ``tensordict-nn`` is not installed.

        >>> TensorDict.from_module(torch.nn.Linear(3, 4)).sorted_keys
        ['bias', 'weight']
        """
        if lock is None:
            lock = not issubclass(cls, containers.dense)
        made = satellite(_NAME, "TensorDict.from_module").from_module(
            module, as_module=as_module, lock=lock, use_state_dict=use_state_dict, filter_empty=filter_empty
        )
        return of_class(cls, made, nested=True)

    @classmethod
    def from_modules(
        cls,
        *modules: nn.Module,
        as_module: bool = False,
        lock: bool = True,
        use_state_dict: bool = False,
        lazy_stack: bool = False,
        expand_identical: bool = False,
    ) -> Any:
        """Return the stacked parameters and buffers of several modules of one architecture.

        Args:
            *modules: The modules.
            as_module: Whether the result is a `TensorDictParams`.
            lock: Whether the result is locked.
            use_state_dict: Whether to go through ``module.state_dict()``.
            lazy_stack: Whether the parameters form a lazy stack, so that gradients flow to the parameters of the
                modules.
            expand_identical: Whether a parameter that all modules share is expanded rather than stacked.

        Raises:
            ImportError: ``tensordict-nn`` is not installed.

        >>> params = TensorDict.from_modules(torch.nn.Linear(2, 3), torch.nn.Linear(2, 3))
        >>> params.batch_size, params["weight"].shape
        (torch.Size([2]), torch.Size([2, 3, 2]))
        """
        made = satellite(_NAME, "TensorDict.from_modules").from_modules(
            *modules,
            as_module=as_module,
            lock=lock,
            use_state_dict=use_state_dict,
            lazy_stack=lazy_stack,
            expand_identical=expand_identical,
        )
        return of_class(cls, made, nested=True)

    def to_module(
        self,
        module: nn.Module,
        *,
        inplace: bool | None = None,
        return_swap: bool = True,
        swap_dest: Any = None,
        use_state_dict: bool = False,
        non_blocking: bool = False,
        preserve_module_state: bool = True,
        memo: dict[int, Any] | None = None,
    ) -> Any:
        """Set the entries as parameters and buffers of a module; as a context manager, only within the block.

        Args:
            module: A module of this structure.
            inplace: Whether values are written into the existing parameters rather than replacing them.
            return_swap: Whether the previous parameters are returned.
            swap_dest: A tensordict in which the previous parameters are stored.
            use_state_dict: Whether to use ``module.load_state_dict``, which runs its hooks.
            non_blocking: Whether copies may be asynchronous.
            preserve_module_state: Whether a plain tensor that replaces a parameter becomes a parameter with the same
                ``requires_grad``. Tensors that require gradients and those of ``torch.func`` transforms are set
                unchanged, so that gradients flow to them.
            memo: Accepted for compatibility.

        Returns:
            The previous parameters, as a tensordict.

        Raises:
            ImportError: ``tensordict-nn`` is not installed.
            KeyError: The module has no parameter or buffer of an entry's name.

        >>> module = torch.nn.Linear(3, 4)
        >>> zeros = TensorDict.from_module(module) * 0
        >>> with zeros.to_module(module):
        ...     module(torch.ones(3)).sum().item()
        0.0
        """
        return satellite(_NAME, "TensorDict.to_module").to_module(
            self,
            module,
            inplace=inplace,
            return_swap=return_swap,
            swap_dest=swap_dest,
            use_state_dict=use_state_dict,
            non_blocking=non_blocking,
            preserve_module_state=preserve_module_state,
            memo=memo,
        )
