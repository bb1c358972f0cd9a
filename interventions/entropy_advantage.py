"""Entropy advantage: a bounded bonus on the advantage of uncertain tokens (Cheng et al. 2025)."""

import torch
from pydantic import Field

from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform


class EntropyAdvantageParams(Params):
    """The bonus and its bound."""

    c: float = Field(0.4, ge=0.0, le=10.0, description="Advantage per nat of entropy.")
    kappa: float = Field(2.0, gt=1.0, le=1000.0, description="The bonus is at most |A| / kappa: it never turns A.")


def entropy_advantage(params: EntropyAdvantageParams) -> Transform:
    """A + min(c H, |A| / kappa), H without gradient.

    Example:
        >>> entropy_advantage(EntropyAdvantageParams()).needs
        ('entropy',)
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        assert tokens.entropy is not None
        bonus = torch.minimum(params.c * tokens.entropy.detach(), tokens.advantage.abs() / params.kappa)
        return tokens.with_(advantage=tokens.advantage + bonus * tokens.mask), state

    return Transform("entropy_advantage", Phase.advantage, apply, needs=("entropy",))


METHOD = Method(
    "entropy_advantage", Phase.advantage, EntropyAdvantageParams, entropy_advantage, "Cheng et al. 2025", excludes={}
)
