"""Is a database whole? Every value is read, and the ledger is held against the rows.

What can be decided: each stream's batches say how many rows they brought, and as many must be there, less what was
removed on record. A row of ``step_part`` names its batch; rows of other tables name their stream only.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import duckdb

from entrostat.storage import migrations, schema
from entrostat.storage.views import FORKING_RATE


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a table.

    Args:
        is_damage: False: worth knowing, and as it may be.
    """

    table: str
    what: str
    is_damage: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """What was read, and what was found."""

    num_rows: int
    findings: tuple[Finding, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not any(finding.is_damage for finding in self.findings)


def check(cursor: duckdb.DuckDBPyConnection) -> Report:
    """Read everything that ``cursor`` sees of a database, in a transaction of its own."""
    cursor.execute("begin transaction read only")
    try:
        return _checked(cursor)
    finally:
        cursor.execute("rollback")


def _checked(cursor: duckdb.DuckDBPyConnection) -> Report:
    findings = list(_version(cursor))
    present = migrations.raw_tables(cursor)
    num_rows, unreadable = 0, []
    for table in sorted(present):
        rows, problem = _read(cursor, table)
        num_rows += rows
        if problem is not None:
            unreadable.append(table)
            findings.append(Finding(table, f"cannot be read: {problem}"))
    readable = present.difference(unreadable)
    for question in (*_LAWS, *_dangling()):
        if question.needs <= readable:
            findings += [Finding(question.table, text) for (text,) in cursor.execute(question.sql).fetchall()]
    if readable >= _COUNT_NEEDS:
        findings += _counts(cursor, present)
        findings += _gaps(cursor)
    return Report(num_rows, tuple(findings))


def _version(cursor: duckdb.DuckDBPyConnection) -> Iterator[Finding]:
    found = migrations.version_of(cursor)
    if found is None:
        yield Finding("meta", "is missing: this is not a database of entrostat")
        return
    if found > schema.SCHEMA_VERSION:
        yield Finding("meta", f"tables of version {found}: this entrostat knows {schema.SCHEMA_VERSION}, update it")
    elif found < schema.SCHEMA_VERSION:
        text = f"tables of version {found}: a server brings them to {schema.SCHEMA_VERSION} when it opens the file"
        yield Finding("meta", text, is_damage=False)
    else:
        for name in {table.name for table in schema.ALL_TABLES} - migrations.raw_tables(cursor):
            yield Finding(name, "is missing")


def _read(cursor: duckdb.DuckDBPyConnection, table: str) -> tuple[int, str | None]:
    """Rows of a table, every value of which was read; and why that failed."""
    try:
        return int(cursor.execute(f"select count(*), bit_xor(hash(t)) from raw.{table} t").fetchall()[0][0]), None
    except duckdb.Error as error:
        cursor.execute("rollback")
        cursor.execute("begin transaction read only")
        return 0, str(error).splitlines()[0]


@dataclass(frozen=True, slots=True)
class _Question:
    """A SELECT whose rows are sentences on what is wrong."""

    table: str
    sql: str
    needs: frozenset[str]


def _law(table: str, sql: str, *others: str) -> _Question:
    return _Question(table, sql, frozenset((table, *others)))


def _unique(table: str, *key: str, where: str = "true") -> _Question:
    shown = " || ', ' || ".join(f"'{name} ' || {name}" for name in key)
    return _law(
        table,
        f"select {shown} || ' is there ' || count(*) || ' times' from raw.{table} where {where} "
        f"group by {', '.join(key)} having count(*) > 1",
    )


_SENT = f"name != {schema.quoted(FORKING_RATE)}"
"""Parts that a producer sent; the server adds those of ``forking_rate`` itself."""

_LAWS = (
    _unique("run", "run"),
    _unique("run", "run_id"),
    _unique("stream", "stream"),
    _unique("stream", "stream_id"),
    _unique("batch", "stream_id", "seq"),
    _unique("step_part", "stream", "batch_seq", "line", where=_SENT),
    _law(
        "stream",
        "select 'stream ' || s.stream_id || ' is of run ' || s.run || ', which is not there under that name' "
        "from raw.stream s anti join raw.run r on r.run = s.run and r.run_id = s.run_id",
        "run",
    ),
    _law(
        "batch",
        "select 'batch ' || b.seq || ' is of stream ' || b.stream_id || ', which is not there under these keys' "
        "from raw.batch b anti join raw.stream s on s.stream_id = b.stream_id and s.stream = b.stream "
        "and s.run = b.run",
        "stream",
    ),
    _law(
        "step_part",
        "select count(*) || ' rows are of batch ' || t.batch_seq || ' of stream ' || t.stream || ', which the ledger "
        f"does not have' from (select * from raw.step_part where {_SENT}) t "
        "anti join raw.batch b on b.stream = t.stream and b.seq = t.batch_seq group by t.stream, t.batch_seq",
        "batch",
    ),
    _law(
        "step_part",
        "select 'batch ' || batch_seq || ' of stream ' || stream || ' has ' || count(*) || ' rows, numbered up to ' "
        f"|| max(line) from raw.step_part where {_SENT} group by stream, batch_seq "
        "having max(line) != count(*) - 1",
    ),
)


def _dangling() -> Iterator[_Question]:
    """Rows of no stream or run that is there."""
    for table in schema.ROW_TABLES.values():
        own = f"where stream != {schema.SERVER_STREAM}"
        yield _law(
            table.name,
            f"select count(*) || ' rows are of stream ' || t.stream || ', run ' || t.run || ', which is not there' "
            f"from (select run, stream from raw.{table.name} {own}) t "
            "anti join raw.stream s on s.stream = t.stream and s.run = t.run group by t.run, t.stream",
            "stream",
        )
    of_a_run = (schema.BASELINE, schema.DESIRED_STATE, schema.RULE_STATE, schema.REMOVAL)
    for name in (*(table.name for table in of_a_run), schema.ROW_TABLES["event"].name):
        own = f" and t.stream = {schema.SERVER_STREAM}" if name == schema.ROW_TABLES["event"].name else ""
        yield _law(
            name,
            f"select count(*) || ' rows are of run ' || t.run || ', which is not there' from raw.{name} t "
            f"anti join raw.run r on r.run = t.run where t.run is not null{own} group by t.run",
            "run",
        )


_COUNT_NEEDS = frozenset(("batch", "stream", *(table.name for table in schema.ROW_TABLES.values())))


def _counts(cursor: duckdb.DuckDBPyConnection, present: set[str]) -> Iterator[Finding]:
    """Streams whose ledger and rows do not agree."""
    counted = " union all ".join(
        f"select stream, count(*) as n from raw.{table.name} where stream != {schema.SERVER_STREAM}"
        f"{f' and {_SENT}' if table.name == 'step_part' else ''} group by stream"
        for table in schema.ROW_TABLES.values()
    )
    if "removal" in present:
        counted += " union all select stream, sum(num_rows) from raw.removal where stream is not null group by stream"
    rows = cursor.execute(
        f"""
        select s.stream_id, coalesce(b.claimed, 0)::bigint, coalesce(f.found, 0)::bigint from raw.stream s
        left join (select stream, sum(num_rows) as claimed from raw.batch group by stream) b on b.stream = s.stream
        left join (select stream, sum(n) as found from ({counted}) group by stream) f on f.stream = s.stream
        where coalesce(b.claimed, 0) != coalesce(f.found, 0) order by s.stream
        """
    ).fetchall()
    for stream_id, claimed, found in rows:
        less = f"{claimed - found} are missing" if found < claimed else f"{found - claimed} are of no batch"
        yield Finding(
            "batch", f"the batches of stream {stream_id} brought {claimed} rows, {found} are accounted for: {less}"
        )


def _gaps(cursor: duckdb.DuckDBPyConnection) -> Iterator[Finding]:
    rows = cursor.execute(
        "select stream_id, max(seq)::bigint + 1 - count(*) as missing from raw.batch group by stream_id "
        "having missing > 0"
    ).fetchall()
    for stream_id, num_missing in rows:
        text = (
            f"{num_missing} batches of stream {stream_id} are not here: dropped by their producer, still in its spool, "
            "or acknowledged after the backup that this file is"
        )
        yield Finding("batch", text, is_damage=False)
