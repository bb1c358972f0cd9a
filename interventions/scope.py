"""SCOPE: hold the tokens that an update would redistribute most to a reference policy (SCOPE Sec. 4, Eq. 11-13)."""

import torch
from pydantic import Field

from entrostat.interventions.selection import Selection, scope_score, top_share
from entrostat.interventions.transform import Method, Params, Phase, State, Tokens, Transform

_EPS = 1e-8


class ScopeParams(Params):
    """Share of tokens and weight; the paper gives no weight, 0.1 is ours."""

    q: float = Field(0.05, gt=0.0, le=1.0, description="Share of tokens, by score, that are held to the reference.")
    lam: float = Field(0.1, ge=0.0, le=100.0, description="Weight of their mean KL to the reference.")
    threshold: float | None = Field(
        None, ge=0.0, le=1e6, description="Score from which a token is held, in place of a share of the batch."
    )


def scope(params: ScopeParams) -> Transform:
    """loss += lam * sum(m D) / (sum m + 1e-8), m the top ``q`` of tokens by p(1-p) max(A, 0).

    D = KL(policy || reference) over the whole vocabulary, at the held tokens only. A token with score 0 (A <= 0) is
    never held, however many there are.

    Example:
        >>> scope(ScopeParams()).needs
        ('reference_kl',)
    """

    def apply(tokens: Tokens, state: State) -> tuple[Tokens, State]:
        valid = tokens.mask != 0
        score = scope_score(tokens.logp, tokens.advantage)
        held = top_share(score, valid & (score > 0), params.q, of=valid, threshold=params.threshold)
        return held_to_reference(tokens, held, params.lam).counting(scope_tokens=held.is_in.sum()), state

    return Transform("scope", Phase.penalty, apply, needs=("reference_kl",))


def held_to_reference(tokens: Tokens, held: Selection, weight: float) -> Tokens:
    """``tokens`` with ``weight`` times the mean KL to the reference over ``held`` added to the loss."""
    assert tokens.reference_kl is not None
    divergence = tokens.reference_kl(held.rows)
    is_in = held.is_in.to(divergence.dtype)
    # Rows that only fill up may be padding: what stands there must not become NaN x 0.
    total = torch.where(held.is_in, divergence, 0.0).sum()
    return tokens.with_(extra=tokens.extra + weight * total / (is_in.sum() + _EPS))


METHOD = Method(
    "scope",
    Phase.penalty,
    ScopeParams,
    scope,
    "SCOPE Sec. 4.3, Eq. 11-13",
    excludes={"selective_kl": "it is the same penalty with another choice of tokens"},
)
