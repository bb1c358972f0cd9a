"""The views people query: stable names, a comment on every column. They add up the ranks at read.

The laws of merging are those of ``wire/mergeable.py``; a test holds the two to each other.
Rows that a resumed session superseded are kept in the tables and hidden here.
"""

from dataclasses import dataclass
from typing import Any

import duckdb

from entrostat.storage import schema
from entrostat.wire.signals import SIGNALS
from entrostat.wire.tables import SEQUENCE, TOKEN, meaning_of


@dataclass(frozen=True, slots=True)
class View:
    """A view: its name, what a row of it is, its columns with their meanings, and its query."""

    name: str
    comment: str
    columns: dict[str, str]
    sql: str


FORKING_RATE = "forking_rate"
"""Share of tokens at or above the baseline's threshold. The writer keeps it as parts, so that no view that is polled
has to read histograms; ``d_collapse`` is made of it."""

_RUN = {"run": "Name of the run."}
_STEP = {"step": "Optimizer step, as the trainer counts."}
_RANK = {"process_rank": "Rank of the process that sent it.", "producer": "trainer, rollout, or a user's own name."}
_VALID = "(s.valid_to_step is null or t.step is null or t.step <= s.valid_to_step)"
# Both keys are in the condition so that the filter on a run's name reaches the row groups by either.
_JOIN = "join raw.stream s on t.stream = s.stream and t.run = s.run"

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

# A bit a rank, because counting distinct streams took a third of the whole query. Ranks from 126 up share the last
# bit; there, the number of parts decides.
_COMPLETE = """bit_count(bit_or(1::hugeint << least(s.rank, 126))) >= least(max(s.world_size), 127)
        and count(*) >= max(s.world_size)"""
_FROM = f"from raw.step_part t {_JOIN} where {_VALID}"

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

_STEP_METRIC = """
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

_RUN_VIEW = """
select r.run_id as run, r.created, b.last_seen, b.last_step, r.trainer, r.host, r.git_commit, r.world_size,
    r.tags, r.notes, r.config, r.versions, r.settings
