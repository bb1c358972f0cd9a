"""The paper's claims about the toy, each as a share of seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from entrostat.lab.sharpening.labels import SIAMESE_INPUTS
from entrostat.lab.sharpening.outcome import Outcome
from entrostat.lab.sharpening.toy import Calibration, Optimiser

RAW = ("raw",)
CENTRED = ("mean-shifted", "normalised", "RLOO", "Reinforce++")
EVERY = RAW + CENTRED
KINDS = {"raw": RAW, "centred": CENTRED}
SQUEEZED_FROM = 0.25
"""pi(Siamese | Siamese) of the untrained policy."""


@dataclass(frozen=True, slots=True)
class Share:
    """``held`` of ``total`` runs, or pairs of runs with the same seed."""

    held: int
    total: int


class Results:
    """The outcomes of one step size, to be asked for by estimator, optimiser, calibration and group size."""

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self._by_key = {
            (o.estimator, o.setting.optimiser, o.setting.calibration, o.setting.group_size): o for o in outcomes
        }
        self.group_sizes = sorted({key[3] for key in self._by_key})

    def of(self, estimators: Sequence[str], optimiser: Optimiser, calibration: Calibration) -> list[Outcome]:
        """In the order of estimators, then of group sizes."""
        return [self._by_key[name, optimiser, calibration, size] for name in estimators for size in self.group_sizes]

    def at(self, estimators: Sequence[str], size: int) -> list[Outcome]:
        """SGD without calibration at one group size."""
        return [self._by_key[name, Optimiser.sgd, Calibration.none, size] for name in estimators]


def collapsed(given: Sequence[Outcome]) -> Share:
    """Runs that ended on one label."""
    return Share(sum(o.num_cat + o.num_persian for o in given), sum(len(o.cat_share) for o in given))


def to_cat(given: Sequence[Outcome]) -> Share:
    """Of the runs that ended on one label, those on Cat."""
    return Share(sum(o.num_cat for o in given), sum(o.num_cat + o.num_persian for o in given))


def kept_both(given: Sequence[Outcome]) -> Share:
    """Runs that ended with both labels."""
    return Share(sum(o.num_both for o in given), sum(len(o.cat_share) for o in given))


def slower(these: Sequence[Outcome], those: Sequence[Outcome]) -> Share:
    """Pairs (same seed, same group size) in which ``these`` kept the lesser label longer than ``those``."""
    pairs = [p for a, b in zip(these, those, strict=True) for p in zip(a.mean_lesser, b.mean_lesser, strict=True)]
    return Share(sum(a > b for a, b in pairs), len(pairs))


def squeezed(given: Sequence[Outcome], similarity: str) -> Share:
    """Runs in which the held-out Siamese ended with less than it had untrained."""
    final = [value for o in given for value in o.siamese[similarity]]
    return Share(sum(value < SQUEEZED_FROM for value in final), len(final))


def more_squeezed_when_similar(given: Sequence[Outcome]) -> Share:
    """Runs whose Siamese accuracy is lowest at high similarity, then mid, then low."""
    triples = [t for o in given for t in zip(o.siamese["high"], o.siamese["mid"], o.siamese["low"], strict=True)]
    return Share(sum(high < mid < low for high, mid, low in triples), len(triples))


def more_squeezed_at(large: Sequence[Outcome], small: Sequence[Outcome]) -> Share:
    """Pairs of the same seed in which the first ended with less Siamese accuracy (high similarity)."""
    pairs = [
        p for a, b in zip(large, small, strict=True) for p in zip(a.siamese["high"], b.siamese["high"], strict=True)
    ]
    return Share(sum(a < b for a, b in pairs), len(pairs))


def claims(results: Results) -> dict[str, Share]:
    """Every claim, in the order of the table."""
    return collapse(results) | speed(results) | remedies(results) | coupling(results)


def collapse(results: Results) -> dict[str, Share]:
    """Sec. 2.4: always onto a single label, and which one is chance."""
    bare = Calibration.none
    found = {
        f"collapses: {name}, {kind}": collapsed(results.of((name,), kind, bare)) for kind in Optimiser for name in EVERY
    }
    return found | {
        "to Cat, of all that collapsed": to_cat([o for kind in Optimiser for o in results.of(EVERY, kind, bare)])
    }


def speed(results: Results) -> dict[str, Share]:
    """Sec. 2.4, App. G: raw fastest, normalised slowest; momentum and AdamW faster than SGD; large groups slower."""
    sgd, bare = Optimiser.sgd, Calibration.none
    found = {
        f"{slow} slower than {fast}, SGD": slower(results.of((slow,), sgd, bare), results.of((fast,), sgd, bare))
        for slow, fast in (("mean-shifted", "raw"), ("normalised", "raw"), ("normalised", "mean-shifted"))
    }
    found |= {
        f"{kind} faster than SGD, {where}": slower(results.of(names, sgd, bare), results.of(names, kind, bare))
        for kind in (Optimiser.momentum, Optimiser.adamw)
        for where, names in KINDS.items()
    }
    large, small = results.group_sizes[-1], results.group_sizes[0]
    return found | {
        f"G = {large} slower than {small}, {where}, SGD": slower(results.at(names, large), results.at(names, small))
        for where, names in KINDS.items()
    }


def remedies(results: Results) -> dict[str, Share]:
    """App. H: IAC slows the collapse, IAC + DLC stops it."""
    found = {}
    for kind in Optimiser:
        for where, names in KINDS.items():
            bare, iac = (results.of(names, kind, c) for c in (Calibration.none, Calibration.iac))
            found[f"IAC slows, {where}, {kind}"] = slower(iac, bare)
            found[f"IAC keeps both, {where}, {kind}"] = kept_both(iac)
            found[f"IAC + DLC keeps both, {where}, {kind}"] = kept_both(results.of(names, kind, Calibration.iac_dlc))
    return found


def coupling(results: Results) -> dict[str, Share]:
    """Sec. 2.4: Siamese is squeezed, more so at high similarity and in large groups."""
    every = results.of(EVERY, Optimiser.sgd, Calibration.none)
    large, small = results.group_sizes[-1], results.group_sizes[0]
    found = {f"Siamese ends under 0.25, {name} similarity, SGD": squeezed(every, name) for name in SIAMESE_INPUTS}
    found["Siamese squeezed more the more similar, SGD"] = more_squeezed_when_similar(every)
    return found | {
        f"Siamese squeezed more at G = {large} than {small}, {where}, SGD": more_squeezed_at(
            results.at(names, large), results.at(names, small)
        )
        for where, names in KINDS.items()
    }
