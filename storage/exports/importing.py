"""An export into the database: all of it in one transaction beside the writer's, seen by nobody until its COMMIT.

The rows go in by a cursor of their own, so that ingest goes on meanwhile. The writer's thread comes in twice: it gives
the new surrogate keys, and at the end it looks whether name and streams are still free, and commits: between the look
and the COMMIT no stream can be opened. A process that is killed before leaves nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from entrostat.storage import schema, streams
from entrostat.storage.exports.checks import check
from entrostat.storage.exports.layout import TABLES, arrow_schema, file_name
from entrostat.storage.exports.reading import Received
from entrostat.storage.schema import SERVER_STREAM
from entrostat.wire.errors import Conflict, MalformedExport


@dataclass(slots=True)
class Taken:
    """What an import takes in, as it goes.

    Args:
        run: the new surrogate key of the run.
        streams: surrogate key in the export -> (the new one, the stream's own name).
        named: table -> its rows, of the tables that say the run's name; small, and written last, when it is known.
        num_rows: by table.
    """

    run: int = 0
    streams: dict[int, tuple[int, str]] = field(default_factory=dict)
    named: dict[str, pa.Table] = field(default_factory=dict)
    num_rows: dict[str, int] = field(default_factory=dict)

    @property
    def stream_ids(self) -> list[str]:
        """The streams' own names."""
        return [stream_id for _, stream_id in self.streams.values()]


Reserve = Callable[[int], tuple[int, int]]
"""From the number of streams to the keys of the run and of its first stream."""


def insert(
    cursor: duckdb.DuckDBPyConnection, received: Received, taken: Taken, reserve: Reserve, go_on: Callable[[], None]
) -> None:
    """Write all rows but those of ``Taken.named``, in the transaction of ``cursor``.

    Args:
        taken: told of what goes in.
        go_on: called before each piece; what it raises ends the import.

    Raises:
        MalformedExport: the rows are not a run's.
        Conflict: a stream of it is held already.
        duckdb.ConstraintException: a batch is in it twice, or was sent here meanwhile.
    """
    with received.rows() as tables:
        for table, pieces in tables:
            if is_named(table):
                take_named(table, pieces, received.manifest.run_id, taken, reserve)
                refuse_held_streams(cursor, taken.stream_ids)
            else:
                for piece in pieces:
                    go_on()
                    check(table, piece)
                    write(cursor, table, with_new_keys(table, piece, taken))
            entry = received.entry(table.name)
            taken.num_rows[table.name] = entry.rows if entry else 0
    check_named(taken)


def finish(cursor: duckdb.DuckDBPyConnection, seen: duckdb.DuckDBPyConnection, taken: Taken, name: str | None) -> str:
    """Name the run, write its row and its streams', and commit. Called on the writer's thread.

    Args:
        cursor: of ``insert``.
        seen: sees everything that is committed.
        name: as which it is to be known; None: its own, or ``name-2`` where that is taken, as streams do.

    Returns:
        The name.

    Raises:
        Conflict: a stream of it is held already, or the name that was asked for.
    """
    refuse_held_streams(seen, taken.stream_ids)
    own = taken.named[schema.RUN.name]["run_id"][0].as_py()
    run_id = streams.free_run_id(seen, name or own)
    if name is not None and run_id != name:
        raise Conflict(f"there is a run {name!r} already: give another name with --as")
    write_named(cursor, taken, run_id)
    cursor.execute("commit")
    return run_id


def check_named(taken: Taken) -> None:
    """Raise MalformedExport where there is no run, or nobody who sent it."""
    if not {schema.RUN.name, schema.STREAM.name} <= set(taken.named):
        raise MalformedExport("has no run")


def write_named(cursor: duckdb.DuckDBPyConnection, taken: Taken, run_id: str) -> None:
    """Write the rows that say the run's name, under its name here."""
    for name, rows in taken.named.items():
        named = _with(rows, "run_id", pa.array([run_id] * rows.num_rows, pa.string()))
        write(cursor, TABLES[name], with_new_keys(TABLES[name], named, taken))


def refuse_held_streams(cursor: duckdb.DuckDBPyConnection, stream_ids: list[str]) -> None:
    """Raise Conflict where a stream is known here: taken in again, its rows would be there twice."""
    held = cursor.execute(
        "select run_id, count(*) from raw.stream where stream_id in (select unnest(?)) group by 1 limit 1",
        [stream_ids],
    ).fetchall()
    if held:
        run_id, count = held[0]
        raise Conflict(
            f"the run {run_id!r} has {count} of the export's {len(stream_ids)} streams: it is held here already. "
            f"Delete {run_id!r} first, if the export is to take its place"
        )


def is_named(table: schema.Table) -> bool:
    """Whether its rows say the run's name."""
    return "run_id" in table.column_names


def take_named(table: schema.Table, pieces: Iterator[pa.Table], run_id: str, taken: Taken, reserve: Reserve) -> None:
    """Keep the rows of a table that says the run's name, ``run_id`` in the export. Raises MalformedExport."""
    if table is schema.RUN:
        rows = _run_row(table, pieces, run_id)
    elif table is schema.STREAM:
        rows = _stream_rows(table, pieces, taken, reserve)
    else:
        rows = _small(table, pieces)
    taken.named[table.name] = rows


def _run_row(table: schema.Table, pieces: Iterator[pa.Table], run_id: str) -> pa.Table:
    """The one row of ``run``. Raises MalformedExport."""
    rows = _small(table, pieces)
    if rows.num_rows != 1 or rows["run_id"][0].as_py() != run_id:
        raise MalformedExport(f"must have one row, of the manifest's run {run_id!r}", file_name(table))
    return rows


def _stream_rows(table: schema.Table, pieces: Iterator[pa.Table], taken: Taken, reserve: Reserve) -> pa.Table:
    """The rows of ``stream``; ``taken`` learns the new keys. Raises MalformedExport."""
    rows = _small(table, pieces)
    keys, stream_ids = rows["stream"].to_pylist(), rows["stream_id"].to_pylist()
    if not keys:
        raise MalformedExport("has no rows", file_name(table))
    if len(set(keys)) != len(keys) or len(set(stream_ids)) != len(keys) or SERVER_STREAM in keys:
        raise MalformedExport("has a stream twice", file_name(table))
    taken.run, first = reserve(len(keys))
    taken.streams = {k: (first + n, i) for n, (k, i) in enumerate(zip(keys, stream_ids, strict=True))}
    return rows


def _small(table: schema.Table, pieces: Iterator[pa.Table]) -> pa.Table:
    found = []
    for piece in pieces:
        check(table, piece)
        found.append(piece)
    return pa.concat_tables(found) if found else arrow_schema(table).empty_table()


def with_new_keys(table: schema.Table, rows: pa.Table, taken: Taken) -> pa.Table:
    """``rows`` under the surrogate keys that they get here. Raises MalformedExport where a row is of no stream."""
    rows = _with(rows, "run", pa.repeat(pa.scalar(taken.run, pa.int32()), rows.num_rows))
    if "stream" not in rows.column_names:
        return rows
    known = [*taken.streams, SERVER_STREAM]
    places = pc.index_in(rows["stream"], pa.array(known, pa.int32()))  # null where the row is of no stream
    if places.null_count > rows["stream"].null_count or (
        table is not schema.ROW_TABLES["event"] and _has(places, len(known) - 1)
    ):
        raise MalformedExport("column 'stream': a row is of a stream that the export does not have", file_name(table))
    if table is schema.BATCH:  # a batch in another stream's name would have that stream's own refused as held
        names = pa.array(taken.stream_ids, pa.string()).take(places.combine_chunks())
        if not pc.all(pc.equal(names, rows["stream_id"].combine_chunks())).as_py():
            raise MalformedExport("column 'stream_id': not the stream's own", file_name(table))
    new = pa.array([*(key for key, _ in taken.streams.values()), SERVER_STREAM], pa.int32())
    return _with(rows, "stream", new.take(places.combine_chunks()))


def _has(places: pa.ChunkedArray, place: int) -> bool:
    return bool(pc.any(pc.equal(places, place)).as_py())


def _with(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, values)


def write(cursor: duckdb.DuckDBPyConnection, table: schema.Table, rows: pa.Table) -> None:
    """Rows into their table, in the transaction of ``cursor``."""
    # Not by register(): the view it makes belongs to the transaction, which would hold all pieces until its end
    # (104 bytes a token row). In the table's own order: columns that came later stand last in an older database.
    columns = cursor.execute(
        "select column_name from duckdb_columns() where schema_name = 'raw' and table_name = ? order by column_index",
        [table.name],
    ).fetchall()
    cursor.from_arrow(rows.select([name for (name,) in columns])).insert_into(f"raw.{table.name}")
