"""The drop-in name: ``tensordict`` is tensordict-core and whichever of its satellites are installed.

Nothing is defined here. A name is looked up in the distribution that owns it the first time it is asked for, so that
``import tensordict`` loads neither torch nor numba, and only what a program uses has to be installed. ``_names.py``
says who owns which name, ``_lazy.py`` looks it up.

>>> from tensordict import TensorDict
>>> import tensordict_core
>>> TensorDict is tensordict_core.TensorDict
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict._lazy import refuse_beside_reference, serve

refuse_beside_reference()

if TYPE_CHECKING:
    from tensordict_class import *
    from tensordict_core import *
    from tensordict_memmap import *
    from tensordict_nn import TensorDictParams as TensorDictParams
    from tensordict_nn import from_module as from_module
else:
    # `memmap` and `tensorclass` are each both a function and a sub-module. Python binds a sub-module on its package
    # when it is first imported, and never again: importing both now and taking the names back leaves them to the
    # functions.
    from tensordict import memmap, tensorclass

    del memmap, tensorclass

    __getattr__, __dir__ = serve(__name__)
