"""What a person's SQL can reach: the public views, and nothing else. One line an attack."""

import pytest

from entrostat.storage.sql_guard import Guard
from entrostat.storage.store import Store
from entrostat.storage.views import PUBLIC_VIEWS
from entrostat.wire.errors import QueryError, QueryForbidden

ATTACKS = [
    # other statements
    "insert into run values (1)",
    "update run set notes = ''",
    "delete from token",
    "drop view token",
    "create table t (a int)",
    "create view v as select 1",
    "create macro f(x) as x",
    "alter table run add column a int",
    "explain select 1",
    "explain analyze delete from raw.token_row",
    "copy run to 'x.csv'",
    "copy (select 1) to '/dev/stdout'",
    "copy raw.run from 'x.csv'",
    "export database 'x'",
    "import database 'x'",
    "attach 'x.duckdb'",
    "attach ':memory:' as m",
    "detach m",
    "use raw",
    "pragma database_list",
    "pragma table_info('run')",
    "call pragma_version()",
    "call enable_logging(storage='file')",
    "set memory_limit = '1TB'",
    "set variable a = 1",
    "reset memory_limit",
    "load json",
    "install httpfs",
    "begin",
    "commit",
    "rollback",
    "checkpoint",
    "vacuum",
    "analyze",
    "prepare p as select 1",
    "execute p",
    "deallocate p",
    "show tables",
    "describe run",
    "summarize run",
    "from (describe run)",
    "from (show tables)",
    "from run, (show tables)",
    "from run join (describe run) on true",
    # several
    "select 1; select 2",
    "select 1; drop view token",
    ";",
    "",
    # other tables
    "from raw.run",
    "from raw.token_row",
    "select * from main.raw.run",
    "from raw.merged_metric",
    "from raw.meta",
    "from test.raw.run",
    "from information_schema.tables",
    "from duckdb_tables",
    "from pg_catalog.pg_class",
    "from sqlite_master",
    "from 'x.csv'",
    "from 'https://example.org/x.parquet'",
    "from '/etc/passwd'",
    "select (select count(*) from raw.run)",
    "select 1 where exists (from raw.run)",
    "select * from run limit (select count(*) from raw.run)",
    "select 1 order by (select max(run) from raw.run)",
    "select * from run join raw.run using (run)",
    "with a as (from raw.run) from a",
    "with recursive a as (select 1 union all from raw.run) from a",
    "select * from run pivot (sum(step) for name in (select name from raw.run))",
    "select count(*) over (order by (select 1 from raw.run)) from run",
    "from run where run in (from raw.run)",
    "select list_transform([1], lambda x: (select max(run) from raw.run))",
    "from run union all from raw.run",
    "from (values ((select max(run) from raw.run)))",
    "from run tablesample 10% where (from raw.run) is null",
    "select {'a': (select max(run) from raw.run)}",
    "from run at (version => 1)",
    "from range((select max(run) from raw.run))",
    "select max(run) filter (where exists (from raw.run)) from run",
    # a name of ours for something else, scopes that leak
    "with token as (select 1) from token",
    "with Token as (select 1) from TOKEN",
    "with a as (with b as (select 1) from b) from b",
    "select (with x as (select 1) select * from x), (select * from x)",
    "with a as (from b), b as (select 1) from a",
    # table functions
    "from read_csv('/etc/passwd')",
    "from read_text('/etc/passwd')",
    "from read_blob('/etc/passwd')",
    "from glob('/*')",
    "from read_parquet('x')",
    "from read_json('x')",
    "from parquet_metadata('x')",
    "from sniff_csv('x')",
    "from duckdb_settings()",
    "from duckdb_secrets()",
    "from duckdb_logs()",
    "from duckdb_functions()",
    "from duckdb_tables()",
    "from pragma_storage_info('run')",
    "from query('from raw.run')",
    "from query_table('raw.run')",
    "from checkpoint()",
    "from test_all_types()",
    "from which_secret('a', 's3')",
    "from arrow_scan(1, 2, 3)",
    "from seq_scan('raw.run')",
    "from repeat('a', 1000000000)",
    "from json_execute_serialized_sql('x')",
    "from sql_auto_complete('sel')",
    # functions
    "select getenv('HOME')",
    "select current_setting('memory_limit')",
    "select nextval('s')",
    "select currval('s')",
    "select write_log('x')",
    "select setseed(0.5)",
    "select random()",
    "select gen_random_uuid()",
    "select getvariable('a')",
    "select txid_current()",
    "select version()",
    "select pg_get_viewdef(1)",
    "select json_serialize_sql('select 1')",
    "select json_execute_serialized_sql('x')",
    "select repeat('x', 1000000000)",
    "select lpad('x', 2000000000, 'y')",
    "select levenshtein(run, run) from run",
    "select printf('%1000000000d', 1)",
    "select current_query()",
    "select sleep_ms(10000)",
    "select error('x')",
    "select system.main.write_log('x')",
    "select no_such_function(1)",
    "select has_table_privilege('run', 'select')",
    "select quantile_cont(value, list_transform(range(100000), lambda i: i / 1e5)) from step_metric",
    "select value.write_log() from step_metric",
    "select in_search_path('a', 'b')",
    "select 'run'.nextval()",
    "select list_aggregate([1], 'nextval')(1)",
    "select ?",
    "select $1",
    "select $a",
    "select #1 from run",
    "select [x for x in (from raw.run)]",
    "select current_schemas(true)",
    "select get_current_user()",
]

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


@pytest.mark.parametrize("sql", ATTACKS)
def test_refused(guard, sql):
    with pytest.raises(QueryError):
        guard.check(sql)


@pytest.mark.parametrize("sql", ORDINARY)
def test_ordinary_analysis_passes_and_runs(empty_store, sql):
    empty_store.query(sql, 10)


def test_a_refusal_says_what_there_is(guard):
    with pytest.raises(QueryForbidden, match=r"raw\.run.*token"):
        guard.check("from raw.run")
    with pytest.raises(QueryForbidden, match="only SELECT"):
        guard.check("drop view run")


def test_long_and_deep_statements_are_refused_before_they_are_parsed(guard):
    with pytest.raises(QueryForbidden, match="characters"):
        guard.check("select 1 --" + "x" * 200_000)
    with pytest.raises(QueryForbidden, match="deep"):
        guard.check("select " + "(" * 300 + "1" + ")" * 300)
    with pytest.raises(QueryError):
        guard.check("select " + "not " * 20_000 + "true")
