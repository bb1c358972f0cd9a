"""Entropy bonus: the loss is lowered by the policy's mean entropy (Williams and Peng 1991; SCOPE's baseline)."""

from pydantic import Field

from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform


class EntropyBonusParams(Params):
    """The bonus's weight."""

    c: float = Field(0.01, ge=0.0, le=10.0, description="Weight of the mean entropy, per nat.")


def entropy_bonus(params: EntropyBonusParams) -> Transform:
    """loss -= c * mean_t H_t, with gradient through the entropy; aggregated as the tokens' loss is.

    Raises:
        ValueError: when applied, if the entropy carries no gradient: the bonus would change nothing.

    Example:
        >>> entropy_bonus(EntropyBonusParams(c=0.05)).needs
        ('entropy',)
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        assert tokens.entropy is not None
        if tokens.logp.requires_grad and not tokens.entropy.requires_grad:
            raise ValueError(
                "entropy_bonus: the entropy has no gradient, so the bonus would do nothing; compute it from the "
                "policy's logits without no_grad"
            )
        return tokens.with_(penalty=tokens.penalty - params.c * tokens.entropy), state

    return Transform("entropy_bonus", Phase.penalty, apply, needs=("entropy",))


METHOD = Method(
    "entropy_bonus",
    Phase.penalty,
    EntropyBonusParams,
    entropy_bonus,
    "Williams and Peng 1991; SCOPE Sec. 5",
    excludes={},
)
