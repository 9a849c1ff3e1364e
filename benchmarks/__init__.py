"""Benchmarks against the reference and other libraries.

asv times the modules of this folder. ``tracked.py`` is measured for many commits; its results are stored under the name
of the module, so it stays here. ``python -m benchmarks.compare`` fills the tables of the README. The folders ``core``,
``memmap``, ``nn``, ``tensorclass`` and ``store`` hold comparisons that are run by hand, each by ``python -m``, and
``dashboard`` measures commits and builds the pages.
"""

from __future__ import annotations
