"""The tables, every column declared once. DDL and comments are rendered from here; people read the views instead.

The five tables of the wire keep the wire's columns and get ``run`` and ``stream`` in front: integers, because a text
key in every token row would cost more than the token.
"""

from dataclasses import dataclass

import pyarrow as pa

from entrostat.wire.bins import MAX_BIN, edges_of
from entrostat.wire.tables import TABLES, meaning_of

SCHEMA_VERSION = 4
"""Of the tables. An older file is migrated when it is opened (``migrations.py``); a newer one is refused."""
SERVER_STREAM = -1
"""In place of a stream, in rows that the server makes itself."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, its type in SQL, one sentence on what it means, and whether it may be null."""

    name: str
    kind: str
    meaning: str
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the schema ``raw``.

    Args:
        key: columns of the primary key. Only small tables have one: an index over token rows would cost more than them.
        sort: the order of the rows inside a commit.
    """

    name: str
    comment: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)


_SQL_TYPES = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.bool_(): "BOOLEAN",
    pa.timestamp("us"): "TIMESTAMP",
}


def sql_type(kind: pa.DataType) -> str:
    """The SQL type of a column of the wire."""
    if pa.types.is_list(kind):
        return _SQL_TYPES[kind.value_type] + "[]"
    return _SQL_TYPES[kind]


def arrow_type(kind: str) -> pa.DataType:
    """The type of a column of the wire, or of an export, by its SQL type."""
    if kind.endswith("[]"):
        return pa.list_(arrow_type(kind.removesuffix("[]")))
    return next(found for found, name in _SQL_TYPES.items() if name == kind)


_RUN = Column("run", "INTEGER", "The run, as in raw.run.")
_RECEIVED = Column("received", "TIMESTAMP", "When the server got it, UTC.")
_STREAM = Column("stream", "INTEGER", "The stream it came by, as in raw.stream.")


def _from_wire(wire_name: str, name: str, comment: str, sort: tuple[str, ...], *extra: Column) -> Table:
    columns = tuple(Column(f.name, sql_type(f.type), meaning_of(f), f.nullable) for f in TABLES[wire_name])
    return Table(name, comment, (_RUN, _STREAM, *extra, *columns), sort=("run", *sort))


ROW_GROUP_ROWS = 32_768
"""Rows that the engine compresses together. A commit with as many goes to the file at once, others by way of the log.

