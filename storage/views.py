"""The views people query: stable names, a comment on every column. They add up the ranks at read.

``merged.py`` adds parts up, ``derived.py`` makes the signals that need all ranks' rows, ``responses.py`` and
``token_lists.py`` the views of prompts and tokens.
"""

from dataclasses import dataclass
from typing import Any

import duckdb

from entrostat.storage import derived, removals, responses, schema, token_lists
from entrostat.storage.merged import CORE_METRIC, JOIN, MERGED_METRIC, STEP_RANKS, VALID
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


_STEP_RANKS = {
    "num_ranks": "Ranks of the trainer that have sent something of the step.",
    "world_size": "Ranks of the session that the step is of.",
    "is_complete": "Whether all of them have: a sum over the ranks that are there is not the step's.",
}


def _step_view_columns() -> dict[str, str]:
    return _STEP_RANKS | {s.name: f"{s.meaning} Unit: {s.unit}." for s in SIGNALS}


def _step_view_sql() -> str:
    """Parts turned into columns, and each family of derived signals joined once."""
    made = {name: family.view for family in derived.FAMILIES for name in family.signals}
    sent = [s.name for s in SIGNALS if s.merge != "derived" or s.name not in made]
    pivot = ", ".join(f"max(value) filter (where name = {schema.quoted(name)}) as {name}" for name in sent)
    # One rank sends the exact cov_top_* itself; from several they are derived.
    picks = ", ".join(
        f"coalesce(c.{s.name}, {made[s.name]}.{s.name}) as {s.name}"
        if s.name in made and s.name in sent
        else f"{made.get(s.name, 'c')}.{s.name}"
        for s in SIGNALS
    )
    joins = " ".join(
        f"left join raw.{view} {view} on {view}.run = c.run and {view}.step = c.step"
        for view in ("step_ranks", *dict.fromkeys(made.values()))
    )
    return (
        f"select c.run, c.step, {', '.join(_STEP_RANKS)}, {picks} "
        f"from (select run, step, {pivot} from raw.core_metric group by run, step) c {joins}"
    )


_TOP_LOGPS = {f"top{n}_logp": f"Log-prob of the rank-{n} candidate, in nats." for n in (1, 2, 3)}
_TOKEN_COLUMNS = {f.name: meaning_of(f) for f in TOKEN if f.name != "step"}
_SEQUENCE_COLUMNS = {f.name: meaning_of(f) for f in SEQUENCE if f.name != "step"}


def _row_view(table: str, columns: dict[str, str], derived: str = "") -> str:
    picked = ", ".join(f't."{name}"' for name in columns)
    return (
        f"select s.run_id as run, t.step, s.rank as process_rank, s.producer, {picked}{derived} "
        f"from raw.{table} t {JOIN} where {VALID}"
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
            "received": "When the last part came, UTC; null for what is read from histograms, cells and responses.",
        },
        derived.STEP_METRIC,
    ),
    View(
        "step",
        "One row for each run and step, one column for each signal. For a few signals over a long run ask step_metric.",
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
            from raw.histogram_part t {JOIN} where {VALID}
            group by s.run_id, t.step, t.name, t.bin
        ) h join raw.bin b on b.bin = h.bin
        """,
    ),
    View(
        "profile",
        "Curves over relative position in the response, added up over ranks: one row for each bin that is not empty.",
        _RUN
        | _STEP
        | {
            "name": "Which curve: entropy_by_position, or with _pos or _neg that of responses with A > 0 or A < 0.",
            "bin": "Number of the bin, from 0.",
            "low": "Its lower edge: tokens before this share of their response come earlier.",
            "high": "Its upper edge.",
            "count": "Tokens in the bin.",
            "total": "Sum of their values.",
            "mean": "Mean of their values: the height of the curve, in nats for entropy.",
        },
        derived.PROFILE,
    ),
    View(
        "sequence",
        "One row a response.",
        _RUN | _STEP | _RANK | _SEQUENCE_COLUMNS | responses.Z_COLUMN,
        responses.sequence(_SEQUENCE_COLUMNS),
    ),
    View(
        "prompt",
        "One row for each run, step and prompt: what its group of responses says, over all ranks.",
        _RUN | _STEP | responses.PROMPT_COLUMNS,
        responses.PROMPT,
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
            f", {token_lists.SCOPE} as scope, " + ", ".join(f"t.top_logps[{n}] as top{n}_logp" for n in (1, 2, 3)),
        ),
    ),
    View(
        "top_token",
        "The kept tokens of a step ranked by what they carry of the covariance and of the SCOPE score. Ask with a "
        "filter on run and step.",
        _RUN | _STEP | {"process_rank": _RANK["process_rank"]} | token_lists.TOP_TOKEN_COLUMNS,
        token_lists.TOP_TOKEN,
    ),
    View(
        "token_mass",
        "What each token of the vocabulary carries of a step's covariance and SCOPE score, estimated from the kept "
        "rows by their weights: over steps, how the list changes.",
        _RUN | _STEP | token_lists.TOKEN_MASS_COLUMNS,
        token_lists.TOKEN_MASS,
    ),
    View(
        "event",
        "What happened in a run, as its producers and the server tell it.",
        _RUN
        | {
            "process_rank": "Rank of the process that sent it; null for the server's own.",
            "producer": "trainer, rollout, a user's own name; or server.",
        }
        | _meanings(schema.ROW_TABLES["event"], "step", "time", "kind", "message", "detail"),
        "select s.run_id as run, s.rank as process_rank, s.producer, t.step, t.time, t.kind, t.message, t.detail "
        f"from raw.event_row t {JOIN} where {VALID} "
        "union all select r.run_id, null::integer, 'server', t.step, t.time, t.kind, t.message, t.detail "
        f"from raw.event_row t join raw.run r on r.run = t.run where t.stream = {schema.SERVER_STREAM}",
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
    View(
        "removal",
        schema.REMOVAL.comment,
        _RUN | _meanings(schema.REMOVAL, "what", "num_rows", "from_step", "to_step", "removed", "reason"),
        removals.VIEW,
    ),
    View("rule", schema.RULE.comment, _meanings(schema.RULE), "select name, version, document, updated from raw.rule"),
    View(
        "audit",
        schema.AUDIT.comment,
        _meanings(schema.AUDIT, "time", "who", "said", "address", "action")
        | {"run": "Name of the run it is about, perhaps deleted since."}
        | _meanings(schema.AUDIT, "name", "detail"),
        'select time, who, said, address, action, run_id as run, "name", detail from raw.audit',
    ),
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
    bodies = {"merged_metric": MERGED_METRIC, "core_metric": CORE_METRIC, "step_ranks": STEP_RANKS} | derived.VIEWS
    made = [f"create or replace view raw.{name} as {body}" for name, body in bodies.items()]
    for view in VIEWS:
        made.append(f'create or replace view main."{view.name}" as {view.sql}')
        made.append(f'comment on view main."{view.name}" is {schema.quoted(view.comment)}')
        made += [
            f'comment on column main."{view.name}"."{column}" is {schema.quoted(meaning)}'
            for column, meaning in view.columns.items()
        ]
    return made
