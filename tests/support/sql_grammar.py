"""Statements made by a grammar: permitted and forbidden parts in every place of a SELECT where a part can stand."""

from hypothesis import strategies as st

VIEWS = ("run", "step", "step_metric", "token", "event")
COLUMNS = ("run", "step", "name", "value", "ids")
FORBIDDEN_TABLES = (
    "raw.run", '"raw"."run"', "RAW . run", "memory.raw.run", "main.secret", "secret", "duckdb_tables",
    "information_schema.tables", "'{canary}'", "read_csv('{canary}')", "read_text('{canary}')", "glob('{canary}*')",
    "query('from raw.run')", "query_table('raw.run')", "duckdb_tables()", "pragma_table_info('raw.run')",
    "duckdb_variables()", "nowhere",
)  # fmt: skip
FORBIDDEN_CALLS = (
    "getvariable('canary')", "nextval('raw.numbers')", "current_setting('memory_limit')", "current_query()",
    "'canary'.getvariable()", "list_aggregate(['a'], 'write_log')", "json_serialize_sql('from raw.run')", "random()",
    "main.nextval('raw.numbers')", "current_user", "error('x')",
)  # fmt: skip
NAMES = st.sampled_from(["a", "b", "run", "step", "raw", "secret", '"A"'])
ALIASES = st.sampled_from(["x", "y", "z"])
_CONSTANTS = st.sampled_from(["1", "'t'", "null", "true", "0.5", "[1, 2]", "{'k': 1}", "date '2026-01-01'"])
_STARS = ("*, {}", "* exclude (run), {}", "* replace ({} as run)", "columns('r.*'), {}", "count(*), max({})")
_SET_OPERATIONS = ("union", "union all", "except", "intersect")
_COLUMN_REFS = st.sampled_from([*COLUMNS * 4, "x.run", "run.run", "i"])


def _forbidden(draw, parts):
    return draw(st.sampled_from(parts)) if draw(st.integers(0, 24)) == 0 else None


@st.composite
def expressions(draw, depth=2):
    if found := _forbidden(draw, FORBIDDEN_CALLS):
        return found
    if depth == 0:
        return draw(_CONSTANTS | _COLUMN_REFS)

    def inner():
        return draw(expressions(depth - 1))

    def query():
        return draw(selects(depth - 1, is_single=True))

    def text():
        return f"({inner()})::varchar"

    shape = draw(st.integers(0, 20))
    return {
        0: lambda: draw(_CONSTANTS),
        1: lambda: draw(_COLUMN_REFS),
        2: lambda: f"({query()})",
        3: lambda: f"concat({inner()}, {inner()})",
        4: lambda: f"case when {inner()} is null then {text()} else {text()} end",
        5: lambda: f"exists ({query()})",
        6: lambda: f"{text()} in (select z.c::varchar from ({query()}) z(c))",
        7: lambda: f"{text()} = any (select z.c::varchar from ({query()}) z(c))",
        8: lambda: text(),
        9: lambda: f"[{text()}, {text()}]",
        10: lambda: f"{{'k': {inner()}}}",
        11: lambda: f"map {{'k': {inner()}}}",
        12: lambda: f"list_transform([1, 2], lambda v: {inner()})",
        13: lambda: f"[v for v in [{text()}] if {inner()} is null]",
        14: lambda: f"array({query()})",
        15: lambda: f"max({inner()}) filter (where {inner()} is not null) over ()",
        16: lambda: f"string_agg({text()}, ',' order by {inner()}) over ()",
        17: lambda: f"first_value({inner()}) over (partition by {inner()} order by {inner()})",
        18: lambda: f"coalesce({text()}, {text()})",
        19: lambda: f"{text()} between {text()} and {text()}",
        20: lambda: f"{text()} like 't%'",
    }[shape]()


@st.composite
def sources(draw, depth=2):
    if found := _forbidden(draw, FORBIDDEN_TABLES):
        return found
    if depth == 0:
        return draw(st.sampled_from(VIEWS) | NAMES)

    def inner():
        return draw(sources(depth - 1))

    def query():
        return draw(selects(depth - 1))

    def value():
        return draw(expressions(depth - 1))

    alias = draw(ALIASES)
    shape = draw(st.integers(0, 20))
    return {
        0: lambda: draw(st.sampled_from(VIEWS)),
        1: lambda: f"main.{draw(st.sampled_from(VIEWS))}",
        2: lambda: draw(NAMES),
        3: lambda: f"({query()}) {alias}",
        4: lambda: f"{inner()}, {inner()}",
        5: lambda: f"{inner()} join {inner()} on {value()} is null",
        6: lambda: f"{inner()} natural left join {inner()}",
        7: lambda: f"{inner()} positional join {inner()}",
        8: lambda: f"{inner()}, lateral ({query()}) {alias}",
        9: lambda: f"(values ({value()}), ({value()})) {alias}(run)",
        10: lambda: f"range(3) {alias}(i)",
        11: lambda: f"unnest({value()}) {alias}(i)",
        12: lambda: f"{draw(st.sampled_from(VIEWS))} pivot (max({value()}) for name in ('t'))",
        13: lambda: f"{draw(st.sampled_from(VIEWS))} tablesample 50 percent (bernoulli)",
    }.get(shape, lambda: draw(st.sampled_from(VIEWS)))()


@st.composite
def selects(draw, depth=2, is_single=False):
    def value():
        return draw(expressions(max(depth - 1, 0)))

    def query():
        return draw(selects(max(depth - 1, 0), is_single=True))

    def sometimes(make, one_in=6):
        return make() if draw(st.integers(1, one_in)) == 1 else ""

    with_ = sometimes(
        lambda: f"with {draw(st.sampled_from(['', 'recursive ']))}{draw(NAMES)} as ({query()}), "
        f"{draw(NAMES)} as {draw(st.sampled_from(['', 'materialized ']))}({query()}) ", 4 if depth else 10**6
    )  # fmt: skip
    source = draw(sources(max(depth - 1, 0))) if draw(st.integers(0, 9)) else "(select 't' as run, 1 as step)"
    picked = draw(st.sampled_from(_STARS)).format(value()) if not is_single and draw(st.booleans()) else value()
    parts = [
        sometimes(lambda: f" where {value()} is not null", 3),
        sometimes(lambda: " group by all", 8),
        sometimes(lambda: f" qualify row_number() over (order by {value()}) < 3", 8),
        sometimes(lambda: f" {draw(st.sampled_from(_SET_OPERATIONS))} {query()}", 8) if is_single else "",
        sometimes(lambda: f" order by {value()}", 8),
        sometimes(lambda: f" limit {draw(st.sampled_from(['2', '50%']))}"),
        sometimes(lambda: f" offset ({query()})", 20),
    ]
    return f"{with_}select {sometimes(lambda: f'distinct on ({value()}) ')}{picked} from {source}{''.join(parts)}"
