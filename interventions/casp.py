"""CaSP: give a part of what the sampled token gains to the policy's other candidates (CaSP Eq. 4, 5, 13)."""

import math

import torch
from pydantic import Field

from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform


class CaspParams(Params):
    """The paper's values for mathematics; logic tasks: a = 0.005, lambda_top1 = 1.05; the authors' code: a = 0.05."""

    num_candidates: int = Field(3, ge=1, le=64, description="N: candidates that share in the gain.")
    a: float = Field(0.01, ge=0.0, le=1.0, description="Share of the gain that goes to them.")
    lambda_top1: float = Field(1.1, ge=1.0, le=10.0, description="Factor of the ratio of a wrong top-1 token.")
    tau: float = Field(0.8, ge=0.0, lt=1.0, description="Quantile of a response's entropies above which it acts.")


def casp(params: CaspParams) -> Transform:
    """On tokens whose entropy is above the tau-quantile of their own response:

    - A > 0: r+ = (1 - a) r + (a / N) sum_n sg(r / r_n) r_n. Its value is r; only the gradient is redirected, to
      r ((1 - a) grad logp + (a / N) sum_n grad logp_n). The old policy's candidates cancel, so none are needed.
    - A < 0 and the token is the most likely one: the ratio is multiplied by ``lambda_top1``, before clipping.

    **Decision** where the authors' code asks for a reward of exactly 1, the paper says A > 0, and so does this.

    Example:
        >>> casp(CaspParams()).needs
        ('entropy', 'top_logps', 'is_top1')
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        assert tokens.entropy is not None
        assert tokens.top_logps is not None
        assert tokens.is_top1 is not None
        if tokens.top_logps.shape[2] < params.num_candidates:
            raise ValueError(
                f"casp: num_candidates={params.num_candidates}, but only {tokens.top_logps.shape[2]} are measured"
            )
        if tokens.logp.requires_grad and not tokens.top_logps.requires_grad:
            raise ValueError("casp: top_logps has no gradient, so nothing would reach the candidates")
        acts = above_own_quantile(tokens.entropy.detach(), tokens.mask != 0, params.tau)
        top = tokens.top_logps[..., : params.num_candidates]
        # Candidates a masked vocabulary lacks (-inf) take no part; their share stays with the sampled token.
        is_there = top.detach().isfinite()
        away = torch.where(is_there, top - top.detach(), 0.0).sum(2) / params.num_candidates
        kept = is_there.to(top.dtype).mean(2)
        turned = params.a * (away - kept * (tokens.logp - tokens.logp.detach()))
        is_gain = acts & (tokens.advantage > 0)
        is_wrong_top1 = acts & (tokens.advantage < 0) & tokens.is_top1.bool()
        log_ratio = tokens.log_ratio + torch.where(is_gain, turned, 0.0)
        # Not torch.where(.., number, number): that makes a float32 tensor, whatever the batch is.
        log_ratio = log_ratio + is_wrong_top1.to(log_ratio.dtype) * math.log(params.lambda_top1)
        changed = tokens.with_(log_ratio=log_ratio)
        return changed.counting(casp_gains=is_gain.sum(), casp_top1=is_wrong_top1.sum()), state

    return Transform("casp", Phase.ratio, apply, needs=("entropy", "top_logps", "is_top1"))


def above_own_quantile(entropy: torch.Tensor, valid: torch.Tensor, tau: float) -> torch.Tensor:
    """[B, T] bool: tokens above the tau-quantile of their response's entropies."""
    known = entropy.masked_fill(~valid, torch.nan)
    return valid & (entropy > known.nanquantile(tau, dim=1, keepdim=True))


METHOD = Method("casp", Phase.ratio, CaspParams, casp, "CaSP Eq. 4, 5, 13", excludes={})
