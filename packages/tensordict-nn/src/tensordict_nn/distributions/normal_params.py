"""Modules that compute the location and scale of a normal distribution from the output of a network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tensordict_nn.distributions.mappings import mappings


class NormalParamExtractor(nn.Module):
    """Splits the last dimension into a location and, mapped to positive numbers, a scale.

    Args:
        scale_mapping: The name of the mapping, see `mappings`.
        scale_lb: The lower bound of the scale.

    >>> loc, scale = NormalParamExtractor()(torch.zeros(3, 4))
    >>> loc.shape, scale[0]
    (torch.Size([3, 2]), tensor([1., 1.]))
    """

    def __init__(self, scale_mapping: str = "biased_softplus_1.0", scale_lb: float = 1e-4) -> None:
        super().__init__()
        self.scale_mapping = mappings(scale_mapping)
        self.scale_lb = scale_lb

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Split the first tensor; return the others unchanged."""
        first, *others = tensors
        loc, scale = first.chunk(2, -1)
        return (loc, self.scale_mapping(scale).clamp_min(self.scale_lb), *others)


class AddStateIndependentNormalScale(nn.Module):
    """Adds a learned scale to a location; the scale does not depend on the input.

    Args:
        scale_shape: The shape of the scale: that of the last dimensions of the location.
        scale_mapping: The name of the mapping to positive numbers, see `mappings`.
        scale_lb: The lower bound of the scale.
        device: The device of the scale.
        make_param: Whether the scale is a parameter; otherwise it is a buffer.
        init_value: The initial value, before the mapping.

    >>> loc, scale = AddStateIndependentNormalScale(4)(torch.zeros(3, 4))
    >>> scale.shape, scale.unique().tolist()
    (torch.Size([3, 4]), [1.0])
    """

    def __init__(
        self,
        scale_shape: Sequence[int] | int | None = None,
        *,
        scale_mapping: str = "exp",
        scale_lb: float = 1e-4,
        device: torch.device | str | None = None,
        make_param: bool = True,
        init_value: float = 0.0,
    ) -> None:
        super().__init__()
        shape = () if scale_shape is None else (scale_shape,) if isinstance(scale_shape, int) else tuple(scale_shape)
        value = torch.full(shape, float(init_value), device=device)
        if make_param:
            self.state_independent_scale = nn.Parameter(value)
        else:
            self.register_buffer("state_independent_scale", value)
        self.scale_mapping = scale_mapping
        self._positive = mappings(scale_mapping)
        self.scale_lb = scale_lb

    @property
    def scale_shape(self) -> torch.Size:
        """The shape of the scale.

        >>> AddStateIndependentNormalScale(3).scale_shape
        torch.Size([3])
        """
        return self.state_independent_scale.shape

    def forward(self, loc: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """Return the first tensor, its scale, and the others unchanged."""
        scale = self._positive(self.state_independent_scale.expand_as(loc)).clamp_min(self.scale_lb)
        return (loc, scale, *others)
