"""Position shaping: stronger advantages late in a response (Exchange Eq. 9, 10)."""

import torch
from pydantic import Field

from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform


class PositionShapingParams(Params):
    """The curve over relative position. The paper has it on during the plateau only, for 100 steps: by a rule."""

    gamma: float = Field(0.1, ge=0.0, le=10.0, description="The largest change of an advantage.")
    d: float = Field(1.0, ge=-10.0, le=10.0, description="Sign and steepness: above 0 late tokens gain.")
    m: float = Field(15.0, gt=0.0, le=1000.0, description="Steepness in the middle of the response.")


def position_shaping(params: PositionShapingParams) -> Transform:
    """A + sign(A) gamma sigmoid(d m (l - 0.5)), l = t / |y| the relative position.

    **Decision** the paper prints r = m (l - n) with n = -0.5, for which the sigmoid is 1 everywhere; centred at half.

    Example:
        >>> position_shaping(PositionShapingParams()).phase.value
        'advantage'
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        position = tokens.mask.cumsum(1) - 1
        relative = position / tokens.mask.sum(1, keepdim=True).clamp(min=1)
        gain = params.gamma * torch.sigmoid(params.d * params.m * (relative - 0.5))
        return tokens.with_(advantage=tokens.advantage + tokens.advantage.sign() * gain * tokens.mask), state

    return Transform("position_shaping", Phase.advantage, apply)


METHOD = Method(
    "position_shaping", Phase.advantage, PositionShapingParams, position_shaping, "Exchange Eq. 9, 10", excludes={}
)
