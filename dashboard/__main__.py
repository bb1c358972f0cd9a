"""``python -m entrostat.dashboard``: the dashboard alone."""

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

import waitress

from entrostat.dashboard.app import build_app
from entrostat.dashboard.guard import is_loopback
from entrostat.wire import logs
from entrostat.wire.client import Client

_log = logging.getLogger("entrostat.dashboard")


def main() -> int:
    """Serve until asked to stop; 2 where it cannot start."""
    parser = argparse.ArgumentParser("entrostat.dashboard", description="The dashboard of an entrostat server.")
    parser.add_argument("--server-url", default=os.environ.get("ENTROSTAT_URL", "http://127.0.0.1:8321"))
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8050)
    parser.add_argument("--token-file", help="file with the server's token; else ENTROSTAT_TOKEN")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="a name to answer to beside this machine's own, for example that of a proxy in front of it",
    )  # fmt: skip
    environment = os.environ.get
    parser.add_argument(
        "--log-format", default=environment("ENTROSTAT_DASHBOARD_LOG_FORMAT", "text"), help="text, json"
    )
    parser.add_argument("--log-level", default=environment("ENTROSTAT_DASHBOARD_LOG_LEVEL", "info"))
    given = parser.parse_args()
    try:
        logs.configure(given.log_format, given.log_level)
    except ValueError as error:
        sys.stderr.write(f"entrostat dashboard: {error}\n")
        return 2
    token = os.environ.get("ENTROSTAT_TOKEN")
    if given.token_file:
        token = Path(given.token_file).read_text().strip()
    hosts = given.allow_host if is_loopback(given.host) else None
    app = build_app(Client(given.server_url, token, timeout_s=10.0), given.server_url, hosts)
    sys.stdout.write(f"entrostat dashboard on http://{given.host}:{given.port} (server {given.server_url})\n")
    sys.stdout.flush()
    address = f"http://{given.host}:{given.port}"
    logs.event(_log, logging.INFO, "started", url=address, server=given.server_url)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # waitress ends in order on what this raises
    try:
        waitress.serve(app.server, host=given.host, port=given.port, threads=8, ident=None)
    except OSError as error:
        sys.stderr.write(f"entrostat dashboard: cannot listen on {given.host}:{given.port} ({error})\n")
        return 2
    logs.event(_log, logging.INFO, "stopped", url=address)
    return 0


if __name__ == "__main__":
    sys.exit(main())
