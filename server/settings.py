"""Every limit of the server: name with unit, default, one sentence. The command line and the docs are made from it."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

ENVIRONMENT_PREFIX = "ENTROSTAT_SERVER_"
DATABASE = "entrostat.duckdb"
"""File of the database in the data folder."""


def _setting(default: Any, sentence: str) -> Any:
    return dataclasses.field(default=default, metadata={"sentence": sentence})


@dataclass(frozen=True, slots=True)
class Settings:
    """The table. Each can be set as ``ENTROSTAT_SERVER_<NAME>`` in the environment."""

    host: str = _setting("127.0.0.1", "Address to listen on; any but loopback needs tokens.")
    port: int = _setting(8321, "Port to listen on; 0 takes a free one.")
    data: str = _setting("entrostat-data", "Folder of the database.")
    tokens: str = _setting("", "File of hashed tokens; empty: tokens.json in the data folder, where that exists.")
    store_url: str = _setting("", "URL of the store; empty: entrostat.duckdb in the data folder.")
    max_body_mb: int = _setting(64, "A larger batch is refused before it is read.")
    max_json_mb: int = _setting(8, "A larger JSON body is refused before it is read.")
    body_patience_s: float = _setting(30.0, "A body of which nothing more comes for so long is refused.")
    head_patience_s: float = _setting(20.0, "A request whose first lines are not there after so long is refused.")
    max_connections: int = _setting(4096, "Connections beyond it are answered 503.")
    max_decompressed_mb: int = _setting(256, "A batch that decompresses to more is refused.")
    max_decoding: int = _setting(4, "So many batches are decompressed and checked at once.")
    max_queue_mb: int = _setting(512, "Batches beyond it, not yet written, are refused with 503.")
    max_commit_mb: int = _setting(64, "A commit takes no more than this (but always one batch).")
    linger_ms: int = _setting(
        0, "So long the first batch of a commit waits for others; those that come during a commit share the next."
    )
    token_decimals: int = _setting(4, "Floats of token rows are rounded to so many places; -1 keeps them whole.")
    memory_limit_mb: int = _setting(4096, "Memory of the database engine.")
    max_temp_mb: int = _setting(8192, "Disk that queries may use which do not fit in memory.")
    num_threads: int = _setting(0, "Threads of the database engine; 0: one a core.")
    max_queries: int = _setting(2, "So many SQL queries of people run at once.")
    query_timeout_s: float = _setting(10.0, "A query is stopped after so long.")
    query_restart_s: float = _setting(
        30.0, "The server replaces itself when a query has still not ended so long after it was stopped; 0: never."
    )
    max_rows: int = _setting(1_000_000, "A query gives no more rows, whatever it asks for.")
    max_result_mb: int = _setting(64, "A query's result is cut at so many bytes.")
    max_points: int = _setting(5_000, "A series is thinned to no more buckets than this.")
    max_series: int = _setting(500, "One request gives no more series: runs x names.")
    max_import_mb: int = _setting(16_384, "A larger export is not taken in.")
    max_transfers: int = _setting(2, "So many runs are exported and imported at once.")
    keep_token_days: float = _setting(
        0.0, "Token and sequence rows are removed so long after their run was last heard of; 0 keeps them."
    )
    keep_run_days: float = _setting(0.0, "Runs are removed so long after they were last heard of; 0 keeps them.")
    max_database_mb: int = _setting(
        0, "Beyond it the oldest token and sequence rows are removed, then the oldest runs; 0: no limit."
    )
    shutdown_s: int = _setting(10, "Requests in progress get so long when the server stops.")
    drain_s: float = _setting(0.0, "Asked to stop, it takes connections so much longer, not ready: for a balancer.")
    min_free_mb: int = _setting(512, "Batches are refused with 503 while less of the database's disk is free.")
    slow_commit_s: float = _setting(2.0, "A commit that takes longer is logged.")
    slow_query_s: float = _setting(5.0, "A query that takes longer is logged.")
    log_format: str = _setting("text", "The log on stderr, a line an event: text or json.")
    log_level: str = _setting("info", "What is logged: debug, info, warning or error, and what is graver.")

    @property
    def url(self) -> str:
        """URL of the store."""
        return self.store_url or f"duckdb://{Path(self.data).resolve() / DATABASE}"

    @property
    def tokens_path(self) -> Path | None:
        """File of the tokens; None where there is none."""
        if self.tokens:
            return Path(self.tokens)
        kept = Path(self.data) / "tokens.json"
        return kept if kept.exists() else None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ, **given: Any) -> Self:
        """Settings from the environment; what is ``given`` and not None wins.

        Raises:
            ValueError: a value is not of its setting's type; names it.
        """
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            text = environment.get(ENVIRONMENT_PREFIX + field.name.upper())
            if given.get(field.name) is not None:
                values[field.name] = given[field.name]
            elif text is not None:
                values[field.name] = _parsed(field.name, type(field.default), text)
        return cls(**values)


def sentence_of(name: str) -> str:
    """The one sentence of a setting."""
    return str(next(f for f in dataclasses.fields(Settings) if f.name == name).metadata["sentence"])


def _parsed(name: str, kind: type, text: str) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"{ENVIRONMENT_PREFIX}{name.upper()}={text!r}: must be {kind.__name__}") from error
