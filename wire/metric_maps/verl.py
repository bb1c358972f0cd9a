"""verl's PPO trainer (v1, and the one before it) and its SFT trainer."""

from entrostat.wire.metric_maps.entry import Dialect, Differs, Own, Same

_NO_CRITIC_KL = "algorithm.use_kl_in_reward=False (else the reward has the KL penalty taken off)."
_NOT_ABORTED = "No response was aborted (response/aborted_ratio = 0): verl leaves those out."
_SINGLE_TURN = (
    "No tokens of tools or environments in the responses (verl counts them; ours counts what the policy wrote), and "
    "none aborted (verl counts those as 0)."
)
_BEFORE = (
    "Of the policy before the step's updates. Ours is of the forwards that made the gradients: the same where a step "
    "is one mini-batch, once (ppo_mini_batch_size = train_batch_size, ppo_epochs = 1)."
)
_FULL = "No response is empty, and the batch was not filled up with padding rows (each counts as log-prob 0)."
_NOT_REJECTED = (
    "No tokens of tools or environments in the responses, and none rejected (rollout_rs): verl counts them before, "
    "ours is of the tokens that are trained on."
)
_AS_WEIGHT = (
    "As it goes into the loss: cut at rollout_is_threshold, and with rollout_is=sequence one a response. Ours is of "
    "the tokens themselves."
)
_UPDATED_TO_ROLLOUT = (
    "bypass_mode: of the policy as it is updated to the engine that sampled, the plain mean over micro-batches."
)
_TO_REFERENCE = "To the reference model; ours is to the policy that sampled."

