"""What a person's SQL can reach: the public views, and nothing else."""

import pytest
from support.attacks import REFUSED

from entrostat.storage.sql_guard import Guard
from entrostat.storage.store import Store
from entrostat.storage.views import PUBLIC_VIEWS
from entrostat.wire.errors import QueryError, QueryForbidden

ORDINARY = [
    "select * from run",
    "select run, step, entropy_mean from step where run = 'r' order by step desc limit 20",
    "select run, avg(value) from step_metric where name = 'entropy_mean' group by run having count(*) > 0",
    "from step_metric where name in ('entropy_mean', 'd_entropy') and step between 1 and 5",
    "with l as (select run, max(step) as step from step group by run) select s.* from step s join l using (run, step)",
    "select run, step, value - lag(value, 1) over (partition by run order by step) as change from step_metric "
    "where name = 'entropy_mean' qualify row_number() over (partition by run order by step desc) <= 10",
    "select a.step, a.value as entropy, b.value as reward from step_metric a join step_metric b on a.run = b.run "
    "and a.step = b.step where a.name = 'entropy_mean' and b.name = 'reward_mean'",
    "select step, quantile_cont(entropy, [0.1, 0.5, 0.9]) from token group by step",
    "select step, median(entropy), mad(entropy), approx_quantile(entropy, 0.9) from token group by step",
    "select token_id, count(*), sum(entropy / prob) / sum(1 / prob) from token group by 1 order by 2 desc limit 5",
    "select list_transform(top_logps, lambda x: exp(x)) as p, list_filter(top_logps, lambda x: x > -1) from token",
    "select s.prompt, t.pos from token t join sequence s using (run, step, process_rank, seq) where s.reward > 0",
    "select * from step_metric pivot (max(value) for name in ('entropy_mean', 'reward_mean'))",
    "pivot step_metric on name in ('entropy_mean') using max(value) group by run, step",
    "select bin, low, high, sum(count) from histogram where name = 'entropy' group by all order by bin",
    "with recursive n as (select 1 as i union all select i + 1 from n where i < 5) select i from n",
    "select i, count(step) from range(10) r(i) left join step on step.step = r.i group by i",
    "select unnest([1, 2, 3]) as x, {'a': 1}.a, [1, 2, 3][1:2], 'a' || 'b'",
    "select config->>'learning_rate', json_extract(tags, '$.model') from run",
    "select case when value > 1 then 'a' else 'b' end, coalesce(se, 0), cast(step as double), se::int from step_metric",
    "select * exclude (notes) replace (upper(host) as host) from run where created > now() - interval 1 day",
    "select corr(entropy_mean, reward_mean), regr_slope(reward_mean, exp(entropy_mean)), stddev(ppl) from step",
    "select columns('entropy_.*') from step",
    "(select run from run) union all (select run from stream) except select 'x' intersect select 'y'",
    "select exists (select 1 from event where kind = 'warning'), (select max(step) from step)",
    "select date_trunc('minute', time), count(*) from event group by 1 order by 1",
    "from main.run select run limit 1",
    "select step, h from (select step, time_bucket(interval 1 hour, received) as h from step_metric) order by all",
    "select arg_max(step, value), first(name order by step), string_agg(distinct name, ',') from step_metric",
    "with a as (select 1 as x), b as (select x + 1 as y from a) select * from a, b",
    "values (1), (2)",
    "select current_date, greatest(1, 2), isnan(value), value is null, -value % 2, not complete from step_metric",
    "select name, count(*) from step_metric where name like 'entropy_%' and name not ilike '%pos%' group by all",
    "from 'run'",
    "select range(10), generate_series(1, 10, 2), [x * 2 for x in range(5) if x > 1], list_aggregate([1, 2], 'sum')",
    "select max(value, 3), arg_max(step, value, 3), approx_top_k(name, 5) from step_metric group by run",
    "select list_sum(list_transform(list_zip(top_ids, top_logps), lambda t: t[1] * exp(t[2]))) from token",
    "select count(*) from generate_series(1, 100000) t(i)",
    "select d, count(*) from generate_series(timestamp '2026-01-01', now()::timestamp, interval 1 day) t(d) group by d",
    "select run, step, ppl - avg(ppl) over (partition by run order by step rows 20 preceding) from step",
    "select run, json_keys(config), json_extract_string(config, '$.lr'), config::json->'$.a' from run",
    "select prompt, avg(reward), quantile_cont(mean_entropy, [0.25, 0.75]) from sequence group by prompt",
    "select name, histogram(round(value, 1)) from step_metric where step < 10 group by name",
    "select run, version, document from desired_state union by name select name, version, document from rule",
    "select kind, count(*), min(time), regexp_extract(any_value(message), 'step (\\d+)', 1) from event group by kind",
    "unpivot (select run, step, entropy_mean, ppl from step) on entropy_mean, ppl into name signal value v",
    "select distinct on (run) run, step, ppl from step order by run, step desc",
    "select run, grouping(run), count(*) from step group by rollup (run)",
    "select s.step, t.token_id from step s, lateral (select token_id from token t where t.step = s.step limit 1) t",
    "select strftime(created, '%Y-%m-%d'), replace(host, '.', '_'), split_part(run, '-', 1) from run",
    "select step, unnest(top_ids) as id, unnest(top_logps) as logp from token where step = 1 limit 10",
    "select * from step tablesample 10 percent (bernoulli)",
    "select r.run, s.host from run r asof join stream s on r.run = s.run and r.created >= s.opened",
]


@pytest.fixture(scope="module")
def guard():
    made = Guard(PUBLIC_VIEWS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def empty_store():
    with Store("duckdb::memory:") as opened:
        yield opened


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(guard, kind):
    passed = []
    for sql in REFUSED[kind]:
        try:
            guard.check(sql)
        except QueryError:
            continue
        passed.append(sql[:200])

    assert passed == []


@pytest.mark.parametrize("sql", ORDINARY)
def test_ordinary_analysis_passes_and_runs(empty_store, sql):
    empty_store.query(sql, 10)


def test_a_refusal_says_what_there_is(guard):
    with pytest.raises(QueryForbidden, match=r"raw\.run.*token"):
        guard.check("from raw.run")
    with pytest.raises(QueryForbidden, match="only SELECT"):
        guard.check("drop view run")


def test_a_refusal_of_a_cost_says_what_to_write_instead(guard):
    for sql, advice in {
        "select range(1000000000)": "FROM range",
        "select name glob '*a*' from step_metric": "the function ~~~ is not taken",
        "select name like '%_a%_a%_a%_a' from step_metric": "regexp_matches",
        "select list_transform([1], lambda x: list_sum([x]))": "unnest",
        "select max(value, 5000) from step_metric": "at most 1000",
        "select 1::variant": "JSON",
        "select user": "the function user",
        "select 1 --" + "x" * 200_000: "characters",
        "select " + "(" * 300 + "1" + ")" * 300: "deep",
        "select " + "case when true then " * 900 + "1" + " end" * 900: "WITH",
    }.items():
        with pytest.raises(QueryForbidden, match=advice):
            guard.check(sql)
