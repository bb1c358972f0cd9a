"""Forking tokens: a policy gradient on the most uncertain tokens alone (Wang et al. 2025)."""

import torch
from pydantic import Field

from entrostat.interventions.selection import top_share
from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform


class ForkingTokensParams(Params):
    """How many tokens stay."""

    share: float = Field(0.2, gt=0.0, le=1.0, description="Share of tokens, by entropy, that are trained on.")
    threshold: float | None = Field(
        None, ge=0.0, le=1e3, description="Entropy (nats) from which a token stays, in place of a share of the batch."
    )


def forking_tokens(params: ForkingTokensParams) -> Transform:
    """The surrogate of tokens below the top ``share`` by entropy is 0; the mean still counts every token.

    Example:
        >>> forking_tokens(ForkingTokensParams()).needs
        ('entropy',)
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        assert tokens.entropy is not None
        valid = tokens.mask != 0
        stays = top_share(tokens.entropy, valid, params.share, threshold=params.threshold).as_mask(valid)
        changed = tokens.with_(weight=torch.where(stays, tokens.weight, 0.0))
        return changed.counting(forking_tokens=stays.sum()), state

    return Transform("forking_tokens", Phase.token_mask, apply, needs=("entropy",))


METHOD = Method(
    "forking_tokens", Phase.token_mask, ForkingTokensParams, forking_tokens, "Wang et al. 2025 (80/20)", excludes={}
)
