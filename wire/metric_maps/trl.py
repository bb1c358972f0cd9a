"""TRL's GRPOTrainer, RLOOTrainer and SFTTrainer, and the transformers Trainer below them."""

from entrostat.wire.metric_maps.entry import Dialect, Differs, Own, Same

_UNWEIGHTED = (
    "One micro-batch a log line. Of several (gradient_accumulation_steps, logging_steps > 1) TRL logs the plain mean "
    "of their means; ours weighs each by its tokens."
)
_UNWEIGHTED_RATIO = (
    "One micro-batch a log line, as for entropy. Over responses, like ours, where the ratio is one a response (RLOO, "
    "importance_sampling_level='sequence')."
)
_GENERATION = "One generation a log line; of several TRL logs the plain mean."
_GENERATION_IS_STEP = (
    "Each step trains on the whole of a generation of its own (steps_per_generation = gradient_accumulation_steps, "
    "num_iterations = 1, logging_steps = 1, not mask_truncated_completions): TRL counts the responses it generated, "
    "ours those a step trained on."
)
_VLLM_RATIO = (
    "As it goes into the loss: truncated or masked at TRL's bounds, tokens without a log-prob of vLLM count as 1, and "
    "in the sequence modes one a response. Ours is of the tokens themselves."
)

TRL = Dialect(
    name="trl",
    release="TRL 1.16.0, transformers 5.23.0",
    marks=frozenset(
        {"completions/mean_length", "frac_reward_zero_std", "clip_ratio/region_mean", "mean_token_accuracy"}
    ),
    training=("train/",),
    evaluation=("eval_", "eval/", "test_", "test/"),
    entries=(
        Same(
            "entropy",
            "entropy_mean",
            f"{_UNWEIGHTED} In SFT over all tokens with a label, the prompt's too where the loss is over them.",
        ),
        Same("reward", "reward_mean", _GENERATION),
        Same("reward_std", "reward_std", _GENERATION),
        Same(
            "frac_reward_zero_std",
            "zero_variance_groups",
            "The reward alone is compared within a prompt's group: not scale_rewards='batch', not "
            "multi_objective_aggregation='normalize_then_sum', in RLOO beta = 0 and no reward_clip_range; every "
            f"completion scored. A spread under 1e-8 counts as none. {_GENERATION}",
        ),
        Same("completions/mean_length", "length_mean", _GENERATION_IS_STEP),
        Same("completions/max_length", "length_max", _GENERATION_IS_STEP),
        Same(
            "completions/clipped_ratio",
            "truncated_rate",
            f"No completion ends with a padding token that is not an end token. {_GENERATION_IS_STEP}",
        ),
        Same("clip_ratio/low_mean", "clip_fraction_low", _UNWEIGHTED_RATIO),
        Same("clip_ratio/high_mean", "clip_fraction_high", _UNWEIGHTED_RATIO),
        Same(
            "mean_token_accuracy",
            "top1_rate",
            "The data's token stands for the sampled one (SFT), over all tokens with a label. " + _UNWEIGHTED,
        ),
        Same(
            "sampling/sampling_logp_difference/mean",
            "rollout_logp_gap",
            f"One process (of several TRL logs the plain mean). {_GENERATION_IS_STEP}",
        ),
        Differs(
            "clip_ratio/region_mean",
            "clip_fraction_low",
            "Both sides together: clip_fraction_low + clip_fraction_high.",
        ),
        Differs(
            "clip_ratio/low_min",
            "clip_fraction_low",
            "The smallest share of any one response, over responses; ours is over all tokens.",
        ),
        Differs(
            "clip_ratio/high_max",
            "clip_fraction_high",
            "The largest share of any one response, over responses; ours is over all tokens.",
        ),
        Differs(
            "cispo_clip_ratio",
            "clip_fraction_high",
            "CISPO's bound is epsilon_high itself, not 1 + epsilon_high: share of tokens with A > 0 and a ratio above "
            "epsilon_high.",
        ),
        Differs(
            "kl",
            "approx_kl",
            "To the reference model, not to the policy that sampled: GRPO the k3 estimate (times the ratio with "
            "use_bias_correction_kl), RLOO the plain log-ratio of the policy that sampled.",
        ),
        Differs(
            "num_tokens",
            "num_tokens",
            "Since the run's start, prompts included; ours counts the response tokens of the step.",
        ),
        Differs(
            "step_time",
            "step_s",
            "Rank 0's time inside training_step (generation, forward, backward), without the optimizer and the data "
            "loader, mean over the log line's steps; ours is the whole step on its slowest rank.",
        ),
        Differs(
            "completions/mean_terminated_length",
            "length_mean",
            "Over completions that ended by themselves; 0 where none did.",
        ),
        Differs(
            "completions/max_terminated_length",
            "length_max",
            "Over completions that ended by themselves; 0 where none did.",
        ),
        Differs(
            "rewards/*/mean",
            "reward_mean",
            "One reward function, before its weight; ours is the weighted sum. The same with one function of weight 1.",
        ),
        Differs(
            "rewards/*/std",
            "reward_std",
            "One reward function, before its weight; ours is of the weighted sum.",
        ),
        Differs(
            "sampling/importance_sampling_ratio/max",
            "rollout_ratio_max",
            _VLLM_RATIO,
        ),
        Differs("sampling/importance_sampling_ratio/mean", "rollout_ratio_mean", _VLLM_RATIO),
        Differs(
            "grad_norm",
            "token_grad_norm",
            "Of all parameters, before clipping; ours is of single tokens at the head.",
        ),
        *(
            Own(key)
            for key in (
                "loss",
                "learning_rate",
                "epoch",
                "policy_loss",
                "aux_loss",
                "entropy_coef",
                "vespo/phi_seq_mean",
                "completions/min_length",
                "completions/min_terminated_length",
                "tools/call_frequency",
                "tools/failure_frequency",
                "sampling/sampling_logp_difference/max",
                "sampling/importance_sampling_ratio/min",
                # of transformers, at the end of training and in evaluations
                "train_loss",
                "total_flos",
                "train_runtime",
                "train_samples_per_second",
                "train_steps_per_second",
                "train_tokens_per_second",
                "num_input_tokens_seen",
                "train/global_step",
            )
        ),
    ),
)
"""Also as the W&B callback of transformers writes it: ``train/entropy``, ``eval/reward``."""
