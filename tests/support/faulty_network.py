"""A network between a probe and its server that loses, repeats, delays and cuts what passes through it."""

import http.client
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WAYS = ("lost_request", "lost_answer", "twice", "cut", "slow", "busy")
"""The request never arrives · its answer never does · it arrives twice · half of it does · late · a proxy says 503."""


class FaultyNetwork:
    """An HTTP proxy in front of ``server_port``. ``faults`` holds what happens to the next requests; empty: they pass.

    Attributes:
        acked: (stream, seq) of every batch that the server has acknowledged, whether the probe heard of it or not.
        passed: requests that passed, to be sent once more by ``repeat``.
    """

    def __init__(self, server_port):
        self.server_port = server_port
        self.faults, self.passed, self.acked = deque(), [], set()
        handler = type("Handler", (_Handler,), {"network": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self._http.handle_error = lambda *_: None  # a probe that was killed resets its connection
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        self._http.shutdown()
        self._http.server_close()

    def fault(self):
        try:
            return self.faults.popleft()
        except IndexError:
            return "none"

    def repeat(self, chance):
        """Some of what passed arrives once more, in another order: a network may deliver late."""
        for request in chance.sample(self.passed, min(len(self.passed), 5)):
            self.forward(*request)

    def forward(self, method, path, headers, body):
        """The server's (status, headers, body); None where it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            document = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        if method == "POST" and answer.status == 200:
            _, _, _, stream, _, seq = path.split("/")
            self.acked.add((stream, int(seq)))
        return answer.status, answer.getheader("Content-Type", "application/json"), document


class _Handler(BaseHTTPRequestHandler):
    network: FaultyNetwork
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kept = {name: self.headers[name] for name in ("Content-Type", "Authorization") if name in self.headers}
        request = (self.command, self.path, kept, body)
        fault = self.network.fault() if self.command == "POST" or not self.path.endswith("/desired") else "none"
        if fault == "busy":
            self.answer(503, "application/json", b'{"error": "busy", "message": "no room"}')
            return
        if fault == "slow":
            time.sleep(0.2)
        if fault == "cut":
            request = (self.command, self.path, kept, body[: len(body) // 2])
        found = None if fault == "lost_request" else self.network.forward(*request)
        if fault == "twice":
            found = self.network.forward(*request)
        if self.command == "POST" and fault != "cut":
            self.network.passed.append(request)
        # Of a request that is cut the sender sees its connection end, not what the server thought of the half.
        if found is None or fault in ("lost_answer", "cut"):
            self.close_connection = True
            return
        self.answer(*found)

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = pass_on
