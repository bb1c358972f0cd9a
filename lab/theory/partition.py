"""Z'(q), by which a finite batch takes probability from what it did not sample (Over-sharpening Thm 2.2, 2.3).

K modes of one prompt, G responses drawn from the reference policy, advantages normalised in the group.

**Decision**: the objective that Eq. 3 prints has log pi in its first term. With a wrong sample it has no maximum (A
log pi grows without end as pi goes to 0), and Thm 2.2's closed form is not stationary (the proof's derivative of the KL
by log pi drops a factor pi). The closed form is the maximiser with pi in the place of log pi, as in Eq. 1,
``sum_i pi_i N_i A_i / G - beta KL(pi || ref)``: that is what we check.
**Decision**: Thm 2.3 has its bound with the smallest probability of a right sampled mode minus the largest of a wrong
one. The proof passes through the means over samples, which is tighter and what ``z_bound`` reports; both are checked.
"""

from dataclasses import dataclass

import numpy as np
import torch

from entrostat.lab.theory.finding import Finding
from entrostat.probe.step import Bools, Floats, Ints

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class Batch:
    """G responses to a prompt, by mode.

    Args:
        ref: [K] probabilities of the modes under the reference.
        is_right: [K].
        counts: [K] how often each was sampled, N; at least one right and one wrong sample.
        beta: weight of the KL term.
    """

    ref: Floats
    is_right: Bools
    counts: Ints
    beta: float

    @property
    def accuracy(self) -> float:
        """p+, the share of right samples."""
        return float(self.counts[self.is_right].sum() / self.counts.sum())

    @property
    def sigma(self) -> float:
        """Standard deviation of the samples' binary rewards."""
        return float(np.sqrt(self.accuracy * (1 - self.accuracy)))

    @property
    def advantage(self) -> Floats:
        """[K] (1 - p+) / sigma of a right mode, -p+ / sigma of a wrong one."""
        result: Floats = (self.is_right.astype(np.float64) - self.accuracy) / self.sigma
        return result

    @property
    def push(self) -> Floats:
        """[K] N A / (beta G), the exponent of Thm 2.2."""
        result: Floats = self.counts * self.advantage / (self.beta * self.counts.sum())
        return result


def random_batch(draw: np.random.Generator) -> Batch:
    """4 to 30 modes, 2 to 32 samples from the reference, beta from 0.05 to 5."""
    while True:
        size = int(draw.integers(4, 31))
        ref = draw.dirichlet(np.full(size, draw.uniform(0.1, 2.0)))
        counts = draw.multinomial(int(draw.integers(2, 33)), ref)
        batch = Batch(ref, draw.random(size) < 0.5, counts, float(np.exp(draw.uniform(np.log(0.05), np.log(5.0)))))
        if 0 < batch.accuracy < 1:
            return batch


def partition(batch: Batch) -> float:
    """Z'(q) = sum of ref exp(N A / (beta G)) (Thm 2.2)."""
    return float((batch.ref * np.exp(batch.push)).sum())


def batch_optimal(batch: Batch) -> Floats:
    """The policy [K] that the batch pulls towards (Eq. 4)."""
    result: Floats = batch.ref * np.exp(batch.push) / partition(batch)
    return result


def bound(batch: Batch) -> float:
    """Thm 2.3's first bound: 1 + (A+ sum of N ref over right samples - |A-| the same over wrong) / (beta G)."""
    return 1 + float((batch.push * batch.ref).sum())


def bound_by_means(batch: Batch) -> float:
    """1 + p+(1-p+) / (beta sigma) x (mean probability of the right samples - of the wrong ones)."""
    return 1 + _weight(batch) * (_mean(batch, batch.is_right) - _mean(batch, ~batch.is_right))


def bound_by_extremes(batch: Batch) -> float:
    """1 + p+(1-p+) / (beta sigma) x (least probability of a right sample - largest of a wrong one)."""
    sampled = batch.counts > 0
    gap = batch.ref[sampled & batch.is_right].min() - batch.ref[sampled & ~batch.is_right].max()
    return 1 + _weight(batch) * float(gap)


def _weight(batch: Batch) -> float:
    return batch.accuracy * (1 - batch.accuracy) / (batch.beta * batch.sigma)


def _mean(batch: Batch, chosen: Bools) -> float:
    return float((batch.counts * batch.ref)[chosen].sum() / batch.counts[chosen].sum())


def slope(batch: Batch, *, as_printed: bool = False) -> float:
    """Largest component of the objective's gradient in logits at ``batch_optimal``; 0 where that is the maximiser.

    Args:
        batch: the batch.
        as_printed: with Eq. 3's log pi in the first term, where 0 is not to be expected.
    """
    z = torch.from_numpy(np.log(batch_optimal(batch))).requires_grad_()
    logp = z.log_softmax(0)
    weight = torch.from_numpy(batch.counts * batch.advantage / batch.counts.sum())
    gain = ((logp if as_printed else logp.exp()) * weight).sum()
    kl = (logp.exp() * (logp - torch.from_numpy(np.log(batch.ref)))).sum()
    (gain - batch.beta * kl).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    return float(z.grad.abs().max())


def check(draw: np.random.Generator, cases: int) -> list[Finding]:
    """Both theorems on random batches."""
    batches = [random_batch(draw) for _ in range(cases)]
    source = "Over-sharpening Thm 2.3"
    findings = [
        Finding(
            "batch-optimal policy",
            "Over-sharpening Thm 2.2",
            "gradient of sum pi N A / G - beta KL at the closed form, by autograd. Over beta + max |A|",
            cases,
            float(np.max([slope(b) / (b.beta + np.abs(b.advantage).max()) for b in batches])),
            64 * _EPS,
        ),
        Finding(
            "unsampled modes shrink where Z' > 1",
            "Over-sharpening Thm 2.2",
            "batches in which an unsampled mode's probability moved the other way",
            cases,
            float(sum(_is_contradicted(b) for b in batches)),
            0.0,
        ),
    ]
    for name, lower in (
        ("Z' >= 1 + (A+ sum N p - |A-| sum N p) / beta G", bound),
        ("Z' >= 1 + p+(1-p+)/(beta sigma) x means", bound_by_means),
        ("Z' >= 1 + p+(1-p+)/(beta sigma) x (min - max)", bound_by_extremes),
    ):
        excess = float(np.max([(lower(b) - partition(b)) / partition(b) for b in batches]))
        findings.append(Finding(name, source, "bound - Z', over Z'; below 0: room", cases, excess, 8 * _EPS))
    return findings


def _is_contradicted(batch: Batch) -> bool:
    moved = (batch_optimal(batch) - batch.ref)[batch.counts == 0]
    expected = np.sign(1 - partition(batch))
    # A mode of probability 1e-300 moves by less than float64 can say.
    return bool((np.sign(moved[np.abs(moved) > _EPS]) == -expected).any())
