"""The application: routes around a store. Nothing is global, nothing happens on import."""

import logging
from functools import partial
from typing import Any

from fastapi import FastAPI

from entrostat.server import analysis, backups, health, http_errors, ingest, runs, series, sql, transfers
from entrostat.server.auth import Tokens
from entrostat.server.control import routes as control
from entrostat.server.guard_middleware import BodyLimit, KnownToken, SameSite, SecurityHeaders
from entrostat.server.metrics import Metrics
from entrostat.server.readiness import Readiness, Watch
from entrostat.server.refusals import RefusalCounter
from entrostat.server.restart import Overseer
from entrostat.server.retention import Keeper
from entrostat.server.rules import routes as rules
from entrostat.server.rules.engine import Engine
from entrostat.server.rules.running import running
from entrostat.server.settings import Settings
from entrostat.storage.audit import By
from entrostat.storage.store import Store

_log = logging.getLogger(__name__)

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


def build_app(settings: Settings, store: Store, overseer: Overseer | None = None) -> FastAPI:
    """The application around an open ``store``; who made the store closes it.

    Args:
        overseer: says how the process is; without one it is never replaced.

    Raises:
        AuthError: the tokens' file cannot be read.
    """
    tokens = Tokens(settings.tokens_path)
    readiness = Readiness(store)
    overseer = overseer or Overseer(store)
    watch = Watch(store, readiness, settings.slow_commit_s)
    metrics = Metrics(store, readiness.hindrance, settings.max_queries, health.package_version(), overseer.past.count)
    engine = Engine(store)
    for listener in (metrics.committed, watch.committed, engine.committed):
        store.on_commit(listener)
    app = FastAPI(
        title="entrostat",
        version=health.package_version(),
        description=_ABOUT,
        openapi_tags=_TAGS,
        lifespan=running(engine, watch, Keeper(store, settings)),
        redirect_slashes=False,  # a redirect names the Host that the client sent
    )
    app.state.tokens, app.state.readiness = tokens, readiness
    app.state.token_used = partial(_write_down, store)
    if not tokens.are_needed:
        app.openapi = lambda: _without_tokens(app)  # type: ignore[method-assign]  # FastAPI's own way to change it
    http_errors.install(app)
    routers: list[Any] = [
        ingest.router(store, settings),
        transfers.router(store, settings),
        runs.router(store),
        analysis.router(store),
        control.router(store),
        series.router(store, settings),
        sql.router(store, settings, metrics),
        rules.router(store, engine),
        backups.router(store),
        health.router(store, metrics, tokens, readiness, overseer),
    ]
    for router in routers:
        app.include_router(router)
    app.add_middleware(
        BodyLimit,
        max_bytes=settings.max_body_mb * 2**20,
        max_json_bytes=settings.max_json_mb * 2**20,
        patience_s=settings.body_patience_s,
        larger=transfers.larger_bodies(settings),
    )
    app.add_middleware(KnownToken, tokens=tokens)
    app.add_middleware(SameSite, tokens=tokens)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(RefusalCounter, metrics=metrics)
    return app


def _write_down(store: Store, name: str, scopes: frozenset[str], address: str | None) -> None:
    """A token is used for the first time. A store that cannot write just now must not keep a reader out."""
    try:
        store.token_used(name, scopes, By(name, None, address))
    except Exception as error:  # noqa: BLE001  whatever it is that the database cannot do
        _log.warning("the first use of token %r is not in the audit: %s", name, error)


def _without_tokens(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of a server that asks for no token."""
    document = FastAPI.openapi(app)
    document.get("components", {}).pop("securitySchemes", None)
    for methods in document["paths"].values():
        for operation in methods.values():
            operation.pop("security", None)
    return document


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
        min_free_bytes=settings.min_free_mb * 2**20,
    )
