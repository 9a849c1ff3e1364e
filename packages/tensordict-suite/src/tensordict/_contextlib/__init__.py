"""Module path of published programs: the names of ``tensordict.utils``."""

from __future__ import annotations

from tensordict._serve.lazy import serve_alias

__getattr__, __dir__ = serve_alias(__name__)
