"""Adding the parts of ranks up, in SQL: the laws of ``wire/mergeable.py``; a test holds the two to each other."""

VALID = "(s.valid_to_step is null or t.step is null or t.step <= s.valid_to_step)"
"""Rows that a resumed session superseded are kept in the tables and hidden by this."""
# Both keys are in the condition so that the filter on a run's name reaches the row groups by either.
JOIN = "join raw.stream s on t.stream = s.stream and t.run = s.run"

# A rank's own parts of a `last`: what it said last. Ranks first, then batches from the newest.
_LAST_KEY = "(s.rank::bigint << 48) - (t.batch_seq::bigint << 16) - least(t.line, 65535)"
_ADD_STD = """lambda a, b: case when a[1] + b[1] = 0 then [0.0, 0.0, 0.0]::double[] else [
    a[1] + b[1],
    a[2] + (b[2] - a[2]) * b[1] / (a[1] + b[1]),
    a[3] + b[3] + (b[2] - a[2]) ** 2 * a[1] * b[1] / (a[1] + b[1])]::double[] end"""
_ADD_COMOMENT = """lambda a, b: case when a[1] + b[1] = 0 then [0.0, 0.0, 0.0, 0.0]::double[] else [
    a[1] + b[1],
    a[2] + (b[2] - a[2]) * (b[1] / (a[1] + b[1])),
    a[3] + (b[3] - a[3]) * (b[1] / (a[1] + b[1])),
    a[4] + b[4] + (b[2] - a[2]) * (b[3] - a[3]) * a[1] * (b[1] / (a[1] + b[1]))]::double[] end"""

RANKS = "bit_or(1::hugeint << least(s.rank, 126))"
"""Who sent something: a bit a rank, because counting distinct streams took a third of the whole query. Ranks from 126
up share the last bit."""
_COMPLETE = f"bit_count({RANKS}) >= least(max(s.world_size), 127) and count(*) >= max(s.world_size)"
_FROM = f"from raw.step_part t {JOIN} where {VALID}"

MERGED_METRIC = f"""
select run, step, name,
    case merge when 'sum' then sum_1 when 'max' then largest else case when sum_1 != 0 then sum_2 / sum_1 end end
        as value,
    case when merge = 'estimate' and sum_1 != 0 then sqrt(greatest(sum_3, 0.0)) / sum_1 end as se,
    num_parts, complete, received
from (
    select s.run_id as run, t.step, t.name, t.merge, count(*) as num_parts, {_COMPLETE} as complete,
        max(t.received) as received,
        sum(t.state[1]) as sum_1, sum(t.state[2]) as sum_2, sum(t.state[3]) as sum_3, max(t.state[1]) as largest
    {_FROM} and t.merge in ('mean', 'estimate', 'sum', 'max')
    group by s.run_id, t.step, t.name, t.merge
)
union all by name
select s.run_id as run, t.step, t.name, arg_min(t.state[1], {_LAST_KEY}) as value, null::double as se,
    count(*) as num_parts, {_COMPLETE} as complete, max(t.received) as received
{_FROM} and t.merge = 'last'
group by s.run_id, t.step, t.name
union all by name
select run, step, name,
    case merge
        when 'std' then case when state[1] > 1 then sqrt(greatest(state[3], 0.0) / (state[1] - 1)) end
        else case when state[1] != 0 then state[4] / state[1] end
    end as value,
    null::double as se, num_parts, complete, received
from (
    select run, step, name, merge, num_parts, complete, received,
        case merge when 'std' then list_reduce(states, {_ADD_STD})
            else list_reduce(states, {_ADD_COMOMENT}) end as state
    from (
        select s.run_id as run, t.step, t.name, t.merge, count(*) as num_parts, {_COMPLETE} as complete,
            max(t.received) as received, list(t.state order by s.rank, t.batch_seq, t.line) as states
        {_FROM} and t.merge in ('std', 'comoment')
        group by s.run_id, t.step, t.name, t.merge
    )
)
"""
"""The body of ``raw.merged_metric``: a view of its own rather than a common table expression, because filters on the
run and the name reach through a view into the table, and not always into an expression used twice. A branch for each
kind of rule: ordered lists for the few pairwise rules made all the others three times slower."""

CORE_METRIC = """
select run, step, name, value, se, num_parts, complete, received from raw.merged_metric
union all by name
select run, step, 'd_entropy' as name, later - value as value, null::double as se, num_parts, complete, received
from (
    select run, step, value, num_parts, complete, received, lead(value) over (partition by run order by step) as later
    from raw.merged_metric where name = 'entropy_mean'
) where later is not null and value is not null
union all by name
select m.run, m.step, 'd_collapse' as name, 1 - m.value / b.rate as value, null::double as se,
    m.num_parts, m.complete, m.received
from raw.merged_metric m join raw.run r on r.run_id = m.run join raw.baseline b on b.run = r.run
where m.name = 'forking_rate'
"""
"""The body of ``raw.core_metric``: all that is made from parts of signals alone."""

STEP_RANKS = f"""
select run, step, count(*) as num_ranks, max(world_size) as world_size, num_ranks >= max(world_size) as is_complete
from (
    select s.run_id as run, t.step, s.rank, max(s.world_size) as world_size
    {_FROM} and s.producer = 'trainer' group by s.run_id, t.step, s.rank
) group by run, step
"""
"""The body of ``raw.step_ranks``: who of the trainer's session has sent something of a step."""
