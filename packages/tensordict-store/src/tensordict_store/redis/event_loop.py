"""Event loop: a thread that runs the coroutines of asynchronous clients, so that operations remain plain calls.

A loop does not survive a fork, so each process has one of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any

_loops: dict[int, asyncio.AbstractEventLoop] = {}
_starting = threading.Lock()


def result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in the loop of this process, and return its result.

    >>> result_of(asyncio.sleep(0, "done"))
    'done'
    """
    with _starting:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="tensordict-store", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()
