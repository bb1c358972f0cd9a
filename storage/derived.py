"""Signals that no rank can make alone: read from histograms, cells and responses of all ranks, when somebody asks.

A family is one view of ``raw`` with a row for each run and step, because its signals share one pass over the rows.
``step_metric`` has a branch for each signal, with the name as a literal: a filter on names then removes the branches
that were not asked for before anything is read.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from entrostat.storage.merged import JOIN, RANKS, VALID
from entrostat.wire.declared.covariance import COVARIANCE_TOPS
from entrostat.wire.declared.entropy import NUM_POSITIONS, QUANTILES, TOP_SHARE
from entrostat.wire.declared.groups import PASS_AT

_SCOPE_SHARE = 0.05
MAJORITY_AT = tuple(k for k in PASS_AT if k > 1)

# Which ranks a step's rows came from, carried through two levels of grouping.
_SENT = f"{RANKS} as ranks, max(s.world_size) as world_size"
_COUNTED = (
    "bit_count(bit_or(ranks))::bigint as num_parts, bit_count(bit_or(ranks)) >= least(max(world_size), 127) as complete"
)


@dataclass(frozen=True, slots=True)
class Family:
    """Signals that are made together.

    Args:
        view: in the schema ``raw``; its columns are run, step, num_parts, complete and the signals.
        source: a row of the table ``raw.<source>`` for the run must exist that ``where`` holds of.
    """

    view: str
    signals: tuple[str, ...]
    sql: str
    source: str
    where: str


def _bins(name: str) -> str:
    """A histogram's bins added up over ranks; ``upto``: tokens in this bin and below, ``n``: all of the step's."""
    return f"""
    select *, sum(count) over (partition by run, step order by bin) as upto,
        sum(count) over (partition by run, step) as n
    from (
        select s.run_id as run, t.step, t.bin, sum(t.count)::double as count, sum(t.total) as total, {_SENT}
        from raw.histogram_part t {JOIN} where {VALID} and t.name = '{name}' group by s.run_id, t.step, t.bin
    )"""


def _num_top(share: float) -> str:
    # The same count as the probe takes: at least one, halves to even. A literal without ::double would be a decimal.
    return f"greatest(1.0, round_even({share}::double * n, 0))"


def _taken(share: float, before: str) -> str:
    """How many tokens of a row are in the top ``share``, where ``before`` tokens are above the row."""
    return f"greatest(0.0, least(count, {_num_top(share)} - ({before})))"


# The mean of the bin in which the tokens up to the quantile end. Not the bin's middle, which is nearer in the worst
# case but may be a value that no token can have: above ln V where a policy is nearly uniform.
_MEAN = "total / count"
_ENTROPY_SHAPE = f"""
select run, step, {_COUNTED}, {
    ", ".join(
        f"max({_MEAN}) filter (where upto >= {q}::double * n - 1e-9 and upto - count < {q}::double * n - 1e-9) "
        f"as entropy_{suffix}"
        for suffix, q in QUANTILES.items()
    )
},
    sum({_taken(TOP_SHARE, "n - upto")} * total / count) / max({_num_top(TOP_SHARE)}) as entropy_top20
from ({_bins("entropy")}) where count > 0 group by run, step
"""
_SCOPE_SHAPE = f"""
select run, step, {_COUNTED},
    sum({_taken(_SCOPE_SHARE, "n - upto")} * total / count) / nullif(sum(total), 0) as scope_mass_top5
from ({_bins("scope_score")}) where count > 0 group by run, step
"""

_CELL_TOTALS = "over (partition by run, step)"
_COV_TOPS = f"""
select run, step, {_COUNTED}, {
    ", ".join(
        f"sum({_taken(share, 'upto - count')} * cov) / max({_num_top(share)}) as cov_top_{suffix}"
        for suffix, share in COVARIANCE_TOPS.items()
    )
}
from (
    select *, sum(count) over (
            partition by run, step order by cov desc, stream, cell rows unbounded preceding
        ) as upto
    from (
        select *, (sum_product - sum_advantage * mean_logp - sum_logp * mean_advantage) / count
            + mean_logp * mean_advantage as cov
        from (
            select *, sum(count) {_CELL_TOTALS} as n, sum(sum_logp) {_CELL_TOTALS} / n as mean_logp,
                sum(sum_advantage) {_CELL_TOTALS} / n as mean_advantage
            from (
                select s.run_id as run, t.step, t.stream, t.cell, t.count::double as count, t.sum_logp,
                    t.sum_advantage, t.sum_product, 1::hugeint << least(s.rank, 126) as ranks, s.world_size
                from raw.cell_part t {JOIN} where {VALID}
            )
        )
    )
) group by run, step
"""

RUN_DEFINITIONS = """
select run, run_id, try_cast(settings->>'group_size' as integer) as group_size,
    coalesce(try_cast(settings->>'correct_at' as double), 1.0) as correct_at
