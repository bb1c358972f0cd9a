"""Probe and server as processes of their own that start in milliseconds and can be killed: forks of one that has
imported everything.
"""

import contextlib
import io
import json
import multiprocessing
import os
import resource
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from support.patience import PATIENCE_S
from support.sent import token_rows

from entrostat.wire import handover, retry
from entrostat.wire.messages import StreamOpen
from entrostat.wire.sender import Sender
from entrostat.wire.tables import STEP_METRIC

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["support.forked", "entrostat.server.run"])


def rows_of(step, num_tokens):
    """Rows that tell of every copy that was stored: a sum of 1, and tokens with the step's number."""
    metric = [{"step": step, "name": "n", "merge": "sum", "state": [1.0]}]
    tables = {"step_metric": pa.Table.from_pylist(metric, schema=STEP_METRIC)}
    if num_tokens:
        tables["token"] = token_rows(num_tokens, step)
    return tables


def restored(document, data):
    """``push``'s way from what was handed over to rows."""
    said = json.loads(document)
    assert bytes(data) == b"x" * said["size"]
    return rows_of(said["step"], said["num_tokens"])


class Probe:
    """A process with a sender in it, which does as it is told over a pipe."""

    def __init__(self, root, url, run_id, **settings):
        self.run_id, self._pipe = run_id, CONTEXT.Pipe()
        self.process = CONTEXT.Process(
            target=_probe, args=(self._pipe[1], str(root), url, run_id, settings), daemon=True
        )
        self.process.start()
        self._pipe[1].close()
        self.stream_id = self._heard()

    def ask(self, *command):
        """Sends a command, returns what it answers."""
        self._pipe[0].send(command)
        return self._heard()

    def kill(self):
        self.process.kill()
        self.process.join()

    def _heard(self):
        assert self._pipe[0].poll(2 * PATIENCE_S), "the probe's process does not answer"
        return self._pipe[0].recv()


def _probe(pipe, root, url, run_id, settings):
    handover.is_local = lambda directory: True
    retry.LONGEST_WAIT_S = 0.2
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - what it warns of is expected
    opening = StreamOpen(run_id=run_id, session_id=os.urandom(16).hex(), started=datetime.now(UTC))
    sender = Sender(opening, url=url, token=None, root=Path(root), **settings)
    pipe.send(sender.stream_id)
    while True:
        try:
            name, *given = pipe.recv()
        except EOFError:
            os._exit(1)
        if name == "put":
            pipe.send(_put(sender, *given))
        elif name == "disk":
            # Of the system: every write that makes a file longer is refused, whoever makes it.
            limit = 0 if given[0] == "full" else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            pipe.send(None)
        elif name == "flush":
            pipe.send(sender.flush(*given))
        elif name == "close":
            sender.close(*given)
            pipe.send(sender.counters)
            os._exit(0)


def _put(sender, step, num_tokens, is_handed_over):
    """Whether it outlives the process from now on."""
    record = None
    if is_handed_over and sender.handover.keep([memoryview(b"x" * 1000)]) is not None:
        document = {"step": step, "num_tokens": num_tokens, "size": 1000}
        record = sender.handover.seal(json.dumps(document).encode())
    sender.put(lambda: rows_of(step, num_tokens), 1000, token_rows=num_tokens, record=record)
    return record is not None and record.number > 0


class Server:
    """The server in a process of its own, on one port and folder however often it is started."""

    def __init__(self, data, port, **settings):
        self.data, self.port, self._settings = data, port, settings
        self.process = None

    def start(self, clock_s=0.0, commit_s=0.0):
        """Starts it, with a clock that is wrong by so much, on a disk that takes so long; returns when it listens."""
        ready, told = CONTEXT.Pipe(duplex=False)
        arguments = (told, str(self.data), self.port, clock_s, commit_s, self._settings)
        self.process = CONTEXT.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        told.close()
        with contextlib.suppress(EOFError):
            assert ready.poll(2 * PATIENCE_S)
            assert ready.recv() == "listening"
            return self
        raise AssertionError("the server did not start")

    def kill(self):
        self.process.kill()
        self.process.join()

    def stop(self):
        self.process.terminate()
        self.process.join(PATIENCE_S)
        assert self.process.exitcode == 0


class _Told(io.TextIOBase):
    """Stands in for stdout: the server's first line is written when it listens."""

    def __init__(self, told):
        self._told = told

    def write(self, text):
        if self._told is not None:
            self._told.send("listening")
            self._told = None
        return len(text)


def _serve(told, data, port, clock_s, commit_s, settings):
    from entrostat.server.run import serve
    from entrostat.server.settings import Settings
    from entrostat.storage import rows

    insert = rows.insert_rows
    rows.insert_rows = lambda *given: (time.sleep(commit_s), insert(*given))  # within the transaction
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("entrostat.") and hasattr(module, "utc_now"):
            module.utc_now = _clock(module.utc_now, clock_s)
    sys.stdout = _Told(told)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as above
    assert threading.current_thread() is threading.main_thread()
    serve(Settings(data=data, port=port, **settings))


def _clock(now, wrong_by_s):
    return lambda: now() + timedelta(seconds=wrong_by_s)
