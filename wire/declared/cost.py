"""How much there was to measure, and what measuring cost."""

from entrostat.wire.declared.signal import Signal

SIGNALS = (
    Signal("num_tokens", "tokens", "Response tokens in the step.", "sum", "ours"),
    Signal("num_responses", "1", "Responses in the step.", "sum", "ours"),
    Signal(
        "num_invalid_tokens",
        "tokens",
        "Tokens whose statistics were NaN or infinite; left out of every mean.",
        "sum",
        "ours",
        better="down",
    ),
    Signal("wall_time_s", "s", "When the step ended, seconds since 1970.", "max", "ours"),
    Signal("step_s", "s", "Wall time of the step on its slowest rank.", "max", "ours", better="down"),
    Signal(
        "probe_ms",
        "ms",
        "The probe's own time on the training thread, on its slowest rank.",
        "max",
        "ours",
        better="down",
    ),
    Signal(
        "reduce_ms",
        "ms",
        "The probe's time on its background thread for the step, on the slowest rank.",
        "max",
        "ours",
        better="down",
    ),
    Signal(
        "probe_share",
        "share",
        "The probe's share of the step's wall time; mean over ranks.",
        "mean",
        "ours",
        better="down",
    ),
)
