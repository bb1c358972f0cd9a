"""PPL shaping: favour responses that are unusually likely within their group (Exchange Eq. 7, 8)."""

import torch
from pydantic import Field
from torch import Tensor

from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform


class PplShapingParams(Params):
    """The shaping's strength."""

    alpha: float = Field(0.01, ge=0.0, le=10.0, description="Weight of the z-score of ln PPL.")


def ppl_shaping(params: PplShapingParams) -> Transform:
    """A * max(0, 1 - alpha z), z the z-score of a response's ln PPL within its prompt's group.

    PPL is that of the policy that sampled, the group the part of it that is at hand, unless the trainer tells of the
    whole one (``GroupFacts``). For alpha z > 1 the formula would turn the sign of A: **Decision** the
    factor stops at 0, and ``counts`` has ``ppl_shaping_stopped``, the responses where it did.

    Example:
        >>> ppl_shaping(PplShapingParams()).phase.value
        'advantage'
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        assert tokens.groups is not None
        z = tokens.facts.ln_ppl_z
        if z is None:
            old_logp = (tokens.logp - tokens.log_ratio).detach()
            z = z_in_group(ln_ppl(old_logp, tokens.mask), tokens.groups, tokens.mask.sum(1) > 0)
        factor = 1 - params.alpha * z.to(tokens.advantage.dtype)
        changed = tokens.with_(advantage=tokens.advantage * factor.clamp(min=0).unsqueeze(1))
        return changed.counting(ppl_shaping_stopped=(factor < 0).sum()), state

    return Transform("ppl_shaping", Phase.advantage, apply, needs=("groups",))


def ln_ppl(logp: Tensor, mask: Tensor) -> Tensor:
    """-mean logp of each response [B], nats, of ``logp`` [B, T] over its tokens."""
    return -(logp * mask).sum(1) / mask.sum(1).clamp(min=1)


def z_in_group(values: Tensor, groups: Tensor, is_there: Tensor) -> Tensor:
    """z-score [B] within each group, spread with n in the denominator; 0 where the group has none."""
    same = ((groups.unsqueeze(0) == groups.unsqueeze(1)) & is_there.unsqueeze(0)).to(values.dtype)
    count = same.sum(1).clamp(min=1)
    gap = values - (same @ values) / count
    spread = (same @ values.square() / count - (same @ values / count).square()).clamp(min=0).sqrt()
    # Equal values differ by rounding alone; a spread of that size is none.
    tiny = 1e-6 if values.dtype != torch.float64 else 1e-12
    has_spread = (spread > tiny * values.abs().clamp(min=1)) & is_there
    return torch.where(has_spread, gap / spread.clamp(min=torch.finfo(values.dtype).tiny), 0.0)


METHOD = Method("ppl_shaping", Phase.advantage, PplShapingParams, ppl_shaping, "Exchange Eq. 7, 8", excludes={})
