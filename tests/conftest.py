"""How long laws are tested: a short run with every change, a long one before a release (HYPOTHESIS_PROFILE=long)."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Shared machines stall: a deadline an example would make tests fail for no reason of theirs.
settings.register_profile("short", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))
