"""Modules, sequences, probabilistic modules and tracing behave as in the reference."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from side_by_side import assert_same
from torch import nn

ROWS: list[Callable[[Any], Any]] = []


def row(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Registers a function that is run on both libraries."""
    ROWS.append(function)
    return function


@pytest.mark.parametrize("function", ROWS, ids=lambda function: function.__name__)
def test_a_program_gives_the_same_on_both(function: Callable[[Any], Any]) -> None:
    assert_same(function)
