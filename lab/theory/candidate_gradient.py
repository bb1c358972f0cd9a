"""Where CaSP sends the gradient (CaSP Eq. 4, 5, 13), through the product's own loss and transform by autograd.

On tokens whose entropy is above the tau-quantile of their response's:

    A > 0:  d J / d z = A sg(r) ((1 - a) g + (a / N) sum_n g_n),   g = e_y - pi,  g_n = e_{v(n)} - pi
    A < 0, y the rank-1 candidate:  lambda_top1 A r g

and A r g everywhere else. J is minus the loss, z the logits, r the ratio, which stays as it was in value where A > 0.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from entrostat.interventions import policy_loss
from entrostat.interventions.chain import chain
from entrostat.lab.theory import policy
from entrostat.lab.theory.finding import Finding
from entrostat.probe.step import Bools, Floats, Ints

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class Response:
    """One response of T tokens.

    Args:
        logits: [T, V].
        labels: [T] the sampled tokens.
        ratio: [T] inside the clip; upwards it may leave it where A < 0, which is not clipped there.
        advantage: of the response, not 0.
        a: share of the gain that goes to the candidates.
        num_candidates: N, at most V.
        lambda_top1: factor on a wrong rank-1 token.
        tau: quantile of the response's entropies.
    """

    logits: Floats
    labels: Ints
    ratio: Floats
    advantage: float
    a: float
    num_candidates: int
    lambda_top1: float
    tau: float


def random_response(draw: np.random.Generator, sign: int) -> Response:
    """2 to 8 tokens of a vocabulary of 3 to 20; a third of the labels are the rank-1 candidate.

    Args:
        draw: random numbers.
        sign: of the advantage.
    """
    length, size = int(draw.integers(2, 9)), int(draw.integers(3, 21))
    logits = np.stack([policy.random_logits(draw, size) for _ in range(length)])
    labels = np.where(draw.random(length) < 1 / 3, logits.argmax(1), draw.integers(size, size=length))
    return Response(
        logits,
        labels,
        draw.uniform(0.85, 1.15, size=length),
        sign * float(draw.uniform(0.1, 3.0)),
        float(draw.uniform(0.0, 1.0)),
        int(draw.integers(1, min(size, 5) + 1)),
        float(draw.uniform(1.0, 2.0)),
        float(draw.uniform(0.0, 0.9)),
    )


def ours(given: Response) -> tuple[Floats, Floats]:
    """[T, V] the gradient of minus the product's loss by the logits, and the ratios [T] it worked with."""
    z = torch.from_numpy(given.logits).requires_grad_()
    all_logps = z.log_softmax(1)
    label = torch.from_numpy(given.labels)
    logp = all_logps.gather(1, label[:, None]).T  # [1, T]
    top = all_logps.topk(given.num_candidates, dim=1)
    params = {name: getattr(given, name) for name in ("num_candidates", "a", "lambda_top1", "tau")}
    done = policy_loss.policy_loss(
        logp,
        torch.tensor([given.advantage], dtype=torch.float64),
        torch.ones_like(logp),
        old_logp=logp.detach() - torch.from_numpy(np.log(given.ratio))[None],
        transforms=chain({"casp": params}),
        aggregation="fixed",
        normaliser=1.0,
        entropy=_entropy(all_logps.detach())[None],
        top_logps=top.values[None],
        is_top1=(top.indices[:, 0] == label)[None],
    )
    done.loss.backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    gradient: Floats = -z.grad.numpy()
    ratio: Floats = done.ratio[0].numpy()
    return gradient, ratio


def _entropy(logps: Tensor) -> Tensor:
    return -(logps.exp() * logps).sum(1)


def acts(given: Response) -> Bools:
    """[T] tokens with an entropy above the tau-quantile of the response's."""
    p = np.stack([policy.probabilities(row) for row in given.logits])
    entropy = -(p * np.log(p)).sum(1)
    result: Bools = entropy > np.quantile(entropy, given.tau)
    return result


def formula(given: Response) -> Floats:
    """[T, V] the gradient that the paper's equations say, token by token."""
    rows = []
    for t, is_on in enumerate(acts(given)):
        p = policy.probabilities(given.logits[t])
        one_hot = np.eye(p.size)
        push = one_hot[given.labels[t]] - p
        ranked = np.argsort(-given.logits[t], kind="stable")[: given.num_candidates]
        force = given.advantage * given.ratio[t]
        if is_on and given.advantage > 0:
            push = (1 - given.a) * push + given.a / given.num_candidates * sum(one_hot[v] - p for v in ranked)
        elif is_on and ranked[0] == given.labels[t]:
            force *= given.lambda_top1
        rows.append(force * push)
    return np.stack(rows)


def check(draw: np.random.Generator, cases: int) -> list[Finding]:
    """The gradient of r+, its value, and the gradient where A < 0."""
    right, values, wrong = [], [], []
    for _ in range(cases):
        gain = random_response(draw, 1)
        gradient, ratio = ours(gain)
        right.append(np.abs(gradient - formula(gain)).max() / gain.advantage)
        values.append(np.abs(ratio / gain.ratio - 1).max())
        loss = random_response(draw, -1)
        wrong.append(np.abs(ours(loss)[0] - formula(loss)).max() / -loss.advantage)
    return [
        Finding(
            "r+ has the gradient r ((1-a) g + (a/N) sum g_n)",
            "CaSP Eq. 4, 13",
            "autograd through our CaSP and policy loss against the formula, whole responses. Over A",
            cases,
            float(np.max(right)),
            64 * _EPS,
        ),
        Finding(
            "r+ has the value r",
            "CaSP Eq. 13",
            "the ratio our policy loss worked with, relative",
            cases,
            float(np.max(values)),
            64 * _EPS,
        ),
        Finding(
            "a wrong rank-1 token's gradient is lambda A r g",
            "CaSP Eq. 5",
            "autograd through our CaSP and policy loss against the formula, whole responses. Over |A|",
            cases,
            float(np.max(wrong)),
            64 * _EPS,
        ),
    ]
