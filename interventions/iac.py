"""IAC: an advantage that shrinks as a prompt is mastered (Over-sharpening, Sec. 3.1)."""

import torch
from pydantic import Field

from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform


class IacParams(Params):
    """The calibration's exponent."""

    alpha: float = Field(1.0, ge=0.0, le=10.0, description="Exponent of the number of responses that were not right.")


def iac(params: IacParams) -> Transform:
    """A > 0: A * (G - |S+|)^alpha, S+ the prompt's responses with A > 0, G all of them; the others stay.

    Counted in the batch at hand: a group that is split over batches is calibrated by the part that is there.

    Example:
        >>> iac(IacParams()).needs
        ('groups',)
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        assert tokens.groups is not None
        # One sign a response, from before any shaping.
        total = (tokens.original_advantage * tokens.mask).sum(1)
        same = tokens.groups.unsqueeze(0) == tokens.groups.unsqueeze(1)
        is_positive = total > 0
        others = (same & ~is_positive.unsqueeze(0)).sum(1).to(tokens.advantage.dtype)
        factor = torch.where(is_positive, others.pow(params.alpha), 1.0)
        return tokens.with_(advantage=tokens.advantage * factor.unsqueeze(1)), state

    return Transform("iac", Phase.advantage, apply, needs=("groups",))


METHOD = Method("iac", Phase.advantage, IacParams, iac, "Over-sharpening Sec. 3.1", excludes={})
