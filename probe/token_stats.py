"""Per-token statistics: the one entry point, whatever computes them.

``probe.kernels`` holds three forms of one contract: plain torch (``plain``, everywhere, and what the others are held
to), compiled torch on a CPU (``cpu``) and Triton on a GPU (``triton_stats``); ``probe.kernels.choice`` says which runs.

All work on z, the tempered logits, ``softcap * tanh(scale * z / softcap) / temperature``: the policy that samples.

Nothing is read back to the host, so what depends on a tensor's values cannot raise; it becomes NaN in its row instead.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from entrostat.probe.kernels.choice import Kernel, attempt, chosen
from entrostat.probe.kernels.head_tiles import check_head

IGNORED = -100


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Statistics of N tokens (``methods.md`` section 1). Nats; float32, or float64 for float64 input.

    Args:
        logp: [N] log-prob of the label.
        entropy: [N] over the whole vocabulary (Exchange Eq. 3).
        logsumexp: [N] of the tempered logits.
        top_ids: [N, n] the most likely candidates, ties to the lower id; -1 where fewer than n are finite.
        top_logps: [N, n] their log-probs; -inf where there is none.
        rank: [N] of the label, 1 = most likely; n + 1 when it is beyond the n kept.
        is_top1: [N] bool, rank is 1 (CaSP Eq. 5).
        sum_p2: [N] sum of squared probabilities.
        support95: [N] candidates that reach 0.95 of the mass, most likely first; n + 1 means "more than n".
        self_certainty: [N] KL(uniform || p) over the finite logits.
        num_finite: [N] how many logits were finite.

    A masked candidate (-inf) adds nothing to the entropy and is left out of self_certainty's mean; as the label it has
    logp -inf and rank n + 1. Where a row says nothing, its floats are NaN, its ids -1, its rank and support 0:

    - ignored: the label is negative, -100 by custom (num_finite is 0 too);
    - a NaN or +inf logit, or a temperature of the row that is not above 0;
    - no finite logit at all (logsumexp is then -inf).

    A label outside the vocabulary has logp NaN and rank n + 1; the rest of its row stands.
    """

    logp: Tensor
    entropy: Tensor
    logsumexp: Tensor
    top_ids: Tensor
    top_logps: Tensor
    rank: Tensor
    is_top1: Tensor
    sum_p2: Tensor
    support95: Tensor
    self_certainty: Tensor
    num_finite: Tensor

    def at(self, rows: Tensor) -> "TokenStats":
        """The statistics of chosen tokens [k], by index."""
        return TokenStats(*(getattr(self, name)[rows] for name in TokenStats.__dataclass_fields__))


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
) -> TokenStats:
    """Statistics from hidden states and the head; the product runs in the inputs' precision, the sums in float32.

    The product's last bits may depend on how many rows it has, for BLAS picks its kernel by shape; the sums' do not.

    Args:
        hidden: [N, d] the states that predict the labels.
        head_weight: [V, d].
        labels: [N] int64; -100 ignores a row.
        bias: [V].
        temperature: of sampling, above 0; a number or one a row.
        softcap: final soft-cap of the logits (Gemma).
        logit_scale: factor of the logits, above 0 (Cohere, Granite).
        n: candidates kept.
        row_tile: rows at a time.
        vocab_tile: columns at a time: the largest tile of logits is ``row_tile x vocab_tile``.

    Raises:
        ValueError: shapes or settings that do not fit, by name.
    """
    check_head(hidden, head_weight, bias)
    _check(labels, hidden.shape[0], softcap, logit_scale, n, row_tile, vocab_tile)
    heat = _temperature(temperature, hidden.shape[0], _precision(hidden), hidden.device)

    def plain() -> TokenStats:
        from entrostat.probe.kernels import plain

        return plain.from_hidden(hidden, head_weight, bias, labels, heat, softcap, logit_scale, n, row_tile, vocab_tile)

    def compiled() -> TokenStats:
        from entrostat.probe.kernels import cpu

        return cpu.from_hidden(hidden, head_weight, bias, labels, heat, softcap, logit_scale, n, row_tile, vocab_tile)

    def triton() -> TokenStats:
        from entrostat.probe.kernels import triton_stats

        return triton_stats.from_hidden(
            hidden, head_weight, labels, bias=bias, temperature=temperature, softcap=softcap, logit_scale=logit_scale,
            n=n, row_tile=row_tile, vocab_tile=vocab_tile,
        )  # fmt: skip

    kernel = chosen(hidden, hidden.shape[0] * head_weight.shape[0], n)
    return attempt(kernel, {Kernel.PLAIN: plain, Kernel.COMPILED: compiled, Kernel.TRITON: triton})


