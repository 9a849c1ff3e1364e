"""Tables: Arrow, Parquet, pandas, CSV, JSON and MDS, to tensordicts and back."""

from __future__ import annotations
