"""``TokenStats`` by the Triton kernels, with the contract of ``probe.token_stats``. Import it only where it is used.

Ask ``availability.available`` first: this module imports Triton.
"""

import torch
from torch import Tensor

from entrostat.probe.kernels.availability import DTYPES, MAX_CANDIDATES
from entrostat.probe.kernels.finished import Finished, finished
from entrostat.probe.kernels.fold import NUM_SUMS, fold
from entrostat.probe.kernels.head_tiles import check_head, head_tile
from entrostat.probe.kernels.launch import launched_on, power_of_two
from entrostat.probe.kernels.layout import Layout, layout
from entrostat.probe.kernels.tempering import Tempering
from entrostat.probe.kernels.top_candidates import top_candidates
from entrostat.probe.token_stats import TokenStats, _check, _temperature

_SCRATCH_BYTES = 32 * 2**20  # of block maxima, whatever N is


@torch.no_grad()
def from_logits(
    logits: Tensor,
    labels: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float | None = None,
    n: int = 8,
    expect_masked: bool = False,
    cut: Layout | None = None,
) -> TokenStats:
    """Statistics from logits [N, V]; arguments and errors as in ``token_stats.from_logits``, and

    Args:
        logits: float32, bfloat16 or float16. Rows may lie apart; columns that do are copied some rows at a time.
        labels: [N] int64.
        temperature: of sampling.
        softcap: of the logits.
        logit_scale: of the logits.
        n: candidates, 64 at most.
        expect_masked: most rows hold -inf logits. Only speed depends on it: without it such a part is read three times.
        cut: how rows are cut up; by device, dtype and V if not given.
    """
    return measured(logits, labels, temperature, softcap, logit_scale, n, expect_masked, cut).stats


@torch.no_grad()
def from_hidden(
    hidden: Tensor,
    head_weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float | None = None,
    n: int = 8,
    row_tile: int = 1024,
    vocab_tile: int = 8192,
    expect_masked: bool = False,
    cut: Layout | None = None,
) -> TokenStats:
    """Statistics from hidden states [N, d] and the head [V, d], as ``token_stats.from_hidden``.

    The product is the BLAS's, a tile of ``row_tile x vocab_tile`` at a time in the inputs' dtype (16 MB in bfloat16: it
    stays in the cache of an H100); the kernels read the tile. ``expect_masked`` and ``cut`` as in ``from_logits``.
    """
    sizes = row_tile, vocab_tile
    return measured_head(
        hidden, head_weight, bias, labels, temperature, softcap, logit_scale, n, sizes, expect_masked, cut
    ).stats


