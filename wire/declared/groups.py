"""Rewards, and what a prompt's group of responses says."""

from entrostat.wire.declared.signal import Signal

PASS_AT = (1, 2, 4, 8, 16, 32, 64)
"""The k of ``pass_at_k`` and ``maj_at_k``: reported up to the group's size."""

SIGNALS = (
    Signal("reward_mean", "1", "Mean reward over responses.", "mean", "all papers", ("rewards",), "up"),
    Signal(
        "reward_std",
        "1",
        "Standard deviation of the reward over responses (n - 1).",
        "std",
        "all papers",
        ("rewards",),
    ),
    Signal(
        "zero_variance_groups",
        "share",
        "Share of prompts whose responses all have the same reward: no gradient.",
        "mean",
        "all papers",
        ("rewards", "groups"),
        "down",
    ),
    Signal(
        "all_right_groups",
        "share",
        "Share of prompts whose responses are all right.",
        "mean",
        "ours",
        ("rewards", "groups"),
    ),
    Signal(
        "all_wrong_groups",
        "share",
        "Share of prompts whose responses are all wrong.",
        "mean",
        "ours",
        ("rewards", "groups"),
        "down",
    ),
    *(
        Signal(
            f"pass_at_{k}",
            "share",
            f"Unbiased estimate that at least one of {k} responses to a prompt is right."
            + (" The same as avg@G." if k == 1 else ""),
            "mean",
            "Chen et al. 2021: 1 - C(G-c,k)/C(G,k)",
            ("rewards", "groups"),
            "up",
        )
        for k in PASS_AT
    ),
    *(
        Signal(
            f"maj_at_{k}",
            "share",
            f"How often the most frequent answer among {k} responses to a prompt is right, ties counting by their "
            f"share of right ones; over consecutive blocks of {k} responses, then prompts.",
            "derived",
            "Wang et al. 2023 (self-consistency)",
            ("rewards", "groups", "answers"),
            "up",
        )
        for k in PASS_AT
        if k > 1
    ),
    Signal(
        "zero_advantage_rate",
        "share",
        "Share of tokens whose advantage is exactly 0: they give no gradient.",
        "mean",
        "ours",
        ("advantages",),
        "down",
    ),
    Signal(
        "unique_completions",
        "share",
        "Different responses (by token ids) to a prompt / its responses; mean over prompts.",
        "derived",
        "ours",
        ("groups",),
        "up",
    ),
    Signal(
        "z_bound",
        "1",
        "Indicator of over-sharpening: lower bound of Z' at beta = 1, 1 + p(1-p)/sigma x (mean probability of right "
        "responses - of wrong ones), sigma = sqrt(p(1-p)), probabilities length-normalised; above 1 unsampled "
        "responses lose. Mean over prompts with right and wrong responses.",
        "derived",
        "Over-sharpening Thm 2.3",
        ("rewards", "groups"),
        "down",
    ),
)
