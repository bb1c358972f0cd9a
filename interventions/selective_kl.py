"""SCOPE's penalty with another choice of tokens: the comparisons of its Sec. 5."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from entrostat.interventions.scope import held_to_reference
from entrostat.interventions.selection import token_covariance, top_share
from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform

Strategy = Literal["uniform", "positive_adv", "forking", "fork_adv", "non_forking", "kl_cov"]
_FORKING = 0.2


class SelectiveKLParams(Params):
    """Which tokens, what share of them, and the weight."""

    strategy: Strategy = Field("uniform", description="How tokens are chosen.")
    q: float = Field(0.05, gt=0.0, le=1.0, description="Share of tokens that are held to the reference.")
    lam: float = Field(0.1, ge=0.0, le=100.0, description="Weight of their mean KL to the reference.")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Of random choices.")


def selective_kl(params: SelectiveKLParams) -> Transform:
    """loss += lam * mean KL to the reference over ``q`` of the tokens, chosen by ``strategy``:

    ``uniform`` at random; ``positive_adv`` at random among A > 0; ``forking`` the highest entropies; ``fork_adv`` the
    same among A > 0; ``non_forking`` at random below the top 20 % by entropy; ``kl_cov`` the highest covariances.
    The state is the number of batches so far: it moves the random choice on.

    Example:
        >>> selective_kl(SelectiveKLParams(strategy="forking")).needs
        ('reference_kl', 'entropy')
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        valid, batch = tokens.mask != 0, int(state or 0)
        score, eligible = _scored(params, tokens, valid, batch)
        held = top_share(score, eligible, params.q, of=valid)
        changed = held_to_reference(tokens, held, params.lam).counting(selective_kl_tokens=held.is_in.sum())
        return changed, batch + 1

    needs = ("reference_kl", "entropy") if "fork" in params.strategy else ("reference_kl",)
    return Transform("selective_kl", Phase.penalty, apply, needs=needs)


def _scored(params: SelectiveKLParams, tokens: Tokens, valid: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """The scores [B, T] by which tokens are taken, and which may be."""
    generator = torch.Generator(device=valid.device).manual_seed(params.seed + batch)
    draw = torch.rand(valid.shape, generator=generator, device=valid.device)
    is_positive = valid & (tokens.advantage > 0)
    match params.strategy:
        case "uniform":
            return draw, valid
        case "positive_adv":
            return draw, is_positive
        case "kl_cov":
            return token_covariance(tokens.logp, tokens.advantage, tokens.mask), valid
    assert tokens.entropy is not None
    entropy = tokens.entropy.detach()
    match params.strategy:
        case "forking":
            return entropy, valid
        case "fork_adv":
            return entropy, is_positive
        case "non_forking":
            return draw, valid & ~top_share(entropy, valid, _FORKING).as_mask(valid)


METHOD = Method(
    "selective_kl", Phase.penalty, SelectiveKLParams, selective_kl, "SCOPE Sec. 5 (its comparisons)", excludes={}
)
