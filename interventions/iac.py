"""IAC: an advantage that shrinks as a prompt is mastered (Over-sharpening, Sec. 3.1)."""

import torch
from pydantic import Field
from torch import Tensor

from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform


class IacParams(Params):
    """The calibration's exponent."""

    alpha: float = Field(1.0, ge=0.0, le=10.0, description="Exponent of the number of responses that were not right.")


def iac(params: IacParams) -> Transform:
    """A > 0: A * (G - |S+|)^alpha, S+ the prompt's responses with A > 0, G all of them; the others stay.

    Counted in the batch at hand, unless the trainer tells of the whole group (``GroupFacts``).

    Example:
        >>> iac(IacParams()).needs
        ('groups',)
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        assert tokens.groups is not None
        # One sign a response, from before any shaping.
        is_positive = (tokens.original_advantage * tokens.mask).sum(1) > 0
        others = tokens.facts.num_others
        if others is None:
            others = num_others(is_positive, tokens.groups)
        factor = torch.where(is_positive, others.to(tokens.advantage.dtype).pow(params.alpha), 1.0)
        return tokens.with_(advantage=tokens.advantage * factor.unsqueeze(1)), state

    return Transform("iac", Phase.advantage, apply, needs=("groups",))


def num_others(is_positive: Tensor, groups: Tensor) -> Tensor:
    """[B] int64: the responses of each one's group that are not positive, G - |S+|."""
    same = groups.unsqueeze(0) == groups.unsqueeze(1)
    return (same & ~is_positive.unsqueeze(0)).sum(1)


METHOD = Method("iac", Phase.advantage, IacParams, iac, "Over-sharpening Sec. 3.1", excludes={})
