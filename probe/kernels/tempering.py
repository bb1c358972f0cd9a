"""From raw logits to the policy's, as numbers a row: what the kernels and the backward need of temperature and cap."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LN2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class Tempering:
    """From raw logits to the policy's, ``softcap * tanh(scale * x / softcap) / temperature``, as the kernels do it.

    Args:
        factor: [N] float64, what the (soft-capped) logit is multiplied by; NaN where the temperature is not above 0.
        bits: [N] float32, the same in base 2: the k of ``fold``.
        cap: soft-cap, 0 where there is none.
        scale: inside the soft-cap; without one it is part of ``factor``.
    """

    factor: Tensor
    bits: Tensor
    cap: float
    scale: float

    @classmethod
    def of(cls, heat: Tensor, softcap: float | None, logit_scale: float | None) -> "Tempering":
        """``heat`` is the temperature, [N], NaN where it is none."""
        scale = 1.0 if logit_scale is None else logit_scale
        factor = (scale if softcap is None else 1.0) / heat.double()
        return cls(factor, (factor / LN2).float(), softcap or 0.0, 1.0 if softcap is None else scale)

    def rows(self, first: int, last: int) -> "Tempering":
        """Rows first to last."""
        return Tempering(self.factor[first:last], self.bits[first:last], self.cap, self.scale)

    def slope(self, raw: Tensor) -> Tensor:
        """Derivative of the tempered logit, [N, n] float64, at raw logits [N, n]."""
        factor = self.factor.unsqueeze(1)
        if not self.cap:
            return factor.expand(raw.shape)
        return factor * self.scale * (1.0 - torch.tanh(raw.double() * (self.scale / self.cap)).square())
