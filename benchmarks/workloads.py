"""Workloads: the tensors of the benchmarks, in shapes of real models and in difficult ones.

Workloads are nested dictionaries of tensors, from which each library makes its own container.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

import torch

Tree: TypeAlias = "dict[str, torch.Tensor | Tree]"


@lru_cache(maxsize=2)
def gpt2(layers: int = 12, width: int = 768) -> Tree:
    """Parameters in the shapes of GPT-2: with 12 layers 146 leaves and 498 MB, of sizes from 3 KB to 154 MB."""

    def linear(inputs: int, outputs: int) -> Tree:
        return {"weight": filled(inputs, outputs), "bias": filled(outputs)}

    def norm() -> Tree:
        return {"weight": filled(width), "bias": filled(width)}

    def block() -> Tree:
        return {
            "ln_1": norm(),
            "attn": {"c_attn": linear(width, 3 * width), "c_proj": linear(width, width)},
            "ln_2": norm(),
            "mlp": {"c_fc": linear(width, 4 * width), "c_proj": linear(4 * width, width)},
        }

    embeddings: Tree = {"wte": filled(50257, width), "wpe": filled(1024, width)}
    return embeddings | {"h": {str(i): block() for i in range(layers)}}


@lru_cache(maxsize=1)
def one_leaf(elements: int = 1 << 27) -> Tree:
    """One leaf of 537 MB."""
    return {"leaf": filled(elements)}


@lru_cache(maxsize=1)
def transformer(layers: int = 96, width: int = 256) -> Tree:
    """The state of an encoder: 12 leaves and 3 MB a layer, of sizes from 1 KB to 1 MB; 1,156 leaves and 305 MB."""
    found: Tree = {"embedding": filled(1000, width), "norm": {"weight": filled(width), "bias": filled(width)}}
    found["head"] = filled(10, width)
    shapes = {
        "self_attn": {"in_proj_weight": (3 * width, width), "in_proj_bias": (3 * width,)},
        "out_proj": {"weight": (width, width), "bias": (width,)},
        "linear1": {"weight": (4 * width, width), "bias": (4 * width,)},
        "linear2": {"weight": (width, 4 * width), "bias": (width,)},
        "norm1": {"weight": (width,), "bias": (width,)},
        "norm2": {"weight": (width,), "bias": (width,)},
    }
    found["layers"] = {
        str(layer): {part: {name: filled(*shape) for name, shape in leaves.items()} for part, leaves in shapes.items()}
        for layer in range(layers)
    }
    return found


def uniform(leaves: int, nbytes: int) -> Tree:
    """Makes a number of leaves of a number of bytes."""
    return {f"leaf{i:06}": filled(nbytes // 4) for i in range(leaves)}


@lru_cache(maxsize=1)
def small_leaves(count: int = 5000) -> Tree:
    """Many leaves of 1 KiB, where opening files costs more than the bytes."""
    return {f"leaf{i:05}": filled(256) for i in range(count)}


@lru_cache(maxsize=1)
def transposed(count: int = 8, rows: int = 4096, columns: int = 2048) -> Tree:
    """Large transposed leaves, whose order in memory differs from that in a file; 268 MB."""
    return {f"leaf{i}": filled(columns, rows).T for i in range(count)}


def filled(*shape: int) -> torch.Tensor:
    """Makes a tensor with different values, faster than random numbers."""
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)


def flat(tree: Tree, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields every leaf with its dotted key, as other libraries name them."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def size(tree: Tree) -> int:
    """Returns the total bytes of the leaves."""
    return sum(leaf.nbytes for _, leaf in flat(tree))
