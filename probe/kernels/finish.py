# mypy: ignore-errors
# Triton's language, not Python's: its values have no static types.
"""From the sums of a row's parts to its statistics, in float64. In torch it would be some 130 launches on [N]."""

import triton
import triton.language as tl

from entrostat.probe.kernels.ordered_keys import position_of_32, value_of_32


@triton.jit
def _tempered(raw, factor, CAP: tl.constexpr, SCALE: tl.constexpr):
    x = raw.to(tl.float64)
    if CAP > 0.0:
        decay = tl.exp(-2.0 * tl.abs(x) * (SCALE / CAP))
        size = CAP * (1.0 - decay) / (1.0 + decay)
        x = tl.where(tl.abs(x) < float("inf"), tl.where(x < 0, -size, size), x)
    return x * factor


@triton.jit(do_not_specialize=["num_parts", "num_rows"])
def finish(
    sums,  # [num_parts, 6, num_rows] of fold
    num_parts,
    num_rows,
    label_logits,  # [num_rows] float32, NaN where the label is outside the vocabulary
    kept,  # [num_rows, SLOTS] int64 keys of top_candidates
    labels,  # [num_rows] int64
    bits,  # [num_rows] float32, the k of fold
    factors,  # [num_rows] float64, the same, exact, base e; NaN where the temperature is none
    floats,  # [7, num_rows] float32, out: the fields in FLOATS, reference, log2 of the mass
    integers,  # [3, num_rows] int64, out: the fields in INTEGERS
    is_top1,  # [num_rows] uint8, out
    top_ids,  # [num_rows, COUNT] int64, out
    top_logps,  # [num_rows, COUNT] float32, out
    top_logits,  # [num_rows, COUNT] float32, out
    COUNT: tl.constexpr,  # n
    SLOTS: tl.constexpr,
    PARTS: tl.constexpr,  # a power of two, num_parts or more
    CAP: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Grid (num_rows,)."""
    row = tl.program_id(0).to(tl.int64)
    nan = float("nan")
    label = tl.load(labels + row)
    factor = tl.load(factors + row)
    k = tl.load(bits + row).to(tl.float64)
    part = tl.arange(0, PARTS)
    is_part = part < num_parts
    at = sums + part.to(tl.int64) * 6 * num_rows + row
    reference = tl.load(at, mask=is_part, other=0.0).to(tl.float64)
    s = tl.load(at + num_rows, mask=is_part, other=0.0).to(tl.float64)
    a = tl.load(at + 2 * num_rows, mask=is_part, other=0.0).to(tl.float64)
    q = tl.load(at + 3 * num_rows, mask=is_part, other=0.0).to(tl.float64)
    t = tl.load(at + 4 * num_rows, mask=is_part, other=0.0).to(tl.float64)
    c = tl.load(at + 5 * num_rows, mask=is_part, other=0.0).to(tl.float64)
    # A part without a finite logit has sums of 0, relative to nothing.
    is_live = s > 0
    highest = tl.max(tl.where(is_live, reference, -float("inf")), axis=0)
    highest = tl.where(tl.abs(highest) < float("inf"), highest, 0.0)
    shift = tl.where(is_live, reference - highest, 0.0)
    weight = tl.exp2(shift)
    mass = tl.sum(weight * s, axis=0)
    slope = tl.sum(weight * (a + shift * s), axis=0) / mass * 0.6931471805599453
    square = tl.sum(weight * weight * q, axis=0) / (mass * mass)
    count = tl.sum(c, axis=0)
    mean = tl.sum(t + shift * c, axis=0) / count * 0.6931471805599453
    log_mass = tl.log(mass)
    zero = highest / k * factor  # the tempered logit that the sums are relative to

    slots = tl.arange(0, SLOTS)
    keys = tl.load(kept + row * SLOTS + slots)
    raw = value_of_32(keys)
    is_top = (keys >= 0) & (raw > -float("inf")) & (slots < COUNT)
    raw = tl.where(is_top, raw, 0.0)
    ids = tl.where(is_top, position_of_32(keys).to(tl.int64), -1)
    logps = _tempered(raw, factor, CAP, SCALE) - zero - log_mass
    rank = tl.min(tl.where(is_top & (ids == label), slots + 1, COUNT + 1), axis=0)
    reached = tl.cumsum(tl.where(is_top, tl.exp(logps), 0.0), axis=0)
    support = tl.sum(((reached < 0.95) & (slots < COUNT)).to(tl.int32), axis=0) + 1
    logps = tl.where(is_top, logps, -float("inf"))

    # A NaN or +inf logit is a NaN in the sums.
    is_out = (label < 0) | (factor != factor)
    is_nan = is_out | (mass != mass)
    is_void = is_nan | (count == 0)
    logp = _tempered(tl.load(label_logits + row), factor, CAP, SCALE) - zero - log_mass
    entropy = tl.maximum(log_mass - slope, 0.0)
    # KL(uniform || p) = ln Z - mean z - ln C, both relative to the same logit.
    self_certainty = log_mass - mean - tl.log(count)
    out = floats + row
    tl.store(out, tl.where(is_void, nan, logp).to(tl.float32))
    tl.store(out + num_rows, tl.where(is_void, nan, entropy).to(tl.float32))
    tl.store(out + 2 * num_rows, tl.where(is_nan, nan, zero + log_mass).to(tl.float32))
    tl.store(out + 3 * num_rows, tl.where(is_void, nan, square).to(tl.float32))
    tl.store(out + 4 * num_rows, tl.where(is_void, nan, self_certainty).to(tl.float32))
    tl.store(out + 5 * num_rows, highest.to(tl.float32))
    tl.store(out + 6 * num_rows, (log_mass * 1.4426950408889634).to(tl.float32))
    tl.store(integers + row, tl.where(is_void, 0, rank).to(tl.int64))
    tl.store(integers + num_rows + row, tl.where(is_void, 0, support).to(tl.int64))
    tl.store(integers + 2 * num_rows + row, tl.where(is_out, 0.0, count).to(tl.int64))
    tl.store(is_top1 + row, ((rank == 1) & (is_void == 0)).to(tl.uint8))
    at_slots = row * COUNT + slots
    tl.store(top_ids + at_slots, tl.where(is_void, -1, ids), mask=slots < COUNT)
    tl.store(top_logps + at_slots, tl.where(is_void, nan, logps).to(tl.float32), mask=slots < COUNT)
    tl.store(top_logits + at_slots, raw, mask=slots < COUNT)