@torch.no_grad()
def from_logits(
    logits: Tensor,
    labels: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    logit_scale: float | None = None,
    n: int = 8,
    row_tile: int = 256,
    vocab_tile: int = 8192,
) -> TokenStats:
    """Statistics from logits [N, V] that exist already; arguments and errors as in ``from_hidden``."""
    if logits.ndim != 2:
        raise ValueError(f"logits {tuple(logits.shape)} must be [N, V]: flatten batch and positions first")
    _check(labels, logits.shape[0], softcap, logit_scale, n, row_tile, vocab_tile)
    heat = _temperature(temperature, logits.shape[0], _precision(logits), logits.device)

    def plain() -> TokenStats:
        from entrostat.probe.kernels import plain

        return plain.from_logits(logits, labels, heat, softcap, logit_scale, n, row_tile, vocab_tile)

    def compiled() -> TokenStats:
        from entrostat.probe.kernels import cpu

        return cpu.from_logits(logits, labels, heat, softcap, logit_scale, n)

    def triton() -> TokenStats:
        from entrostat.probe.kernels import triton_stats

        return triton_stats.from_logits(
            logits, labels, temperature=temperature, softcap=softcap, logit_scale=logit_scale, n=n
        )

    kernel = chosen(logits, logits.numel(), n)
    return attempt(kernel, {Kernel.PLAIN: plain, Kernel.COMPILED: compiled, Kernel.TRITON: triton})


def _precision(like: Tensor) -> torch.dtype:
    return torch.float64 if like.dtype == torch.float64 else torch.float32


def _check(
    labels: Tensor,
    num_rows: int,
    softcap: float | None,
    logit_scale: float | None,
    n: int,
    row_tile: int,
    vocab_tile: int,
) -> None:
    if labels.shape != (num_rows,):
        raise ValueError(f"labels {tuple(labels.shape)} must be [N] = ({num_rows},): flatten them as the rows are")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(f"labels are {labels.dtype}: give token ids, int64")
    if n < 1 or row_tile < 1 or vocab_tile < 1:
        raise ValueError(f"n={n}, row_tile={row_tile}, vocab_tile={vocab_tile} must be at least 1")
    for name, value in (("softcap", softcap), ("logit_scale", logit_scale)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name}={value}: it must be above 0 and finite; None switches it off")


def _temperature(value: float | Tensor, num_rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        if value.shape not in ((), (num_rows,)):
            raise ValueError(f"temperature {tuple(value.shape)} must be a number or one a row, ({num_rows},)")
        # Looking at the values would wait for the device: a wrong one makes its row NaN.
        value = value.to(device, dtype)
        return torch.where((value > 0) & value.isfinite(), value, torch.nan).expand(num_rows).unsqueeze(1)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"temperature={value}: it must be above 0 and finite")
    return torch.full((num_rows, 1), value, dtype=dtype, device=device)


def tempered(raw: Tensor, heat: Tensor, softcap: float | None, logit_scale: float | None) -> Tensor:
    """Logits of the policy that samples, of the model's raw ones [k, V]; ``heat`` [k, 1] is the temperature."""
    z = raw if logit_scale is None else raw * logit_scale
    if softcap is not None:
        # tanh would lift a masked candidate to -softcap, and hide an overflow behind +softcap.
        z = torch.where(z.isinf(), z, softcap * torch.tanh(z / softcap))
    return z / heat
