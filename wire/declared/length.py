"""How long responses are."""

from entrostat.wire.declared.signal import Signal

SIGNALS = (
    Signal("length_mean", "tokens", "Mean length of a response.", "mean", "SCOPE App. B"),
    Signal("length_max", "tokens", "Longest response.", "max", "SCOPE App. B"),
    Signal(
        "truncated_rate",
        "share",
        "Share of responses cut at the length limit, without an end token.",
        "mean",
        "SCOPE App. B",
        better="down",
    ),
)
