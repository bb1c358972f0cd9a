"""What ``kernels.cpu`` compiles: sums and candidates of a few rows of logits, as one function of tensors.

The code is laid out for Inductor, which makes a loop nest of every reduction and of nothing else:

- Maxima of ``MAX_BLOCK`` columns are a first sweep; they give the reference m and the blocks to look for candidates in.
- The sums are a second sweep, a loop per ``SUM_BLOCK`` columns: serial float32 sums of a whole row of 152k would be off
  by 4e-5 in the logsumexp.
- ``exp2``, not ``exp``: Inductor writes an ``exp`` that is used twice to memory, all of [rows, V].
- The n largest are n maxima, each of what lies below the one before, over keys that no two columns share: 40 times
  fewer instructions than a partial sort at V = 152k, and of equal logits the lower column comes first.
"""

import math

import torch
from torch import Tensor

from entrostat.probe.token_stats import tempered

MAX_BLOCK = 64
SUM_BLOCK = 512
NUM_SUMS = 5
_LOG2_E = 1 / math.log(2)
_LOWEST = -(2**63)
_LAST_COLUMN = 2**32 - 1


def row_sums(
    raw: Tensor, heat: Tensor | None, n: int, softcap: float | None, logit_scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of rows of raw logits, and their likeliest columns.

    Args:
        raw: [R, C], float32, bfloat16 or float16.
        heat: [R, 1] float32, temperatures; None where all are 1, which saves the division and changes no bit.
        n: candidates.
        softcap: of the logits.
        logit_scale: of the logits.

    Returns:
        m [R], the largest tempered logit; [5, R] sums of e = e^(z-m), e (z-m), e^2, and over finite z of z-m and of 1;
        [R, n or fewer] int64 keys for ``unpacked``, best first.
    """

    def by_block(width: int) -> list[Tensor]:
        """Tempered, [R, blocks, width]; what is left over apart."""
        whole = raw.shape[1] // width * width
        parts = [part for part in (raw[:, :whole], raw[:, whole:]) if part.shape[1]]
        z = [_tempered(part, heat, softcap, logit_scale) for part in parts]
        return [part.view(part.shape[0], -1, min(width, part.shape[1])) for part in z]

    maxima = torch.cat([blocks.amax(2) for blocks in by_block(MAX_BLOCK)], 1)
    largest = maxima.amax(1)
    reference = torch.where(largest == -torch.inf, 0.0, largest)[:, None, None]
    sums = torch.zeros(NUM_SUMS, raw.shape[0], device=raw.device)
    for blocks in by_block(SUM_BLOCK):
        gap = blocks - reference
        e = torch.exp2(gap * _LOG2_E)
        is_finite = blocks.abs() < torch.inf
        # 0 * -inf is NaN: a masked candidate's share of each sum is set, not computed.
        gap = torch.where(is_finite, gap, 0.0)
        sums = sums + torch.stack([t.sum(2).sum(1) for t in (e, e * gap, e * e, gap, is_finite.float())])
    return largest, sums, _candidates(raw, maxima, heat, n, softcap, logit_scale)


def _tempered(raw: Tensor, heat: Tensor | None, softcap: float | None, logit_scale: float | None) -> Tensor:
    z = raw.float()
    if heat is None and softcap is None and logit_scale is None:
        return z
    return tempered(z, z.new_ones(()) if heat is None else heat, softcap, logit_scale)


def _candidates(
    raw: Tensor, maxima: Tensor, heat: Tensor | None, n: int, softcap: float | None, logit_scale: float | None
) -> Tensor:
    """A column outside the n blocks with the largest maxima (ties to the lower block) has n columns before it."""
    block_ids = torch.arange(maxima.shape[1], device=raw.device)
    best = _columns(_largest(_keys(maxima, block_ids), n))
    columns = (best.unsqueeze(2) * MAX_BLOCK + torch.arange(MAX_BLOCK, device=raw.device)).flatten(1)
    last = raw.shape[1] - 1
    found = _tempered(raw.gather(1, columns.clamp(max=last)), heat, softcap, logit_scale)
    # Beyond the vocabulary there is nothing, in the last block.
    return _largest(_keys(torch.where(columns <= last, found, -torch.inf), columns), n)


def _keys(values: Tensor, columns: Tensor) -> Tensor:
    """int64 that order as the values do, and of equal values the lower column before."""
    bits = values.view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ordered = torch.where(ordered == -1, 0, ordered)  # -0.0 equals 0.0
    keys = (ordered.to(torch.int64) << 32) | (_LAST_COLUMN - columns)
    # Inductor puts what is strided into memory; else it makes the keys, gather and all, again for each of the n maxima.
    return keys.as_strided(keys.shape, keys.stride())


def _columns(keys: Tensor) -> Tensor:
    return _LAST_COLUMN - (keys & _LAST_COLUMN)


def unpacked(keys: Tensor) -> tuple[Tensor, Tensor]:
    """The values, float32, and columns of ``row_sums``' keys."""
    ordered = (keys >> 32).to(torch.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32), _columns(keys)


def _largest(keys: Tensor, n: int) -> Tensor:
    found = [keys.amax(1, keepdim=True)]
    while len(found) < min(n, keys.shape[1]):
        found.append(torch.where(keys < found[-1], keys, _LOWEST).amax(1, keepdim=True))
    return torch.cat(found, 1)
