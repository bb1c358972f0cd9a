"""PSR: reinforce right responses only (Zhu et al. 2025)."""

from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform


class PsrParams(Params):
    """It has none."""


def psr(params: PsrParams) -> Transform:
    """Negative advantages become 0.

    Example:
        >>> psr(PsrParams()).phase.value
        'advantage'
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        return tokens.with_(advantage=tokens.advantage.clamp(min=0)), state

    return Transform("psr", Phase.advantage, apply)


_ONE_SIDE = "one keeps the positive samples, the other takes from them"

METHOD = Method(
    "psr",
    Phase.advantage,
    PsrParams,
    psr,
    "Zhu et al. 2025",
    excludes={"nsr": "together they leave no sample at all", "w_reinforce": _ONE_SIDE},
)