from raw.run r left join (
    select t.run, max(t.received) as last_seen,
        max(least(t.last_step, coalesce(s.valid_to_step, t.last_step))) as last_step
    from raw.batch t join raw.stream s on t.stream = s.stream
    group by t.run
) b on b.run = r.run
"""

_STREAM_COLUMNS = (
    "stream_id", "producer", "session_id", "world_size", "resume_step", "valid_to_step", "opened", "started",
    "host", "pid", "trainer", "git_commit", "versions", "config", "settings",
)  # fmt: skip


def _meanings(table: schema.Table, *names: str) -> dict[str, str]:
    by_name = {c.name: c.meaning for c in table.columns}
    return {name: by_name[name] for name in names or by_name}


def _step_view_columns() -> dict[str, str]:
    return {s.name: f"{s.meaning} Unit: {s.unit}." for s in SIGNALS}


def _step_view_sql() -> str:
    picks = ", ".join(
        f"max(value) filter (where name = {schema.quoted(name)}) as {name}" for name in _step_view_columns()
    )
    return f"select run, step, {picks} from step_metric group by run, step"


_TOP_LOGPS = {f"top{n}_logp": f"Log-prob of the rank-{n} candidate, in nats." for n in (1, 2, 3)}
_TOKEN_COLUMNS = {f.name: meaning_of(f) for f in TOKEN if f.name != "step"}
_SEQUENCE_COLUMNS = {f.name: meaning_of(f) for f in SEQUENCE if f.name != "step"}


def _row_view(table: str, columns: dict[str, str], derived: str = "") -> str:
    picked = ", ".join(f't."{name}"' for name in columns)
    return (
        f"select s.run_id as run, t.step, s.rank as process_rank, s.producer, {picked}{derived} "
        f"from raw.{table} t {_JOIN} where {_VALID}"
    )


VIEWS: tuple[View, ...] = (
    View(
        "run",
        "One row a run.",
        _RUN
        | {
            "created": "When its first stream was opened, UTC.",
            "last_seen": "When its last batch came, UTC; null before the first.",
            "last_step": "Its highest step so far.",
        }
        | _meanings(
            schema.RUN, "trainer", "host", "git_commit", "world_size", "tags", "notes", "config", "versions", "settings"
        ),
        _RUN_VIEW,
    ),
    View(
        "step_metric",
        "One row for each run, step and signal, added up over ranks; with the derived signals.",
        _RUN
        | _STEP
        | {
            "name": "Signal: a column of the view step, or the user's own name.",
            "value": "Its value; null where nothing was measured.",
            "se": "Standard error, for signals estimated from a sample; null for exact ones.",
            "num_parts": "Parts it was added up from.",
            "complete": "Whether the parts of all ranks are there.",
            "received": "When the last part came, UTC.",
        },
        _STEP_METRIC,
    ),
    View(
        "step",
        "One row for each run and step, one column for each signal.",
        _RUN | _STEP | _step_view_columns(),
        _step_view_sql(),
    ),
    View(
        "histogram",
        "Histograms of token values, added up over ranks: one row for each bin that is not empty.",
        _RUN
        | _STEP
        | {
            "name": "Which histogram: entropy, cov_token or scope_score.",
            "bin": "Number of the bin.",
            "low": "Lower edge.",
            "high": "Upper edge.",
            "count": "Tokens in the bin.",
            "total": "Sum of their values.",
        },
        f"""
        select h.run, h.step, h.name, h.bin, b.low, b.high, h.count, h.total from (
            select s.run_id as run, t.step, t.name, t.bin,
                sum(t.count)::bigint as count, sum(t.total) as total
            from raw.histogram_part t {_JOIN} where {_VALID}
            group by s.run_id, t.step, t.name, t.bin
        ) h join raw.bin b on b.bin = h.bin
        """,
    ),
    View(
        "sequence",
        "One row a response.",
        _RUN | _STEP | _RANK | _SEQUENCE_COLUMNS,
        _row_view("sequence_row", _SEQUENCE_COLUMNS),
    ),
    View(
        "token",
        "One row a token that was kept. Weight by 1 / prob for means over all tokens.",
        _RUN
        | _STEP
        | _RANK
        | _TOKEN_COLUMNS
        | {"scope": "p(1-p)max(A,0), p = exp(logp): how strongly an update redistributes its probability."}
        | _TOP_LOGPS,
        _row_view(
            "token_row",
            _TOKEN_COLUMNS,
            ", case when t.advantage is not null "
            "then exp(t.logp) * (1 - exp(t.logp)) * greatest(t.advantage, 0) end as scope, "
            + ", ".join(f"t.top_logps[{n}] as top{n}_logp" for n in (1, 2, 3)),
        ),
    ),
    View(
        "event",
        "What happened in a run.",
        _RUN | _RANK | _meanings(schema.ROW_TABLES["event"], "step", "time", "kind", "message", "detail"),
        "select s.run_id as run, s.rank as process_rank, s.producer, t.step, t.time, t.kind, t.message, t.detail "
        f"from raw.event_row t {_JOIN} where {_VALID}",
    ),
    View(
        "baseline",
        schema.BASELINE.comment,
        _RUN | _meanings(schema.BASELINE, "threshold", "rate", "from_step", "to_step", "num_tokens", "created"),
        "select r.run_id as run, b.threshold, b.rate, b.from_step, b.to_step, b.num_tokens, b.created "
        "from raw.baseline b join raw.run r on r.run = b.run",
    ),
    View(
        "desired_state",
        schema.DESIRED_STATE.comment,
        _RUN | _meanings(schema.DESIRED_STATE, "version", "document", "updated"),
        "select r.run_id as run, d.version, d.document, d.updated "
        "from raw.desired_state d join raw.run r on r.run = d.run",
    ),
    View("rule", schema.RULE.comment, _meanings(schema.RULE), "select name, version, document, updated from raw.rule"),
    View(
        "stream",
        schema.STREAM.comment,
        _RUN | {"process_rank": "Rank of the process."} | _meanings(schema.STREAM, *_STREAM_COLUMNS),
        f"select run_id as run, rank as process_rank, {', '.join(_STREAM_COLUMNS)} from raw.stream",
    ),
    View(
        "batch",
        schema.BATCH.comment,
        _RUN
        | _meanings(schema.BATCH, "stream_id", "seq", "received", "num_rows", "num_bytes", "first_step", "last_step"),
        "select r.run_id as run, b.stream_id, b.seq, b.received, b.num_rows, b.num_bytes, b.first_step, b.last_step "
        "from raw.batch b join raw.run r on r.run = b.run",
    ),
)
PUBLIC_VIEWS = frozenset(view.name for view in VIEWS)


def described(cursor: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """The views as ``GET /v1/schema`` gives them: name, comment, columns with type and comment."""
    types: dict[str, dict[str, str]] = {}
    for view, column, kind in cursor.execute(
        "select table_name, column_name, data_type from duckdb_columns() where schema_name = 'main' and not internal "
        "order by column_index"
    ).fetchall():
        types.setdefault(view, {})[column] = kind
    return [
        {
            "name": view.name,
            "comment": view.comment,
            "columns": [
                {"name": name, "type": types[view.name][name], "comment": meaning}
                for name, meaning in view.columns.items()
            ],
        }
        for view in VIEWS
    ]


def statements() -> list[str]:
    """The statements that make the views and their comments."""
    made = [f"create or replace view raw.merged_metric as {MERGED_METRIC}"]
    for view in VIEWS:
        made.append(f'create or replace view main."{view.name}" as {view.sql}')
        made.append(f'comment on view main."{view.name}" is {schema.quoted(view.comment)}')
        made += [
            f'comment on column main."{view.name}"."{column}" is {schema.quoted(meaning)}'
            for column, meaning in view.columns.items()
        ]
    return made
