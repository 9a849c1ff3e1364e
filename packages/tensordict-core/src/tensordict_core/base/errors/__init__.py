"""Errors of core: functions that build exceptions, and exception types with several bases.

A message is one sentence: the offender, the rule, then the remedy. Call sites read ``raise errors.locked(...)``.
"""

from __future__ import annotations

from tensordict_core.base.errors.entries import *  # noqa: F403  # call sites name the function: errors.locked(...)
from tensordict_core.base.errors.operations import *  # noqa: F403  # as above
from tensordict_core.base.errors.types import *  # noqa: F403  # as above
