"""How few tokens carry the policy's redistribution, and how far it has collapsed."""

from entrostat.wire.declared.signal import Signal

SIGNALS = (
    Signal(
        "scope_score",
        "1",
        "Mean of p(1-p)max(A,0): how strongly an update redistributes a token's probability.",
        "mean",
        "SCOPE Eq. 11",
        ("advantages",),
    ),
    Signal(
        "scope_mass_top5",
        "share",
        "Share of the total SCOPE score in the top 5 % of tokens, from the histogram of all ranks: exact but for the "
        "bin that the 5 % end in, which counts by its mean.",
        "derived",
        "ours",
        ("advantages",),
    ),
    Signal(
        "forking_rate",
        "share",
        "Share of tokens whose entropy is above the baseline's 80th percentile: the f of d_collapse.",
        "derived",
        "SCOPE Sec. 4.2",
    ),
    Signal(
        "d_collapse",
        "share",
        "1 - f/f0, f the share of tokens whose entropy is above the baseline's 80th "
        "percentile: 0 as at the baseline, 1 no forking token left, negative more than before.",
        "derived",
        "SCOPE Sec. 4.2",
        better="down",
    ),
)
