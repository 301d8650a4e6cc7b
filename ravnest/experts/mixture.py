"""RemoteMixtureOfExperts: a layer whose experts are hosted elsewhere, as an ordinary torch.nn.Module with autograd.

In: a batch of samples. Out: for each, the mean of its experts' outputs, weighted by the softmax of their scores over
those who have answered. Who does not answer in time counts as dropped out: its weight goes to the others, and it gets
no gradient. In the backward each expert that has answered gets the gradient of its output, learns from it at its host,
and returns that of its input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ravnest.errors import InvalidInput
from ravnest.experts.askers import asker_of, register, text_of
from ravnest.experts.batch_calls import Asker, Caller, MixtureFigures
from ravnest.experts.config import ExpertsConfig
from ravnest.experts.gate import ProductKeyGate, balance_loss
from ravnest.experts.operators import ask_experts


class RemoteMixtureOfExperts(nn.Module):
    """Calls the `k` best of a grid of experts for each sample.

    `balance` is the load-balancing loss of the last forward in training; add it to the loss with a small factor. In a
    job, `with_balance` returns it, so that the model can give it to the loss.
    """

    def __init__(
        self,
        client: Caller | ExpertsConfig,
        *,
        k: int = 4,
        k_min: int = 1,
        backward_k_min: int = 1,
        width: int | None = None,
    ) -> None:
        """
        Arguments:
            client: an ExpertsClient, which copies of the layer share. In the model of a job, the ExpertsConfig: then
                each stage that has the layer asks by a client of its own (`experts` in the job).
            k: experts of each sample.
            k_min: with fewer answers a sample looks for other experts, and at last forward raises ExpertsUnavailable.
            backward_k_min: a sample with fewer answers in the backward passes no gradient on to what is below. When
                that is so for the whole batch, backward raises ExpertsUnavailable.
            width: of the beam search (see BeamSearch); k without it.
        """
        super().__init__()
        self.client = None if isinstance(client, ExpertsConfig) else client
        self.config = client if isinstance(client, ExpertsConfig) else client.config
        self._own = None if self.client is None else Asker(self.client)
        grid = self.config.places
        if not 1 <= k_min <= k <= len(grid):
            raise InvalidInput(f"expected 1 ≤ k_min ≤ k ≤ {len(grid)} experts, not {k_min} and {k}", key="k_min")
        if not 0 <= backward_k_min <= k:
            raise InvalidInput(f"expected 0 to k = {k}, not {backward_k_min}", key="backward_k_min")
        if width is not None and width < 1:
            raise InvalidInput(f"expected 1 or more, not {width}", key="width")
        self.k, self.k_min, self.backward_k_min = k, k_min, backward_k_min
        self.width = width or k
        self.gate = ProductKeyGate(torch.Size(self.config.input_shape).numel(), grid.sides)
        self.balance: Tensor | None = None
        self._text = text_of(self.config)
        self._asker = grid.name if self._own is None else register(self._own)

    @property
    def figures(self) -> MixtureFigures:
        """What was asked, and what was dropped out. Raises InvalidInput where nobody asks for this layer here."""
        return asker_of(self._asker, self._text).figures if self._own is None else self._own.figures

    def __getstate__(self) -> dict[str, Any]:
        """For copies of the layer, which begin without a last forward."""
        return {**self.__dict__, "balance": None}

    def forward(self, samples: Tensor) -> Tensor:
        """(samples, *input_shape), float32 or bfloat16 → (samples, *output_shape), float32. Raises InvalidInput,
        ExpertsUnavailable."""
        output, balance = self.with_balance(samples)
        if not torch.compiler.is_exporting():  # a graph has no attributes
            self.balance = balance if self.training else None
        return output

    def with_balance(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """What forward returns, and the load-balancing loss of this batch, one number."""
        shape = self.config.input_shape
        if samples.dtype == torch.bfloat16:  # as autocast makes them; gradients of float16 would be scaled
            samples = samples.float()
        if tuple(samples.shape[1:]) != shape or samples.dtype != torch.float32 or samples.shape[0] < 1:
            raise InvalidInput(
                f"expected float32 of shape {('n', *shape)}, n at least 1, not {samples.dtype} {tuple(samples.shape)}"
            )
        numbers = self.gate(samples)
        outputs, asked = ask_experts(
            samples,
            torch.cat(numbers, -1),
            self._asker,
            self._text,
            self.k,
            self.k_min,
            self.backward_k_min,
            self.width,
            self.training,
        )
        weights = self.gate.scores(numbers, asked).softmax(-1)
        there = weights.view(*weights.shape, *[1] * len(self.config.out_shape))
        return (outputs * there).sum(1), balance_loss(numbers)
