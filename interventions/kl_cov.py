"""KL-Cov: hold the few tokens with the highest covariance to the policy that sampled (Entropy Mechanism, Sec. 4.2)."""

import torch
from pydantic import Field

from entrostat.interventions.selection import token_covariance, top_share
from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform


class KLCovParams(Params):
    """Share of tokens and weight of the penalty.

    The authors' ``k_percent=0.2`` means 0.2 % of the tokens, the 0.002 here; verl's defaults are 0.0002 and 0.1.
    """

    k: float = Field(0.002, gt=0.0, le=1.0, description="Share of tokens, by covariance, that are held.")
    beta: float = Field(1.0, ge=0.0, le=100.0, description="Weight of |logp - old logp| on them.")
    clip: bool = Field(True, description="Keep the trainer's own clip; the authors' loss has none.")
    threshold: float | None = Field(
        None, ge=-1e6, le=1e6, description="Covariance from which a token is held, in place of a share of the batch."
    )


def kl_cov(params: KLCovParams) -> Transform:
    """Adds beta |logp - old_logp| to the loss of the top ``k`` share of tokens by covariance.

    **Silent on policy**: at ratio 1 the gradient of |logp - old_logp| is 0, so with one update per rollout the method
    does nothing. ``counts`` has ``kl_cov_moved``, the held tokens whose ratio is not 1.

    Example:
        >>> kl_cov(KLCovParams(k=0.01)).phase.value
        'penalty'
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        valid = tokens.mask != 0
        score = token_covariance(tokens.logp, tokens.advantage, tokens.mask)
        held = top_share(score, valid, params.k, threshold=params.threshold).as_mask(valid)
        penalty = tokens.penalty + torch.where(held, params.beta * tokens.log_ratio.abs(), 0.0)
        moved = (held & (tokens.log_ratio.detach() != 0)).sum()
        changed = tokens.with_(penalty=penalty).counting(kl_cov_tokens=held.sum(), kl_cov_moved=moved)
        if not params.clip:
            changed = changed.with_(eps_low=torch.inf, eps_high=torch.inf)
        return changed, state

    return Transform("kl_cov", Phase.penalty, apply)


METHOD = Method(
    "kl_cov",
    Phase.penalty,
    KLCovParams,
    kl_cov,
    "Entropy Mechanism Sec. 4.2, Eq. 12",
    excludes={"clip_cov": "both take the tokens of the highest covariance, one to hold and one to leave out"},
)
