"""The application: routes around a store. Nothing is global, nothing happens on import."""

from typing import Any

from fastapi import FastAPI

from entrostat.server import analysis, backups, health, http_errors, ingest, runs, series, sql
from entrostat.server.auth import Tokens
from entrostat.server.control import routes as control
from entrostat.server.guard_middleware import BodyLimit, RefusalCounter, SameSite
from entrostat.server.metrics import Metrics
from entrostat.server.retention import Keeper
from entrostat.server.rules import routes as rules
from entrostat.server.rules.engine import Engine
from entrostat.server.rules.running import running
from entrostat.server.settings import Settings
from entrostat.storage.store import Store

_ABOUT = """Takes what a training run's probes measure, keeps it once, and answers questions about it.

* **ingest**: open a stream, send numbered batches; an answer means that the batch is on disk.
* **questions**: SQL over views whose columns are documented (`GET /v1/schema`).
* Every error is `{"error", "message", "table"?, "column"?}`: what is wrong and what to change.
"""
_TAGS = [
    {"name": "ingest", "description": "What producers send."},
    {"name": "runs", "description": "Runs, their events, what should be on in them."},
    {"name": "control", "description": "The person's hand: on, off, proposals, stop; what came of it."},
    {"name": "curves", "description": "Signals and histograms over steps, thinned for a screen."},
    {"name": "rules", "description": "What is done when a signal goes where it should not."},
    {"name": "questions", "description": "SQL, the views, the vocabulary."},
    {"name": "care", "description": "Backups, and whether the database is whole."},
    {"name": "health", "description": "For who watches the server."},
]


def build_app(settings: Settings, store: Store) -> FastAPI:
    """The application around an open ``store``; who made the store closes it.

    Raises:
        AuthError: the tokens' file cannot be read.
    """
    tokens = Tokens(settings.tokens_path)
    metrics = Metrics(lambda: store.queue_bytes, store.live_signals)
    store.on_commit(metrics.committed)
    engine = Engine(store)
    store.on_commit(engine.committed)
    app = FastAPI(
        title="entrostat",
        version=health.package_version(),
        description=_ABOUT,
        openapi_tags=_TAGS,
        lifespan=running(engine, Keeper(store, settings)),
    )
    app.state.tokens = tokens
    http_errors.install(app)
    routers: list[Any] = [
        ingest.router(store, settings),
        runs.router(store),
        analysis.router(store),
        control.router(store),
        series.router(store, settings),
        sql.router(store, settings, metrics),
        rules.router(store, engine),
        backups.router(store),
        health.router(store, metrics, tokens),
    ]
    for router in routers:
        app.include_router(router)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_mb * 2**20)
    app.add_middleware(SameSite, tokens=tokens)
    app.add_middleware(RefusalCounter, metrics=metrics)
    return app


def open_store(settings: Settings) -> Store:
    """The store that ``settings`` describe. Raises StorageError."""
    return Store(
        settings.url,
        decimals=None if settings.token_decimals < 0 else settings.token_decimals,
        linger_s=settings.linger_ms / 1000,
        max_commit_bytes=settings.max_commit_mb * 2**20,
        max_queue_bytes=settings.max_queue_mb * 2**20,
        memory_limit_mb=settings.memory_limit_mb,
        num_threads=settings.num_threads or None,
        max_temp_mb=settings.max_temp_mb,
        max_queries=settings.max_queries,
        query_timeout_s=settings.query_timeout_s,
        max_result_bytes=settings.max_result_mb * 2**20,
    )
