"""Perplexity of responses."""

from entrostat.wire.declared.signal import Signal

SIGNALS = (
    Signal(
        "ppl",
        "1",
        "Perplexity of a response, exp(-mean log-prob); mean over responses.",
        "mean",
        "Exchange Eq. 7",
    ),
    Signal(
        "ln_ppl_z_pos",
        "1",
        "Mean z-score of ln PPL within the prompt's group, over responses with A > 0.",
        "derived",
        "Exchange Eq. 7",
        ("advantages", "groups"),
    ),
    Signal(
        "ln_ppl_z_neg",
        "1",
        "The same over responses with A < 0.",
        "derived",
        "Exchange Eq. 7",
        ("advantages", "groups"),
    ),
)
