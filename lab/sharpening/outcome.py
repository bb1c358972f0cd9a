"""How a course ended: onto which label it collapsed, when, and what is left.

**Decision**: a policy has collapsed when, of what it gives to Cat and Persian, the lesser of the two has under 5 %, and
it did so at the first step from which that stayed so. How fast it was: the lesser's share, averaged over all steps;
that is there also for those that never collapse.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from entrostat.lab.sharpening import labels
from entrostat.lab.sharpening.toy import Course, Setting

COLLAPSED = 0.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """One estimator in one setting; lists have an entry a seed.

    Args:
        setting: what was common.
        estimator: of the advantages.
        cat_share: at the end, of what Cat and Persian have.
        collapse_step: from when it was collapsed; None where it was not at the end.
        mean_lesser: the lesser's share, averaged over all steps from the first update on.
        entropy: of the last policy at Persian, nats.
        accuracy: pi(Cat or Persian | Persian) at the end.
        siamese: pi(Siamese | Siamese) at the end by similarity; 0.25 at the start.
    """

    setting: Setting
    estimator: str
    cat_share: list[float]
    collapse_step: list[int | None]
    mean_lesser: list[float]
    entropy: list[float]
    accuracy: list[float]
    siamese: dict[str, list[float]]

    @property
    def num_cat(self) -> int:
        """Seeds that collapsed to Cat."""
        return sum(share > 1 - COLLAPSED for share in self.cat_share)

    @property
    def num_persian(self) -> int:
        """Seeds that collapsed to Persian."""
        return sum(share < COLLAPSED for share in self.cat_share)

    @property
    def num_both(self) -> int:
        """Seeds that kept both."""
        return len(self.cat_share) - self.num_cat - self.num_persian

    def to_dict(self) -> dict[str, Any]:
        """For JSON: setting and counts beside the lists."""
        plain = asdict(self)
        setting: dict[str, Any] = plain.pop("setting")
        return setting | plain | {"num_cat": self.num_cat, "num_persian": self.num_persian, "num_both": self.num_both}


def lesser(probs: Tensor) -> Tensor:
    """[...] the smaller of Cat's and Persian's share of what the two have; ``probs`` [..., 4]."""
    right = probs[..., [labels.CAT, labels.PERSIAN]]
    return right.amin(-1) / right.sum(-1)


def outcomes(setting: Setting, course: Course, estimators: tuple[str, ...]) -> list[Outcome]:
    """One for each estimator of ``course``."""
    last = course.probs[-1]
    share = last[..., labels.CAT] / (last[..., labels.CAT] + last[..., labels.PERSIAN])
    small = lesser(course.probs)
    return [
        Outcome(
            setting,
            name,
            share[k].tolist(),
            [_since(small[:, k, s] < COLLAPSED) for s in range(small.shape[2])],
            small[1:, k].mean(0).tolist(),
            torch.special.entr(last[k]).sum(-1).tolist(),
            (last[k, :, labels.CAT] + last[k, :, labels.PERSIAN]).tolist(),
            {kind: course.siamese[-1, k, :, i].tolist() for i, kind in enumerate(labels.SIAMESE_INPUTS)},
        )
        for k, name in enumerate(estimators)
    ]


def _since(is_collapsed: Tensor) -> int | None:
    """First step of the run of True that ends [steps + 1]; None where it ends with False."""
    lively = (~is_collapsed).nonzero()
    first = int(lively[-1]) + 1 if len(lively) else 0
    return first if first < len(is_collapsed) else None
