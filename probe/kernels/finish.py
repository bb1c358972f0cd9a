"""From the parts' sums to the statistics, in float64 on a few numbers a row."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from entrostat.probe.token_stats import TokenStats

LN2 = math.log(2.0)
_SUPPORT_MASS = 0.95


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

    def value(self, raw: Tensor) -> Tensor:
        """Tempered float64 logits of raw ones, [N] or [N, n]."""
        x = raw.double()
        if self.cap:
            x = torch.where(x.isinf(), x, self.cap * torch.tanh(x * (self.scale / self.cap)))
        return x * (self.factor if x.ndim == 1 else self.factor.unsqueeze(1))

    def slope(self, raw: Tensor) -> Tensor:
        """Derivative of ``value``, [N, n] of raw logits [N, n]."""
        factor = self.factor.unsqueeze(1)
        if not self.cap:
            return factor.expand(raw.shape)
        return factor * self.scale * (1.0 - torch.tanh(raw.double() * (self.scale / self.cap)).square())


@dataclass(frozen=True, slots=True)
class Finished:
    """Statistics, and what the backward needs beside them.

    Args:
        stats: of N tokens.
        reference: [N] float32, the largest of the parts' references, in units of ``Tempering.bits``.
        log_mass: [N] float32, log2 of sum 2^(u), u relative to ``reference``.
        label_logits: [N] float32, raw.
        top_logits: [N, n] float32, raw.
    """

    stats: TokenStats
    reference: Tensor
    log_mass: Tensor
    label_logits: Tensor
    top_logits: Tensor


def finish(sums: Tensor, label_logits: Tensor, kept: Tensor, labels: Tensor, tempering: Tempering, n: int) -> Finished:
    """The statistics of N rows.

    Args:
        sums: [P, 6, N] float32 of ``fold``; whatever in ignored rows.
        label_logits: [N] float32, NaN where the label is outside the vocabulary.
        kept: [N, n or more] int64 keys of ``top_candidates``.
        labels: [N] int64.
        tempering: of the rows.
        n: candidates.
    """
    parts = sums.double()
    reference, mass = parts[:, 0], parts[:, 1]
    is_live = mass > 0
    highest = torch.where(is_live, reference, -torch.inf).amax(0)
    highest = torch.where(highest.isfinite(), highest, 0.0)
    # A part without a finite logit has sums of 0 relative to nothing.
    shift = torch.where(is_live, reference - highest, 0.0)
    mass, slope, square, total, count = _merged(parts, shift)
    zero = highest / tempering.bits.double() * tempering.factor  # the tempered logit that the sums are relative to
    log_mass = mass.log()
    top_raw, top_ids = unpacked(kept[:, :n])
    top_ids = torch.where(top_raw == -torch.inf, -1, top_ids)
    top_logps = (tempering.value(top_raw) - zero.unsqueeze(1)) - log_mass.unsqueeze(1)
    top_logps = torch.where(top_ids < 0, -torch.inf, top_logps)
    hit = (top_ids == labels.unsqueeze(1)) & (labels >= 0).unsqueeze(1)
    rank = torch.where(hit.any(1), hit.int().argmax(1) + 1, n + 1)
    support = (top_logps.exp().cumsum(1) < _SUPPORT_MASS).sum(1) + 1
    # A NaN or +inf logit is a NaN in the sums; so is a temperature that is none.
    is_nan = (labels < 0) | mass.isnan() | tempering.factor.isnan()
    is_void = is_nan | (count == 0)
    floats = {
        "logp": (tempering.value(label_logits) - zero) - log_mass,
        "entropy": (log_mass - slope / mass * LN2).clamp(min=0),
        "sum_p2": square / mass.square(),
        # KL(uniform || p) = ln Z - mean z - ln C, both relative to the same logit.
        "self_certainty": log_mass - total / count * LN2 - count.log(),
    }
    num_finite = torch.where((labels < 0) | tempering.factor.isnan(), 0.0, count).to(torch.int64)
    stats = TokenStats(
        **{name: values.masked_fill(is_void, torch.nan).float() for name, values in floats.items()},
        logsumexp=(zero + log_mass).masked_fill(is_nan, torch.nan).float(),
        top_ids=top_ids.masked_fill(is_void.unsqueeze(1), -1),
        top_logps=top_logps.masked_fill(is_void.unsqueeze(1), torch.nan).float(),
        rank=rank.masked_fill(is_void, 0),
        is_top1=(rank == 1) & ~is_void,
        support95=support.masked_fill(is_void, 0),
        num_finite=num_finite,
    )
    return Finished(stats, highest.float(), (log_mass / LN2).float(), label_logits, top_raw)


def _merged(parts: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """S, A, Q, T, C of whole rows, [N] each, relative to the common reference; ``shift`` [P, N] is in bits."""
    _, mass, slope, square, total, count = parts.unbind(1)
    weight = torch.exp2(shift)
    moved = torch.stack(
        [weight * mass, weight * (slope + shift * mass), weight.square() * square, total + shift * count, count], 1
    )
    # One after another: the order of torch's own sum may depend on how many rows there are.
    whole = moved[0]
    for part in moved[1:]:
        whole = whole + part
    mass, slope, square, total, count = whole.unbind(0)
    return mass, slope, square, total, count


def unpacked(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Values (float32; -inf for no key) and ids (-1 for no key) of the int64 keys of ``ordered_keys.pack_32``."""
    bits = (keys >> 31) & 0xFFFFFFFF
    bits = torch.where(bits >= 0x80000000, bits ^ 0x80000000, bits ^ 0xFFFFFFFF)
    signed = torch.where(bits >= 0x80000000, bits - 0x100000000, bits).to(torch.int32)
    is_key = keys >= 0
    values = torch.where(is_key, signed.view(torch.float32), -torch.inf)
    return values, torch.where(is_key, 0x7FFFFFFF - (keys & 0x7FFFFFFF), -1)
