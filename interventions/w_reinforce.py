"""W-REINFORCE: right responses count less than wrong ones (Zhu et al. 2025)."""

import torch
from pydantic import Field

from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform


class WReinforceParams(Params):
    """The weight of right responses."""

    w: float = Field(0.1, ge=0.0, le=10.0, description="Factor of positive advantages.")


def w_reinforce(params: WReinforceParams) -> Transform:
    """Positive advantages times ``w``.

    Example:
        >>> w_reinforce(WReinforceParams()).phase.value
        'advantage'
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        scaled = torch.where(tokens.advantage > 0, params.w * tokens.advantage, tokens.advantage)
        return tokens.with_(advantage=scaled), state

    return Transform("w_reinforce", Phase.advantage, apply)


METHOD = Method("w_reinforce", Phase.advantage, WReinforceParams, w_reinforce, "Zhu et al. 2025", excludes={})
