"""The server's own threads begin and end with the application."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from fastapi import FastAPI


class Worker(Protocol):
    """Something with a thread of its own."""

    def start(self) -> None:
        """Begin."""

    def close(self) -> None:
        """End; returns when the thread has."""


def running(*workers: Worker) -> Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]:
    """A lifespan for ``FastAPI``: the workers work while the application serves."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for worker in workers:
            worker.start()
        yield
        for worker in reversed(workers):
            await asyncio.to_thread(worker.close)

    return lifespan