VERL = Dialect(
    name="verl",
    release="verl 0.9.1",
    marks=frozenset(
        {
            "actor/pg_clipfrac",
            "actor/ppo_kl",
            "actor/entropy",
            "actor/pg_loss",
            "critic/score/mean",
            "critic/rewards/mean",
            "response_length/mean",
            "response_length/clip_ratio",
            "timing_s/step",
            "training/global_step",
            "train/total_tokens(B)",
        }
    ),
    evaluation=("val-core/", "val-aux/", "val/", "validation/"),
    entries=(
        Same("actor/entropy", "entropy_mean", f"loss_agg_mode=token-mean (verl's default). {_BEFORE}"),
        Same("critic/score/mean", "reward_mean", _NOT_ABORTED),
        Same("critic/rewards/mean", "reward_mean", f"{_NO_CRITIC_KL} {_NOT_ABORTED}"),
        Same("response_length/mean", "length_mean", _SINGLE_TURN),
        Same("response_length/max", "length_max", _SINGLE_TURN),
        Same("rollout_corr/training_ppl", "ppl", f"{_BEFORE} {_FULL}"),
        Same("rollout_corr/training_log_ppl", "sample_logp", f"{_BEFORE} {_FULL}", factor=-1.0),
        Differs(
            "actor/entropy_loss",
            "entropy_mean",
            "As the loss adds it up (loss_agg_mode), of the policy as it is updated, the plain mean over mini-batches.",
        ),
        Differs(
            "actor/pg_clipfrac",
            "clip_fraction_high",
            "Both sides together, clip_fraction_low + clip_fraction_high, the plain mean over micro-batches. Other "
            "loss modes count other tokens: dppo_tv and dppo_kl those past a divergence, clip_cov the chosen ones too.",
        ),
        Differs(
            "actor/pg_clipfrac_lower",
            "clip_fraction_low",
            "Not the lower side: the dual clip, tokens with A < 0 and a ratio above clip_ratio_c (3.0).",
        ),
        Differs(
            "actor/ppo_kl",
            "approx_kl",
            "The estimate -ln r, which may be negative (kl_cov: its absolute value), the plain mean over micro-"
            "batches; ours is r - 1 - ln r.",
        ),
        Differs("actor/kl_loss", "approx_kl", f"{_TO_REFERENCE} As the loss adds it up, with kl_loss_type."),
        Differs("actor/reward_kl_penalty", "approx_kl", f"{_TO_REFERENCE} Over a response first, then responses."),
        Same("rollout_corr/kl", "rollout_kl", _NOT_REJECTED),
        Same("rollout_corr/k3_kl", "rollout_kl_k3", _NOT_REJECTED),
        Same("training/rollout_probs_diff_max", "rollout_prob_gap_max", _NOT_REJECTED),
        Differs("actor/rollout_corr/kl", "rollout_kl", _UPDATED_TO_ROLLOUT),
        Differs("actor/rollout_corr/k3_kl", "rollout_kl_k3", _UPDATED_TO_ROLLOUT),
        Differs("actor/rollout_corr/rollout_is_mean", "rollout_ratio_mean", f"{_UPDATED_TO_ROLLOUT} {_AS_WEIGHT}"),
        Differs("actor/rollout_corr/rollout_is_max", "rollout_ratio_max", f"{_UPDATED_TO_ROLLOUT} {_AS_WEIGHT}"),
        Differs("actor/rollout_corr/training_ppl", "ppl", "bypass_mode: the plain mean over micro-batches."),
        Differs(
            "actor/rollout_corr/training_log_ppl",
            "sample_logp",
            "bypass_mode: minus the mean log-prob, the plain mean over micro-batches.",
        ),
        Differs("actor/rollout_corr/rollout_ppl", "ppl", "By the log-probs of the engine that sampled."),
        Differs("actor/rollout_corr/rollout_log_ppl", "sample_logp", "Minus the log-prob of the engine that sampled."),
        Differs("rollout_corr/rollout_is_mean", "rollout_ratio_mean", _AS_WEIGHT),
        Differs("rollout_corr/rollout_is_max", "rollout_ratio_max", _AS_WEIGHT),
        Differs("rollout_corr/rollout_ppl", "ppl", "By the log-probs of the engine that sampled."),
        Differs("rollout_corr/rollout_log_ppl", "sample_logp", "Minus the log-prob of the engine that sampled."),
        Differs("critic/score/max", "reward_mean", "The largest of a response; ours is the mean."),
        Differs("critic/score/min", "reward_mean", "The smallest of a response; ours is the mean."),
        Differs("critic/rewards/max", "reward_mean", "The largest of a response; ours is the mean."),
        Differs("critic/rewards/min", "reward_mean", "The smallest of a response; ours is the mean."),
        Differs(
            "response_length/clip_ratio",
            "truncated_rate",
            "Share of responses as long as the padded batch: an end token at the limit counts as cut. In the v1 "
            "trainer the batch is padded to its longest response, so it is never 0, cut or not.",
        ),
        Differs("response_length_non_aborted/mean", "length_mean", "Without aborted responses."),
        Differs("response_length_non_aborted/max", "length_max", "Without aborted responses."),
        Differs(
            "response_length_non_aborted/clip_ratio",
            "truncated_rate",
            "As response_length/clip_ratio, without aborted responses.",
        ),
        Differs(
            "perf/total_num_tokens",
            "num_tokens",
            "Prompts included, and padding rows; ours counts response tokens.",
        ),
        Differs(
            "perf/time_per_step",
            "step_s",
            "The driver's clock, checkpoint included, validation not; ours is from step to step on the slowest rank.",
        ),
        Differs("timing_s/step", "step_s", "As perf/time_per_step."),
        Differs(
            "actor/grad_norm",
            "token_grad_norm",
            "Of all parameters, before clipping; ours is of single tokens at the head.",
        ),
        Differs(
            "variance_proxy/expected_w",
            "token_grad_norm_logits",
            "Sum over a response of 1 - 2p + sum p^2: squared, without the advantage, mean over responses.",
        ),
        Differs(
            "variance_proxy/proxy2_total_power",
            "token_grad_norm_logits",
            "Mean over responses of A^2 times the sum of 1 - 2p + sum p^2: squared, and of responses.",
        ),
        *(
            Own(key)
            for key in (
                "actor/loss",
                "actor/pg_loss",
                "actor/lr",
                "actor/kl_coef",
                "actor/reward_kl_penalty_coeff",
                "actor/mtp_losses*",
                "actor/perf/*",
                "actor/rollout_corr/*",
                "actor/distillation/*",
                "critic/loss",
                "critic/lr",
                "critic/grad_norm",
                "critic/perf/*",
                "critic/vf_loss",
                "critic/vf_clipfrac",
                "critic/vpred_mean",
                "critic/vf_explained_var",
                "critic/advantages/*",
                "critic/returns/*",
                "critic/values/*",
                "response_length/min",
                "response_length_non_aborted/min",
                "response/aborted_ratio",
                "prompt_length/*",
                "num_turns/*",
                "tool_call_counts/*",
                "gdpo/*",
                "global_seqlen/*",
                "rollout_corr/*",
                "rollout/*",
                "agent_loop/*",
                "distillation/*",
                "separate_async/*",
                "training/*",
                "perf/*",
                "timing_s/*",
                "timing_per_token_ms/*",
                "variance_proxy/*",
                "train/loss",
                "train/grad_norm",
                "train/lr",
                "train/mfu",
                "train/global_tokens",
                "train/total_tokens(B)",
            )
        ),
    ),
)
