"""Clip-Cov: leave a few random tokens of high covariance out of the update (Entropy Mechanism, Sec. 4.2)."""

import torch
from pydantic import Field, model_validator

from entrostat.interventions.selection import token_covariance, top_share
from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform


class ClipCovParams(Params):
    """How many tokens, from which band of covariance.

    The authors' scripts also open the clip to [0, 2]: combine with ``clip_higher`` at eps_low 1, eps_high 1.
    """

    r: float = Field(0.0002, gt=0.0, le=1.0, description="Share of the valid tokens that are left out, at least one.")
    w_low: float = Field(1.0, ge=-1e6, le=1e6, description="Covariance above which a token may be left out.")
    w_high: float = Field(5.0, ge=-1e6, le=1e6, description="Covariance below which a token may be left out.")
    threshold: float | None = Field(
        None, ge=0.0, le=1.0, description="Draw from which a token of the band is left out, in place of a share."
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Of the random choice.")

    @model_validator(mode="after")
    def _ordered(self) -> "ClipCovParams":
        if self.w_low >= self.w_high:
            raise ValueError(f"w_low={self.w_low} must be below w_high={self.w_high}")
        return self


def clip_cov(params: ClipCovParams) -> Transform:
    """Detaches a random ``r`` of the tokens whose covariance lies between the bounds and that are not clipped anyway.

    Every token draws from [0, 1); those of the band with the highest draws are left out, or those that reach
    ``threshold``: small batches of one step then leave out as many as the step should, not at least one each.
    The state is the number of batches so far: it moves the random choice on.

    Example:
        >>> clip_cov(ClipCovParams(r=0.01)).phase.value
        'token mask'
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        valid, batch = tokens.mask != 0, int(state or 0)
        score = token_covariance(tokens.logp, tokens.advantage, tokens.mask)
        ratio = tokens.log_ratio.detach().exp()
        is_clipped = ((ratio > 1 + tokens.eps_high) & (tokens.advantage > 0)) | (
            (ratio < 1 - tokens.eps_low) & (tokens.advantage < 0)
        )
        eligible = valid & (score > params.w_low) & (score < params.w_high) & ~is_clipped
        generator = torch.Generator(device=score.device).manual_seed(params.seed + batch)
        draw = torch.rand(score.shape, generator=generator, device=score.device)
        left_out = top_share(draw, eligible, params.r, of=valid, threshold=params.threshold).as_mask(valid)
        changed = tokens.with_(weight=torch.where(left_out, 0.0, tokens.weight))
        return changed.counting(clip_cov_tokens=left_out.sum()), batch + 1

    return Transform("clip_cov", Phase.token_mask, apply)


METHOD = Method(
    "clip_cov", Phase.token_mask, ClipCovParams, clip_cov, "Entropy Mechanism Sec. 4.2, Eq. 10, 11", excludes={}
)
