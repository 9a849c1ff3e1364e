"""`OneHotCategorical`: a categorical distribution over one-hot vectors, with straight-through gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, RelaxedOneHotCategorical
from torch.nn import functional


def rand_one_hot(values: Tensor, do_softmax: bool = True) -> Tensor:
    """Draw one-hot vectors along the last dimension.

    Args:
        values: Logits or probabilities.
        do_softmax: Whether the values are logits.

    >>> rand_one_hot(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), do_softmax=False)
    tensor([[0, 1],
            [1, 0]])
    """
    probs = values.softmax(-1) if do_softmax else values
    drawn = torch.multinomial(probs.reshape(-1, probs.shape[-1]), 1).reshape(probs.shape[:-1])
    return functional.one_hot(drawn, probs.shape[-1])


class OneHotCategorical(Categorical):
    """A categorical distribution over one-hot vectors.

    Samples are vectors along the last dimension: those of ``n`` categories have the shape ``[*batch_shape, n]``.

    Args:
        logits: Log-probabilities up to a constant, along the last dimension.
        probs: Probabilities, instead of ``logits``.
        **kwargs: Arguments of ``torch.distributions.Categorical``.

    >>> OneHotCategorical(logits=torch.tensor([0.0, 2.0, 1.0])).mode
    tensor([0, 1, 0])
    """

    num_params = 1

    def __init__(self, logits: Tensor | None = None, probs: Tensor | None = None, **kwargs: Any) -> None:
        given = logits if probs is None else probs
        if given is not None and given.ndim > 1 and given.shape[-1] == 1:
            # the output of a network, of shape [..., n, 1]
            logits = None if logits is None else logits.squeeze(-1)
            probs = None if probs is None else probs.squeeze(-1)
        super().__init__(probs=probs, logits=logits, **kwargs)

    def _one_hot(self, categories: Tensor) -> Tensor:
        return functional.one_hot(categories, self._num_events)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-probability of one-hot vectors.

        >>> OneHotCategorical(probs=torch.tensor([0.5, 0.5])).log_prob(torch.tensor([0, 1])).exp()
        tensor(0.5000)
        """
        log_prob: Tensor = Categorical.log_prob(self, value.argmax(-1))
        return log_prob

    @property
    def mode(self) -> Tensor:
        """The most likely category, one-hot.

        >>> OneHotCategorical(probs=torch.tensor([0.25, 0.75])).mode
        tensor([0, 1])
        """
        return self._one_hot(self.logits.argmax(-1))

    @property
    def mean(self) -> Tensor:
        """The probabilities, which are the mean of one-hot vectors.

        >>> OneHotCategorical(probs=torch.tensor([0.25, 0.75])).mean
        tensor([0.2500, 0.7500])
        """
        return self.probs

    @property
    def variance(self) -> Tensor:
        """The variance of each element.

        >>> OneHotCategorical(probs=torch.tensor([0.5, 0.5])).variance
        tensor([0.2500, 0.2500])
        """
        return self.probs * (1 - self.probs)

    @property
    def deterministic_sample(self) -> Tensor:
        """The mode.

        >>> OneHotCategorical(probs=torch.tensor([0.25, 0.75])).deterministic_sample
        tensor([0, 1])
        """
        return self.mode

    def sample(self, sample_shape: Any = None) -> Tensor:
        """Draw one-hot vectors of integers.

        Args:
            sample_shape: The shape of the samples in front of the batch shape.

        >>> OneHotCategorical(probs=torch.tensor([0.0, 1.0])).sample((2,))
        tensor([[0, 1],
                [0, 1]])
        """
        return self._one_hot(Categorical.sample(self, torch.Size(sample_shape or ())))

    def rsample(self, sample_shape: Any = None) -> Tensor:
        """Draw one-hot vectors with the gradients of a relaxed sample of temperature 1 (straight-through).

        Args:
            sample_shape: The shape of the samples in front of the batch shape.

        >>> OneHotCategorical(logits=torch.zeros(3, 4, requires_grad=True)).rsample().requires_grad
        True
        """
        relaxed = RelaxedOneHotCategorical(self.logits.new_tensor(1.0), logits=self.logits).rsample(
            torch.Size(sample_shape or ())
        )
        hard = self._one_hot(relaxed.argmax(-1)).to(relaxed.dtype)
        return hard + (relaxed - relaxed.detach())

    def expand(self, batch_shape: Any, _instance: Any = None) -> OneHotCategorical:
        """Return the distribution with a larger batch shape."""
        new = Categorical._get_checked_instance(self, OneHotCategorical, _instance)
        expanded: OneHotCategorical = Categorical.expand(self, batch_shape, _instance=new)
        return expanded

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all one-hot vectors.

        Args:
            expand: Whether they are expanded over the batch shape.

        >>> OneHotCategorical(probs=torch.tensor([0.5, 0.5])).enumerate_support()
        tensor([[1, 0],
                [0, 1]])
        """
        return self._one_hot(Categorical.enumerate_support(self, expand))
