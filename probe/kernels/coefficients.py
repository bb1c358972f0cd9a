"""From the gradients of the statistics to the gradient of the logits: four numbers a row and n + 1 single columns.

With p the policy and z its tempered logits, for each column v

    d logp / dz_v = [v = label] - p_v                   d entropy / dz_v = -p_v (log p_v + H)
    d top_logps_i / dz_v = [v = id_i] - p_v             d sum p^2 / dz_v = 2 p_v (p_v - sum p^2)
    d logsumexp / dz_v = p_v                            d self_certainty / dz_v = p_v - 1 / num_finite

which is ``p (A + B log p + C p) + D`` and a number beside it at the label and at each candidate.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from entrostat.probe.kernels.finished import Finished
from entrostat.probe.kernels.tempering import LN2, Tempering

DIFFERENTIABLE = ("logp", "entropy", "logsumexp", "top_logps", "sum_p2", "self_certainty")


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The gradient of N rows of logits.

    Args:
        dense: [4, N] float32 for ``logit_gradient``: A, B ln 2, C, D times the temperature's factor.
        ids: [N, n + 1] the label and the candidates.
        values: [N, n + 1] float64, the whole gradient of those raw logits; equal where an id occurs twice.
        is_valid: [N, n + 1] whether there is such a column, and it can move.
    """

    dense: Tensor
    ids: Tensor
    values: Tensor
    is_valid: Tensor

    @property
    def is_moving(self) -> Tensor:
        """[N] whether any of the row's logits has a gradient."""
        return (self.dense != 0).any(0) | ((self.values != 0) & self.is_valid).any(1)

    def at(self, rows: Tensor | slice) -> "Coefficients":
        """Those of some rows."""
        return Coefficients(self.dense[:, rows], self.ids[rows], self.values[rows], self.is_valid[rows])


def coefficients(
    found: Finished, labels: Tensor, tempering: Tempering, gradients: dict[str, Tensor | None]
) -> Coefficients:
    """Of the rows' statistics and the gradients of the fields in ``DIFFERENTIABLE``; None is 0.

    A row that says nothing gets 0, and so does a log-prob that is -inf or NaN: they are constants.
    """
    stats = found.stats
    is_void = stats.entropy.isnan()

    def of(name: str) -> Tensor:
        value: Tensor = getattr(stats, name)
        gradient = gradients[name]
        if gradient is None:
            return torch.zeros_like(value, dtype=torch.float64)
        return torch.where(value.isfinite(), gradient, 0.0).double()

    logp, top_logps = of("logp"), of("top_logps")
    entropy, square, certainty = of("entropy"), of("sum_p2"), of("self_certainty")
    a = of("logsumexp") + certainty - logp - top_logps.sum(1)
    a = a - entropy * stats.entropy.double() - 2 * square * stats.sum_p2.double()
    b, c, d = -entropy, 2 * square, -certainty / stats.num_finite.clamp(min=1)
    a, b, c, d = (torch.where(is_void, 0.0, x) for x in (a, b, c, d))

    ids = torch.cat([labels.unsqueeze(1), stats.top_ids], 1)
    log_p = torch.cat([stats.logp.unsqueeze(1), stats.top_logps], 1).double()
    is_valid = log_p.isfinite()
    log_p = torch.where(is_valid, log_p, 0.0)
    is_label = (stats.top_ids == labels.unsqueeze(1)) & is_valid[:, 1:]
    single = torch.cat(
        [
            (logp + (is_label * top_logps).sum(1)).unsqueeze(1),
            top_logps + is_label * logp.unsqueeze(1),
        ],
        1,
    )
    p = log_p.exp()
    a1, b1, c1, d1 = (x.unsqueeze(1) for x in (a, b, c, d))
    values = p * (a1 + b1 * log_p + c1 * p) + d1 + single
    raw = torch.cat([found.label_logits.unsqueeze(1), found.top_logits], 1)
    values = torch.where(is_valid, values * tempering.slope(raw), 0.0)
    # A row whose temperature is none is void: its factor is NaN.
    dense = torch.where(is_void, 0.0, torch.stack([a, b * LN2, c, d]) * tempering.factor)
    return Coefficients(dense.float().contiguous(), ids, values, is_valid)


def write_single_columns(gradient: Tensor, first: int, found: Coefficients) -> None:
    """Write the single columns into ``gradient`` [k, columns], which begins at column ``first`` of the vocabulary.

    Nothing is read back: a row without any here gets its column 0 again, and a slot without a column repeats one that
    has; what is written twice is written equal.
    """
    ids, values = found.ids - first, found.values.to(gradient.dtype)
    is_here = found.is_valid & (ids >= 0) & (ids < gradient.shape[1])
    slots = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    pick = torch.where(is_here, slots, is_here.int().argmax(1, keepdim=True))
    is_none = ~is_here.any(1, keepdim=True)
    place = torch.where(is_none, 0, ids.gather(1, pick))
    gradient.scatter_(1, place, torch.where(is_none, gradient[:, :1], values.gather(1, pick)))
