"""Remote storage: loads and saves at URLs such as ``s3://bucket/run``, through fsspec."""

from __future__ import annotations
