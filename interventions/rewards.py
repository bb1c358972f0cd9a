"""Rewards from the policy itself, without a verifier: the three RLIF methods of SCOPE's Table 2."""

from torch import Tensor


def self_certainty(certainty: Tensor, mask: Tensor) -> Tensor:
    """Mean KL(uniform || p) over a response's tokens: [B] nats (Zhao et al. 2025, arXiv:2505.19590).

    Args:
        certainty: [B, T] ``TokenStats.self_certainty``.
        mask: [B, T] non-zero on response tokens; elsewhere anything, NaN included.
    """
    return _mean_over_tokens(certainty, mask)


def token_entropy(entropy: Tensor, mask: Tensor) -> Tensor:
    """Minus the mean entropy over a response's tokens: [B] nats; arguments as in ``self_certainty``.

    Prabhudesai et al. 2025, arXiv:2505.22660.
    """
    return -_mean_over_tokens(entropy, mask)


def trajectory_entropy(entropy: Tensor, mask: Tensor, max_length: int) -> Tensor:
    """Minus the sum of a response's token entropies over the longest length allowed: [B] nats (Agarwal et al. 2025).

    **Decision** "normalised by length" must mean a length that all responses share, or it would be ``token_entropy``.

    Args:
        entropy: [B, T].
        mask: [B, T] non-zero on response tokens.
        max_length: tokens a response may have.
    """
    return -entropy.masked_fill(mask == 0, 0.0).sum(1) / max_length


def _mean_over_tokens(values: Tensor, mask: Tensor) -> Tensor:
    valid = mask != 0
    return values.masked_fill(~valid, 0.0).sum(1) / valid.sum(1).clamp(min=1)
