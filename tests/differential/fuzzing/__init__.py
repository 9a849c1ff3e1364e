"""Differential fuzzing: random programs run on the reference and on these packages, and outcomes are compared.

`structures` makes random containers, `arguments` values for parameters, `calls` a random call, `programs` runs and
shrinks them, `outcomes` compares what they give, and `rules` lists the differences that docs/differences.md explains.
"""

from __future__ import annotations