def measured(
    logits: Tensor,
    labels: Tensor,
    temperature: float | Tensor,
    softcap: float | None,
    logit_scale: float | None,
    n: int,
    expect_masked: bool = False,
    cut: Layout | None = None,
) -> Finished:
    """``from_logits`` with what the backward needs."""
    if logits.ndim != 2:
        raise ValueError(f"logits {tuple(logits.shape)} must be [N, V]: flatten batch and positions first")
    num_rows, num_columns = logits.shape
    tempering = _checked(logits, labels, temperature, softcap, logit_scale, n)
    cut = cut or layout(logits.device, logits.dtype, num_columns)
    rows = max(1, _SCRATCH_BYTES // max(1, cut.num_blocks(num_columns) * logits.element_size()))
    done = []
    for r0 in range(0, max(num_rows, 1), rows):
        r1 = min(r0 + rows, num_rows)
        run = _Run(labels[r0:r1], tempering.rows(r0, r1), n, cut.num_parts(num_columns), expect_masked)
        run.add(logits[r0:r1], 0, cut)
        done.append(run.finish())
    return _joined(done)


def measured_head(
    hidden: Tensor,
    head_weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    temperature: float | Tensor,
    softcap: float | None,
    logit_scale: float | None,
    n: int,
    tile: tuple[int, int],
    expect_masked: bool = False,
    cut: Layout | None = None,
) -> Finished:
    """``from_hidden`` with what the backward needs; ``tile`` is (rows, columns)."""
    check_head(hidden, head_weight, bias)
    row_tile, vocab_tile = tile
    num_rows, num_columns = hidden.shape[0], head_weight.shape[0]
    tempering = _checked(hidden, labels, temperature, softcap, logit_scale, n, row_tile, vocab_tile)
    starts = range(0, num_columns, vocab_tile)
    widths = [min(vocab_tile, num_columns - c0) for c0 in starts]
    cuts = [cut or layout(hidden.device, hidden.dtype, width) for width in widths]
    num_parts = sum(c.num_parts(width) for c, width in zip(cuts, widths, strict=True))
    done = []
    for r0 in range(0, max(num_rows, 1), row_tile):
        r1 = min(r0 + row_tile, num_rows)
        run = _Run(labels[r0:r1], tempering.rows(r0, r1), n, num_parts, expect_masked)
        for c0, width, c in zip(starts, widths, cuts, strict=True):
            columns = slice(c0, c0 + width)
            product = head_tile(hidden[r0:r1], head_weight[columns], None if bias is None else bias[columns])
            run.add(product, c0, c)
        done.append(run.finish())
    return _joined(done)


def _checked(
    like: Tensor,
    labels: Tensor,
    temperature: float | Tensor,
    softcap: float | None,
    logit_scale: float | None,
    n: int,
    row_tile: int = 1,
    vocab_tile: int = 1,
) -> Tempering:
    _check(labels, like.shape[0], softcap, logit_scale, n, row_tile, vocab_tile)
    if like.dtype not in DTYPES:
        raise ValueError(f"{like.dtype}: the kernels take float32, bfloat16 and float16; token_stats takes the others")
    if n > MAX_CANDIDATES:
        raise ValueError(f"n={n}: the kernels keep at most {MAX_CANDIDATES} candidates; token_stats keeps more")
    return tempering_of(like, temperature, softcap, logit_scale)


def tempering_of(
    like: Tensor, temperature: float | Tensor, softcap: float | None, logit_scale: float | None
) -> Tempering:
    """Of the rows of ``like`` [N, ...]."""
    heat = _temperature(temperature, like.shape[0], torch.float32, like.device).squeeze(1)
    return Tempering.of(heat, softcap, logit_scale)


def _joined(done: list[Finished]) -> Finished:
    if len(done) == 1:
        return done[0]
    names = TokenStats.__dataclass_fields__
    stats = TokenStats(**{name: torch.cat([getattr(d.stats, name) for d in done]) for name in names})
    others = ("reference", "log_mass", "label_logits", "top_logits")
    return Finished(stats, **{name: torch.cat([getattr(d, name) for d in done]) for name in others})


class _Run:
    """Some rows on their way through the vocabulary, one or more ranges of columns."""

    def __init__(self, labels: Tensor, tempering: Tempering, n: int, num_parts: int, expect_masked: bool) -> None:
        rows, device = labels.shape[0], tempering.bits.device
        self.labels = labels.to(device, torch.int64).contiguous()
        self.tempering, self.n, self.expect_masked = tempering, n, expect_masked
        self.sums = torch.empty(num_parts, NUM_SUMS, rows, device=device)
        self.label_logits = torch.full((rows,), torch.nan, device=device)
        self.kept = torch.empty(rows, max(2, power_of_two(n)), dtype=torch.int64, device=device)
        self.num_parts = 0

    def add(self, logits: Tensor, first: int, cut: Layout) -> None:
        """Columns ``first`` and on of the vocabulary, raw logits [rows, columns]."""
        rows, columns = logits.shape
        if rows == 0:
            return
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        blocks, parts, slots = cut.num_blocks(columns), cut.num_parts(columns), self.kept.shape[1]
        maxima = torch.empty(rows, blocks, dtype=logits.dtype, device=logits.device)
        with launched_on(logits.device):
            fold[(rows, parts)](
                logits, logits.stride(0), self.labels, self.tempering.bits, self.sums, self.label_logits,
                maxima, blocks, first, columns, cut.block * cut.part_blocks, rows, self.num_parts,
                BLOCK=cut.block, SUB=cut.sub, CAP=self.tempering.cap, SCALE=self.tempering.scale,
                MASKED=self.expect_masked, WITH_MAXIMA=True, num_warps=cut.num_warps,
            )  # fmt: skip
            top_candidates[(rows,)](
                logits, logits.stride(0), self.labels, maxima, blocks, self.kept, first, columns, blocks,
                SLOTS=slots, SUB=cut.sub, BLOCKS=power_of_two(max(blocks, slots)),
                IS_FIRST=self.num_parts == 0, IS_16_BIT=logits.element_size() == 2, num_warps=cut.warps_of_top(slots),
            )  # fmt: skip
        self.num_parts += parts

    def finish(self) -> Finished:
        return finished(self.sums, self.label_logits, self.kept, self.labels, self.tempering, self.n)
