"""The statistics of some rows from their sums, and what the backward needs beside them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from entrostat.probe.kernels.finish import finish
from entrostat.probe.kernels.launch import launched_on, power_of_two
from entrostat.probe.kernels.tempering import Tempering
from entrostat.probe.token_stats import TokenStats

FLOATS = ("logp", "entropy", "logsumexp", "sum_p2", "self_certainty")
INTEGERS = ("rank", "support95", "num_finite")


@dataclass(frozen=True, slots=True)
class Finished:
    """Of N tokens.

    Args:
        stats: the statistics.
        reference: [N] float32, the largest of the parts' references, in units of ``Tempering.bits``.
        log_mass: [N] float32, log2 of sum 2^u, u relative to ``reference``.
        label_logits: [N] float32, raw.
        top_logits: [N, n] float32, raw; 0 where there is none.
    """

    stats: TokenStats
    reference: Tensor
    log_mass: Tensor
    label_logits: Tensor
    top_logits: Tensor


def finished(
    sums: Tensor, label_logits: Tensor, kept: Tensor, labels: Tensor, tempering: Tempering, n: int
) -> Finished:
    """The statistics of N rows.

    Args:
        sums: [P, 6, N] float32 of ``fold``; whatever in ignored rows.
        label_logits: [N] float32, NaN where the label is outside the vocabulary.
        kept: [N, n or more] int64 keys of ``top_candidates``.
        labels: [N] int64.
        tempering: of the rows.
        n: candidates.
    """
    rows, device, (num_parts, _, _) = labels.shape[0], sums.device, sums.shape
    floats = torch.empty(len(FLOATS) + 2, rows, device=device)
    integers = torch.empty(len(INTEGERS), rows, dtype=torch.int64, device=device)
    is_top1 = torch.empty(rows, dtype=torch.uint8, device=device)
    top_ids = torch.empty(rows, n, dtype=torch.int64, device=device)
    top_logps, top_logits = (torch.empty(rows, n, device=device) for _ in range(2))
    if rows:
        with launched_on(device):
            finish[(rows,)](
                sums, num_parts, rows, label_logits, kept, labels, tempering.bits, tempering.factor,
                floats, integers, is_top1, top_ids, top_logps, top_logits,
                COUNT=n, SLOTS=kept.shape[1], PARTS=power_of_two(num_parts), CAP=tempering.cap, SCALE=tempering.scale,
                num_warps=1,
            )  # fmt: skip
    stats = TokenStats(
        **dict(zip(FLOATS, floats, strict=False)),
        **dict(zip(INTEGERS, integers, strict=True)),
        is_top1=is_top1.view(torch.bool),
        top_ids=top_ids,
        top_logps=top_logps,
    )
    return Finished(stats, floats[-2], floats[-1], label_logits, top_logits)
