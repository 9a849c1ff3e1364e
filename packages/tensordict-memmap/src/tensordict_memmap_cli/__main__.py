"""Entry point of the command line: ``python -m tensordict_memmap_cli``, the installed command ``tensordict-memmap``."""

from __future__ import annotations

import sys

from tensordict_memmap_cli.main import main

if __name__ == "__main__":
    sys.exit(main())
