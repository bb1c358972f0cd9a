"""The views of responses and of the prompts that they answer."""

from collections.abc import Iterable

from entrostat.storage.derived import IS_WHOLE, NO_SPREAD, spread
from entrostat.storage.merged import JOIN, VALID

Z_COLUMN = {
    "ln_ppl_z": "z-score of ln PPL, -mean_logp, within the prompt's group (population spread): 0 where the group has "
    "no spread, null without a complete group. Exchange Eq. 7."
}
_OF_GROUP = "over (partition by s.run_id, t.step, t.prompt)"


def sequence(columns: Iterable[str]) -> str:
    """The body of the view ``sequence``: the wire's ``columns`` and the z-score."""
    picked = ", ".join(f't."{name}"' for name in columns)
    mean, std = f"avg(t.mean_logp) {_OF_GROUP}", spread("t.mean_logp", _OF_GROUP)
    is_whole = IS_WHOLE.replace("num_responses", f"count(*) {_OF_GROUP}").replace("prompt is", "t.prompt is")
    return f"""
    select s.run_id as run, t.step, s.rank as process_rank, s.producer, {picked},
        case when {is_whole} then case when ({std}) > {NO_SPREAD.format(mean=mean)}
            then ({mean} - t.mean_logp) / ({std}) else 0.0 end end as ln_ppl_z
    from raw.sequence_row t {JOIN} join raw.run_definitions d on d.run = t.run where {VALID}
    """


PROMPT_COLUMNS = {
    "prompt": "The prompt's group, as in the view sequence.",
    "num_responses": "Responses to it in the step.",
    "is_whole": "Whether the group is complete: the run's group_size, two at least where it does not say.",
    "success_rate": "Share of its responses with a reward of at least the run's correct_at (1 by default).",
    "reward_mean": "Mean reward.",
    "mean_entropy": "Mean entropy over all tokens of its responses, in nats.",
    "cov": "Population covariance of mean_logp and advantage over its responses, in nats.",
    "length": "Mean length of its responses, in tokens.",
    "difficulty": "By success rate: never (0), hard (under 1/3), medium, easy (over 2/3), always (1); null without "
    "rewards. Entropy Mechanism App. D splits by accuracy and does not say where: thirds are ours.",
}
PROMPT = f"""
select run, step, prompt, num_responses, {IS_WHOLE} as is_whole, success_rate, reward_mean, mean_entropy, cov, length,
    case when success_rate = 0 then 'never' when success_rate = 1 then 'always' when success_rate < 1 / 3 then 'hard'
        when success_rate > 2 / 3 then 'easy' when success_rate is not null then 'medium' end as difficulty
from (select *, num_right / nullif(num_rewards, 0) as success_rate from raw.prompt_group where prompt is not null)
"""
