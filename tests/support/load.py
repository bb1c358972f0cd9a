"""Producers that send as fast as they are answered, and remember what was acknowledged."""

import contextlib
import threading

import httpx


def _send(url, stream, acked, stop):
    seq = 0
    while not stop.is_set():
        try:
            answer = httpx.post(
                f"{url}/v1/streams/{stream}/batches/{seq}",
                json={"step_metric": [{"step": seq, "name": "n", "merge": "sum", "state": [1]}] * 5},
                timeout=20,
            )
        except httpx.HTTPError:
            return
        if answer.status_code == 200:
            acked.append((stream, seq))
            seq += 1


@contextlib.contextmanager
def senders(url, streams, acked):
    """Within, each of ``streams`` sends; ``acked`` gets a (stream, seq) for each batch that was acknowledged."""
    stop = threading.Event()
    threads = [threading.Thread(target=_send, args=(url, stream, acked, stop)) for stream in streams]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
