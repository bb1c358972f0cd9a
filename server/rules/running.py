"""The engine's thread begins and ends with the application."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from fastapi import FastAPI

from entrostat.server.rules.engine import Engine


def running(engine: Engine) -> Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]:
    """A lifespan for ``FastAPI``: rules are evaluated while the application serves."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.close)

    return lifespan