from raw.run
"""
"""The body of ``raw.run_definitions``: what a run's settings say of its groups."""

IS_WHOLE = "prompt is not null and num_responses >= greatest(2, coalesce(group_size, 2))"
"""Whether all responses of a prompt's group are there: two at least, where the run does not say how many."""
NO_SPREAD = "1e-6 * greatest(1.0, abs({mean}))"
"""Log-probs of equal responses differ by the rounding of float32; a spread of that size is none."""


def spread(value: str, over: str = "") -> str:
    """The population standard deviation of ``value``, NaN where one is not finite.

    DuckDB's own raises there, and one run's NaN would take the answer from every run that is asked for with it.
    """
    is_finite = f"coalesce(isfinite({value}), true)"
    return (
        f"case when bool_and({is_finite}) {over} then stddev_pop(case when {is_finite} then {value} end) {over} "
        "else 'nan'::double end"
    )


PROMPT_GROUP = f"""
select s.run_id as run, t.step, t.prompt, any_value(d.group_size) as group_size, {_SENT},
    count(*) as num_responses, count(t.advantage) as num_advantages, count(t.reward) as num_rewards,
    count(*) filter (where t.reward >= d.correct_at) as num_right, avg(t.reward) as reward_mean,
    avg(exp(t.mean_logp::double)) filter (where t.reward >= d.correct_at) as prob_right,
    avg(exp(t.mean_logp::double)) filter (where t.reward < d.correct_at) as prob_wrong,
    covar_pop(exp(t.mean_logp::double) * t.advantage, t.mean_logp) as cov_weighted,
    covar_pop(t.advantage, t.mean_logp) as cov,
    avg(t.mean_logp) as mean_logp, {spread("t.mean_logp")} as std_logp,
    count(*) filter (where t.advantage > 0) as num_pos, count(*) filter (where t.advantage < 0) as num_neg,
    sum(t.mean_logp::double) filter (where t.advantage > 0) as logp_pos,
    sum(t.mean_logp::double) filter (where t.advantage < 0) as logp_neg,
    count(t.completion) as num_completions, count(distinct t.completion) as num_different,
    sum(t.mean_entropy::double * t.length) / nullif(sum(t.length), 0) as mean_entropy, avg(t.length) as length
from raw.sequence_row t {JOIN} join raw.run_definitions d on d.run = t.run where {VALID}
group by s.run_id, t.step, t.prompt
"""
"""The body of ``raw.prompt_group``: the responses of all ranks to a prompt. What is not read is not computed."""


def _mean_z(sign: str) -> str:
    # The mean over responses of (mean - x) / std, with std 0 giving 0; x and A of a group in three sums.
    has_spread = f"std_logp > {NO_SPREAD.format(mean='mean_logp')}"
    return (
        f"sum(case when {has_spread} then (num_{sign} * mean_logp - logp_{sign}) / std_logp else 0.0 end) "
        f"filter (where is_whole and num_{sign} > 0) / nullif(sum(num_{sign}) filter (where is_whole), 0)"
    )


_GROUPS = f"""
select run, step, {_COUNTED},
    avg(cov_weighted) filter (where is_whole and num_advantages = num_responses) as cov_group,
    {_mean_z("pos")} as ln_ppl_z_pos, {_mean_z("neg")} as ln_ppl_z_neg,
    avg(num_different / num_responses) filter (where is_whole and num_completions = num_responses)
        as unique_completions,
    avg(1 + sqrt(share_right * (1 - share_right)) * (prob_right - prob_wrong))
        filter (where is_whole and num_rewards = num_responses and share_right > 0 and share_right < 1) as z_bound
from (select *, {IS_WHOLE} as is_whole, num_right / num_responses as share_right from raw.prompt_group)
group by run, step
"""

