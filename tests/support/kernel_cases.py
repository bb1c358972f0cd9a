"""Cases for the faster forms of the per-token statistics, and their distance from the float64 oracle.

The interpreter's tests and the GPU's take the same ones.
"""

import math
from dataclasses import dataclass, field

import torch
from reference import token_stats_oracle as oracle

from entrostat.probe.token_stats import TokenStats

NAMES = tuple(TokenStats.__dataclass_fields__)
# Relative, with 1 as the smallest scale: kernels.md section 6.
TOLERANCE = dict.fromkeys(("logp", "entropy", "logsumexp", "sum_p2", "top_logps"), 2e-6) | {"self_certainty": 1e-5}
INF = math.inf


@dataclass
class Case:
    name: str
    logits: torch.Tensor
    labels: torch.Tensor
    n: int = 8
    transform: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)


def drawn(rows, vocab, seed=0, spread=3.0, dtype=torch.float32):
    """Half of the labels are among the likely ones."""
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, vocab, generator=generator, dtype=torch.float64) * spread).to(dtype)
    labels = torch.randint(vocab, (rows,), generator=generator)
    likely = logits.float().topk(min(4, vocab)).indices[:, -1]
    return logits, torch.where(torch.arange(rows) % 2 == 0, likely, labels)


def cases():
    """Each with one thing that goes wrong easily."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        short = str(dtype).removeprefix("torch.")
        yield Case(f"odd width {short}", *drawn(4, 507, dtype=dtype), n=3)
        yield Case(f"sixteen candidates {short}", *drawn(3, 255, 1, dtype=dtype), n=16, transform={"temperature": 0.7})
        yield Case(f"soft-cap {short}", *drawn(3, 301, 2, dtype=dtype), transform=SOFT_CAP)
        logits, labels = drawn(4, 200, 3, dtype=dtype)
        yield Case(f"ties {short}", logits.float().round().clamp(-2, 2).to(dtype), labels, n=5)
        yield Case(f"narrower than n {short}", *drawn(2, 5, 4, dtype=dtype))
        yield masked(dtype, short, {})
        yield nothing_hidden(dtype, short)
    yield masked(torch.bfloat16, "expected", {"expect_masked": True})
    yield Case("one column", *drawn(2, 1), n=2)
    yield Case("twenty candidates", *drawn(2, 150, 5), n=20)
    yield Case("scale alone", *drawn(2, 130, 6), transform={"logit_scale": 0.25})
    yield Case("int32 labels", drawn(2, 90, 7)[0], drawn(2, 90, 7)[1].to(torch.int32))
    yield far_references()
    logits, labels = drawn(4, 270, 8)
    yield Case("offsets", logits + torch.tensor([[-300.0], [60.0], [300.0], [0.0]]), labels)
    logits, labels = drawn(4, 140, 9)
    yield Case("a temperature a row", logits, labels, transform={"temperature": torch.tensor([0.5, 1.0, 1.7, 3.0])})
    logits, labels = drawn(3, 400, 10, dtype=torch.bfloat16)
    yield Case("rows apart", logits[:, 30:331], labels.clamp(max=300))
    logits, labels = drawn(3, 90, 11)
    yield Case("columns apart", logits.T.contiguous().T, labels)
    yield Case("soft-cap with masks", *soft_cap_with_masks(), transform={"softcap": 4.0})


SOFT_CAP = {"temperature": 1.3, "softcap": 5.0, "logit_scale": 1.7}


def masked(dtype, short, options):
    logits, labels = drawn(5, 330, 12, dtype=dtype)
    logits[0, 50:] = -INF
    logits[1, :200] = -INF  # the whole first parts
    logits[2, ::2] = -INF
    logits[3, 3:] = -INF  # fewer than n are left
    logits[4, 329] = -INF  # in the tail alone
    labels = torch.tensor([7, 250, 4, 1, 329])  # of a masked candidate twice
    return Case(f"masked {short}", logits, labels, options=options)


def nothing_hidden(dtype, short):
    logits, labels = drawn(8, 200, 13, dtype=dtype)
    logits[0, 150], logits[1, 3], logits[2], logits[3, 199] = math.nan, INF, -INF, math.nan
    logits[4], labels[4], labels[5] = math.nan, -100, 200
    logits[6, 170] = INF
    labels[7] = -1
    return Case(f"nothing hidden {short}", logits, labels, n=3)


def far_references():
    """A row whose peak lies far above its part's first block: near, at and past where the part is done again."""
    logits, labels = drawn(6, 250, 14)
    for row, height in enumerate((15.0, 20.0, 21.0, 30.0, 90.0, 400.0)):
        logits[row, 120] = logits[row, :64].max() + height
    return Case("far above the reference", logits, labels)


def soft_cap_with_masks():
    logits, labels = drawn(3, 140, 15)
    logits[0, 5], logits[1, 6], logits[2, :90], labels[0], labels[2] = -INF, INF, -INF, 5, 100
    return logits, labels


def errors(stats, logits, labels, n, temperature=1.0, **transform):
    """Largest error of each float field against the oracle on the very same logits; exact fields are asserted."""
    worst = dict.fromkeys(TOLERANCE, 0.0)
    for i, row in enumerate(logits.double().tolist()):
        heat = temperature[i].item() if isinstance(temperature, torch.Tensor) else temperature
        label = int(labels[i])
        expected = oracle.token_stats(row, label, n, temperature=heat, **transform)
        if label >= len(row) and not math.isnan(expected["entropy"]):
            expected["logp"] = math.nan  # the oracle knows no vocabulary; these words are TokenStats' own
        for name in ("top_ids", *oracle.INTS):
            assert expected[name] == getattr(stats, name)[i].tolist(), (i, name)
        for name in worst:
            want = torch.tensor(expected[name], dtype=torch.float64)
            got = getattr(stats, name)[i].double().cpu()
            is_number = want.isfinite()
            assert torch.equal(is_number, got.isfinite()), (i, name, want, got)
            # The infinities and NaN themselves.
            assert str(want[~is_number].tolist()) == str(got[~is_number].tolist()), (i, name)
            error = (want - got).abs()[is_number] / want.abs().clamp(min=1)[is_number]
            worst[name] = max([worst[name], *error.tolist()])
    return worst


def too_large(worst):
    return {k: v for k, v in worst.items() if v > TOLERANCE[k]}


def different(a, b, rows=slice(None)):
    """The fields whose bits differ; NaN equals NaN."""
    return [k for k in NAMES if not torch.equal(getattr(a, k)[rows].nan_to_num(-7), getattr(b, k).nan_to_num(-7))]