With the engine's own 122,880, commits of a few steps were written twice, and of 196,608 rows half as many a second
(``benchmarks/row_groups.py``); with 16,384 every single step would take blocks of its own, and twice the room.
"""

ROW_TABLES = {
    "step_metric": _from_wire(
        "step_metric",
        "step_part",
        "Parts of the signals: one row for each signal, step and producer; the views add them up.",
        ("step", "name", "stream"),
        Column("batch_seq", "INTEGER", "Number of the batch it came in."),
        Column("line", "INTEGER", "Place in that batch, from 0."),
        _RECEIVED,
    ),
    "histogram": _from_wire(
        "histogram", "histogram_part", "Parts of the histograms.", ("step", "name", "stream", "bin")
    ),
    "profile": _from_wire(
        "profile", "profile_part", "Parts of the curves over relative position.", ("step", "name", "stream", "bin")
    ),
    "cell": _from_wire(
        "cell",
        "cell_part",
        "Cells of tokens of like covariance, from runs of several ranks: what cov_top_* is made from there.",
        ("step", "stream", "cell"),
    ),
    "sequence": _from_wire("sequence", "sequence_row", "Responses.", ("step", "stream", "seq")),
    "token": _from_wire("token", "token_row", "Tokens.", ("step", "stream", "seq", "pos")),
    "event": _from_wire("event", "event_row", "What happened, as the producers told it.", ("time",), _RECEIVED),
}
"""Table of the wire -> where its rows are kept."""

RUN = Table(
    "run",
    "Runs.",
    (
        Column("run", "INTEGER", "Surrogate key."),
        Column("run_id", "VARCHAR", "The run's name."),
        Column("created", "TIMESTAMP", "When its first stream was opened, UTC."),
        Column("trainer", "VARCHAR", "Class of the trainer."),
        Column("host", "VARCHAR", "Host of the first stream."),
        Column("git_commit", "VARCHAR", "Commit of the training code.", True),
        Column("world_size", "INTEGER", "Ranks of the latest session of the trainer."),
        Column("tags", "VARCHAR", "JSON object."),
        Column("notes", "VARCHAR", "A person's notes."),
        Column("config", "VARCHAR", "JSON object: the trainer's settings."),
        Column("versions", "VARCHAR", "JSON object: package -> version."),
        Column("settings", "VARCHAR", "JSON object: the probe's settings."),
    ),
)
STREAM = Table(
    "stream",
    "One start of one producing process.",
    (
        Column("stream", "INTEGER", "Surrogate key."),
        Column("stream_id", "VARCHAR", "The stream's own random name."),
        _RUN,
        Column("run_id", "VARCHAR", "The run's name."),
        Column("requested_run_id", "VARCHAR", "The name it asked for."),
        Column("producer", "VARCHAR", "trainer, rollout, or a user's own name."),
        Column("session_id", "VARCHAR", "One for all ranks of one start of the trainer."),
        Column("rank", "INTEGER", "Rank of the process."),
        Column("world_size", "INTEGER", "How many ranks its session has."),
        Column("resume_step", "INTEGER", "Last step of the checkpoint it resumed from.", True),
        Column("valid_to_step", "INTEGER", "Rows beyond this step were superseded by a resumed session.", True),
        Column("opened", "TIMESTAMP", "When the server heard of it, UTC."),
        Column("started", "TIMESTAMP", "When the process started, by its own clock, UTC."),
        Column("host", "VARCHAR", "Host of the process."),
        Column("pid", "BIGINT", "Process id."),
        Column("trainer", "VARCHAR", "Class of the trainer."),
        Column("git_commit", "VARCHAR", "Commit of the training code.", True),
        Column("versions", "VARCHAR", "JSON object: package -> version."),
        Column("config", "VARCHAR", "JSON object: the trainer's settings."),
        Column("settings", "VARCHAR", "JSON object: the probe's settings."),
    ),
)
BATCH = Table(
    "batch",
    "The ledger: one row for each batch that is held, written in the same transaction as its rows.",
    (
        Column("stream_id", "VARCHAR", "The stream."),
        Column("seq", "INTEGER", "The batch's number in the stream."),
        _RUN,
        _STREAM,
        _RECEIVED,
        Column("num_rows", "BIGINT", "Rows in all its tables."),
        Column("num_bytes", "BIGINT", "Size of its body on the wire."),
        Column("first_step", "INTEGER", "Lowest step in it.", True),
        Column("last_step", "INTEGER", "Highest step in it.", True),
    ),
    key=("stream_id", "seq"),
)
BASELINE = Table(
    "baseline",
    "What the first steps of a run fix for its later ones. Written once.",
    (
        _RUN,
        Column("threshold", "DOUBLE", "80th percentile of token entropy, snapped to a bin's edge, in nats."),
        Column("threshold_bin", "SMALLINT", "First bin at or above the threshold."),
        Column("rate", "DOUBLE", "Share of the baseline's tokens at or above the threshold."),
        Column("from_step", "INTEGER", "First step of the baseline."),
        Column("to_step", "INTEGER", "Last step of the baseline."),
        Column("num_tokens", "BIGINT", "Tokens it was read from."),
        Column("created", "TIMESTAMP", "When it was fixed, UTC."),
    ),
)
DESIRED_STATE = Table(
    "desired_state",
    "What should be on in a run: every version that ever was.",
    (
        _RUN,
        Column("version", "INTEGER", "Grows by one with each change."),
        Column("document", "VARCHAR", "JSON: the interventions with their parameters and reasons."),
        Column("updated", "TIMESTAMP", "When, UTC."),
    ),
)
RULE = Table(
    "rule",
    "The rules: every version that ever was.",
    (
        Column("name", "VARCHAR", "Name of the rule."),
        Column("version", "INTEGER", "Grows by one with each change."),
        Column("document", "VARCHAR", "JSON: the rule; null where the rule was removed.", True),
        Column("updated", "TIMESTAMP", "When, UTC."),
    ),
)
RULE_STATE = Table(
    "rule_state",
    "How far each rule has come in each run, written in one transaction with what the rule did.",
    (
        _RUN,
        Column("rule", "VARCHAR", "Name of the rule."),
        Column("version", "INTEGER", "Version of the rule that it is of."),
        Column("step", "INTEGER", "Last step that was evaluated; -1 before the first."),
        Column("document", "VARCHAR", "JSON: streaks, firings, what is on, the controller's output."),
    ),
)
BIN = Table(
    "bin",
    "Edges of the histograms' bins.",
    (
        Column("bin", "SMALLINT", "Number of the bin."),
        Column("low", "DOUBLE", "Lower edge."),
        Column("high", "DOUBLE", "Upper edge."),
    ),
)
AUDIT = Table(
    "audit",
    "Who changed what, by hand or through a program; kept when the run it is about is deleted.",
    (
        Column("time", "TIMESTAMP", "When, UTC."),
        Column("who", "VARCHAR", "Name of the token; null where the server ran without tokens.", True),
        Column("said", "VARCHAR", "The name that the request gave, which anyone could.", True),
        Column("address", "VARCHAR", "Where the request came from: the dashboard's, for what is done there.", True),
        Column(
            "action",
            "VARCHAR",
            "switch_on, switch_off, approve, dismiss, stop_all, arm, run_changed, run_deleted, rule_put, rule_removed, "
            "token_used (its first use since the server started).",
        ),
        Column("run_id", "VARCHAR", "The run, by its name, where it is about one.", True),
        Column("name", "VARCHAR", "The intervention, rule or token that it is about.", True),
        Column("detail", "VARCHAR", "JSON object with the values behind it.", True),
    ),
)
REMOVAL = Table(
    "removal",
    "What was removed, so that a gap is never taken for nothing measured. It outlives the run.",
    (
        Column("run", "INTEGER", "The run, as in raw.run; null once the run itself is gone.", True),
        Column("run_id", "VARCHAR", "The run's name."),
        Column("stream", "INTEGER", "The stream the rows came by; null where it was the whole run.", True),
        Column("what", "VARCHAR", "token, sequence: rows of these; run: everything of the run."),
        Column("num_rows", "BIGINT", "How many rows."),
        Column("from_step", "INTEGER", "Their lowest step.", True),
        Column("to_step", "INTEGER", "Their highest step.", True),
        Column("removed", "TIMESTAMP", "When, UTC."),
        Column("reason", "VARCHAR", "Why: the rule of retention, or a person's request."),
    ),
)
META = Table("meta", "About this file.", (Column("schema_version", "INTEGER", "Version of these tables."),))

ALL_TABLES = (
    RUN, STREAM, BATCH, *ROW_TABLES.values(), BASELINE, DESIRED_STATE, RULE, RULE_STATE, REMOVAL, AUDIT, BIN, META
)  # fmt: skip


def ddl(table: Table) -> list[str]:
    """The statements that make a table, with its comments."""
    lines = [f'"{c.name}" {c.kind}{"" if c.nullable else " not null"}' for c in table.columns]
    if table.key:
        lines.append(f"primary key ({', '.join(table.key)})")
    return [f"create table raw.{table.name} ({', '.join(lines)})", *comments(table)]


def comments(table: Table) -> list[str]:
    """The statements that write the comments of a table and its columns."""
    columns = [f'comment on column raw.{table.name}."{c.name}" is {quoted(c.meaning)}' for c in table.columns]
    return [f"comment on table raw.{table.name} is {quoted(table.comment)}", *columns]


def quoted(text: str) -> str:
    """``text`` as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def bin_rows() -> list[tuple[int, float, float]]:
    """The rows of ``raw.bin``."""
    return [(index, *edges_of(index)) for index in range(-MAX_BIN, MAX_BIN + 1)]