_MAJORITY = f"""
select v.run, v.step, num_parts, complete, {", ".join(f"maj_at_{k}" for k in MAJORITY_AT)}
from (
    select run, step, {", ".join(f"avg(value) filter (where k = {k}) as maj_at_{k}" for k in MAJORITY_AT)}
    from (
        select run, step, prompt, k, avg(value) as value
        from (
            -- Of the answers that were given most often, the share that is right: a block of k votes is one value.
            select run, step, prompt, k, block, arg_max(num_right / num_votes, votes) as value
            from (
                select run, step, prompt, k, block, votes, sum(num_right) as num_right, sum(votes) as num_votes
                from (
                    select run, step, prompt, k, (place - 1) // k as block, answer, alone, count(*) as votes,
                        count(*) filter (where is_right) as num_right
                    from raw.placed_answer
                    join (values {", ".join(f"({k})" for k in MAJORITY_AT)}) as blocks (k)
                        on (place - 1) // k < num_responses // k
                    where {IS_WHOLE} and num_rewards = num_responses group by all
                ) group by run, step, prompt, k, block, votes
            ) group by run, step, prompt, k, block
        ) group by run, step, prompt, k
    ) group by run, step
) v join (
    select run, step, {_COUNTED} from (
        select s.run_id as run, t.step, {_SENT} from raw.sequence_row t {JOIN} where {VALID} group by s.run_id, t.step
    ) group by run, step
) c on c.run = v.run and c.step = v.step
"""
PLACED_ANSWER = f"""
select s.run_id as run, t.step, t.prompt, t.answer, d.group_size,
    row_number() over (partition by s.run_id, t.step, t.prompt order by s.rank, t.seq) as place,
    case when t.answer is null then place end as alone,
    t.answer is not null and t.reward >= d.correct_at as is_right,
    count(*) over (partition by s.run_id, t.step, t.prompt) as num_responses,
    count(t.reward) over (partition by s.run_id, t.step, t.prompt) as num_rewards
from raw.sequence_row t {JOIN} join raw.run_definitions d on d.run = t.run
where {VALID} and t.run in (select run from raw.sequence_row where answer is not null)
"""
"""The body of ``raw.placed_answer``: a response's answer and its place in the prompt's group. A response without an
answer is an answer of its own, and a wrong one."""

FAMILIES = (
    Family(
        "entropy_shape",
        (*(f"entropy_{suffix}" for suffix in QUANTILES), "entropy_top20"),
        _ENTROPY_SHAPE,
        "histogram_part",
        "name = 'entropy'",
    ),
    Family("scope_shape", ("scope_mass_top5",), _SCOPE_SHAPE, "histogram_part", "name = 'scope_score'"),
    Family("cov_tops", tuple(f"cov_top_{suffix}" for suffix in COVARIANCE_TOPS), _COV_TOPS, "cell_part", "true"),
    Family(
        "group_signals",
        ("cov_group", "ln_ppl_z_pos", "ln_ppl_z_neg", "unique_completions", "z_bound"),
        _GROUPS,
        "sequence_row",
        "prompt is not null",
    ),
    Family(
        "majority",
        tuple(f"maj_at_{k}" for k in MAJORITY_AT),
        _MAJORITY,
        "sequence_row",
        "prompt is not null and answer is not null",
    ),
)
"""Which view makes which signals."""

PROFILE = f"""
select s.run_id as run, t.step, t.name, t.bin, t.bin / {NUM_POSITIONS} as low, (t.bin + 1) / {NUM_POSITIONS} as high,
    sum(t.count)::bigint as count, sum(t.total) as total, sum(t.total) / nullif(sum(t.count), 0) as mean
from raw.profile_part t {JOIN} where {VALID} group by s.run_id, t.step, t.name, t.bin
"""

STEP_METRIC = "\nunion all by name\n".join(
    [
        "select run, step, name, value, se, num_parts, complete, received from raw.core_metric",
        *(
            f"select run, step, '{name}' as name, {name} as value, null::double as se, num_parts, complete, "
            f"null::timestamp as received from raw.{family.view} where {name} is not null"
            for family in FAMILIES
            for name in family.signals
        ),
    ]
)


def metrics_of(names: Iterable[str], where: str) -> str:
    """Rows of ``step_metric`` for ``names``, each family read once however many of its signals are asked for.

    Args:
        names: all that is asked for, known to this vocabulary or not.
        where: condition on run and step, repeated in each branch so that it reaches the tables.

    Returns:
        A SELECT with the columns run, step, name, value, se, received; ``{{names}}`` stands where the condition on the
        names of ``raw.core_metric`` has to be filled in.
    """
    asked = set(names)
    branches = [
        f"select run, step, name, value, se, received from raw.core_metric where {where} and name in ({{names}})"
    ]
    for family in FAMILIES:
        found = [name for name in family.signals if name in asked]
        if found:
            columns, literals = ", ".join(found), ", ".join(f"'{name}'" for name in found)
            branches.append(
                f"select run, step, unnest([{literals}]) as name, unnest([{columns}]) as value, null::double as se, "
                f"null::timestamp as received from raw.{family.view} where {where}"
            )
    return "\nunion all by name\n".join(branches)


VIEWS = {"run_definitions": RUN_DEFINITIONS, "prompt_group": PROMPT_GROUP, "placed_answer": PLACED_ANSWER} | {
    family.view: family.sql for family in FAMILIES
}
"""Views of ``raw`` -> their bodies, in the order in which they build on each other."""
