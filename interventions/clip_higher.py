"""Clip-higher: a wider upper clip range lets unlikely tokens grow (DAPO, Yu et al. 2025, Sec. 3.1)."""

from pydantic import Field

from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform


class ClipHigherParams(Params):
    """The two clip ranges; DAPO's values by default."""

    eps_low: float = Field(0.2, ge=0.0, le=1.0, description="The ratio is clipped below 1 - eps_low.")
    eps_high: float = Field(0.28, ge=0.0, le=10.0, description="The ratio is clipped above 1 + eps_high.")


def clip_higher(params: ClipHigherParams) -> Transform:
    """min(r A, clip(r, 1 - eps_low, 1 + eps_high) A) with eps_high > eps_low.

    A token of probability 0.01 may grow to 0.012 under the usual 0.2 and to 0.0128 under 0.28: little, but it is the
    unlikely tokens that the upper clip holds down. It does nothing where every ratio is 1 (one update per rollout).

    Example:
        >>> clip_higher(ClipHigherParams()).phase.value
        'clipping'
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        return tokens.with_(eps_low=params.eps_low, eps_high=params.eps_high), state

    return Transform("clip_higher", Phase.clipping, apply)


METHOD = Method("clip_higher", Phase.clipping, ClipHigherParams, clip_higher, "DAPO, Sec. 3.1", excludes={})
