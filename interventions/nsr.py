"""NSR: learn from wrong responses only (Zhu et al. 2025)."""

from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform


class NsrParams(Params):
    """It has none."""


def nsr(params: NsrParams) -> Transform:
    """Positive advantages become 0.

    Example:
        >>> nsr(NsrParams()).phase.value
        'advantage'
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        return tokens.with_(advantage=tokens.advantage.clamp(max=0)), state

    return Transform("nsr", Phase.advantage, apply)


METHOD = Method(
    "nsr",
    Phase.advantage,
    NsrParams,
    nsr,
    "Zhu et al. 2025",
    excludes={"w_reinforce": "nsr is w_reinforce with w = 0"},
)
