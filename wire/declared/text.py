"""What the responses say: form, and kinds of tokens. Needs a tokenizer."""

from entrostat.wire.declared.signal import Signal

CATEGORIES = ("formal", "logical", "metacognitive", "semantic")
"""Exchange App. C, by word list and pattern (``probe/text/categories.py``)."""

SIGNALS = (
    Signal(
        "format_violation_rate",
        "share",
        r"Share of responses without exactly one answer (by default one \boxed{...}).",
        "mean",
        "Exchange App. B",
        ("text",),
        "down",
    ),
    Signal(
        "language_mixing_rate",
        "share",
        "Share of responses with a Chinese, Japanese or Korean character where the prompt has none.",
        "mean",
        "Exchange App. B",
        ("text", "prompt texts"),
        "down",
    ),
    Signal(
        "repetition_rate",
        "share",
        "Share of responses in which a run of words comes again and again: of some 64 words in a row, at least half "
        "end a run of 4 words that was there twice before.",
        "mean",
        "Exchange App. B",
        ("text",),
        "down",
    ),
    *(
        Signal(
            f"share_{category}",
            "share",
            f"Share of tokens in the category {category}, judged by the token's own text.",
            "mean",
            "Exchange App. C",
            ("text",),
        )
        for category in CATEGORIES
    ),
    *(
        Signal(
            f"entropy_{category}",
            "nats",
            f"Mean entropy of the tokens in the category {category}.",
            "mean",
            "Exchange App. C",
            ("text",),
        )
        for category in CATEGORIES
    ),
)
