"""Kernel of the Over-sharpening toy: how much of an update at one input reaches another (App. G, "Kernel similarity").

K((q, o), (q', o')) is the product of the gradients of the logits f(q, o) and f(q', o') by the policy's weights. lambda
is K of Persian with itself, rho of Persian with Siamese; R of Cor. 2.2 grows with lambda / rho.

**Decision**: App. G's three ratios come out only with its printed lambda, 0.8775. That is a slip of the sum: the
embedding it prints has |e|^2 = 0.885, and the ratios are 1.39, 1.58, 1.74. Both are held here, the order is the same.
**Decision**: App. G concludes that a higher lambda / rho is a weaker coupling, Sec. 2.4 that the ratio rises with the
overlap. The numbers say the former: the ratio is smallest where the embeddings are most alike.
"""

import numpy as np
import torch

from entrostat.lab.sharpening import labels
from entrostat.lab.theory.finding import Finding

_EPS = float(np.finfo(np.float64).eps)

PRINTED_LAMBDA = 0.8775
PRINTED_RHO = {"high": 0.635, "mid": 0.56, "low": 0.51}
PRINTED_RATIO = {"high": 1.38, "mid": 1.57, "low": 1.72}
"""As App. G prints them, by the similarity of the Siamese embedding."""


def gram(weights: torch.Tensor) -> torch.Tensor:
    """[Q, 4, Q, 4] K of every input and label with every other, by autograd through the toy's own logits.

    Args:
        weights: [4, 4] of one policy.
    """
    jacobian: torch.Tensor = torch.func.jacrev(lambda w: labels.logits(w[None], labels.inputs())[0])(weights)
    return torch.einsum("qoij,ruij->qoru", jacobian, jacobian)


def entries(weights: torch.Tensor) -> tuple[float, dict[str, float]]:
    """lambda, and rho by similarity, of the label Persian; ``weights`` [4, 4] make no difference, the toy is linear."""
    k = gram(weights)[0, labels.PERSIAN, :, labels.PERSIAN].tolist()
    return k[0], dict(zip(labels.SIAMESE_INPUTS, k[1:], strict=True))


def check(draw: np.random.Generator, cases: int) -> list[Finding]:
    """The paper's numbers, and that labels share no weights: K is 0 between different ones."""
    grams = [gram(torch.from_numpy(draw.normal(size=(4, 4)))) for _ in range(cases)]
    own, rho = entries(torch.from_numpy(draw.normal(size=(4, 4))))
    return [
        Finding(
            "K is e_q . e_q' at one label, 0 between two",
            "Over-sharpening App. G",
            "gradients of the toy's logits by autograd against the embeddings' products",
            cases,
            max(_gap(k) for k in grams),
            64 * _EPS,
        ),
        Finding(
            "rho = 0.635, 0.56, 0.51",
            "Over-sharpening App. G",
            "gradients of the toy's logits, three Siamese embeddings, against the printed numbers",
            len(rho),
            max(abs(rho[name] - printed) for name, printed in PRINTED_RHO.items()),
            64 * _EPS,
        ),
        Finding(
            "lambda / rho = 1.38, 1.57, 1.72",
            "Over-sharpening App. G",
            "the printed lambda over our rho, against the printed ratios (two decimals)",
            len(rho),
            max(abs(PRINTED_LAMBDA / rho[name] - printed) for name, printed in PRINTED_RATIO.items()),
            0.005,
        ),
        Finding(
            "lambda / rho, with lambda = 0.885",
            "Over-sharpening App. G",
            "our lambda over our rho, against the printed ratios, relative: what the slip in lambda makes",
            len(rho),
            max(abs(own / rho[name] / printed - 1) for name, printed in PRINTED_RATIO.items()),
            0.012,
        ),
    ]


def _gap(k: torch.Tensor) -> float:
    given = labels.inputs()
    expected = torch.einsum("qr,ou->qoru", given @ given.T, torch.eye(len(labels.LABELS), dtype=given.dtype))
    return float((k - expected).abs().max())
