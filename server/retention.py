"""Retention while the server runs: at the start, and once an hour."""

import logging
import threading

from entrostat.server.settings import Settings
from entrostat.storage.retention import Policy
from entrostat.storage.store import Store

_log = logging.getLogger(__name__)

EVERY_S = 3600.0


class Keeper:
    """A thread that applies the settings' retention; none where they keep everything."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._policy = Policy(settings.keep_token_days, settings.keep_run_days, settings.max_database_mb * 2**20)
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="entrostat-retention", daemon=True)

    def start(self) -> None:
        """Begin, where there is something to do."""
        if not self._policy.keeps_everything:
            self._thread.start()

    def close(self) -> None:
        """End after the present piece of work."""
        self._is_closing.set()
        self._store.retention.stop()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        while not self._is_closing.is_set():
            try:
                self._store.retention.apply(self._policy)
            except Exception:  # noqa: BLE001  it is tried again in an hour; the server has other things to do meanwhile
                _log.exception("retention could not be applied")
            self._is_closing.wait(EVERY_S)
